"""Kubernetes mode: the cluster as the API server has it, taken in by the registry and the ledger.

The API server is the journal of its pods: a dispatcher that starts lists them, and writes nothing of them down. Everything is taken
in many at a time; nothing of a pod is a call of its own.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from dispatcher.config import Cluster
from dispatcher.core import messages as m
from dispatcher.core.mirror import NodeMirror, PodMirror, PodPlan, gangs_of
from dispatcher.core.pace import Pace
from dispatcher.core.pod_objects import GonePod, PodReader, SeenPod, problem_of
from dispatcher.core.podsets import NewPods, NewTemplate, Order, Submission
from dispatcher.core.podtable import Phase, Rows
from dispatcher.intake import read_template
from dispatcher.object_mirror import ObjectMirror
from dispatcher.runtime import Runtime
from dispatcher.second_opinion import SecondOpinion
from hoss import rpc
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput
from hoss.kube.api import KubeApi
from hoss.kube.reflector import Change, Gone, Reflector
from hoss.model.node import NodeSpec
from hoss.model.node_manifest import read_node
from hoss.model.pod import PodTemplate
from hoss.telemetry import logger
from hoss.wire.columns import decode_uids, uid_from_text
from hoss.wire.convert import template_to_proto

_PODS = 2000  # in one submission
_NODES = 500  # in one call
_LOOK_SECONDS = 1.0  # at what is wrong, when nothing comes
_MOST_TEMPLATES = 20_000

_PODS_PATH, _NODES_PATH = "/api/v1/pods", "/api/v1/nodes"


class Accepted(NamedTuple):
    """A submission of pods that were seen, and which of its rows are on which nodes."""

    submission: Submission
    rows: Rows
    nodes: Rows


class Mirroring:
    """Follows the API server. First `begin`, then `run`, both within `following`."""

    def __init__(self, runtime: Runtime, api: KubeApi, resolver: ResolverClient, config: Cluster, term: int) -> None:
        self._runtime = runtime
        self._registry = runtime.machine.registry
        self._resolver = resolver
        self._reader = PodReader(config.scheduler_names, ignored=config.ignored)
        self.pods = PodMirror(self._registry)
        self.crowded: set[int] = set()  # nodes on which pods stood without reservations when it began
        self._nodes = NodeMirror(self._registry)
        self._objects = ObjectMirror(runtime, api)
        self._opinion = SecondOpinion(
            runtime,
            api,
            self._nodes,
            self.pods.nodes,
            schedulers=config.scheduler_names,
            clean_up=config.delete_rejected,
        )
        self._orders = (f"kubernetes {term}/{number}" for number in count())
        self._templates: dict[PodTemplate, NewTemplate] = {}
        self._news = asyncio.Event()
        self._pod_news: list[SeenPod | GonePod] = []
        self._node_news: dict[str, NodeSpec | None] = {}  # by name; None: it is gone
        self.reflectors = [
            Reflector(api, _PODS_PATH, self._hear_pods),
            Reflector(api, _NODES_PATH, self._hear_nodes),
            *self._objects.reflectors,
        ]

    def vanished(self, node: str) -> bool:
        """Whether the API server has this node no more, though pods of it are in the ledger."""
        return node in self._nodes.doomed

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """News come in while the body runs."""
        async with rpc.background(*(reflector.run() for reflector in self.reflectors)):
            yield

    async def begin(self) -> list[Accepted]:
        """Take in all that is there, but for what waits to be placed: those submissions are to be settled once it is known which
        of their pods are reserved."""
        for reflector in self.reflectors:
            await reflector.complete.wait()
        known = await self._runtime.until_answered(self._resolver.list_nodes)
        self._nodes.known_before(info.spec.name for info in known)
        self.pods.nodes.update((info.spec.name, info.index) for info in known)
        gone = {name for name in self._nodes.told if name not in self._node_news}
        self._node_news.update(dict.fromkeys(gone))
        await self._take_nodes()
        plan = self.pods.plan(self._taken_pods())
        accepted = [self._accept(part) for part in _parts(plan.new)]
        self._opinion.found_before(plan.rejected)
        logger().info(
            "mirror_complete",
            pods=len(plan.new),
            nodes=len(self.pods.nodes),
            astray=sum(self.pods.astray.values()),
        )
        return accepted

    def settle(self, accepted: Sequence[Accepted]) -> None:
        """It is known what is reserved: what is on nodes is told to be there, and the rest is queued."""
        for part in accepted:
            unreserved = self._registry.pods.phase[part.rows] == Phase.ABSENT
            self.crowded.update(part.nodes[unreserved].tolist())
            self._runtime.machine.restore_mirrored(part.submission)
            self._settle(part)

    def _settle(self, part: Accepted) -> None:
        self._runtime.tell(m.Assigned(part.rows, part.nodes))
        self._runtime.tell(m.Admitted(part.submission))

    async def run(self) -> None:
        """Take in what comes until cancelled."""
        pace = Pace()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), _LOOK_SECONDS)
                await asyncio.sleep(pace.seconds)
            self._news.clear()
            await self._take_nodes()
            changes = [*self.pods.take_found(), *self._taken_pods()]
            pace.took(len(changes))
            self._take(self.pods.plan(changes))
            if self._nodes.doomed and any(isinstance(change, GonePod) for change in changes):
                self._news.set()  # one of them may be empty now
            self._tell_problems()

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _hear_pods(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, Gone):
                self._pod_news.append(GonePod(uid_from_text(change.uid)))
                continue
            try:
                self._pod_news.append(self._reader.read(change.object))
            except InvalidInput as exc:
                logger().warning("pod_unreadable", problem=problem_of(change.object, exc))
                self._runtime.machine.counters["pods_unreadable"] += 1
        self._news.set()

    def _taken_pods(self) -> list[SeenPod | GonePod]:
        taken, self._pod_news = self._pod_news, []
        return taken

    def _take(self, plan: PodPlan) -> None:
        if len(plan.gone):
            self._runtime.tell(m.Deleted(plan.gone))
            self._registry.vacate(plan.gone)
        for part in _parts(plan.new):
            self._settle(self._accept(part))
        if len(plan.assigned):
            self._runtime.tell(m.Assigned(plan.assigned, plan.nodes))
        self._take_changes([*zip(plan.assigned.tolist(), plan.seen, strict=True), *plan.waiting])
        self._opinion.hear(plan.rejected)
        for row, gates in plan.ungated:
            self._runtime.tell(m.GatesRemoved(np.array([row], np.uint32), gates))

    def _take_changes(self, seen: Iterable[tuple[int, SeenPod]]) -> None:
        """A pod that is there may be resized, labelled otherwise, or tolerate more. Most events of pods say nothing of that."""
        pods, templates = self._registry.pods, self._registry.templates
        read = ((row, self._template(self._objects.controllers.template_of(pod))) for row, pod in seen)
        changed = tuple(
            (row, new) for row, new in read if templates.differs(int(pods.template[row]), new.spec, new.kind)
        )
        if changed:
            self._runtime.tell(m.Respecified(changed))

    def _accept(self, pods: Sequence[SeenPod]) -> Accepted:
        """Give the pods rows."""
        templates: dict[int, int] = {}  # id of a template -> its number
        used: list[NewTemplate] = []
        numbers = []
        for pod in pods:
            template = self._objects.controllers.template_of(pod)
            number = templates.get(id(template))
            if number is None:
                number = templates[id(template)] = len(used)
                used.append(self._template(template))
            numbers.append(number)
        uids = decode_uids(b"".join(pod.uid for pod in pods))
        gangs, of_pods = gangs_of(pods)
        listed = NewPods(tuple(pod.name for pod in pods), np.array(numbers, np.uint32), uids, of_pods)
        order = Order(next(self._orders), tuple(used), (), listed, gangs)
        submission = self._registry.accept(order, self._runtime.now_ms())
        on_nodes = [(i, self.pods.nodes[pod.node]) for i, pod in enumerate(pods) if pod.node]
        rows = np.array([i for i, _ in on_nodes], np.uint32) + np.uint32(submission.sets[0].first)
        return Accepted(submission, rows, np.array([node for _, node in on_nodes], np.uint32))

    def _template(self, template: PodTemplate) -> NewTemplate:
        found = self._templates.get(template)
        if found is None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[template] = read_template(template_to_proto(template))
        return found

    # -- nodes and other objects --------------------------------------------------------------------------------------

    def _hear_nodes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, Gone):
                self._node_news[change.name] = None
                continue
            try:
                node = read_node(change.object)
            except InvalidInput as exc:
                logger().warning("node_unreadable", node=change.object["metadata"]["name"], problem=str(exc))
                self._runtime.machine.counters["nodes_unreadable"] += 1
            else:
                self._node_news[node.name] = node
        self._news.set()

    async def _take_nodes(self) -> None:
        news, self._node_news = self._node_news, {}
        seen = [node for node in news.values() if node is not None]
        gone = [name for name, node in news.items() if node is None]
        plan = self._nodes.plan(seen, gone, self.pods.nodes)
        for start in range(0, len(plan.upserts), _NODES):
            part = plan.upserts[start : start + _NODES]
            reply = await self._runtime.until_answered(lambda part=part: self._resolver.upsert_nodes(part))  # type: ignore[misc]
            self.pods.nodes.update(zip((node.name for node in part), reply.indexes, strict=True))
            if reply.overcommitted:
                logger().warning("nodes_overcommitted", nodes=list(reply.overcommitted)[:20])
        if plan.removals:
            await self._runtime.until_answered(lambda: self._resolver.remove_nodes(plan.removals))
            for name in plan.removals:
                self.pods.nodes.pop(name, None)
        self._nodes.done(plan)

    def _tell_problems(self) -> None:
        problems = self._runtime.problems
        for reflector in self.reflectors:
            problems.pop(reflector.path, None)
            if reflector.problem:
                problems[reflector.path] = f"news of {reflector.path} do not come: {reflector.problem}"
        self._opinion.forget_old()
        problems.pop("astray", None)
        if self.pods.astray:
            name, pods = next(iter(self.pods.astray.items()))
            problems["astray"] = (
                f"pods are on {len(self.pods.astray)} nodes that the API server has not, such as {pods} on {name}; "
                "they are counted once it has"
            )


def _parts(pods: Sequence[SeenPod]) -> Iterator[Sequence[SeenPod]]:
    for start in range(0, len(pods), _PODS):
        yield pods[start : start + _PODS]
