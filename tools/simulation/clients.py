"""The clients of a simulated platform: they submit, delete and watch, and write into the history what they
sent and what they were told."""

import asyncio
from collections import Counter
from datetime import datetime, timezone
from itertools import count
from typing import Any

from dispatcher.__main__ import REVISION_BITS
from dispatcher.core.pods.sets import uid_prefix
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.resolver import ResolverClient
from hoss.errors import HossError, InvalidInput, LedgerUnavailable, Overloaded, TransportError
from hoss.model.node import NodeSpec
from hoss.model.pod import (
    GangSpec,
    HostPort,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodTemplate,
    Workload,
)
from hoss.model.selectors import LabelSelector, Requirement
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U16, NONE_U32, U8, U16, U32, decode, decode_uids
from hoss.wire.uids import uid_text
from hossctl.choices import RebalanceGoal
from hossctl.endpoints import Clients
from hossctl.explain.offline import preset
from hossctl.history.events import Event, History
from hossctl.rebalance.controlling import ControllerProcess
from hossctl.rebalance.policy import BudgetDocument, GoalDocument, RebalancePolicy
from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE
from tools.simulation import plan as p
from tools.simulation.loop import Process
from tools.simulation.plan import Act
from tools.simulation.world import DISPATCHER, RESOLVER, World

_NAME, _WATCHER, _CONTROLLER = "client", "watcher", "controller"
MEMORY_BYTES = 8 * 2**30
_RETRY_SECONDS = 0.2
GATE = "hold"
NODE_PODS = 20
REFUSED_WHEN_FULL = "refused by a full queue"
REFUSED_BEYOND_SHARE = "refused beyond a tenant's share"


