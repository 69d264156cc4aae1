"""Moves in Kubernetes mode: what is written down before each step, and what the next term makes of it. The
ledger, the API server and the journal are fakes that write into one log."""

import asyncio
import random

import numpy as np
import orjson
import pytest
from waiting import until

from dispatcher.api.intake import read_template
from dispatcher.core.kubernetes.pod_objects import PodReader, readable_part
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.moves import BegunEviction, MoveRun, MoveState, PlannedMove, RunState
from dispatcher.core.pods.sets import NewPods, Order
from dispatcher.core.policy.rules import Policy
from dispatcher.journal.memory import MemoryJournal
from dispatcher.kubernetes.pod_moves import PodMoves
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ports import Knowledge, PodLocations
from dispatcher.runtime import Runtime
from hoss.errors import LedgerUnavailable
from hoss.kube.api import Reply
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U32, U64, decode, decode_uids, encode
from hoss.wire.convert import template_to_proto
from hoss.wire.uids import uid_from_text

READER = PodReader(["hoss"])
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
NODES = {"n0": 0, "n1": 1}
OLD_SEQ = 7


def pod_object(number, **metadata):
    uid = f"00000000-0000-0000-0000-{number:012d}"
    named = {"uid": uid, "namespace": "default", "name": f"web-{number}", "labels": {"app": "web"}}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}, "env": [{"name": "A"}]}
    return {
        "metadata": {**named, "ownerReferences": [OWNER], "managedFields": [{}], **metadata},
        "spec": {"schedulerName": "hoss", "containers": [container]},
    }


def on_node(number, **metadata):
    pod = pod_object(number, **metadata)
    return {**pod, "spec": {**pod["spec"], "nodeName": "n0"}}


LEAVING = on_node(1, deletionTimestamp="2026-11-24T00:00:00Z")


class Ledger:
    """Pods hold nodes, and targets stand or do not. `refuses`: whether nothing more is reserved."""

    def __init__(self, log):
        self.log = log
        self.held = {}  # node by UID
        self.targets = {}  # seq by UID of the pod
        self.refuses = False
        self.reserved = []  # the requests to reserve

    async def grant_epoch(self, _worker):
        return 3

    def known(self):
        return Knowledge("", {})

    async def lookup(self, uids):
        nodes = [self.held.get(uid.tobytes(), NONE_U32) for uid in uids]
        none = np.zeros(len(uids), np.bool_)
        return PodLocations(np.array(nodes, np.uint32), {}, none, none, np.zeros(len(uids), np.uint64))

    async def move(self, request):
        step = pb.MoveStep.Name(request.step).removeprefix("MOVE_").lower()
        self.log.append(step)
        await asyncio.sleep(0)
        uids = [uid.tobytes() for uid in decode_uids(request.uids)]
        if request.step == pb.MOVE_RESERVE:
            self.reserved.append(request)
            return self._reserve(uids)
        seqs = decode(request.seqs, U64, name="seqs").tolist()
        stands = [self.targets.get(uid) == seq for uid, seq in zip(uids, seqs, strict=True)]
        nodes = decode(request.nodes, U32, name="nodes").tolist()
        if request.step == pb.MOVE_UNDO:
            for uid in uids:
                self.targets.pop(uid, None)
        if request.step == pb.MOVE_CONFIRM:
            for uid, successor, node in zip(uids, decode_uids(request.successors), nodes, strict=True):
                if self.targets.pop(uid, None) is not None:
                    self.held[successor.tobytes()] = node
        return pb.MoveReply(results=bytes(pb.MOVED if one else pb.TARGET_GONE for one in stands))

    def _reserve(self, uids):
        verdicts = []
        for uid in uids:
            holds = uid in self.held and not self.refuses
            verdicts.append(pb.COMMITTED if holds else pb.CONFLICT_RESOURCE if self.refuses else 0)
            if holds:
                self.targets[uid] = 99
        zeros = np.zeros(len(uids))
        return pb.MoveReply(
            verdicts=bytes(verdicts),
            seqs=encode([99] * len(uids), U64),
            sources=encode(zeros, U32),
            source_seqs=encode(zeros, U64),
        )


