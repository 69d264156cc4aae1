"""When a lost ledger is rebuilt, and what from."""

import asyncio
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from dispatcher.core import messages as m
from dispatcher.core.pods.sets import NewPods
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebuilding import LedgerRebuilder
from dispatcher.ports import LedgerStatus
from hoss.errors import TransportError
from hoss.model.pod import PodSpec
from hoss.tasks import background
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb

UID = bytes(range(16))


class LostLedger:
    """Is lost until it is rebuilt, and notes with how many pods that was done."""

    known_epoch = "old"

    def __init__(self) -> None:
        self.stands = LedgerStatus("recovering-1", shards=1, recovering=True)
        self.rebuilt_with: list[int] = []
        self.rebuilt = asyncio.Event()
        self.as_kept = 0
        self.told: list[str] = []

    async def announce_rebuild(self, waits_for):
        self.told.append(waits_for)
        raise TransportError("this resolver does not answer either")

    async def status(self):
        return self.stands

    async def rebuild(self, parts):
        self.as_kept += parts[0].head.as_kept
        self.rebuilt_with.append(sum(len(part.pods.uids) // 16 for part in parts))
        self.stands = LedgerStatus(parts[0].head.ledger_epoch, shards=1, recovering=False)
        self.rebuilt.set()
        return pb.RebuildReply(ledger_epoch=parts[0].head.ledger_epoch)


class Term:
    """A runtime of a machine, for the rebuilder."""

    def __init__(self, bench) -> None:
        self.machine = bench.machine
        self.journal = SimpleNamespace(rewrite=self._rewrite)
        self.problems: dict[str, str] = {}
        self.lost = 0

    async def _rewrite(self) -> None:
        pass

    def handle(self, event) -> None:
        self.lost += isinstance(event, m.LedgerLost)

    async def until_answered(self, ask, _peer="resolver"):
        return await ask()


class Cluster:
    """An API server that does not answer at first, and then tells of a pod on a node that no watch has
    shown."""

    def __init__(self, bench, term, *, silent: int) -> None:
        self.bench, self.term, self.silent = bench, term, silent
        self.asked = 0
        self.problems: list[str] = []

    async def catch_up(self) -> None:
        self.asked += 1
        if self.asked <= self.silent:
            self.problems.append(self.term.problems.get("api_server", ""))
            raise TransportError("nobody listens")
        uids = np.frombuffer(UID, np.uint8).reshape(1, 16)
        template = self.bench._template(PodSpec())
        rows = self.bench.admit((template,), (), NewPods(("p",), np.zeros(1, np.uint32), uids))
        self.bench.handle(m.Assigned(rows, np.zeros(1, np.uint32)))


def rebuilder_of(bench, monkeypatch, *, silent: int):
    monkeypatch.setattr("dispatcher.ledger.rebuilding._RETRY_SECONDS", 0.0)
    ledger, term = LostLedger(), Term(bench)
    cluster = Cluster(bench, term, silent=silent)
    leadership = SimpleNamespace(term=1, require_valid_lease=lambda: None)
    made = LedgerRebuilder(
        term, ledger, ClusterNodes(), leadership, rng=random.Random(1), catch_up=cluster.catch_up
    )
    return made, ledger, term, cluster


async def test_a_lost_ledger_is_rebuilt_only_once_the_api_server_has_said_which_pods_are_bound(
    bench, monkeypatch
):
    made, ledger, term, cluster = rebuilder_of(bench, monkeypatch, silent=3)
    lost, ledger.stands = ledger.stands, LedgerStatus("old", shards=1, recovering=False)
    async with made.during_recovery():
        pass
    ledger.stands = lost
    await made.check()
    assert (cluster.asked, ledger.rebuilt_with, ledger.as_kept) == (4, [1], 0)
    assert "nobody listens" in cluster.problems[-1]
    assert ledger.told == ["the API server to say which pods are bound"]  # and again every second
    assert term.problems == {}
    assert term.lost == 1  # workers are disconnected once, not with every attempt


async def test_a_ledger_that_was_rebuilt_from_what_redis_kept_counts_once_the_term_has_caught_up(
    bench, monkeypatch
):
    made, ledger, _, cluster = rebuilder_of(bench, monkeypatch, silent=0)
    async with made.during_recovery():
        assert (ledger.as_kept, cluster.asked) == (1, 0)  # the pods of this term are not listed yet
    assert cluster.asked == 1


async def test_a_term_that_finds_its_ledger_whole_does_not_wait_for_the_api_server(bench, monkeypatch):
    made, ledger, _, cluster = rebuilder_of(bench, monkeypatch, silent=0)
    ledger.stands = LedgerStatus("old", shards=1, recovering=False)
    async with made.during_recovery():
        pass
    assert (ledger.rebuilt_with, cluster.asked) == ([], 0)


@pytest.mark.parametrize(("shards_shown", "as_kept"), [(0, 1), (1, 1), (2, 0)])
async def test_nodes_that_the_feed_has_not_shown_yet_stay_as_redis_has_kept_them(
    bench, shards_shown, as_kept
):
    ledger, nodes = LostLedger(), ClusterNodes()
    lost, ledger.stands = ledger.stands, LedgerStatus("old", shards=2, recovering=False)
    leadership = SimpleNamespace(term=1, require_valid_lease=lambda: None)
    made = LedgerRebuilder(Term(bench), ledger, nodes, leadership, rng=random.Random(1))
    async with made.during_recovery():
        pass
    for shard in range(shards_shown):
        spec = common_pb2.NodeSpec(name=f"n{shard}")
        entries = [pb.NodeEntry(index=shard, spec=spec)]
        nodes.read(pb.FeedMessage(snapshot=True, shard=shard, shards=2, nodes=entries))
    ledger.stands = lost
    await made.check()
    assert ledger.as_kept == as_kept


async def test_nothing_of_a_ledger_counts_from_the_moment_on_at_which_the_feed_shows_that_it_went_back(
    bench, monkeypatch
):
    made, ledger, term, _ = rebuilder_of(bench, monkeypatch, silent=0)
    ledger.stands = LedgerStatus("old", shards=1, recovering=False)
    async with made.during_recovery():
        pass
    seen = []
    follow = made.filtered(seen.append)
    async with background(made.run()):
        follow(pb.FeedMessage(seq=9))
        follow(pb.FeedMessage(seq=8, snapshot=True, ledger_epoch="old", went_back=True))
        follow(pb.FeedMessage(seq=9))
        assert ledger.known_epoch != "old"  # whatever it answers now is refused
        assert [message.seq for message in seen] == [9]
        await ledger.rebuilt.wait()  # at once, and not with the check of a second later
    assert (ledger.stands.epoch, term.lost) == (ledger.known_epoch, 1)
    follow(pb.FeedMessage(seq=1, snapshot=True, ledger_epoch=ledger.known_epoch))
    assert [message.seq for message in seen] == [9, 1]


@pytest.mark.parametrize("epoch", ["", "another"])
async def test_nodes_are_not_forgotten_for_what_a_resolver_tells_of_another_ledger_or_of_none(
    bench, monkeypatch, epoch
):
    """It has started beside an emptied Redis. The ledger is rebuilt with the nodes that are known."""
    made, _, _, _ = rebuilder_of(bench, monkeypatch, silent=0)
    nodes = ClusterNodes()
    apply = made.filtered(nodes.read)
    entry = pb.NodeEntry(index=0, spec=common_pb2.NodeSpec(name="n0"))
    apply(pb.FeedMessage(snapshot=True, shards=1, ledger_epoch="old", nodes=[entry]))
    apply(pb.FeedMessage(snapshot=True, shards=1, ledger_epoch=epoch))
    assert [index for index, _ in nodes.to_rebuild()] == [0]
    apply(pb.FeedMessage(snapshot=True, shards=1, ledger_epoch="old"))
    assert not [*nodes.to_rebuild()]


async def test_a_ledger_is_looked_at_again_and_again_as_long_as_the_feed_shows_no_loss(bench, monkeypatch):
    """On every Python: until 3.11 the time that is over is another error than the built-in one."""
    monkeypatch.setattr("dispatcher.ledger.rebuilding._CHECK_SECONDS", 0.01)
    made, ledger, _, _ = rebuilder_of(bench, monkeypatch, silent=0)
    ledger.stands = LedgerStatus("old", shards=1, recovering=False)
    looks, third = itertools.count(1), asyncio.Event()

    async def status():
        if next(looks) == 3:
            third.set()
        return ledger.stands

    ledger.status = status
    async with background(made.run()):
        await third.wait()
    assert ledger.rebuilt_with == []
