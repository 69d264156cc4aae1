"""The runtime around the machine: what it does when its term has ended, when a job fails, and with the names
of workers that are gone."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from waiting import until

from dispatcher.api.intake import read_order
from dispatcher.api.service import DispatcherService
from dispatcher.core import messages as m
from dispatcher.core.machine import Machine, Settings
from dispatcher.core.pods.table import Phase
from dispatcher.core.policy.rules import Policy
from dispatcher.core.workers.reports import Heartbeat
from dispatcher.journal.memory import MemoryJournal
from dispatcher.ledger.move_steps import MOVER
from dispatcher.ledger.moving import Mover
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.ledger.rebinding import Rebinding
from dispatcher.ports import Knowledge, LedgerMarks, PodLocations, Record, ReservationColumns
from dispatcher.recovery import recover
from dispatcher.runtime import Runtime, TermFailed
from hoss.client.dispatcher import submission
from hoss.errors import LedgerUnavailable
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.v1 import common_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32, Uids
from hoss.wire.convert import pod_spec_from_proto
from hoss.wire.uids import uid_text


def located(nodes: NDArray[np.uint32]) -> PodLocations:
    none = np.zeros(len(nodes), np.bool_)
    return PodLocations(nodes, {}, none, none, np.zeros(len(nodes), np.uint64))


class Ledger:
    """Nothing is reserved in it. It can be away, and it can answer with nonsense."""

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.asked = 0
        self.at_once = self.most_at_once = 0
        self.away = False
        self.broken = False

    async def grant_epoch(self, worker: str) -> int:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.away:
            raise LedgerUnavailable("it is away")
        self.granted.append(worker)
        return len(self.granted)

    async def dispatcher_marks(self) -> LedgerMarks:
        return LedgerMarks(0, (0, 0))

    async def lookup(self, uids: Uids) -> PodLocations:
        self.asked += 1
        if self.broken:
            raise ValueError("a column has no length")
        return located(np.full(len(uids), NONE_U32, np.uint32))

    async def confirm(self, _commits: m.Commits) -> int:
        return 0

    def known(self) -> Knowledge:
        return Knowledge("", {})

    async def release(self, _uids: Uids, _nodes: Any, _as_of: Any) -> None:
        """Nothing is held."""

    def granted_in_term(self, epochs: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.ones(len(epochs), np.bool_)

    async def reservations(self, *, digests: bool) -> AsyncIterator[ReservationColumns]:
        del digests
        for part in ():
            yield part


class Link:
    """A worker's stream that drops its messages."""

    name = "w1"

    def send(self, instruction: m.ToWorker) -> None:
        """Nothing."""

    put = send

    def close(self, text: str, *, taken: bool = False) -> None:
        """Nothing."""


