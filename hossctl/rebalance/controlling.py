"""The process of `hoss rebalance controller`: a client like any other. It reads the platform, plans, and
gives the dispatcher a few moves at a time, as hossctl/rebalance/controller.py decides.

It reports to the dispatcher every few seconds, so that `hoss rebalance status` shows it, and so that
`hoss rebalance pause` reaches it. A dispatcher that does not answer is asked again. One that refuses the
reports, because another controller is at work, ends the process.

In Kubernetes mode a moved pod is another one with another name: its successor. That is what rests."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Container, Iterable
from datetime import datetime, timezone
from pathlib import Path

from hoss import telemetry
from hoss.errors import HossError, InvalidInput, LedgerUnavailable, NotFound, Overloaded, TransportError
from hoss.host import THIS_HOST
from hoss.security.options import SecurityConfig, check_insecure, metrics_door
from hoss.serving import announce_ready, until_stopped
from hoss.tasks import background
from hoss.telemetry import logger
from hoss.telemetry.endpoint import metrics_endpoint
from hoss.telemetry.metrics import Family, LoopDelay, Metrics, process_source
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.choices import RebalanceGoal
from hossctl.endpoints import Clients, Endpoints, clients_of
from hossctl.explain.offline import preset
from hossctl.rebalance.controller import Chosen, RebalanceController
from hossctl.rebalance.gathering import Gathered, gather
from hossctl.rebalance.metrics import MeasuredRoom, controller_families
from hossctl.rebalance.plans import plan_for
from hossctl.rebalance.policy import RebalancePolicy
from hossctl.rebalance.room import fragmentation_document
from hossctl.rebalance.usage import UsageFile, read_usage
from scheduler_worker.core.framework.profile import Profile
from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE
from scheduler_worker.core.rebalance.plan_state import PlanState

_SERVICE = "rebalance"
_REPORT_SECONDS = 1.0

# From one look for pods that wait before they preempt to the next: each reads all pods.
_HELD_PODS_SECONDS = 5.0
# After moves for them: workers' views follow, and the pods get the room, before they may preempt.
_SETTLING_SECONDS = 3.0
_HOUR, _DAY = 3600.0, 86_400.0
_RUNNING, _PAUSED = "Running", "Paused"


def _now() -> datetime:
    return datetime.now(tz=timezone.utc)


class ControllerProcess:
    """After `connect`, run `run` and `report` until cancelled. `families` is a source of metrics."""

    def __init__(
        self,
        policy: RebalancePolicy,
        clients: Clients,
        profile: Profile,
        *,
        identity: str,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """`identity`: of this process, unlike any other's. `clock`: aware datetimes."""
        self._now = clock
        self._policy = policy
        self._clients = clients
        self._profile = profile
        self._id = identity
        self._text = "has not looked at the cluster yet"
        self._paused = False
        self._may_move = False  # as it was when it last looked at the clock and the dispatcher's run
        self._considered = 0  # the last pods that wait before they preempt, and for which it looked for moves
        self._considered_at = float("-inf")
        self._controller = RebalanceController(policy, now=self._now())
        self._measured = MeasuredRoom()

    @property
    def moved(self) -> int:
        """How many pods it has moved."""
        return sum(self._measured.moves.values())

    async def connect(self) -> None:
        """Report for the first time, and take over the budget that a controller before this one has spent.
        Raises InvalidInput where the dispatcher wants no controller, or another one."""
        status = await self._clients.dispatcher.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_STATUS))
        now, last = self._now(), status.controller
        lately = last.heard_unix_ms / 1000 > now.timestamp() - _HOUR
        spent = min(last.moves_last_hour, self._policy.budget.movesPerHour) if lately else 0
        self._controller = RebalanceController(self._policy, now=now, spent=spent)
        self._paused = status.controller.paused
        await self._report()

    async def report(self) -> None:
        """Report every second, also while a plan is made. Raises InvalidInput as `connect` does."""
        while True:
            with contextlib.suppress(TransportError, LedgerUnavailable, Overloaded):
                await self._report()
            await asyncio.sleep(_REPORT_SECONDS)

    async def leave(self) -> None:
        """Tell the dispatcher that this process ends, if it answers."""
        with contextlib.suppress(HossError):
            await self._report(leaving=True)

    async def run(self) -> None:
        """Look, plan and move, as the policy says. Raises InvalidInput as `connect` does."""
        while True:
            try:
                await self._step(await self._report())
            except (TransportError, LedgerUnavailable, Overloaded, NotFound) as exc:
                self._text = f"tries again: {exc}"
                logger().warning("rebalance_waits", error=str(exc))
            await asyncio.sleep(_REPORT_SECONDS)

    def families(self) -> Iterable[Family]:
        """The metrics, by what was measured last."""
        yield from self._measured.families()
        yield from controller_families(
            self._controller.moved_in_last(_HOUR, self._now()), self._measured.moves, paused=self._paused
        )

    async def _step(self, status: pb.RebalanceStatus) -> None:
        now = self._now()
        why = self._waits(status, now)
        self._text = why or self._text
        self._may_move = not why
        if not why and self._policy.beforePreemption is not None:
            await self._look_before_preemption(status.preemption_hold, now)
        if not self._controller.due(now):
            return
        self._controller.begin_pass(now)
        gathered = await gather(self._clients)
        self._measured.take(
            await asyncio.to_thread(fragmentation_document, gathered, self._profile, self._policy.poolLabel)
        )
        chosen = None if why else await asyncio.to_thread(self._look, gathered, now)
        if chosen is not None:
            self._may_move = False  # until the next step: nobody is looked at meanwhile
            await self._carry_out(chosen, gathered)

    async def _look_before_preemption(self, hold: int, now: datetime) -> None:
        """Make room for pods that wait for moves before they preempt, up to this hold. Then they may preempt,
        if they still have to."""
        if hold <= self._considered or now.timestamp() < self._considered_at + _HELD_PODS_SECONDS:
            return
        gathered = await gather(self._clients)
        chosen = await asyncio.to_thread(self._look, gathered, now, (RebalanceGoal.FIT_PENDING,))
        if chosen is not None:
            await self._carry_out(chosen, gathered)
            await asyncio.sleep(_SETTLING_SECONDS)
        self._considered, self._considered_at = hold, self._now().timestamp()

    def _waits(self, status: pb.RebalanceStatus, now: datetime) -> str:
        """Why nothing is moved now; empty: it may be."""
        if self._paused:
            return "paused by hand; `hoss rebalance resume` lets it go on"
        if status.state == _RUNNING:
            return f"waits for the moves that are under way: {status.purpose or 'a plan'}"
        if status.state == _PAUSED and not status.begun_by:
            return "waits: moves that a person began are paused; resume or undo them"
        return self._controller.waits(now)

    def _look(
        self, gathered: Gathered, now: datetime, only: Container[RebalanceGoal] = tuple(RebalanceGoal)
    ) -> Chosen | None:
        """Find the first goal, of these, with moves that are worth it."""
        pods = self._controller.movable(gathered.pods, now)
        why = []
        for entry in self._policy.goals:
            if entry.goal not in only:
                continue
            state = PlanState(gathered.snapshot, self._profile, pods, self._controller.limits(pods, now))
            if text := self._controller.stands_off(entry.goal, state, now):
                why.append(text)
                continue
            try:
                plan = plan_for(entry.goal, state, gathered, self._usage(entry.goal, now), entry.nodes)
            except InvalidInput as exc:  # usage is missing or old
                why.append(f"{entry.goal.value}: {exc}")
                continue
            chosen = self._controller.choose(entry.goal, plan, state)
            if chosen.moves:
                return chosen
            why.append(chosen.why)
        self._text = "; ".join(why)
        logger().info("rebalance_nothing_to_do", why=self._text)
        return None

    def _usage(self, goal: RebalanceGoal, now: datetime) -> UsageFile | None:
        if goal is not RebalanceGoal.QUIET_NODES or self._policy.usageFile is None:
            return None
        seconds = self._policy.usageMaxAgeSeconds
        return read_usage(self._policy.usageFile, now=now, max_age_seconds=seconds)

    async def _carry_out(self, chosen: Chosen, gathered: Gathered) -> None:
        pods, catalogue = gathered.pods, gathered.snapshot.cache.catalogue
        moves = [
            pb.RebalanceMove(
                pod=pods.names[move.row],
                source=catalogue.name(move.source),
                target=catalogue.name(move.target),
            )
            for move in chosen.moves
        ]
        start = pb.RebalanceRequest(
            action=pb.REBALANCE_START,
            moves=moves,
            seen=gathered.snapshot.cache.seqs,
            moves_per_second=self._policy.budget.movesPerSecond,
            purpose=f"policy: {chosen.goal.value}",
            controller=self._id,
        )
        self._text = f"moves {len(moves)} pods for {chosen.goal.value}"
        logger().info("rebalance_moves", goal=chosen.goal.value, moves=len(moves), gain=round(chosen.gain, 3))
        try:
            status = await self._clients.dispatcher.rebalance(start)
        except InvalidInput as exc:  # paused, or a person was quicker
            self._text = f"did not begin its moves: {exc}"
            return
        except (TransportError, LedgerUnavailable, Overloaded):  # the run may have begun
            self._controller.made(chosen, [move.pod for move in moves], self._now())
            raise
        status = await self._followed(status)
        if status.begun_by == self._id:
            moved = moved_pods(status)
            self._controller.refused([m.pod for m in status.moves if m.state == "Refused"], self._now())
        else:
            moved = [move.pod for move in moves]  # what became of them is not known, so each may have been
        self._controller.made(chosen, moved, self._now())
        self._measured.moves[chosen.goal] += len(moved)
        if status.state == _PAUSED and status.begun_by == self._id:
            self._controller.alarm(
                self._now(), f"moves for {chosen.goal.value} were stopped: {status.reason}"
            )
        elif not moved:
            refused = next((move.text for move in status.moves if move.text), "")
            self._controller.alarm(self._now(), f"all moves for {chosen.goal.value} were refused: {refused}")

    async def _followed(self, status: pb.RebalanceStatus) -> pb.RebalanceStatus:
        """The run of this process as it ended, or whatever has taken its place. One that a person paused is
        waited for; one that an alarm paused has ended."""
        while status.begun_by == self._id and (
            status.state == _RUNNING or (status.state == _PAUSED and self._paused)
        ):
            await asyncio.sleep(_REPORT_SECONDS)
            try:
                status = await self._report()
            except (TransportError, LedgerUnavailable, Overloaded) as exc:
                logger().warning("rebalance_waits", error=str(exc))
        return status

    async def _report(self, *, leaving: bool = False) -> pb.RebalanceStatus:
        now = self._now()
        report = pb.RebalanceController(
            id=self._id,
            text=self._text,
            paused=self._paused,
            moves_last_hour=self._controller.moved_in_last(_HOUR, now),
            moves_per_hour=self._policy.budget.movesPerHour,
            moves_last_day=self._controller.moved_in_last(_DAY, now),
            goals=[entry.goal.value for entry in self._policy.goals],
            leaving=leaving,
            considered_hold=self._considered,
        )
        before = self._policy.beforePreemption
        if before is not None and self._may_move:
            report.preemption_wait_seconds = before.waitSeconds
            report.preemption_wait_up_to_priority = before.upToPriority
        status = await self._clients.dispatcher.report_rebalancing(report)
        self._paused = status.controller.paused
        return status