class SimulatedClients:
    """One process with all clients. Nothing of it ever fails; only what it talks to does."""

    def __init__(self, world: World, history: History, *, named_nodes: bool) -> None:
        self.answers: Counter[str] = Counter()
        self.process, self._host = world.new_host(_NAME)
        self._world = world
        self._history = history
        self._named_nodes = named_nodes
        host = self._host
        self.dispatcher = DispatcherClient(
            self._addresses(DISPATCHER), open_channel=host.channel, clock=host.monotonic, rng=host.rng
        )
        self.dispatcher.on_full = _do_not_wait
        self.resolver = ResolverClient(self._addresses(RESOLVER), open_channel=host.channel)
        self._uids: dict[str, list[str]] = {}  # by job
        self._tenants: dict[str, str] = {}  # by job: to which its client is limited
        self._node_names: dict[int, str] = {}
        self._term = 0  # of the dispatcher that the watcher listens to
        self._busy: dict[str, asyncio.Lock] = {}  # by job
        self._controller: ControllerProcess | None = None
        self._control_process: Process | None = None

    def _addresses(self, kind: str) -> list[str]:
        services = self._world.services
        return [a for name, a in self._world.addresses.items() if services[name].kind == kind]

    # -- nodes

    async def register(self, nodes: int) -> None:
        """Register the first nodes, however long that takes."""
        specs = [self._node(f"n{number}") for number in range(nodes)]
        for _ in count():
            if await self._registered(specs):
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _registered(self, specs: list[NodeSpec]) -> bool:
        try:
            await self.resolver.upsert_nodes(specs)
        except (LedgerUnavailable, TransportError):
            return False
        return True

    async def change_node(self, act: Act) -> None:
        """Add, change or remove a node."""
        name = act.target
        try:
            match act.what:
                case p.ADD_NODE:
                    await self.resolver.upsert_nodes([self._node(name)])
                case p.SHRINK_NODE:
                    await self.resolver.upsert_nodes([self._node(name, p.NODE_CPU // 4)])
                case p.REMOVE_NODE:
                    await self.resolver.remove_nodes([name])
                case p.CORDON | p.UNCORDON:
                    await self.resolver.cordon_node(name, act.what == p.CORDON)
        except HossError as exc:
            self._world.note(_NAME, "client", f"{act.what} {name}: {exc}")

    def _node(self, name: str, cpu: int = p.NODE_CPU) -> NodeSpec:
        labels = (("kubernetes.io/hostname", name),) if self._named_nodes else ()
        allocatable = (("cpu", cpu), ("memory", MEMORY_BYTES), ("pods", NODE_PODS))
        return NodeSpec(name, allocatable=allocatable, labels=labels)

    # -- moves

    async def rebalance(self, act: Act) -> None:
        """Have bound pods moved some nodes on, or have that undone. Whatever becomes of it."""
        try:
            if act.what == p.UNDO_MOVES:
                await self.dispatcher.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_UNDO))
            else:
                await self.dispatcher.rebalance(await self._moves(act))
        except HossError as exc:
            self._world.note(_NAME, "client", f"{act.what}: {exc}")

    async def _moves(self, act: Act) -> pb.RebalanceRequest:
        names = sorted([node.spec.name for node in await self.resolver.list_nodes()])
        digests = (await self.resolver.audit()).digests
        return pb.RebalanceRequest(
            action=pb.REBALANCE_START,
            moves=[
                pb.RebalanceMove(
                    pod=f"{pod.namespace}/{pod.name}",
                    source=pod.node,
                    target=names[(names.index(pod.node) + act.number) % len(names)],
                )
                async for pod in self.dispatcher.list_pods()
                if pod.phase == pb.BOUND
                and pod.node in names
                and act.target in ("", pod.name.rpartition("-")[0])
            ],
            seen={digest.shard: digest.seq for digest in digests},
            moves_per_second=act.options["rate"],
        )

    async def moves(self) -> pb.RebalanceStatus:
        """The last run, as clients are told of it."""
        return await self.dispatcher.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_STATUS))

    def begin_control(self, act: Act) -> None:
        """A rebalance controller begins. It looks every second, and may move whatever helps."""
        process, host = self._world.new_host(_CONTROLLER)
        clients = Clients(
            DispatcherClient(
                self._addresses(DISPATCHER), open_channel=host.channel, clock=host.monotonic, rng=host.rng
            ),
            ResolverClient(self._addresses(RESOLVER), open_channel=host.channel),
        )
        policy = RebalancePolicy(
            goals=(GoalDocument(goal=RebalanceGoal(act.options["goal"])),),
            budget=BudgetDocument(
                movesPerHour=1000, movesPerPass=20, movesPerSecond=20, movesPerWorkload=1000
            ),
            passSeconds=1.0,
            restSeconds=1.0,
            alarmSeconds=1.0,
        )
        self._controller = ControllerProcess(
            policy,
            clients,
            preset(DEFAULT_PROFILE),
            identity="simulated",
            clock=lambda: datetime.fromtimestamp(host.unix(), timezone.utc),
        )
        self._world.loop.spawn(process, self._control(self._controller))
        self._control_process = process

    async def _control(self, controller: ControllerProcess) -> None:
        """As a process that is started again whenever it ends."""
        while True:
            try:
                await controller.connect()
                await asyncio.gather(controller.run(), controller.report())
            except HossError as exc:
                self._world.note(_CONTROLLER, "client", str(exc))
            await asyncio.sleep(_RETRY_SECONDS)

    def end_control(self) -> None:
        """The controller is killed. What it has begun goes on."""
        if self._control_process is not None and self._controller is not None:
            self._world.loop.kill(self._control_process)
            self._world.network.killed(_CONTROLLER)
            self.answers["moved by the controller"] += self._controller.moved

    # -- jobs

    async def ask(self, act: Act) -> None:
        """Submit, delete or ungate a job."""
        await self._answer(act)

    async def _answer(self, act: Act) -> str:
        """The answer: acknowledged, unknown, or why it is refused."""
        # One request about a job at a time: of two at once nobody could say which was the first.
        async with self._busy.setdefault(act.target, asyncio.Lock()):
            request_id = f"{act} {act.target}"
            if act.what == p.SUBMIT:
                request_id = f"submit {act.target}{act.options.get('id', '')}"
            try:
                done = await self._ask(act, request_id)
            except InvalidInput as exc:
                return self._answered(request_id, "refused", str(exc))
            except Overloaded as exc:
                beyond_share = is_beyond_share(str(exc))
                self.answers[REFUSED_BEYOND_SHARE if beyond_share else REFUSED_WHEN_FULL] += 1
                return self._answered(request_id, "refused", str(exc))
            except (LedgerUnavailable, TransportError) as exc:
                return self._answered(request_id, "unknown", str(exc))
            # A call that is repeated finds nothing where the first one has done it.
            return self._answered(request_id, "acknowledged" if done else "unknown")

    async def ask_until_answered(self, act: Act) -> str:
        """The same, again and again while nobody answers."""
        while True:
            if (answer := await self._answer(act)) != "unknown":
                return answer
            await asyncio.sleep(_RETRY_SECONDS)

    async def ask_until_gone(self, act: Act) -> None:
        """Delete a job, again and again until nothing of it is listed."""
        while True:
            if await self._answer(act) != "unknown" or not await self._is_listed(act.target):
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _is_listed(self, job: str) -> bool:
        uids = self._uids.get(job, ())
        try:
            return any(row["uid"] in uids for row in await self.table())
        except (LedgerUnavailable, TransportError):
            return True

    def jobs_of_tenants(self) -> list[str]:
        """Those that clients who are limited to a tenant have submitted."""
        return [name for name, tenant in self._tenants.items() if tenant]

    async def _ask(self, act: Act, request_id: str) -> bool:
        name = act.target
        if act.what == p.SUBMIT:
            await self._submit(act, request_id)
            return True
        uids = self._uids.get(name, [])
        if act.what == p.DELETE:
            self._history.append("delete", by=_NAME, request=request_id, uids=uids)
            namespace = self._tenants.get(name) or "default"
            return not (await self.dispatcher.delete(namespace, jobs=[name])).not_found
        self._history.append("ungate", by=_NAME, request=request_id, uids=uids, gates=[GATE])
        return not (await self.dispatcher.remove_gates("default", jobs=[name], gates=[GATE])).not_found

    def _answered(self, request_id: str, how: str, text: str = "") -> str:
        self.answers[how] += 1
        fields = {"text": text} if text else {}
        self._history.append(how, by=_NAME, request=request_id, **fields)
        self._world.note(_NAME, "client", f"{how}: {request_id} {text}".rstrip())
        return text if how == "refused" else how

    async def _submit(self, act: Act, request_id: str) -> None:
        options, name = act.options, act.target
        spec, facts = _spec(options)
        gang = GangSpec("default", name, options["gang"]) if "gang" in options else None
        workload = Workload(name, PodTemplate(spec, owner_kind="Job"), options["replicas"], gang=gang)
        (request,) = submission([workload], rng=self._host.rng)
        request.request_id = request_id
        if "minimum" in options:
            request.jobs[0].min_available = options["minimum"]
        prefix = uid_prefix(request_id, 0)
        uids = [uid_text(prefix + number.to_bytes(4, "big")) for number in range(options["replicas"])]
        known = self._uids.setdefault(name, [])
        known += [uid for uid in uids if uid not in known]
        if gang is not None:
            facts |= {"gang": name, "minimum": gang.minimum}
        pods = [{"uids": uids, "name": name, **facts}]
        tenant = self._tenants[name] = options.get("tenant", "")
        self._history.append("submit", by=_NAME, request=request_id, pods=pods)
        await self.dispatcher.of_tenant(tenant).submit(request)

    # -- what is told

    async def watch(self) -> None:
        """Write what a watcher is told, until cancelled."""
        while True:
            self._history.append("watch", by=_WATCHER)
            try:
                async for batch in self.dispatcher.watch(states=True):
                    self._told(batch)
            except HossError as exc:
                self._history.append("unwatch", by=_WATCHER, text=str(exc))
                await asyncio.sleep(_RETRY_SECONDS)

    def _told(self, batch: pb.WatchBatch) -> None:
        self._node_names.update({entry.index: entry.name for entry in batch.node_names})
        uids = decode_uids(batch.uids)
        count = len(uids)
        phases = decode(batch.phases, U8, name="phases", rows=count).tolist()
        nodes = decode(batch.nodes, U32, name="nodes", rows=count).tolist()
        reasons = [NONE_U16] * count
        if batch.reasons:
            reasons = decode(batch.reasons, U16, name="reasons", rows=count).tolist()
        rows = []
        for uid, phase, node, reason in zip(uids, phases, nodes, reasons, strict=True):
            row = {"uid": uid_text(uid.tobytes()), "state": _state(phase)}
            if node != NONE_U32 and phase == pb.BOUND:
                row["node"] = self._node_names.get(node, f"node {node}")
            if reason != NONE_U16:
                row["reason"] = batch.reason_texts[reason]
            rows.append(row)
        if batch.revision >> REVISION_BITS > self._term:
            if self._term:
                # A new dispatcher tells what differs, and not what was in between: see
                # DispatcherClient.watch.
                self._history.append("gap", by=_WATCHER, of="states", text="another dispatcher")
            self._term = batch.revision >> REVISION_BITS
        if rows:
            self._history.append("told", by=_WATCHER, pods=rows, revision=batch.revision)

    async def table(self) -> list[Event]:
        """Every pod as the dispatcher lists it."""
        rows: list[Event] = []
        async for pod in self.dispatcher.list_pods():
            row: Event = {"uid": uid_text(pod.uid), "state": _state(pod.phase)}
            if pod.phase == pb.BOUND:
                row["node"] = pod.node
            if pod.reason:
                row["reason"] = pod.reason
            if pod.reason.startswith("SchedulingGated"):
                row["gates"] = [GATE]
            rows.append(row)
        return rows


