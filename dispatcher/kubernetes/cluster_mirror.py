"""Kubernetes mode: keeps the machine's registry and the ledger in step with what informers have read.

The API server is the journal of its pods: a new leader gets them from there, and writes none of them down.
Changes are processed in batches, never pod by pod."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np

from dispatcher.api.intake import read_template
from dispatcher.config import ClusterSection
from dispatcher.core import messages as m
from dispatcher.core.kubernetes.conditions import Debounce
from dispatcher.core.kubernetes.mirror import NodeMirror, PodMirror, PodPlan, closed, gangs_of
from dispatcher.core.kubernetes.pod_objects import GonePod, SeenPod
from dispatcher.core.pods.sets import NewPods, NewTemplate, Order, Submission
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.kubernetes.existing_pods import WRITER
from dispatcher.kubernetes.informers import Informers
from dispatcher.kubernetes.kubelet_rejections import KubeletRejectionAudit
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable
from hoss.kube.api import KubeApi
from hoss.model.node import NodeSpec
from hoss.model.pod import PodTemplate
from hoss.telemetry import logger
from hoss.v1.resolver_pb2 import NodeInfo, UpsertNodesReply
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.convert import node_from_proto, template_to_proto

# Accepted in one step of the event loop. Pods no two of which are alike take 0.2 ms each, others 10 us.
_PODS_PER_SUBMISSION = 250
_NODES_PER_CALL = 500
_IDLE_SECONDS = 1.0  # how often problems are checked without changes
_MOST_TEMPLATES = 20_000

ReplyT = TypeVar("ReplyT")


class Accepted(NamedTuple):
    """A submission of listed pods, the rows of it that are on nodes, and the pods that are on none."""

    submission: Submission
    rows: Rows
    nodes: Rows  # beside `rows`
    waiting: tuple[SeenPod, ...]


class ClusterMirror:
    """First `begin`, then `settle`, then `run`, while the informers run."""

    # Under which the ledger is told of pods on nodes. That of an earlier term is fenced first.
    writer = WRITER

    def __init__(
        self,
        runtime: Runtime,
        api: KubeApi,
        resolver: ResolverClient,
        informers: Informers,
        config: ClusterSection,
        *,
        term: int,
        nodes: ClusterNodes,
    ) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._resolver = resolver
        self._ledger_nodes = nodes
        self._informers = informers
        self.pods = PodMirror(self._registry)
        # Gives the places of moves to their successors among new pods: the nodes, by UID.
        self.place_successors: Callable[[Sequence[SeenPod]], Awaitable[Mapping[bytes, int]]] | None = None
        # Waits until the ledger has reservations for all pods that were assigned.
        self.counted: Callable[[], Awaitable[None]] | None = None
        self.over_reserved: set[int] = set()  # nodes with pods that had no reservations at the start
        # Nodes that the ledger did not have at the start, until their pods are counted.
        self.new_nodes: set[int] = set()
        self._nodes = NodeMirror(self._registry)
        self._rejections = KubeletRejectionAudit(
            runtime,
            api,
            self._nodes,
            self.pods.nodes,
            schedulers=config.scheduler_names,
            clean_up=config.delete_rejected,
        )
        self._orders = (f"kubernetes {term}/{number}" for number in count())
        # By identity, with the template, which keeps it: to hash a template takes as long as the rest of a
        # pod, and the reader gives equal pods the same object.
        self._templates: dict[int, tuple[PodTemplate, NewTemplate]] = {}
        self._under_way: Sequence[SeenPod] = ()  # of the changes that `run` has taken, those not handled yet

    def node_deleted(self, node: str) -> bool:
        """Whether the node's object was deleted while pods are still on it."""
        return node in self._nodes.terminating

    async def begin(self) -> list[Accepted]:
        """Give rows to all listed pods, and nodes to the ledger. Returns the submissions to `settle` once the
        reservations are known."""
        await self._informers.known.wait()
        self._take_objects()
        known = await self._runtime.until_answered(self._listed)
        self.pods.nodes.update((info.spec.name, info.index) for info in known)
        self._ledger_nodes.listed(known)
        self._nodes.restore(node_from_proto(info.spec) for info in known)
        # Pods may be on nodes whose objects are gone: only `run` knows, once the reservations are known.
        nodes = self._informers.nodes.take()
        gone = [info.spec for info in known if nodes.get(info.spec.name) is None]
        await self._take_nodes(nodes | {spec.name: closed(node_from_proto(spec)) for spec in gone})
        self._nodes.gone(spec.name for spec in gone)
        restored = {info.spec.name for info in known}
        self.new_nodes.update(index for name, index in self.pods.nodes.items() if name not in restored)
        accepted, pods = [], 0
        changes = self._informers.pods.take().values()
        for number, plan in enumerate(self.pods.plans(changes, _PODS_PER_SUBMISSION)):
            self._rejections.skip(plan.rejected)
            if plan.new:
                accepted.append(self._accept(plan.new))
                pods += len(plan.new)
            if plan.new or number:
                await asyncio.sleep(0)  # so that the lease is renewed
        logger().info(
            "mirror_complete",
            pods=pods,
            nodes=len(self.pods.nodes),
            on_unknown_nodes=sum(self.pods.on_unknown_nodes.values()),
        )
        return accepted

    async def settle(self, accepted: Sequence[Accepted], current: Rows) -> None:
        """The reservations are known: assign pods that are on nodes, and queue the others. `current`: pods
        whose reservations hold what these ask for. The ledger is told of all other pods on nodes."""
        is_current = np.zeros(self._registry.pods.size, np.bool_)
        is_current[current] = True
        for part in accepted:
            unreserved = self._registry.pods.phase[part.rows] == Phase.ABSENT
            self.over_reserved.update(part.nodes[unreserved].tolist())
            self._runtime.machine.restore_mirrored(part.submission, part.rows[is_current[part.rows]])
            await self._place_successors(part.waiting)
            self._settle(part)
            await asyncio.sleep(0)

    def _settle(self, part: Accepted) -> None:
        self._runtime.handle(m.Assigned(part.rows, part.nodes))
        self._runtime.handle(m.Admitted(part.submission))

    async def _place_successors(self, pods: Sequence[SeenPod]) -> None:
        """Of pods that came between two terms."""
        if self.place_successors is None or not pods:
            return
        unreserved = self._registry.pods.phase[self._rows_of(pods)] == Phase.ABSENT
        new = [pod for pod, waits in zip(pods, unreserved.tolist(), strict=True) if waits]
        self._inherit(await self.place_successors(new))

    def _inherit(self, placed: Mapping[bytes, int]) -> None:
        """These pods, which nobody has queued yet, hold the places that moves reserved for them."""
        if not placed:
            return
        uids = decode_uids(b"".join(placed))
        rows = self._registry.directory.rows_of_uids(uids)
        self._runtime.handle(m.Inherited(rows, np.array([*placed.values()], np.uint32)))
        self._runtime.on_confirmed(rows, uids)

    async def run(self) -> None:
        """Process changes until cancelled."""
        debounce = Debounce()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._informers.changed.wait(), _IDLE_SECONDS)
                await asyncio.sleep(debounce.seconds)
            self._informers.changed.clear()
            self._take_objects()
            await self._take_nodes()
            changes = [*self.pods.take_resolved(), *self._informers.pods.take().values()]
            debounce.observe(len(changes))
            await self._take(self.pods.plan(changes))
            await self.open_held()
            if self._nodes.terminating and any(isinstance(change, GonePod) for change in changes):
                self._informers.changed.set()  # a deleted node may have become empty
            self._update_problems()

    async def catch_up(self) -> None:
        """Return once the registry has every pod that the API server had on a node when this was called, and
        the machine has what such pods claim, and no pod whose end it has told. Raises what the reflectors
        raise.

        `run` may be waiting for the ledger meanwhile. It handles the same changes in their order later, and
        an assignment or an end that comes twice changes nothing."""
        await self._informers.catch_up()
        self._informers.storage.take(self._runtime)
        changed: set[bytes] = set()
        self._informers.pods_noted.append(changed)
        try:
            while pods := self._untold_on_nodes():
                changed.clear()
                for start in range(0, len(pods), _PODS_PER_SUBMISSION):
                    part = pods[start : start + _PODS_PER_SUBMISSION]
                    # `run` may have handled what came meanwhile, such as a deletion: the next pass looks
                    # again.
                    same = [pod for pod in part if pod.uid not in changed and pod.node in self.pods.nodes]
                    if untold := self._without_rows(same):
                        self._settle(self._accept(untold))
                    await asyncio.sleep(0)
        finally:
            noted = self._informers.pods_noted
            noted[:] = [each for each in noted if each is not changed]

    def _untold_on_nodes(self) -> list[SeenPod]:
        """The pods on nodes that have no rows yet. Rows of others are assigned, and pods that are over end:
        one of those without a row may have the name of such a pod."""
        changes = (*self.pods.resolved(), *self._under_way, *self._informers.pods)  # the latest last
        last = {change.uid: change for change in changes}
        rows = self._rows_of([each for each in last.values() if isinstance(each, GonePod) or each.over])
        self._end(rows[rows != NONE_U32])
        bound = [
            change
            for change in last.values()
            if isinstance(change, SeenPod) and change.node in self.pods.nodes and not change.ended
        ]
        if not bound:
            return []
        rows = self._rows_of(bound)
        nodes = np.array([self.pods.nodes[pod.node] for pod in bound], np.uint32)
        known = rows != NONE_U32
        self._runtime.handle(m.Assigned(rows[known], nodes[known]))
        return self._without_rows(bound)

    def _without_rows(self, pods: Sequence[SeenPod]) -> list[SeenPod]:
        known = (self._rows_of(pods) != NONE_U32).tolist()
        return [pod for pod, is_known in zip(pods, known, strict=True) if not is_known]

    def _rows_of(self, pods: Sequence[SeenPod | GonePod]) -> Rows:
        return self._registry.directory.rows_of_uids(decode_uids(b"".join(pod.uid for pod in pods)))

    def _take_objects(self) -> None:
        self._informers.objects.take(self._runtime)
        self._informers.storage.take(self._runtime)
        self._informers.pod_groups.take(self._runtime)
        self._runtime.machine.counters.update(self._informers.take_unreadable())

    # --- pods ---

    async def _take(self, plan: PodPlan) -> None:
        self._end(plan.gone)
        for start in range(0, len(plan.new), _PODS_PER_SUBMISSION):
            self._under_way = (*plan.new[start:], *plan.seen)
            part = plan.new[start : start + _PODS_PER_SUBMISSION]
            placed = await self.place_successors(part) if self.place_successors is not None else {}
            unknown = self._without_rows(part)  # `catch_up` may have accepted some meanwhile
            if unknown:
                accepted = self._accept(unknown)
                self._inherit({pod.uid: placed[pod.uid] for pod in unknown if pod.uid in placed})
                self._settle(accepted)
        self._under_way = ()
        if len(plan.assigned):
            self._runtime.handle(m.Assigned(plan.assigned, plan.nodes))
        self._take_changes([*zip(plan.assigned.tolist(), plan.seen, strict=True), *plan.waiting])
        self._rejections.audit(plan.rejected)
        for row, gates in plan.ungated:
            self._runtime.handle(m.GatesRemoved(np.array([row], np.uint32), gates))

    def _end(self, rows: Rows) -> None:
        if len(rows):
            self._runtime.handle(m.Deleted(rows))
            self._registry.release_names(rows)

    def _take_changes(self, seen: Iterable[tuple[int, SeenPod]]) -> None:
        """A known pod may be resized, or get other labels or tolerations. Most events of pods change none of
        these."""
        pods, templates = self._registry.pods, self._registry.templates
        read = (
            (row, self._template(self._informers.objects.controllers.template_of(pod))) for row, pod in seen
        )
        changed = tuple(
            (row, new) for row, new in read if templates.differs(int(pods.template[row]), new.spec, new.kind)
        )
        if changed:
            self._runtime.handle(m.PodsChanged(changed))

    def _accept(self, pods: Sequence[SeenPod]) -> Accepted:
        """Give the pods rows."""
        templates: dict[int, int] = {}  # id of a template -> its number
        used: list[NewTemplate] = []
        numbers = []
        for pod in pods:
            template = self._informers.objects.controllers.template_of(pod)
            number = templates.get(id(template))
            if number is None:
                number = templates[id(template)] = len(used)
                used.append(self._template(template))
            numbers.append(number)
        uids = decode_uids(b"".join(pod.uid for pod in pods))
        gangs, of_pods = gangs_of(pods, self._informers.pod_groups.groups.rule)
        listed = NewPods(tuple(pod.name for pod in pods), np.array(numbers, np.uint32), uids, of_pods)
        order = Order(next(self._orders), tuple(used), (), listed, gangs)
        submission = self._registry.accept(order, self._runtime.now_ms())
        on_nodes = [(i, self.pods.nodes[pod.node]) for i, pod in enumerate(pods) if pod.node]
        rows = np.array([i for i, _ in on_nodes], np.uint32) + np.uint32(submission.sets[0].first)
        waiting = tuple(pod for pod in pods if not pod.node)
        return Accepted(submission, rows, np.array([node for _, node in on_nodes], np.uint32), waiting)

    def _template(self, template: PodTemplate) -> NewTemplate:
        found = self._templates.get(id(template))
        if found is None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[id(template)] = template, read_template(template_to_proto(template))
        return found[1]

    # --- nodes ---

    async def _take_nodes(self, earlier: Mapping[str, NodeSpec | None] | None = None) -> None:
        """`earlier`: what was known before what the informers have now; by name, None for a deleted node."""
        changes = {**(earlier or {}), **self._informers.nodes.take()}
        seen = [node for node in changes.values() if node is not None]
        gone = [name for name, node in changes.items() if node is None]
        uncounted = self.pods.on_nodes(self._informers.pods) if seen else ()
        plan = self._nodes.plan(seen, gone, self.pods.nodes, uncounted)
        for start in range(0, len(plan.upserts), _NODES_PER_CALL):
            part = plan.upserts[start : start + _NODES_PER_CALL]
            reply = await self._runtime.until_answered(partial(self._upsert, part))
            self.pods.nodes.update(zip((node.name for node in part), reply.indexes, strict=True))
            if reply.overcommitted:
                logger().warning("nodes_overcommitted", nodes=list(reply.overcommitted)[:20])
        if plan.removals:
            await self._runtime.until_answered(partial(self._remove, plan.removals))
            for name in plan.removals:
                self.pods.nodes.pop(name, None)
        self._nodes.done(plan)

    async def open_held(self) -> None:
        """Open the nodes that were closed because pods on them were not counted."""
        if not self._nodes.holds_any:
            return
        if self.counted is not None:
            await self.counted()
        await self._take_nodes({node.name: node for node in self._nodes.take_held()})

    async def _listed(self) -> list[NodeInfo]:
        """The nodes of our ledger. Those that are in step with their objects are not written again."""
        return await self._unless_rebuilt(self._resolver.list_nodes)

    async def _upsert(self, nodes: Sequence[NodeSpec]) -> UpsertNodesReply:
        reply = await self._written(partial(self._resolver.upsert_nodes, nodes))
        self._ledger_nodes.upserted(nodes, reply.indexes)
        return reply

    async def _remove(self, names: Sequence[str]) -> None:
        await self._written(partial(self._resolver.remove_nodes, names))
        self._ledger_nodes.removed(names)

    async def _written(self, call: Callable[[str], Awaitable[ReplyT]]) -> ReplyT:
        """The answer to a change of nodes in our ledger, whose epoch `call` gets."""
        return await self._unless_rebuilt(partial(call, self._ledger_epoch()))

    async def _unless_rebuilt(self, call: Callable[[], Awaitable[ReplyT]]) -> ReplyT:
        """The answer of our ledger. Raises LedgerUnavailable if another ledger has taken its place meanwhile,
        made without what this one has just told."""
        epoch = self._ledger_epoch()
        reply = await call()
        if self._ledger_epoch() != epoch:
            raise LedgerUnavailable("the ledger was rebuilt meanwhile")
        return reply

    def _ledger_epoch(self) -> str:
        """Of our ledger. Another one is rebuilt from what we know, which would undo what is written there
        now, and its indexes of nodes are not ours."""
        return self._runtime.ledger.known().ledger_epoch

    def _update_problems(self) -> None:
        problems = self._runtime.problems
        for reflector in self._informers.reflectors:
            problems.pop(reflector.path, None)
            if reflector.problem:
                problems[reflector.path] = f"updates of {reflector.path} do not come: {reflector.problem}"
        self._rejections.expire()
        problems.pop("on_unknown_nodes", None)
        if self.pods.on_unknown_nodes:
            name, pods = next(iter(self.pods.on_unknown_nodes.items()))
            problems["on_unknown_nodes"] = (
                f"pods are on {len(self.pods.on_unknown_nodes)} nodes that the API server has not, "
                f"such as {pods} on {name}; they are counted once it has"
            )