def moved_pods(status: pb.RebalanceStatus) -> list[str]:
    """The pods that a run has moved, by the names that they have now."""
    return [move.successor or move.pod for move in status.moves if move.state == "Moved"]


async def serve(
    policy: RebalancePolicy, endpoints: Endpoints, metrics_listen: str, ready_file: Path | None
) -> None:
    """Run a controller until the process is asked to end. Raises InvalidInput as `ControllerProcess.run`
    does."""
    telemetry.configure(_SERVICE)
    async with contextlib.AsyncExitStack() as stack:
        clients = await stack.enter_async_context(clients_of(endpoints))
        process = ControllerProcess(policy, clients, preset(DEFAULT_PROFILE), identity=secrets.token_hex(8))
        await process.connect()
        delay = LoopDelay()
        metrics = Metrics(process_source(_SERVICE), delay, process.families)
        config = SecurityConfig(tls_dir=endpoints.certificate_directory())
        check_insecure(config, metrics_listen, "metrics_listen")
        door = metrics_door(metrics_listen, False, config, THIS_HOST)
        port = await stack.enter_async_context(metrics_endpoint(metrics_listen, metrics, door))
        stack.push_async_callback(process.leave)
        await stack.enter_async_context(background(process.run(), process.report(), delay.run()))
        announce_ready(ready_file, metrics_port=port, service=_SERVICE)
        await until_stopped()
