"""Carries out a plan in a world, keeps the history, and has it judged.

When the plan is over, every fault ends and whatever died is started again. Then the platform has a bounded
virtual time to settle: every pod is bound or waits, workers and ledger agree, and nobody complains."""

import asyncio
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

from hoss.errors import LedgerUnavailable, TransportError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import disagreements
from hossctl.history.checker import check
from hossctl.history.checker_judgement import Judgement
from hossctl.history.events import Event, History
from tools.simulation import plan as p
from tools.simulation.clients import SimulatedClients
from tools.simulation.cluster import Cluster
from tools.simulation.faults import Faults
from tools.simulation.final_states import left_over, write_final_states
from tools.simulation.ledger_comparison import LedgerComparison
from tools.simulation.ledger_history import LedgerHistory
from tools.simulation.loop import Deadlock, OutOfSteps, discarding
from tools.simulation.plan import Act, Plan
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.tenants import complaints_about_room, more_than_may_wait
from tools.simulation.world import Entry, World

# Virtual, after the last fault: a lease of a commit lasts 30 s, a back-off at most 10 s.
SETTLE_SECONDS = 90.0
# A resolver gives back the room of a binding that it allowed and that came to nothing after 90 s.
CLUSTER_SETTLE_SECONDS = 180.0
_LOOK_SECONDS = 0.25
_CALM_LOOKS = 3  # so often in a row nothing moved
_MOVING = ("Queued", "Scheduling", "Backoff")
_RUNNING = "Running"  # the state of a run of moves: an answer to its last step may be awaited still
_TOLD_PROBLEMS = 6
COMPARED_EVERY = 4
PLACE_LOST = "a takeover took longer"  # in the text of a move
TOLD = (*(f"told {state}" for state in ("Moved", "Refused", "Waiting", "Evicted")), PLACE_LOST)
_KEEPS_FROM_BINDING = (*p.OF_CLUSTERS, *p.LOSSES, p.REMOVE_NODE, p.SHRINK_NODE, p.DELETE)
# After the last fault. Requests and feeds that were cut are tried again within two seconds. After a loss it
# may take a rebuild.
_NOTICED_WITHIN_SECONDS = 3.0
_LOSS_NOTICED_WITHIN_SECONDS = 4.0


@dataclass
class Result:
    """What came of a plan. `complaints`: what is no matter of the history: crashes, and what never
    settled."""

    plan: Plan
    judgement: Judgement = field(default_factory=Judgement)
    complaints: list[str] = field(default_factory=list)
    timeline: list[Entry] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)  # faults and answers that happened
    moves: list[pb.MoveStatus] = field(
        default_factory=list
    )  # of the last run, as clients are told at the end
    compared: Counter[str] = field(default_factory=Counter)  # calls of scripts that the model made as well
    steps: int = 0
    seconds: float = 0.0  # virtual

    def problems(self) -> list[str]:
        """A sentence each; none if every promise was kept."""
        found = [f"{v.promise.value}: {v.text}" for v in self.judgement.violations]
        return [*found, *self.complaints]


def run(plan: Plan, server: DrivenRedis, *, keep: bool = False, compare: bool | None = None) -> Result:
    """Carry out a plan. `keep`: with the timeline, which costs as much as the rest. `compare`: whether the
    scripts are compared with the model; None: in every COMPARED_EVERY-th seed."""
    with discarding():
        return _run(plan, server, keep=keep, compare=is_compared(plan) if compare is None else compare)


def is_compared(plan: Plan) -> bool:
    """Whether the scripts are compared with the model, where nobody says so: it costs a third more."""
    return plan.seed % COMPARED_EVERY == 0


def _run(plan: Plan, server: DrivenRedis, *, keep: bool, compare: bool) -> Result:
    result = Result(plan)
    world = World(
        plan.seed,
        server,
        shards=plan.shards,
        dispatchers=plan.dispatchers,
        resolvers=plan.resolvers,
        workers=plan.workers,
        lease_seconds=plan.lease_seconds,
        cluster=plan.cluster,
        most_waiting=plan.most_waiting,
        observe=result.timeline.append if keep else None,
    )
    with world.logging(), closing(world):
        simulation = _Simulation(plan, world, result, compare=compare)
        try:
            world.loop.run_until_complete(world.loop.spawn(simulation.clients.process, simulation.story()))
        except (Deadlock, OutOfSteps) as exc:
            result.complaints.append(f"the simulation does not end: {exc}")
        simulation.finish()
    return result