def _do_not_wait(refusal: Overloaded) -> None:
    """A submission that a full queue refuses is refused, and not sent again until there is room."""
    raise refusal


def is_beyond_share(refusal: str) -> bool:
    """Whether a submission was refused for what its tenant has, and not for what everybody has."""
    return "its share of a full dispatcher" in refusal


def _spec(options: dict[str, Any]) -> tuple[PodSpec, dict[str, Any]]:
    """A pod's spec, and the same as a history has it."""
    facts: dict[str, Any] = {"requests": {"cpu": options["cpu"]}}
    fields: dict[str, Any] = {"requests": (("cpu", options["cpu"]),), "priority": options.get("priority", 0)}
    if options.get("tenant"):
        fields["namespace"] = options["tenant"]
    if fields["priority"]:
        facts["priority"] = fields["priority"]
    if "port" in options:
        fields["host_ports"] = (HostPort(options["port"], "TCP", ""),)
        facts["ports"] = [{"port": options["port"]}]
    if "gate" in options:
        fields["scheduling_gates"] = (options["gate"],)
        facts["gates"] = [options["gate"]]
    if "apart" in options:
        selector = LabelSelector((Requirement("app", "In", (options["apart"],)),))
        term = PodAffinityTerm("kubernetes.io/hostname", selector, ("default",))
        fields["labels"] = (("app", options["apart"]),)
        fields["pod_affinity"] = PodAffinity(anti_required=(term,))
        facts["rules"] = ["apart"]
    return PodSpec(**fields), facts


def _state(phase: int) -> str:
    return str(pb.PodPhase.Name(pb.PodPhase.ValueType(phase))).capitalize()