class Api:
    """Has these pods, and evicts them unless `budget` forbids it."""

    def __init__(self, log, *pods):
        self.log = log
        self.pods = {f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}": pod for pod in pods}
        self.budget = True

    async def find(self, path, **_):
        return self.pods.get(path) if "/pods/" in path else {"metadata": {}}

    async def send(self, _method, path, _body):
        self.log.append("evict")
        if not self.budget:
            return Reply(429, b'{"message": "the budget allows none"}')
        self.pods.pop(path.removesuffix("/eviction"))
        return Reply(201, b"{}")


class Journal(MemoryJournal):
    def __init__(self, log):
        super().__init__()
        self.log = log
        self.away = False

    async def save_progress(self, progress):
        if self.away:
            raise LedgerUnavailable("the journal is away")
        named = any(eviction.successor for eviction in progress.evictions.values())
        self.log.append(f"note {progress.states}{'+successor' if named else ''}")
        await super().save_progress(progress)


class Term:
    """A dispatcher's term with these pods at the API server."""

    def __init__(self, *pods, held=(1,)):
        self.log = []
        self.ledger, self.api, self.journal = Ledger(self.log), Api(self.log, *pods), Journal(self.log)
        self.ledger.held = {uid_of(number): 0 for number in held}
        machine = Machine(Settings(), Policy(), None, random.Random(1))
        self.runtime = Runtime(machine, self.ledger, self.journal)
        self.nodes = ClusterNodes()
        self.moves = PodMoves(self.runtime, self.api, self.nodes, READER, NODES, timeout_seconds=0.05)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.runtime.end()

    async def take_over(self, *moves, state=RunState.RUNNING):
        """What a former term left."""
        left = run_of(*moves)
        left.state = state
        begun, progress = left.begun(lambda node: f"n{node}"), left.progress()
        await self.journal.save_moves(begun, progress)
        self.moves.record.run = await self.moves.take_over(begun, progress)
        return self.moves.record.run

    async def begin(self, *moves):
        """Pods that are bound here, whose moves are made from now on."""
        run = run_of(*moves)
        await self.moves.steps.begin()
        await self.moves.record.begin(run, lambda node: f"n{node}")
        template = read_template(template_to_proto(READER.read(on_node(1)).template))
        uids = decode_uids(b"".join(move.uid for move in moves))
        names = tuple(move.pod.partition("/")[2] for move in moves)
        listed = NewPods(names, np.zeros(len(moves), np.uint32), uids, None)
        registry = self.runtime.machine.registry
        accepted = registry.accept(Order("r", (template,), (), listed, ()), 1)
        rows = np.arange(len(moves), dtype=np.uint32) + np.uint32(accepted.sets[0].first)
        self.runtime.machine.restore_bound(rows, np.zeros(len(moves), np.uint32))
        return run


def uid_of(number):
    return uid_from_text(pod_object(number)["metadata"]["uid"])


def run_of(*moves):
    return MoveRun(list(moves), (1,), 0, 10.0)


def move(number=1, *, state=MoveState.WAITING, eviction=None):
    return PlannedMove(uid_of(number), f"default/web-{number}", 0, 1, state, "", eviction)


def evicted(*, successor=None):
    readable = orjson.dumps(readable_part(on_node(1)))
    return move(state=MoveState.EVICTED, eviction=BegunEviction(readable, OLD_SEQ, successor))


def seen(number):
    return READER.read(pod_object(number))


async def test_an_eviction_and_a_successor_are_in_the_journal_before_anything_is_done_about_them():
    async with Term(on_node(1)) as term:
        run = await term.begin(move())
        making = asyncio.ensure_future(term.moves.make(run, run.moves))
        await until(lambda: "evict" in term.log)
        assert await term.moves.place([seen(2)]) == {uid_of(2): 1}
        await making
        assert term.log == ["reserve", "renew", "note E", "evict", "note E+successor", "confirm"]
        assert (run.moves[0].state, run.moves[0].text) == (MoveState.MOVED, "default/web-2")