def decode(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def runtime(ledger: Ledger, journal: MemoryJournal) -> Runtime:
    return Runtime(Machine(Settings(), Policy(), decode, random.Random(1)), ledger, journal)


async def join(runtime: Runtime, name: str = "w1", link: int = 1) -> None:
    """A worker registers and is ready."""
    runtime.links[link] = Link()
    runtime.handle(m.Registered(link, name, {}, 1, 100))
    await until(lambda: (w := runtime.machine.members.get(name)) is not None and w.living)
    runtime.handle(m.HeartbeatReceived(link, Heartbeat(ready=True)))


def leave(runtime: Runtime, link: int = 1) -> None:
    runtime.links.pop(link, None)
    runtime.handle(m.LinkClosed(link))


def submit(runtime: Runtime, pods: int) -> Any:
    (request,) = submission([Workload("web", PodTemplate(PodSpec(), owner_kind="Job"), pods)], "web")
    made = runtime.machine.registry.accept(read_order(request), 1)
    runtime.handle(m.Admitted(made))
    return made


async def test_after_its_end_a_runtime_handles_nothing_and_starts_nothing(runtime, ledger):
    """As when streams close after the term's tasks were cancelled: their workers are lost to nobody."""
    serving = asyncio.ensure_future(runtime.serve())
    await join(runtime)
    submit(runtime, 10)
    assert runtime.machine.members.get("w1").outstanding == 10
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    asked, tasks = ledger.asked, len(asyncio.all_tasks())
    leave(runtime)
    runtime.perform([m.Fence("w1", np.zeros((1, 16), np.uint8))])
    assert (len(asyncio.all_tasks()), ledger.asked) == (tasks, asked)
    assert runtime.machine.members.get("w1").living


async def test_the_end_stops_jobs_that_wait_for_a_peer_and_the_timer_of_a_lingering_batch(runtime, ledger):
    """Also while recovering, when nothing serves yet."""
    await join(runtime)
    submit(runtime, 10)
    ledger.away = True
    tasks = len(asyncio.all_tasks())
    leave(runtime)
    await until(lambda: "resolver" in runtime.problems)
    await runtime.end()
    assert len(asyncio.all_tasks()) == tasks
    assert runtime._linger is None or runtime._linger.cancelled()


async def test_what_was_not_ready_is_released_before_the_rest_of_its_commits_is_confirmed(runtime, ledger):
    """Who takes over in between must find nothing confirmed that was not ready."""
    done = []

    async def release(*_asked):
        await asyncio.sleep(0)
        done.append("released")

    async def confirm(_commits):
        done.append("confirmed")
        return 1

    ledger.release, ledger.confirm = release, confirm
    submit(runtime, 2)
    rows = np.arange(2, dtype=np.uint32)
    uids = runtime.machine.registry.pods.uid[rows]
    rest = m.Confirm({0: np.array([7], np.uint64)}, rows[:1], uids[:1])
    runtime.perform([m.Release(rows[1:], uids[1:], rows[1:], unreserved=True, confirm=rest)])
    await until(lambda: len(done) == 2)
    assert done == ["released", "confirmed"]


def confirm_of(runtime, row):
    """The confirmation of the commit of a pod, which has the row's number."""
    rows = np.array([row], np.uint32)
    return m.Confirm({0: np.array([row], np.uint64)}, rows, runtime.machine.registry.pods.uid[rows])


async def test_a_confirmation_does_not_wait_for_the_lost_answer_to_an_earlier_one(runtime, ledger):
    """Its lease would end."""
    asked: list[list[int]] = []
    lost = asyncio.Event()

    async def confirm(commits):
        asked.append(commits[0].tolist())
        if len(asked) == 1:
            await lost.wait()
            raise LedgerUnavailable("no answer in time")
        return len(commits[0])

    ledger.confirm = confirm
    submit(runtime, 2)
    told = []
    runtime.on_confirmed = lambda rows, _uids: told.append(rows.tolist())
    runtime.perform([confirm_of(runtime, 0)])
    await until(lambda: asked == [[0]])
    runtime.perform([confirm_of(runtime, 1)])
    lost.set()
    await until(lambda: told)
    assert asked == [[0], [0, 1]]
    assert told == [[0, 1]]


async def test_a_confirmation_does_not_wait_until_an_earlier_one_is_looked_up(runtime, ledger):
    asked: list[list[int]] = []
    looked_up = asyncio.Event()

    async def confirm(commits):
        asked.append(commits[0].tolist())
        return len(asked) - 1  # the first was confirmed before, or its lease is over

    async def lookup(uids):
        await looked_up.wait()
        return located(np.full(len(uids), NONE_U32, np.uint32))

    ledger.confirm, ledger.lookup = confirm, lookup
    submit(runtime, 2)
    told = []
    runtime.on_confirmed = lambda rows, _uids: told.append(rows.tolist())
    runtime.perform([confirm_of(runtime, 0)])
    await until(lambda: asked == [[0]])
    runtime.perform([confirm_of(runtime, 1)])
    await until(lambda: told)
    assert asked == [[0], [1]]
    assert told == [[1]]
    looked_up.set()
    await until(lambda: len(told) == 2)
    assert told[1] == [0]


async def test_a_pod_that_is_placed_again_while_it_is_looked_up_is_looked_up_once_more(runtime, ledger):
    lookups = []

    async def lookup(uids):
        lookups.append(len(uids))
        if len(lookups) == 1:  # evicted, and bound elsewhere before the answer arrives
            pods.move(rows[:1], Phase.QUEUED, now_ms=1)
            pods.node[rows[0]] = 8
            pods.move(rows[:1], Phase.BOUND, now_ms=1)
        nodes = np.full(len(uids), NONE_U32, np.uint32) if len(lookups) == 1 else np.array([8], np.uint32)
        return located(nodes)

    submit(runtime, 2)
    rows, pods = np.arange(2, dtype=np.uint32), runtime.machine.registry.pods
    pods.node[rows] = 5
    pods.move(rows, Phase.BOUND, now_ms=0)
    ledger.lookup = lookup
    await runtime.verify(m.Verify(rows, pods.uid[rows]))
    assert lookups == [2, 1]
    assert pods.phase[rows].tolist() == [Phase.BOUND, Phase.QUEUED]
    assert pods.node[rows].tolist() == [8, NONE_U32]


async def test_an_answer_to_a_release_does_not_touch_a_pod_that_was_placed_again_or_has_the_row_now(
    runtime, ledger
):
    async def release(_uids, _nodes, _as_of):
        pods.move(rows[:1], Phase.BOUND, now_ms=0)
        pods.uid[rows[1]] += 1

    submit(runtime, 3)
    rows, pods = np.arange(3, dtype=np.uint32), runtime.machine.registry.pods
    pods.move(rows, Phase.BACKOFF, now_ms=0)
    pods.node[rows] = 5
    ledger.release = release
    await runtime.release(m.Release(rows, pods.uid[rows].copy(), pods.node[rows].copy()))
    assert pods.node[rows].tolist() == [5, 5, NONE_U32]
    assert pods.phase[rows].tolist() == [Phase.BOUND, Phase.BACKOFF, Phase.QUEUED]


async def test_what_a_lost_worker_prepared_is_released_and_counts_as_reserved_nowhere(runtime, ledger):
    released = []

    async def lookup(uids):
        nodes = np.array([3, 4], np.uint32)
        return located(nodes)._replace(pre_binding=np.array([True, False]))

    async def release(uids, nodes, _as_of):
        released.append((len(uids), nodes.tolist()))

    await join(runtime)
    submit(runtime, 2)
    ledger.lookup, ledger.release = lookup, release
    leave(runtime)
    pods = runtime.machine.registry.pods
    await until(lambda: not (pods.phase[:2] == Phase.SCHEDULING).any())
    assert released == [(1, [3])]
    assert sorted(pods.phase[:2].tolist()) == sorted([Phase.QUEUED, Phase.BOUND])
    assert pods.node[:2][pods.phase[:2] == Phase.BOUND].tolist() == [4]


async def test_a_job_that_fails_ends_the_term_and_does_not_leave_its_pods_behind(runtime, ledger):
    serving = asyncio.ensure_future(runtime.serve())
    await join(runtime)
    submit(runtime, 10)
    ledger.broken = True
    leave(runtime)
    with pytest.raises(TermFailed, match="_fence failed"):
        await serving


async def test_a_machine_that_raises_ends_the_term_whoever_brought_the_event(runtime, monkeypatch):
    serving = asyncio.ensure_future(runtime.serve())
    await join(runtime)

    def explode(*_: Any) -> Any:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setitem(runtime.machine._handlers, m.Leaving, explode)
    with pytest.raises(TermFailed, match="Leaving"):
        runtime.handle(m.Leaving(1))
    with pytest.raises(TermFailed, match="int too large"):
        await serving


async def test_a_worker_is_in_the_journal_until_it_is_fenced_and_its_pods_are_known(runtime, ledger, journal):
    await join(runtime)
    submit(runtime, 10)
    assert (await journal.recover()).workers == {"w1"}
    ledger.away = True
    leave(runtime)
    await until(lambda: "resolver" in runtime.problems)
    assert (await journal.recover()).workers == {"w1"}
    ledger.away = False

    async def forgotten() -> bool:
        return not (await journal.recover()).workers

    await until(forgotten, "the name to be dropped")
    assert runtime.machine.registry.pods.count_by_phase()[Phase.QUEUED] == 10
    await join(runtime, link=2)
    assert (await journal.recover()).workers == {"w1"}
    await until(lambda: not runtime._jobs)
    assert len(runtime._granting) == 0


async def test_a_worker_that_is_back_before_its_name_is_dropped_keeps_it(runtime, ledger, journal):
    await join(runtime)
    submit(runtime, 10)
    ledger.away = True
    leave(runtime)
    runtime.links[2] = Link()
    runtime.handle(m.Registered(2, "w1", {}, 2, 100))
    ledger.away = False
    await until(lambda: runtime.machine.members.get("w1").living, "the second registration to be welcomed")
    await until(lambda: not runtime._jobs)
    assert (await journal.recover()).workers == {"w1"}


async def test_a_worker_that_left_before_it_had_an_epoch_is_not_in_the_journal(runtime, journal):
    runtime.links[1] = Link()
    runtime.handle(m.Registered(1, "w1", {}, 1, 100))
    leave(runtime)
    await until(lambda: not runtime._jobs)
    assert (await journal.recover()).workers == set()


async def test_recovery_fences_workers_side_by_side_and_then_drops_their_names(runtime, ledger, journal):
    names = [f"w{number}" for number in range(100)]
    for name in names:
        await journal.add_worker(name)
    await recover(runtime, term=1)
    assert sorted(ledger.granted) == sorted([*names, MOVER])  # moves of the former term come too late as well
    assert 10 < ledger.most_at_once <= 32
    assert (await journal.recover()).workers == set()


async def test_what_is_forgotten_late_spares_what_was_submitted_again_under_the_same_id(runtime, journal):
    """The journal was away when the first submission was forgotten."""
    former, again = submit(runtime, 2), None
    former.order = await journal.record(_record(former))
    away = asyncio.Event()
    drop = journal.drop

    async def late(*arguments: Any) -> None:
        await away.wait()
        await drop(*arguments)

    journal.drop = late
    runtime.perform([m.Forget(former)])
    again = _record(former)
    await journal.record(again)
    away.set()
    await until(lambda: not runtime._jobs)
    assert (await journal.recover()).records == [again]
    await runtime.end()


def _record(made: Any) -> Any:
    return Record(made.key, 1, b"message", tuple(pod_set.uid_prefix for pod_set in made.sets))


def service_of(runtime: Runtime) -> DispatcherService:
    """The calls that need no ledger but the runtime's."""
    none, nodes = cast("Any", None), ClusterNodes()
    return DispatcherService(
        runtime,
        none,
        none,
        none,
        none,
        mover=Mover(runtime, nodes, Rebinding(runtime, nodes)),
        leadership=none,
        checkpointer=none,
        rng=random.Random(1),
    )


async def test_a_job_that_is_not_durable_yet_is_not_found_by_deletions_and_removed_gates(runtime, journal):
    """Nothing of it is deleted, so nobody may be told so."""
    durable, record = asyncio.Event(), journal.record

    async def slow(entry: Record) -> int:
        await durable.wait()
        return await record(entry)

    journal.record = slow
    none = cast("Any", None)
    service = service_of(runtime)
    template = PodTemplate(PodSpec(scheduling_gates=("a.io/g",)), owner_kind="Job")
    (request,) = submission([Workload("web", template, 3)], "web")
    submitting = asyncio.ensure_future(service.Submit(request, none))
    await until(lambda: runtime.machine.registry.directory.job("default", "web"))
    ungate = pb.RemoveGatesRequest(namespace="default", jobs=["web"])
    assert (await service.RemoveGates(ungate, none)).not_found == ["job web"]
    delete = pb.DeleteRequest(namespace="default", jobs=["web"])
    assert (await service.Delete(delete, none)).not_found == ["job web"]
    durable.set()
    assert (await submitting).accepted_pods == 3
    assert (await service.RemoveGates(ungate, none)).changed_pods == 3
    assert (await service.Delete(delete, none)).deleted_pods == 3
    await runtime.end()


@pytest.mark.parametrize("by_uid", [False, True], ids=["by name", "by UID"])
async def test_while_many_pods_of_a_deletion_are_looked_up_others_get_their_turn(
    runtime, monkeypatch, by_uid
):
    monkeypatch.setattr("dispatcher.api.service._NAMES_AT_ONCE", 10)
    none, turns = cast("Any", None), []
    service = service_of(runtime)

    async def delete(count):
        uids = b"".join(bytes([n]) * 16 for n in range(1, count + 1))
        names = [f"pod-{n}" for n in range(count)]
        request = pb.DeleteRequest(namespace="default", **({"uids": uids} if by_uid else {"pods": names}))
        deleting = asyncio.ensure_future(service.Delete(request, none))
        turns.append(0)
        while not deleting.done():
            await asyncio.sleep(0)
            turns[-1] += 1
        assert len((await deleting).not_found) == count

    await delete(9)
    await delete(90)
    assert turns[1] >= turns[0] + 8
    await runtime.end()


@pytest.mark.parametrize("kind", ["pods", "jobs"])
async def test_names_that_are_submitted_while_a_deletion_looks_up_are_not_deleted_and_named_as_not_found(
    runtime, monkeypatch, kind
):
    monkeypatch.setattr("dispatcher.api.service._NAMES_AT_ONCE", 1)
    none = cast("Any", None)
    service = service_of(runtime)
    template = PodTemplate(PodSpec(), owner_kind="Job" if kind == "jobs" else "")
    (request,) = submission([Workload("late", template, 1)], "late")
    names = [*(f"none-{n}" for n in range(200)), "late"]
    delete = pb.DeleteRequest(namespace="default", **{kind: names})
    deleting = asyncio.ensure_future(service.Delete(delete, none))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (await service.Submit(request, none)).accepted_pods == 1
    assert not deleting.done(), "it came too late to be seen"
    reply = await deleting
    assert (reply.deleted_pods, reply.not_found[-1]) == (0, f"{kind[:-1]} late")
    assert (await service.Delete(delete, none)).deleted_pods == 1
    await runtime.end()


async def test_names_of_deleted_pods_belong_to_whoever_has_them_next_also_after_a_takeover(
    runtime, journal, ledger
):
    """The journal keeps a whole message while one of its pods lives: also names that others have by now."""
    of_job, bare = PodTemplate(PodSpec(), owner_kind="Job"), PodTemplate(PodSpec())
    lone, kept = (
        Workload(name, bare, uid=uid_text(bytes([n]) * 16)) for n, name in enumerate(("lone", "kept"), 1)
    )
    (jobs,) = submission([Workload("web", of_job, 3), Workload("db", of_job, 2)], "jobs")
    (pods,) = submission([lone, kept], "pods")
    (again,) = submission([Workload("web", of_job, 1)], "again")
    (lone_again,) = submission([lone], "lone again")
    registry = runtime.machine.registry
    for request in (jobs, pods, again, lone_again):
        made = registry.accept(read_order(request), 1)
        made.order = await journal.record(Record(made.key, 1, request.SerializeToString()))
        runtime.handle(m.Admitted(made))
        if request in (jobs, pods):  # all of the job "web", and the pod "lone"
            deleted = made.sets[0]
            bitmap = np.ones(3, np.bool_) if request is jobs else np.array([True, False])
            await journal.delete({deleted.uid_prefix: bitmap})
            runtime.handle(m.Deleted((np.flatnonzero(bitmap) + deleted.first).astype(np.uint32)))
            registry.let_others_have(deleted, (np.flatnonzero(bitmap) + deleted.first).astype(np.uint32))
    successor = Runtime(Machine(Settings(), Policy(), decode, random.Random(1)), ledger, journal)
    await recover(successor, term=2)
    directory, found = successor.machine.registry.directory, successor.machine.registry.pods
    assert directory.job("default", "web").count == 1
    rows = directory.rows_of_uids(np.stack([np.full(16, n, np.uint8) for n in (1, 2)]))
    assert rows.tolist() == [directory.row_of_name("default", name) for name in ("lone", "kept")]
    assert found.phase[rows].tolist() == [Phase.QUEUED, Phase.QUEUED]
    successor.handle(m.Tick())
    assert found.in_use == 1 + 2 + 1 + 2  # web again, db, lone again, and the list with kept
    await runtime.end()
    await successor.end()


async def test_while_a_large_journal_is_recovered_others_get_their_turn(journal, ledger):
    """One of them renews the lease, which is over after a second and a half."""
    (request,) = submission([Workload("large", PodTemplate(PodSpec(), owner_kind="Job"), 1_000_000)], "large")
    await journal.record(Record(b"key", 1, request.SerializeToString()))
    successor = Runtime(Machine(Settings(), Policy(), decode, random.Random(1)), ledger, journal)
    registry = successor.machine.registry
    made = registry.accept(read_order(request), 1)
    uids, prefix = registry.pods.uid[:300_000].copy(), made.sets[0].uid_prefix
    await journal.delete({prefix: np.arange(1_000_000) >= 500_000})
    registry.abandon(made)

    async def reservations(*, digests: bool) -> AsyncIterator[ReservationColumns]:
        assert not digests
        for start in range(0, 300_000, 100_000):
            no, zero = np.zeros(100_000, np.bool_), np.zeros(100_000, np.uint64)
            nodes = np.zeros(100_000, np.uint32)
            part = uids[start : start + 100_000]
            yield ReservationColumns(part, nodes, nodes, zero, no, zero, no, no, zero)

    ledger.reservations = reservations
    recovering = asyncio.ensure_future(recover(successor, term=1))
    seen = {phase: set[int]() for phase in (Phase.DELETED, Phase.BOUND, Phase.QUEUED)}
    while not recovering.done():
        await asyncio.sleep(0)
        for phase, numbers in seen.items():
            numbers.add(int(successor.machine.registry.pods.count_by_phase()[phase]))
    await recovering
    assert {phase: max(numbers) for phase, numbers in seen.items()} == {
        Phase.DELETED: 500_000,
        Phase.BOUND: 300_000,
        Phase.QUEUED: 200_000,
    }
    assert {phase: len(numbers) for phase, numbers in seen.items()} == {
        Phase.DELETED: 6,
        Phase.BOUND: 4,
        Phase.QUEUED: 3,
    }
    await successor.end()


async def test_very_many_pods_are_verified_in_parts_between_which_others_get_their_turn(
    runtime, ledger, monkeypatch
):
    """A removed node, and many of them, may have held any number of pods."""
    monkeypatch.setattr("dispatcher.runtime._VERIFIED_AT_ONCE", 4)
    asked, turns, lookup = [], [0], ledger.lookup

    async def others():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def noted(uids):
        asked.append((len(uids), turns[0]))
        return await lookup(uids)

    ledger.lookup = noted
    submit(runtime, 10)
    rows, running = np.arange(10, dtype=np.uint32), asyncio.ensure_future(others())
    await runtime.verify(m.Verify(rows, runtime.machine.registry.pods.uid[rows]))
    running.cancel()
    assert [pods for pods, _ in asked] == [4, 4, 2]
    assert asked[0][1] < asked[1][1] < asked[2][1]