class _Simulation:
    """One run of a plan."""

    def __init__(self, plan: Plan, world: World, result: Result, *, compare: bool) -> None:
        self._plan = plan
        self._world = world
        self._result = result
        self._struck_until = 0.0  # when the last fault of the plan had ended
        self._loses = any(act.what in p.LOSSES for act in plan.acts)
        self._moves = any(act.what in (p.MOVE, p.CONTROL) for act in plan.acts)
        self._history = History(world.loop.time, source="simulation", sees=["clients", "reservations"])
        self.clients, self._cluster = _clients(plan, world, self._history)
        is_there = _nowhere if self._cluster is None else self._cluster.judge.is_there
        self._ledger = LedgerHistory(world.redis, self._history, plan.shards, is_there=is_there)
        self._comparison = LedgerComparison(world.redis, plan.shards) if compare else None
        world.redis.shadow = self._comparison
        world.on_command = self._ledger.look
        self._faults = Faults(world, self._ledger)

    async def story(self) -> None:
        """From the first start to the last look."""
        for name in self._world.services:
            self._world.start(name)
        await self.clients.register(self._plan.nodes)
        watching = asyncio.create_task(self.clients.watch())
        others = [] if self._cluster is None else self._cluster.start()
        began = self._world.loop.time()
        await asyncio.gather(*(self._carry_out(act, began) for act in self._plan.acts))
        self._world.note("plan", "fault", "every fault is over")
        self._faults.end_all()
        self.clients.end_control()
        if self._cluster is not None:
            self._cluster.calm_down()
        if any("tenant" in act.options for act in self._plan.acts):
            now = self._world.loop.time() - began
            self._result.complaints += await complaints_about_room(self.clients, now)
        settled = await self._settle()
        for task in (watching, *others):
            if task.done() and not task.cancelled():
                task.result()  # raises what ended it: nothing should have
            task.cancel()
        if settled:
            self._history.append("quiet", by="plan")
            self._history.append("table", by="dispatcher", pods=await self.clients.table(), final=True)
            rows, seqs = self._ledger.rows(), self._ledger.seqs()
            self._history.append("reservations", by="ledger", rows=rows, seqs=seqs, final=True)
            await write_final_states(self._history, self.clients, self._world)
            await self._judge_moves()
            self._result.complaints += left_over(self._world)

    async def _judge_moves(self) -> None:
        """A successor that is told to have got its place was bound there, unless something keeps bindings
        from being made."""
        if not self._moves:
            return
        self._result.moves = list((await self.clients.moves()).moves)
        binds = all(act.what not in _KEEPS_FROM_BINDING for act in self._plan.acts)
        for move in self._result.moves:
            self._result.reached[f"told {move.state}"] += 1
            self._result.reached[PLACE_LOST] += PLACE_LOST in move.text
            name = move.successor.partition("/")[2]
            was_there = self._cluster is None or self._cluster.judge.was_on(name, move.target)
            if name and binds and not was_there:
                self._result.complaints.append(f"{name} is told to be on {move.target}, and never was there")

    async def _carry_out(self, act: Act, began: float) -> None:
        await asyncio.sleep(max(0.0, began + act.at - self._world.loop.time()))
        self._world.note("plan", "fault" if act.is_fault else "client", str(act))
        if act.is_fault:
            self._history.append("fault", by="plan", kind=act.what, target=act.target)
            if await self._faults.strike(act):
                self._struck_until = self._world.loop.time()
        elif act.what in (p.SUBMIT, p.DELETE, p.UNGATE, p.RESIZE, p.EVICT, p.END_PODS, p.DELETE_GROUP):
            await self.clients.ask(act)
        elif act.what == p.CONTROL:
            self.clients.begin_control(act)
        elif act.what in (p.MOVE, p.UNDO_MOVES):
            await self.clients.rebalance(act)
        else:
            await self.clients.change_node(act)

    async def _settle(self) -> bool:
        """Wait until nothing moves. False, and a complaint, where that takes too long."""
        seconds = SETTLE_SECONDS if self._cluster is None else CLUSTER_SETTLE_SECONDS
        deadline, calm, why = self._world.loop.time() + seconds, 0, ["nobody answered"]
        if any(act.is_fault for act in self._plan.acts):
            # Until then a dispatcher may not follow the feed again, and acts on nothing new.
            await self._keep_running_until(self._struck_until + self._noticed_within_seconds())
        while self._world.loop.time() < deadline:
            self._faults.start_all()
            why = await self._unsettled(thoroughly=calm == _CALM_LOOKS - 1)
            calm = 0 if why else calm + 1
            if calm >= _CALM_LOOKS:
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        told = "; ".join(why[:_TOLD_PROBLEMS])
        self._result.complaints.append(f"not settled after {seconds:g} s: {told}")
        return False

    def _noticed_within_seconds(self) -> float:
        is_slow = self._loses or self._cluster is not None
        return _LOSS_NOTICED_WITHIN_SECONDS if is_slow else _NOTICED_WITHIN_SECONDS

    async def _keep_running_until(self, until: float) -> None:
        """Who ends meanwhile is started again."""
        while self._world.loop.time() < until:
            self._faults.start_all()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _unsettled(self, *, thoroughly: bool) -> list[str]:
        """What still moves. What costs most is asked last, only if all else is at rest, and only
        `thoroughly`: whether workers and ledger agree."""
        clients = self.clients
        rows = self._ledger.rows()
        why = [
            f"pod {row['uid']} is only {row['state']} on {row['node']}"
            for row in rows
            if row["state"] != "confirmed"
        ]
        if self._cluster is not None:
            why += self._cluster.unsettled(rows)
        if why:
            return why
        try:
            table = await clients.table()
            why = [f"pod {row['uid']} is {row['state']}" for row in table if row["state"] in _MOVING]
            if self._moves and (await clients.moves()).state == _RUNNING:
                why.append("moves are under way")
            if self._loses:
                why += self._unnoticed(table, self._ledger.rows())
            if why or not thoroughly:
                return why
            return await disagreements(clients.dispatcher, clients.resolver, self._plan.workers)
        except (LedgerUnavailable, TransportError) as exc:
            return [str(exc)]

    def _unnoticed(self, table: list[Event], rows: list[Event]) -> list[str]:
        """What the ledger has lost and the dispatcher has not noticed yet: it may be about to try again."""
        bound = {row["uid"]: row["node"] for row in table if row["state"] == "Bound"}
        held = {row["uid"]: row["node"] for row in rows if "target_of" not in row}
        return [
            f"pod {uid} is bound to {bound.get(uid)} and reserved on {held.get(uid)}"
            for uid in sorted(bound.keys() | held.keys())
            if bound.get(uid) != held.get(uid)
        ]

    def finish(self) -> None:
        """Judge, and gather what was seen."""
        result, world = self._result, self._world
        if self._comparison is not None:
            self._comparison.compare_states("at the end")
            result.complaints += self._comparison.problems
            result.compared = self._comparison.calls
        for service in world.services.values():
            result.complaints += [f"{service.name} ended: {text}" for text in service.ends]
        for context in world.loop.errors:
            result.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")
        result.judgement = check(self._history.events)
        if any("tenant" in act.options for act in self._plan.acts):
            result.complaints += more_than_may_wait(self._history.events, self._plan.most_waiting)
        result.history = self._history.events
        result.reached += self._faults.reached + self.clients.answers + _moves_of(result.history)
        if self._cluster is not None:
            result.complaints += self._cluster.judge.problems
            result.reached += self._cluster.reached
        result.steps, result.seconds = world.loop.steps, world.loop.time()


def _nowhere(_uid: str, _node: str) -> bool:
    """No pod is on a node but by the ledger."""
    return False


def _clients(plan: Plan, world: World, history: History) -> tuple[SimulatedClients, Cluster | None]:
    if plan.cluster is None:
        return SimulatedClients(world, history, named_nodes=plan.named_nodes), None
    cluster = Cluster(world, history)
    return cluster.clients, cluster


def _moves_of(history: list[Event]) -> Counter[str]:
    """How many moves were begun and made, and how many sources were on another shard."""
    found: Counter[str] = Counter()
    for event in history:
        if event["event"] == "ledger" and not event.get("snapshot"):
            moved = len(event.get("moved", ()))
            left = {*event.get("released", ())}
            found["moved in one step"] += sum(row["uid"] in left for row in event.get("reserved", ()))
            found["target reserved"] += sum("target_of" in row for row in event.get("reserved", ()))
            found["moved"] += moved
            found["moved between shards"] += moved - len(event.get("released", ())) if moved else 0
    return found