async def test_what_a_pod_takes_on_its_target_is_reserved_with_it_and_nothing_is_said_of_the_source():
    mounting, other = on_node(1), on_node(3)
    mounting["spec"]["volumes"] = [{"name": "v", "gcePersistentDisk": {"pdName": "d"}}]
    async with Term(mounting, other, held=(1, 3)) as term:
        entries = [
            pb.NodeEntry(index=index, spec=common_pb2.NodeSpec(name=name)) for name, index in NODES.items()
        ]
        term.nodes.read(pb.FeedMessage(nodes=entries))
        run = await term.begin(move(), move(3))
        making = asyncio.ensure_future(term.moves.make(run, run.moves))
        await until(lambda: term.ledger.reserved)
        making.cancel()
        names = [list(taken.names) for request in term.ledger.reserved for taken in request.reserved_names]
        assert names == [["disk/n1/gcePersistentDisk/d"], []]


async def test_nothing_is_evicted_while_the_journal_is_away():
    async with Term(on_node(1)) as term:
        run = await term.begin(move())
        term.journal.away = True
        making = asyncio.ensure_future(term.moves.make(run, run.moves))
        await until(lambda: run.moves[0].text)
        assert (run.moves[0].state, run.moves[0].text) == (MoveState.WAITING, "the journal is away")
        making.cancel()
        assert "evict" not in term.log


async def test_a_successor_that_holds_the_place_was_moved_whatever_became_of_it_since():
    async with Term(held=()) as term:
        term.ledger.held[uid_of(2)] = 1
        run = await term.take_over(evicted(successor=(uid_of(2), "default/web-2")))
        assert (run.moves[0].state, run.moves[0].text) == (MoveState.MOVED, "default/web-2")
        assert run.state is RunState.DONE


@pytest.mark.parametrize("named", [None, (uid_of(2), "default/web-2"), (uid_of(8), "default/web-8")])
async def test_a_place_that_stands_goes_to_the_successor_that_came_between_the_terms(named):
    async with Term(held=()) as term:
        term.ledger.targets[uid_of(1)] = OLD_SEQ
        run = await term.take_over(evicted(successor=named))
        assert run.moves[0].state is MoveState.EVICTED
        assert await term.moves.place([seen(2), seen(3)]) == {uid_of(2): 1}
        await term.moves.end(run)
        assert (run.moves[0].state, run.moves[0].text) == (MoveState.MOVED, "default/web-2")


async def test_a_place_is_renewed_until_its_successor_comes(monkeypatch):
    monkeypatch.setattr("dispatcher.kubernetes.pod_moves._RENEW_SECONDS", 0)
    async with Term(LEAVING) as term:
        term.ledger.targets[uid_of(1)] = OLD_SEQ
        await term.take_over(evicted())
        await until(lambda: term.log.count("renew") >= 4)
        assert await term.moves.place([seen(2)]) == {uid_of(2): 1}


async def test_a_pod_that_has_not_ended_yet_gets_another_reservation_where_the_first_one_has():
    async with Term(LEAVING) as term:
        run = await term.take_over(evicted())
        assert run.moves[0].eviction.seq == 99
        assert await term.moves.place([seen(2)]) == {uid_of(2): 1}
        # Up to the former term's own commit: it must not be refused because of that.
        assert decode(term.ledger.reserved[0].seen, U64, name="seen").tolist() == [OLD_SEQ]


async def test_only_the_move_that_a_former_term_reserved_is_reserved_again_past_that_terms_commit():
    async with Term(on_node(1), on_node(2), held=(1, 2)) as term:
        run = await term.begin(move(), move(2))
        run.moves[0].judged_seq = OLD_SEQ
        run.pause("nothing is evicted")
        await term.moves.make(run, run.moves)
        told = {
            request.uids: decode(request.seen, U64, name="seen").tolist() for request in term.ledger.reserved
        }
        assert told == {uid_of(1): [OLD_SEQ], uid_of(2): [1]}


async def test_a_pod_whose_place_has_ended_and_that_was_not_evicted_waits_and_knows_the_former_commit():
    async with Term(on_node(1)) as term:
        run = await term.take_over(evicted())
        assert (run.moves[0].state, run.moves[0].judged_seq) == (MoveState.WAITING, OLD_SEQ)


def test_the_commit_of_a_former_term_counts_on_the_shard_of_the_target_alone():
    planned = move()
    planned.target, planned.judged_seq = 4, 9
    assert MoveRun([planned], (5, 6, 7), 0, 10.0).seen_for(planned) == (5, 9, 7)


