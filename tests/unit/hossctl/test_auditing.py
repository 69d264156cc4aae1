"""What counts as a violation when processes are asked at slightly different moments."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from hoss.v1 import dispatcher_pb2, resolver_pb2
from hoss.wire.columns import U8, U32, encode, numbered_uids
from hossctl import auditing

UIDS = numbered_uids(b"p" * 12, 0, 3)


class FakePlatform:
    """A dispatcher and a resolver in one, whose answers tests set; every look calls `moves` first."""

    def __init__(self):
        self.bound, self.bound_nodes = UIDS, [1, 2, 3]
        self.held, self.held_nodes, self.assumed = UIDS, [1, 2, 3], [0, 0, 0]
        self.states: list[int] = []
        self.seq, self.view_seq, self.digest, self.view_digest, self.idle = 5, 5, 0xA, 0xA, True
        self.violations = []
        self.broken_gangs = []
        self.synchronisation = "push"
        self.looks = 0
        self.moves = lambda: None

    async def audit(self, timeout_ms=None):
        if timeout_ms is None:  # the resolver's
            self.looks += 1
            self.moves()
            digests = [resolver_pb2.ShardDigest(seq=self.seq, digest=self.digest)]
            return resolver_pb2.AuditReply(
                violations=self.violations, nodes=4, reservations=3, digests=digests
            )
        view = dispatcher_pb2.WorkerView(
            worker="w", seq=self.view_seq, digest=self.view_digest, idle=self.idle
        )
        return dispatcher_pb2.DispatcherAuditReply(
            views=[view],
            bound_uids=self.bound.tobytes(),
            bound_nodes=encode(self.bound_nodes, U32),
            broken_gangs=self.broken_gangs,
        )

    async def list_workers(self):
        return [
            dispatcher_pb2.WorkerInfo(name="w", state="Ready", synchronisation=self.synchronisation),
            dispatcher_pb2.WorkerInfo(name="gone", state="Lost"),
        ]

    async def reservations(self, *, details):
        assert details
        yield resolver_pb2.ReservationChunk(
            uids=self.held.tobytes(),
            nodes=encode(self.held_nodes, U32),
            assumed=encode(self.assumed, U8),
            states=bytes(self.states),
        )


@pytest.fixture
def platform() -> FakePlatform:
    return FakePlatform()


@pytest.fixture(autouse=True)
async def _virtual_time(virtual_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))


async def audit(platform: FakePlatform) -> auditing.AuditResult:
    return await auditing.audit(platform, platform, wait_seconds=10)


async def test_agreement_is_clean_at_the_first_look(platform):
    result = await audit(platform)
    assert (result.exit_code, result.verdict, platform.looks) == (0, "clean", 1)
    assert (result.nodes, result.reservations, result.bound, result.workers) == (4, 3, 3, 1)


async def test_a_violation_in_the_ledger_is_reported_at_once(platform):
    platform.violations = [resolver_pb2.Violation(invariant=1, text="node n has 5 of 4")]
    result = await audit(platform)
    assert result.exit_code == 1
    assert result.findings == [auditing.Finding(1, "node n has 5 of 4")]
    assert platform.looks == 1


async def test_invariant_6_a_cache_that_differs_at_the_same_seq_is_a_violation(platform):
    platform.view_digest = 0xB
    result = await audit(platform)
    assert result.exit_code == 1
    assert (
        "worker w, shard 0: cache and ledger differ at the same sequence number 5" in result.findings[0].text
    )


async def test_a_cache_that_stays_behind_could_not_be_checked(platform):
    platform.view_seq = 4
    result = await audit(platform)
    assert result.exit_code == 2
    assert result.unchecked == ["worker w, shard 0: its cache is at 4, the ledger at 5"]


async def test_a_cache_that_catches_up_is_clean(platform):
    platform.view_seq, platform.view_digest = 4, 0xB

    def catch_up():
        if platform.looks == 3:
            platform.view_seq, platform.view_digest = 5, 0xA

    platform.moves = catch_up
    assert (await audit(platform)).exit_code == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"held": UIDS[:2], "held_nodes": [1, 2], "assumed": [0, 0]}, "is bound and has no reservation"),
        ({"held_nodes": [1, 2, 9]}, "is bound to node 3 and its reservation is on another"),
        ({"bound": UIDS[:2], "bound_nodes": [1, 2]}, "has a confirmed reservation and is not bound"),
        ({"bound": UIDS[:0], "bound_nodes": [], "held": UIDS[:1], "held_nodes": [1], "assumed": [0]},
        "00000000 has a confirmed"),
        ({"held": UIDS[:0], "held_nodes": [], "assumed": []}, "is bound and has no reservation"),
    ],
)  # fmt: skip
async def test_invariant_3_bound_pods_and_confirmed_reservations_are_the_same(platform, change, text):
    for name, value in change.items():
        setattr(platform, name, value)
    result = await audit(platform)
    assert result.exit_code == 1
    assert text in result.findings[0].text
    assert platform.looks > 1  # it was looked at more than once before it counted


async def test_an_assumed_reservation_needs_no_bound_pod(platform):
    platform.bound, platform.bound_nodes, platform.assumed = UIDS[:2], [1, 2], [0, 0, 1]
    assert (await audit(platform)).exit_code == 0


async def test_a_terminating_reservation_needs_no_bound_pod(platform):
    platform.bound, platform.bound_nodes = UIDS[:2], [1, 2]
    confirmed = resolver_pb2.RESERVATION_CONFIRMED
    platform.states = [confirmed, confirmed, resolver_pb2.RESERVATION_TERMINATING]
    assert (await audit(platform)).exit_code == 0
    platform.states[2] = confirmed
    assert (await audit(platform)).exit_code == 1


async def test_pods_that_differ_at_every_look_are_no_violation_but_unchecked(platform):
    def churn():
        missing = platform.looks % 3
        kept = np.arange(3) != missing
        platform.held, platform.held_nodes, platform.assumed = UIDS[kept], (np.arange(3) + 1)[kept], [0, 0]

    platform.moves = churn
    result = await audit(platform)
    assert result.exit_code == 2
    assert result.unchecked == ["the bound pods: they and the reservations changed all the time"]


async def test_invariant_5_a_gang_with_some_pods_bound_and_too_few_is_a_violation(platform):
    platform.broken_gangs = [dispatcher_pb2.BrokenGang(namespace="ml", name="train", bound=3, needed=8)]
    result = await audit(platform)
    assert result.findings == [auditing.Finding(5, "gang ml/train has 3 pods bound and needs 8")]


async def test_a_gang_that_lost_pods_after_it_was_complete_is_reported_and_no_violation(platform):
    lost = dispatcher_pb2.BrokenGang(namespace="ml", name="train", bound=3, needed=8, complete_before=True)
    platform.broken_gangs = [lost]
    result = await audit(platform)
    assert result.exit_code == 0
    assert result.reports == ["gang ml/train has 3 pods bound and needs 8, after it was complete"]


async def test_a_gang_seen_in_the_middle_of_a_change_is_no_violation(platform):
    platform.broken_gangs = [dispatcher_pb2.BrokenGang(namespace="ml", name="train", bound=3, needed=8)]

    def complete():
        if platform.looks == 2:
            platform.broken_gangs = []

    platform.moves = complete
    assert (await audit(platform)).verdict == "clean"


async def test_a_cache_that_hears_of_refusals_alone_is_named_and_not_compared(platform):
    platform.synchronisation, platform.view_digest, platform.idle = "refusal", 0xB, True
    result = await audit(platform)
    assert (result.exit_code, result.workers) == (0, 0)
    assert result.reports == ["worker w hears of the ledger by refusals only: its cache is not compared"]


async def test_a_cache_that_is_pulled_is_compared_like_one_that_follows(platform):
    platform.synchronisation, platform.view_digest = "pull", 0xB
    assert (await audit(platform)).exit_code == 1
