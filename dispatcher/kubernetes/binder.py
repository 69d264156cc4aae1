"""Kubernetes mode: has resolvers bind, at the API server, the pods whose reservations are confirmed.

A binding request is repeated until its outcome is known. Meanwhile the pod keeps its reservation, so a
binding that the API server did make cannot overcommit the node. Before the first request a reservation may
still be released: when the pod has changed since it was placed, or its node was deleted. If the pod waits for
its devices then, a resolver takes them back first. What an earlier term has asked for may still be written,
so its reservations are given up only after the time that this can take. Several resolvers take turns, because
a binding costs a resolver up to half a millisecond of Python."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core import messages as m
from dispatcher.core.bound.settlement import CHANGED
from dispatcher.core.cluster.nodes import removed
from dispatcher.core.kubernetes.volume_waits import READY, PlacedPod, VolumeJudgement, VolumeStep, VolumeWaits
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.leader.leadership import Leadership
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.runtime import Runtime
from hoss.client.resolver import ResolverClient
from hoss.errors import LedgerUnavailable, Overloaded, TransportError
from hoss.kube.api import BINDING_REQUEST_SECONDS
from hoss.model.devices import PodClaims, extended_claim_name
from hoss.telemetry import logger
from hoss.telemetry.context import calls_belong_to, now_ns
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U8, U32, Uids, decode, decode_uids

# The pods of a call wait for the slowest of them, so a call has few. This many calls keep all connections
# busy.
_PODS_PER_CALL = 50
_CALLS = 8
_RETRY_SECONDS = 0.5

# How long a pod waits for its volumes before they are looked at without a change.
_VOLUME_SECONDS = 5.0


class _Request(NamedTuple):
    row: int
    uid: bytes


class _GivenUp(NamedTuple):
    reason: str
    not_before: float  # monotonic seconds
    changes: int  # of the pod, when it was given up: placed anew, it is none of these


class PodBinder:
    """`add` pods; `run` must be running."""

    def __init__(
        self,
        runtime: Runtime,
        client: ResolverClient,
        nodes: ClusterNodes,
        leadership: Leadership,
        *,
        evictions_read: Callable[[int], int],
        node_deleted: Callable[[str], bool],
        on_bound: Callable[[Rows, list[str]], None],
        on_volumes_refused: Callable[[Rows, list[str]], None],
        on_devices_pending: Callable[[Rows, list[str]], None],
        volume_timeout_seconds: float,
    ) -> None:
        """`evictions_read`: up to which seq the evictions of a shard are known; `node_deleted`: whether the
        API server has no node of this name any more; `on_bound` gets bound pods and the names of their
        nodes, `on_volumes_refused` pods whose volumes or devices were refused, and why; `on_devices_pending`
        pods whose devices are being made ready, and what is said of that, once for each pod."""
        self._runtime = runtime
        self._machine = runtime.machine
        self._client = client
        self._nodes = nodes
        self._leadership = leadership
        self._evictions_read = evictions_read
        self._node_deleted = node_deleted
        self._on_bound = on_bound
        self._on_volumes_refused = on_volumes_refused
        self._on_devices_pending = on_devices_pending
        self._volumes = VolumeWaits(
            self._machine.storage, timeout_seconds=volume_timeout_seconds, repeat_seconds=_VOLUME_SECONDS
        )
        self._machine.storage_updates.on_claims = self._claims_changed
        self._delayed: dict[bytes, _Request] = {}  # by UID, those that wait for their volumes
        self._judge_again: set[bytes] = set()  # pods in a call to a resolver, whose claims changed meanwhile
        # UIDs of pods that wait and have claims: a resolver may have given them devices. And those of them
        # that are known to wait for their devices, and were told of.
        self._devices_pending: set[bytes] = set()
        self._devices_told: set[bytes] = set()
        self._given_up: dict[bytes, _GivenUp] = {}  # by UID, pods that are not to be bound
        self._attempted: set[bytes] = set()  # UIDs of pods that the API server may have bound already
        # In the queue, or due to come back to it. A request is looked at anew when it is taken, so one entry
        # is enough however often it is asked for.
        self._waiting: set[_Request] = set()
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()

    def add(self, rows: Rows, uids: Uids, *, attempted: bool = False) -> None:
        """Bind these pods, whose reservations are confirmed. Pods that are bound or gone are ignored.
        `attempted`: an earlier term may have sent binding requests for them."""
        for row, uid in zip(rows.tolist(), map(bytes, uids), strict=True):
            if attempted:
                self._attempted.add(uid)
            if (request := _Request(row, uid)) not in self._waiting:
                self._waiting.add(request)
                self._queue.put_nowait(request)

    def give_up(self, rows: Rows, uids: Uids, reason: str) -> None:
        """Release the reservations of these pods, which an earlier term has left, once no binding can take
        effect any more that it may have asked for. It may have given devices to those that have claims: a
        resolver takes them back first."""
        claiming = np.isin(rows, list(self._resource_claims(rows)))
        self._devices_pending.update(map(bytes, uids[claiming]))
        for row, uid in zip(rows.tolist(), map(bytes, uids), strict=True):
            changes = int(self._machine.registry.pods.changes[row])
            self._given_up[uid] = _GivenUp(reason, self._runtime.now() + BINDING_REQUEST_SECONDS, changes)
            asyncio.get_running_loop().call_later(
                BINDING_REQUEST_SECONDS + _RETRY_SECONDS, self._queue.put_nowait, _Request(row, uid)
            )

    def __len__(self) -> int:
        """How many pods wait for their turn."""
        return len(self._waiting)

    async def run(self) -> None:
        """Bind until cancelled."""
        await asyncio.gather(*(self._call_repeatedly() for _ in range(_CALLS)))

    async def _call_repeatedly(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _PODS_PER_CALL and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self._waiting.difference_update(batch)
            try:
                await self._bind(batch)
            except (LedgerUnavailable, Overloaded, TransportError) as exc:
                logger().warning("bindings_delayed", pods=len(batch), error=str(exc))
                self._runtime.problems["binding"] = f"pods cannot be bound now: {exc}"
                self._retry_later(batch)
            else:
                self._runtime.problems.pop("binding", None)

    def _retry_later(self, batch: Iterable[_Request]) -> None:
        for request in batch:
            if request not in self._waiting:
                self._waiting.add(request)
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._queue.put_nowait, request)

    async def _bind(self, batch: list[_Request]) -> None:
        requests = self._release_outdated([request for request in batch if self._is_due(request)])
        early = dict.fromkeys(request for request in requests if self._too_early(request))
        for request in early:
            if self._machine.settlement.nominations.victims_unknown(request.row):
                await self._check_nomination(request)
        self._retry_later(early)
        rows = np.array([request.row for request in requests if request not in early], np.uint32)
        if not len(rows):
            return
        withdrawn = self._withdrawn(rows)
        steps = self._volume_steps([row for row in rows.tolist() if row not in withdrawn])
        steps |= {row: VolumeJudgement(VolumeStep.UNDO, reason) for row, reason in withdrawn.items()}
        waits = np.array([steps.get(row, READY).step is VolumeStep.WAIT for row in rows.tolist()], np.bool_)
        self._wait_for_volumes(rows[waits])
        rows = rows[~waits]
        if not len(rows):
            return
        self._leadership.require_valid_lease()
        pods = self._machine.registry.pods
        nodes, uids, changes = pods.node[rows].copy(), pods.uid[rows].copy(), pods.changes[rows].copy()
        claims = self._resource_claims(rows)
        given_back = np.isin(rows, list(withdrawn))
        self._attempted.update(map(bytes, uids[~given_back]))
        traces, began_ns = self._runtime.traces, now_ns()
        context = None if traces is None else traces.binding(uids)
        with calls_belong_to("" if context is None else str(context)):
            reply = await self._client.bind(self._message(rows, uids, nodes, steps, claims))
        results = decode(reply.results, U8, name="results", rows=len(rows))
        # A pod that was placed again meanwhile was refused its former place. Of the new one nothing is known:
        # another call may be about it.
        elsewhere = (results == pb.BIND_REFUSED) & (pods.changes[rows] != changes)
        results = np.where(elsewhere, np.uint8(pb.BIND_UNKNOWN), results)
        known = ~np.isin(results, (pb.BIND_UNKNOWN, pb.BIND_UNRESERVED, pb.BIND_VICTIMS))
        self._attempted.difference_update(map(bytes, uids[known]))
        texts = list(reply.texts) or [""] * len(rows)
        if traces is not None:
            from dispatcher.tracing import Bindings  # noqa: PLC0415 - only with tracing

            bindings = Bindings([*map(bytes, uids)], self._names(nodes), results.tolist(), texts)
            traces.bound(bindings, context, began_ns)
        # Rows may have been given to other pods meanwhile.
        same = (self._machine.registry.pods.uid[rows] == uids).all(axis=1)
        refused = np.flatnonzero((results == pb.BIND_REFUSED) & same).tolist()
        of_volumes = [
            i
            for i in refused
            if not given_back[i]
            and (steps.get(int(rows[i]), READY).step > VolumeStep.BOUND_ALREADY or int(rows[i]) in claims)
        ]
        for i in refused:
            texts[i] = texts[i] or steps.get(int(rows[i]), READY).reason
        self._on_volumes_refused(rows[np.array(of_volumes, np.intp)], [texts[i] for i in of_volumes])
        waits = results == pb.BIND_WAITS
        for uid in map(bytes, uids[waits]):
            self._volumes.written(uid, self._runtime.now())
        claiming = np.array([row in claims for row in rows.tolist()], np.bool_)
        self._devices_pending.update(map(bytes, uids[waits & same & claiming]))
        self._tell_pending(rows, uids, waits & same, steps, texts)
        self._wait_for_volumes(rows[waits & same])
        over = ~np.isin(results, (pb.BIND_WAITS, pb.BIND_UNKNOWN, pb.BIND_VICTIMS)) | ~same
        for uid in map(bytes, uids[over]) if steps or self._devices_pending else ():
            self._forget_volumes(uid)
        self._withdraw({int(rows[i]): texts[i] for i in refused if given_back[i]})
        same &= ~(given_back & (results == pb.BIND_REFUSED))
        await self._settle(
            rows[same], uids[same], nodes[same], results[same], np.array(texts, object)[same].tolist()
        )

    def _withdrawn(self, rows: Rows) -> dict[int, str]:
        """By row, why pods must not be bound as placed whose devices a resolver is to take back. Not those of
        which nobody knows whether they are bound: they may use their devices."""
        uids = self._machine.registry.pods.uid
        reasons = {
            row: self._outdated(row)
            for row in rows.tolist()
            if (uid := uids[row].tobytes()) in self._devices_pending and uid not in self._attempted
        }
        return {row: reason for row, reason in reasons.items() if reason}

    def _volume_steps(self, rows: Sequence[int]) -> dict[int, VolumeJudgement]:
        """By row, what is to be done for the volumes of the pods first."""
        registry, now = self._machine.registry, self._runtime.now()
        found: dict[int, VolumeJudgement] = {}
        for row in rows:
            spec = registry.templates.pod_spec(int(registry.templates.class_id[registry.pods.template[row]]))
            if spec.volumes is None or not spec.volumes.claims:
                continue
            node = self._machine.nodes.get(int(registry.pods.node[row]))
            if node is not None:
                seconds = self._bind_seconds(row, "VolumeBinding")
                pod = PlacedPod(registry.pods.uid[row].tobytes(), spec, node.name, node.labels, seconds)
                self._judge_again.discard(pod.uid)
                found[row] = self._volumes.judge(pod, now)
        return found

    def _bind_seconds(self, row: int, plugin: str) -> float | None:
        """How long the pod may wait by the profile that placed it. A pod that an earlier term placed has
        forgotten its worker, and waits as long as the platform says."""
        return self._machine.members.bind_seconds(int(self._machine.registry.pods.worker[row]), plugin)

    def _resource_claims(self, rows: Rows) -> dict[int, tuple[str, ...]]:
        """By row, the resource claims of the pods that have any."""
        registry = self._machine.registry
        found: dict[int, tuple[str, ...]] = {}
        for row in rows.tolist():
            spec = registry.templates.pod_spec(int(registry.templates.class_id[registry.pods.template[row]]))
            if spec.claims is None:
                continue
            names = [use.claim for use in spec.claims.uses if use.needed and use.claim is not None]
            if self._gets_devices(spec.claims, int(registry.pods.node[row])):
                names.append(extended_claim_name(spec.claims.pod, spec.claims.uid))
            if names:
                found[row] = tuple(dict.fromkeys(names))
        return found

    def _gets_devices(self, claims: PodClaims, node: int) -> bool:
        """Whether an extended resource of the pod is a device on this node, which offers none of it
        itself."""
        offered = self._nodes.allocatable(node) if claims.containers else {}
        return any(
            not offered.get(resource)
            for container in claims.containers
            for _, resource, _ in container.requests
        )

    def _wait_for_volumes(self, rows: Rows) -> None:
        """Look at these pods again when one of their claims changes, or after a while: a change may be missed
        that was taken back at once."""
        for row in rows.tolist():
            request = _Request(row, self._machine.registry.pods.uid[row].tobytes())
            if request in self._waiting:
                continue
            self._waiting.add(request)
            self._delayed[request.uid] = request
            if request.uid in self._judge_again:
                self._resume(request)
            else:
                asyncio.get_running_loop().call_later(_VOLUME_SECONDS, self._resume, request)

    def _claims_changed(self, claims: frozenset[tuple[str, str]]) -> None:
        for uid in self._volumes.changed(claims):
            if (request := self._delayed.get(uid)) is not None:
                self._resume(request)
            else:
                self._judge_again.add(uid)

    def _tell_pending(
        self,
        rows: Rows,
        uids: Uids,
        waits: NDArray[np.bool_],
        steps: Mapping[int, VolumeJudgement],
        texts: Sequence[str],
    ) -> None:
        """Tell of the pods that wait, with all their volumes, for their devices, unless they were told of."""
        told = [
            i
            for i in np.flatnonzero(waits).tolist()
            if steps.get(int(rows[i]), READY).step is VolumeStep.BOUND_ALREADY
            and uids[i].tobytes() not in self._devices_told
        ]
        if told:
            self._devices_told.update(map(bytes, uids[told]))
            self._on_devices_pending(rows[told], [texts[i] for i in told])

    def _forget_volumes(self, uid: bytes) -> None:
        self._devices_pending.discard(uid)
        self._devices_told.discard(uid)
        self._given_up.pop(uid, None)
        self._volumes.forget(uid)
        self._judge_again.discard(uid)

    def _resume(self, request: _Request) -> None:
        if self._delayed.get(request.uid) is request:
            del self._delayed[request.uid]
            self._queue.put_nowait(request)

    async def _settle(
        self, rows: Rows, uids: Uids, nodes: Rows, results: NDArray[np.uint8], texts: list[str]
    ) -> None:
        done = results == pb.BIND_DONE
        if done.any():
            self._machine.counters["bindings"] += int(done.sum())
            self._on_bound(rows[done], self._names(nodes[done]))
            self._runtime.handle(m.Assigned(rows[done], nodes[done]))
        refused = results == pb.BIND_REFUSED
        if refused.any():
            self._machine.counters["bindings_refused"] += int(refused.sum())
            reasons = tuple(texts[i] for i in np.flatnonzero(refused).tolist())
            self._runtime.handle(m.BindingRefused(rows[refused], reasons))
        unknown = np.flatnonzero(results == pb.BIND_UNKNOWN)
        if len(unknown):
            logger().warning("bindings_unknown", pods=len(unknown), error=texts[int(unknown[0])])
            self._retry_later([_Request(int(rows[i]), uids[i].tobytes()) for i in unknown.tolist()])
        # The ledger knows of victims also where their evictions were not read: by an earlier term, or in a
        # gap.
        early = np.flatnonzero(results == pb.BIND_VICTIMS)
        self._machine.settlement.nominations.waits_by_ledger(rows[early])
        self._retry_later([_Request(int(rows[i]), uids[i].tobytes()) for i in early.tolist()])
        unreserved = results == pb.BIND_UNRESERVED
        if unreserved.any():
            await self._runtime.verify(m.Verify(rows[unreserved], uids[unreserved]))
            self.add(rows[unreserved], uids[unreserved])

    def _still_reserved(self, request: _Request) -> bool:
        pods = self._machine.registry.pods
        reserved = bool(
            pods.phase[request.row] == Phase.BOUND
            and not pods.assigned[request.row]
            and pods.uid[request.row].tobytes() == request.uid
        )
        if not reserved:
            self._attempted.discard(request.uid)
            self._forget_volumes(request.uid)
        return reserved

    def _is_due(self, request: _Request) -> bool:
        """Whether something is to be done for the pod. One that is given up later comes again in time."""
        if not self._still_reserved(request):
            return False
        given_up = self._given_up.get(request.uid)
        if given_up is not None and given_up.changes != self._machine.registry.pods.changes[request.row]:
            del self._given_up[request.uid]
            return True
        return given_up is None or self._runtime.now() >= given_up.not_before

    def _release_outdated(self, requests: list[_Request]) -> list[_Request]:
        """Release the reservations of pods that must not be bound as placed, unless a binding was attempted,
        or they may have devices. Returns the other requests."""
        reasons = {
            request: self._outdated(request.row)
            for request in requests
            if request.uid not in self._attempted and request.uid not in self._devices_pending
        }
        outdated = {request: reason for request, reason in reasons.items() if reason}
        self._withdraw({request.row: reason for request, reason in outdated.items()})
        return [request for request in requests if request not in outdated]

    def _withdraw(self, reasons: Mapping[int, str]) -> None:
        """Release the reservations of these pods, by row, for which nothing is written, or no longer."""
        if reasons:
            self._machine.counters["bindings_withdrawn"] += len(reasons)
            rows = np.array([*reasons], np.uint32)
            for uid in map(bytes, self._machine.registry.pods.uid[rows]):
                self._given_up.pop(uid, None)
            self._runtime.handle(m.BindingRefused(rows, tuple(reasons.values()), attempted=False))

    def _outdated(self, row: int) -> str:
        """Why a pod must not be bound as it was placed; "" if it may be."""
        if given_up := self._given_up.get(self._machine.registry.pods.uid[row].tobytes()):
            return given_up.reason
        if self._machine.registry.pods.outdated[row]:
            return CHANGED
        node = self._nodes.name(int(self._machine.registry.pods.node[row]))
        return removed(node) if node and self._node_deleted(node) else ""

    def _too_early(self, request: _Request) -> bool:
        """Whether victims are still leaving for the pod, or the feed has not described its node yet."""
        nominations = self._machine.settlement.nominations
        nominated = nominations.is_nominated(request.row) or nominations.has_victims(request.uid)
        return nominated or not self._nodes.name(int(self._machine.registry.pods.node[request.row]))

    async def _check_nomination(self, request: _Request) -> None:
        """A nominated pod may have found room without victims. Then no end of a victim will be reported."""
        found = await self._runtime.ledger.lookup(decode_uids(request.uid))
        read = all(self._evictions_read(shard) >= int(seqs.max()) for shard, seqs in found.commits.items())
        nominations = self._machine.settlement.nominations
        if found.commits and read and nominations.victims_unknown(request.row):
            nominations.no_victims(request.row)

    def _names(self, nodes: Rows) -> list[str]:
        return [self._nodes.name(node) for node in nodes.tolist()]

    def _message(
        self,
        rows: Rows,
        uids: Uids,
        nodes: Rows,
        steps: Mapping[int, VolumeJudgement],
        claims: Mapping[int, tuple[str, ...]],
    ) -> pb.BindRequest:
        registry = self._machine.registry
        return pb.BindRequest(
            uids=uids.tobytes(),
            nodes=nodes.astype(U32).tobytes(),
            pods=[
                f"{registry.namespace_of(row)}/{registry.set_of(row).pod_name(row)}" for row in rows.tolist()
            ],
            node_names=[
                common_pb2.NodeName(index=index, name=self._nodes.name(index))
                for index in np.unique(nodes).tolist()
            ],
            volumes=bytes(int(steps.get(row, READY).step) for row in rows.tolist()) if steps else b"",
            resource_claims=[
                pb.ResourceClaimNames(
                    names=claims.get(row, ()), ready_seconds=self._bind_seconds(row, "DynamicResources") or 0
                )
                for row in rows.tolist()
            ]
            if claims
            else (),
            claim_versions=[
                pb.ClaimVersions(versions=steps.get(row, READY).versions) for row in rows.tolist()
            ]
            if any(judgement.versions for judgement in steps.values())
            else (),
        )


def unassigned(runtime: Runtime) -> tuple[Rows, Uids]:
    """Pods with reservations that no node has, such as an earlier term has left."""
    pods = runtime.machine.registry.pods
    reserved = (pods.phase[: pods.size] == Phase.BOUND) & ~pods.assigned[: pods.size]
    rows = np.flatnonzero(reserved).astype(np.uint32)
    return rows, decode_uids(pods.uid[rows].tobytes())