@pytest.mark.parametrize(
    ("pods", "held", "why"),
    [
        (
            (),
            (),
            "the pod holds no reservation that could be moved, was evicted, or holds devices of its node",
        ),
        ((LEAVING,), (1,), "there is no room for it on the node any more"),
    ],
)
async def test_a_place_that_ended_meanwhile_is_lost_and_that_is_said(pods, held, why):
    async with Term(*pods, held=held) as term:
        term.ledger.refuses = bool(held)
        run = await term.take_over(evicted())
        assert run.moves[0].state is MoveState.REFUSED
        assert run.moves[0].text == (
            "evicted, and a takeover took longer than the reservation of its new place lasts"
            f" ({why}): its successor is placed as any pod"
        )
        assert await term.moves.place([seen(2)]) == {}


@pytest.mark.parametrize("state", [MoveState.EVICTED, MoveState.WAITING])
async def test_a_pod_that_was_not_evicted_after_all_waits_for_its_turn_and_keeps_its_new_place(
    monkeypatch, state
):
    monkeypatch.setattr("dispatcher.kubernetes.pod_moves._IN_DOUBT_SECONDS", 0)
    async with Term(on_node(1)) as term:
        term.ledger.targets[uid_of(1)] = OLD_SEQ
        left = evicted()
        left.state = state
        run = await term.take_over(left)
        assert await term.moves.place([seen(2)]) == {}  # while the pod is there, this is no successor of it
        await term.moves.end(run)
        assert (run.moves[0].state, run.moves[0].eviction) == (MoveState.WAITING, None)
        assert run.due(0.0, 0) == run.moves
        assert await term.moves.place([seen(3)]) == {}
        assert uid_of(1) in term.ledger.targets


async def test_of_a_paused_run_it_gives_its_new_place_back(monkeypatch):
    monkeypatch.setattr("dispatcher.kubernetes.pod_moves._IN_DOUBT_SECONDS", 0)
    async with Term(on_node(1)) as term:
        term.ledger.targets[uid_of(1)] = OLD_SEQ
        run = await term.take_over(evicted(), state=RunState.PAUSED)
        await term.moves.end(run)
        assert term.ledger.targets == {}


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.PAUSED])
@pytest.mark.parametrize("comes", ["before the next look", "later"])
async def test_an_eviction_that_was_on_its_way_when_the_next_term_looked_is_a_move_with_its_new_place(
    monkeypatch, state, comes
):
    monkeypatch.setattr("dispatcher.kubernetes.pod_moves._LOOK_SECONDS", 0)
    async with Term(on_node(1)) as term:
        term.ledger.targets[uid_of(1)] = OLD_SEQ
        run = await term.take_over(evicted(), state=state)
        assert "perhaps evicted" in run.moves[0].text
        ended = None
        if comes == "later":
            ended = asyncio.ensure_future(term.moves.end(run))
            await asyncio.sleep(0)
        term.api.pods["/api/v1/namespaces/default/pods/web-1"] = LEAVING  # it is carried out only now
        if comes == "later":
            await until(lambda: run.moves[0].text.startswith("evicted"))
        assert await term.moves.place([seen(2)]) == {uid_of(2): 1}
        await (ended or term.moves.end(run))
        assert (run.moves[0].state, run.moves[0].text) == (MoveState.MOVED, "default/web-2")
        assert term.ledger.held[uid_of(2)] == 1


async def test_a_successor_that_never_comes_is_given_up_in_the_next_term_as_well():
    async with Term(held=()) as term:
        term.ledger.targets[uid_of(1)] = OLD_SEQ
        grace = {**on_node(1)["spec"], "terminationGracePeriodSeconds": 0}
        readable = orjson.dumps(readable_part({**on_node(1), "spec": grace}))
        run = await term.take_over(move(state=MoveState.EVICTED, eviction=BegunEviction(readable, OLD_SEQ)))
        await term.moves.end(run)
        assert "no successor has come within 0.05 s: its place is free again" in run.moves[0].text
        assert term.ledger.targets == {}


def test_what_is_kept_of_a_pod_is_read_as_the_pod_and_has_nothing_else():
    kept = readable_part(on_node(1, annotations={"other": "x" * 1000, "hoss.dev/movable": "true"}))
    assert READER.read(kept) == READER.read(on_node(1, annotations={"hoss.dev/movable": "true"}))
    assert not {b"env", b"other", b"managedFields"} & set(orjson.dumps(kept).replace(b'"', b" ").split())
