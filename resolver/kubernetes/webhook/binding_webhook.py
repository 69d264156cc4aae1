"""The binding webhook: checks the bindings of every scheduler against the ledger, and reserves what fits
before it allows a binding.

A pod that holds a reservation on the node passes: HOSS's own bindings, and a repeated question. Any other pod
is reserved under a lease, like the pods that workers propose. The dispatcher confirms the reservation when it
sees the pod on its node; until then the lease lasts as long as a binding may take, and the resolver looks
after it (bindings_under_way). A binding that cannot be checked is neither allowed nor denied: that raises,
and the webhook's failurePolicy decides."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from hoss.errors import InvalidInput, LedgerUnavailable, TransportError
from hoss.host import THIS_HOST
from hoss.manifests.fields import Object
from hoss.model.pod import PodSpec
from hoss.telemetry import logger
from hoss.v1 import common_pb2
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.convert_rules import unreviewed_definition
from hoss.wire.uids import uid_from_text
from resolver.core.kubernetes.binding_review import (
    ALREADY_RESERVED,
    EXEMPT,
    NO_ROOM,
    Review,
    ReviewAnswer,
    amounts_row,
    answer_of,
    no_such_pod,
    not_given,
    obstacle,
    proposal_for,
    reserved_elsewhere,
    unknown_node,
    unknown_resource,
    unreadable,
)
from resolver.core.kubernetes.denials import RecentDenials
from resolver.core.kubernetes.volumes_and_devices import NotGiven
from resolver.core.values import Decision, Proposal, ReservationState, Verdict, Writer
from resolver.kubernetes.pod_source import DemandCache, PodDemand, PodSource, may_have_devices, takes_names
from resolver.kubernetes.webhook.bindings_under_way import BINDING_LEASE_MS, BindingsUnderWay
from resolver.kubernetes.webhook.pod_locations import PodLocation, PodLocator
from resolver.kubernetes.webhook.volumes_and_devices import Share, VolumeFacts, VolumesAndDevices
from resolver.ledger.port import Ledger
from resolver.messages.nodes import shard_of
from resolver.messages.proposals import group_of

_ATTEMPTS = 3  # per decision; an epoch is lost only if the ledger is
# The same for a pod with volumes or devices: others may have taken some in between, or be about to.
_ATTEMPTS_BY_NAME = 8
_PAUSE_SECONDS = 0.005
_NODES_CACHED = 20_000
_COUNTED_AT_ONCE = 50  # existing pods in one call of the ledger
# After so long a denial may be too late: the API server waits for a second (timeoutSeconds), part of which is
# spent on the way.
_LATE_SECONDS = 0.5


class _KnownNode(NamedTuple):
    """A node's index, and a seq of its shard at which that was so. Later the index may be another node's."""

    node: int
    seq: int


class BindingWebhook:
    """`name`: the worker name of this webhook in the ledger, unique. `problem` says why nothing can be
    decided now; empty: it can. Bindings in the exempt namespaces are allowed unseen."""

    def __init__(
        self,
        ledger: Ledger,
        decide: Callable[[int, Proposal], Awaitable[Decision]],
        pods: PodSource,
        volumes_and_devices: VolumesAndDevices,
        *,
        name: str,
        exempt: Collection[str] = (),
        problem: Callable[[], str] = str,
        lease_seconds: float = 30.0,
        clock: Callable[[], float] = THIS_HOST.monotonic,
    ) -> None:
        self._ledger = ledger
        self._volumes_and_devices = volumes_and_devices
        self._decide = decide
        self._pods = pods
        self._name = name
        self._exempt = frozenset(exempt)
        self._problem = problem
        self._locations = PodLocator(ledger)
        self._demands = DemandCache()
        self._epoch = 0
        self._granting = asyncio.Lock()
        self._schema: list[str] = []
        self._nodes: dict[str, _KnownNode] = {}
        # Nodes whose pods are all in the ledger, and the shard's `leases_ended` when that was found.
        self._complete_nodes: dict[str, int] = {}
        self._ledger_epoch = ""  # the ledger that the three above belong to
        self.under_way = BindingsUnderWay(
            ledger,
            pods,
            lambda: Writer(worker=self._name, epoch=self._epoch),
            lease_seconds=lease_seconds,
            clock=clock,
        )
        self._answers: Counter[str] = Counter()
        self._denials = RecentDenials()
        self._clock = clock

    @property
    def counters(self) -> Counter[str]:
        """guard_<verdict> of every answer, and what became of leases."""
        return self._answers + self.under_way.counters

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered here."""
        return {
            "webhook_nodes": len(self._nodes),
            "webhook_leases": len(self.under_way),
            "webhook_denials": len(self._denials),
            **self._volumes_and_devices.table_sizes(),
        }

    async def review(self, review: Review) -> ReviewAnswer:
        """The answer to one review. Raises LedgerUnavailable and TransportError if there is none."""
        asked_at = self._clock()
        answer = self._denials.repeated(review, asked_at)
        if answer is not None:
            self._answers["guard_repeated"] += 1
        else:
            try:
                answer = await self._review(review)
            except (LedgerUnavailable, TransportError):
                # With failurePolicy Ignore this binding passes all the same, so the next one compares the
                # node again.
                self._complete_nodes.pop(review.node, None)
                raise
            self._denials.judged(review, answer, self._clock())
        self._answers[f"guard_{answer.verdict}"] += 1
        if not answer.allowed:
            if self._clock() - asked_at > _LATE_SECONDS:
                self._complete_nodes.pop(review.node, None)  # as if there were no answer
            self._log_denial(review, answer)
        return answer

    def _log_denial(self, review: Review, answer: ReviewAnswer) -> None:
        unlogged = self._denials.to_log(review, self._clock())
        if unlogged is not None:
            logger().info(
                "binding_denied",
                verdict=answer.verdict,
                namespace=review.namespace,
                pod=review.pod,
                node=review.node,
                message=answer.message,
                **({"repeated": unlogged} if unlogged else {}),
            )

    async def _review(self, review: Review) -> ReviewAnswer:
        if review.namespace in self._exempt:
            return EXEMPT
        if problem := self._problem():
            raise LedgerUnavailable(problem)
        if await self._node(review.node) is None:
            return unknown_node(review)
        return await self._review_at(review)

    async def _review_at(self, review: Review) -> ReviewAnswer:
        pod = self._pods.cached(review.namespace, review.pod, review.pod_uid)
        # If the pod is cached and there is one shard, the script that reserves also finds an existing
        # reservation. For a pod with volumes or devices that is looked up later.
        one_script = self._ledger.shards == 1 and not review.dry_run
        if pod is not None and (one_script or takes_names(pod)):
            return await self._review_pod(review, pod)
        if review.pod_uid and (answer := await self._by_reservation(review, review.pod_uid)):
            return answer
        pod = pod or await self._pods.find(review.namespace, review.pod, review.pod_uid)
        if pod is None:
            return no_such_pod(review)
        if not review.pod_uid and (answer := await self._by_reservation(review, _uid_of(pod))):
            return answer
        return await self._review_pod(review, pod)

    async def _review_pod(self, review: Review, pod: Object) -> ReviewAnswer:
        """By the pod's requests. Its scheduler may have given it devices for extended resources a moment ago:
        before it is denied for want of these, it is read again."""
        answer = await self._review_requests(review, pod)
        if answer.verdict != NO_ROOM or not may_have_devices(pod):
            return answer
        latest = await self._pods.latest(review.namespace, review.pod)
        if latest is None or may_have_devices(latest) or _uid_of(latest) != _uid_of(pod):
            return answer
        return await self._review_requests(review, latest)

    async def _review_requests(self, review: Review, pod: Object) -> ReviewAnswer:
        if blocked := obstacle(review, pod):
            return blocked
        try:
            demand = self._demands.of(pod, review.namespace)
        except InvalidInput as exc:
            return unreadable(review, exc)
        await self._check_node_is_complete(review.node)
        uid = _uid_of(pod)
        if not takes_names(pod):
            return await self._reserve(review, uid, demand)
        try:
            facts = await self._volumes_and_devices.read(review.namespace, demand)
        except InvalidInput as exc:
            return unreadable(review, exc)
        return await self._reserve(review, uid, demand.having(facts.wanted.device_claims), facts)

    async def _check_node_is_complete(self, node: str) -> None:
        """Check, once per node, that the ledger has the node's pods: a new ledger learns of nodes before it
        learns of their pods, and the nodes seem empty until then. Check again after leases ended, because a
        pod that runs may have lost its reservation. Pods that are missing are counted now. Raises
        LedgerUnavailable if that fails."""
        ended = self._ledger.leases_ended[shard_of(node, self._ledger.shards)]
        if self._complete_nodes.get(node) == ended:
            return
        pods = await self._pods.on_node(node)
        locations = await self._locations.look_up([_uid_of(pod) for pod in pods]) if pods else []
        missing = [pod for pod, at in zip(pods, locations, strict=True) if at.node == NONE_U32]
        if missing:
            await self._count_existing(node, missing)
        self._complete_nodes[node] = ended

    async def _count_existing(self, name: str, pods: list[Object]) -> None:
        """Reserve for pods that are on the node and that the ledger does not have: no dispatcher has told of
        them yet, or they were bound while nobody could. Each gets a lease like a binding that was just
        allowed; a dispatcher confirms it, or this resolver does. Raises LedgerUnavailable if one of them
        cannot be counted."""
        node = await self._node(name)
        if node is None:
            return
        shard = shard_of(name, self._ledger.shards)
        epoch = self._epoch or await self._granted(self._epoch)
        proposals = [await self._proposal_of_existing(pod, name, node, epoch) for pod in pods]
        for start in range(0, len(pods), _COUNTED_AT_ONCE):
            part, ledger_epoch = slice(start, start + _COUNTED_AT_ONCE), self._ledger.epoch
            decisions = await self._ledger.commit(shard, proposals[part])
            for pod, decision in zip(pods[part], decisions, strict=True):
                verdict = int(decision.verdicts[0])
                if verdict == Verdict.STALE_EPOCH:
                    await self._granted(epoch)
                elif verdict == Verdict.NODE_GONE:
                    self._forget_node(name)
                if verdict == Verdict.COMMITTED:
                    self._watch_existing(name, shard, pod, decision.seq, ledger_epoch)
                elif verdict != Verdict.DUPLICATE:  # a duplicate: the dispatcher was quicker
                    raise LedgerUnavailable(f"the pods on node {name} are being counted; try again")

    async def _proposal_of_existing(self, pod: Object, name: str, node: _KnownNode, epoch: int) -> Proposal:
        """That of a pod whose binding nobody has reviewed, as far as is known."""
        namespace = str(pod["metadata"]["namespace"])
        try:
            demand = self._demands.of(pod, namespace)
            if takes_names(pod):
                demand = await self._volumes_and_devices.existing(namespace, demand)
        except InvalidInput as exc:
            title = f"{namespace}/{pod['metadata']['name']}"
            raise LedgerUnavailable(f"pod {title} on node {name} cannot be counted: {exc}") from exc
        # A resource that the node does not offer any more may be new to the ledger.
        self._schema = await self._ledger.schema([resource for resource, _ in demand.spec.requests])
        row, _ = amounts_row(demand.spec, self._schema)
        return proposal_for(
            _uid_of(pod),
            node.node,
            row,
            spec=demand.spec,
            group=group_of(unreviewed_definition(demand.group.definition)),
            worker=self._name,
            epoch=epoch,
            dry_run=False,
            shards=self._ledger.shards,
            known=node.seq,
            lease_ms=BINDING_LEASE_MS,
            existing=True,
        )

    def _watch_existing(self, node: str, shard: int, pod: Object, seq: int, ledger_epoch: str) -> None:
        metadata, uid = pod["metadata"], _uid_of(pod)
        self._answers["guard_counted_existing"] += 1
        logger().info(
            "existing_pod_counted", namespace=metadata["namespace"], pod=metadata["name"], node=node
        )
        found = Review("", str(metadata["namespace"]), str(metadata["name"]), uid, node, dry_run=False)
        self.under_way.reserved(found, shard, uid, seq, ledger_epoch)

    async def _by_reservation(self, review: Review, uid: bytes) -> ReviewAnswer | None:
        """By the pod's existing reservation; None: there is none."""
        location, asked = await self._locations.find(uid, review.node)
        if location.node == NONE_U32:
            return None
        if location.node == asked:
            if location.state == ReservationState.PREPARED:
                return None  # whoever proposes it now resolves it
            # Perhaps another resolver allowed it, and died.
            if location.state == ReservationState.ASSUMED and not review.dry_run:
                lasts = await self._begin(review, location.shard, uid, location.seq)
                return ALREADY_RESERVED if lasts else None
            return ALREADY_RESERVED
        return reserved_elsewhere(review, await self._name_of(location))

    async def _begin(self, review: Review, shard: int, uid: bytes, seq: int) -> bool:
        """Make the reservation last as long as the binding may take. False: it is not there any more."""
        for _ in range(_ATTEMPTS):
            epoch = self._epoch or await self._granted(self._epoch)
            if await self.under_way.begin(review, shard, uid, seq):
                return True
            (held,) = await self._ledger.lookup(shard, decode_uids(uid))
            if held["node"] == NONE_U32 or held["seq"] != seq or held["state"] == ReservationState.PREPARED:
                return False
            await self._granted(epoch)  # this webhook is fenced
        return False

    async def _reserve(
        self, review: Review, uid: bytes, demand: PodDemand, facts: VolumeFacts | None = None
    ) -> ReviewAnswer:
        """`facts`: of the pod's volumes and devices; None: it has none."""
        row, missing = await self._amounts(demand.spec)
        if missing:
            return unknown_resource(review, missing, dict(demand.spec.requests)[missing])
        for attempt in range(_ATTEMPTS if facts is None else _ATTEMPTS_BY_NAME):
            if facts is None:
                answer = await self._try_to_reserve(review, uid, demand, row)
            else:
                answer = await self._try_by_name(review, uid, demand, row, facts, last=attempt > 1)
            if answer is not None:
                return answer
            await asyncio.sleep(0 if facts is None else _PAUSE_SECONDS * attempt)
        raise LedgerUnavailable(
            f"node {review.node} comes and goes, or its volumes and devices are taken by others, or the"
            " ledger loses registrations of webhooks, faster than this can be decided; try again"
        )

    async def _try_by_name(
        self, review: Review, uid: bytes, demand: PodDemand, row: list[int], facts: VolumeFacts, *, last: bool
    ) -> ReviewAnswer | None:
        """As `_try_to_reserve`, in a turn. `last`: a tentative refusal counts."""
        async with self._volumes_and_devices.turn():
            # Only now: what the pod holds itself, by the same question asked twice, must not count against
            # it.
            if answer := await self._by_reservation(review, uid):
                return answer
            node = await self._node(review.node)
            if node is None:
                return unknown_node(review)
            share = await self._volumes_and_devices.judge(
                facts, demand, review.node, node.node, assume=not review.dry_run
            )
            if isinstance(share, NotGiven):
                known = last or not share.tentative
                return not_given(review, share.verdict, share.reason) if known else None
            return await self._try_to_reserve(review, uid, demand, row, share)

    async def _try_to_reserve(
        self, review: Review, uid: bytes, demand: PodDemand, row: list[int], share: Share | None = None
    ) -> ReviewAnswer | None:
        """The answer by the ledger's decision; None: what it was based on has changed, so try again. `share`:
        what it takes by name."""
        epoch = self._epoch or await self._granted(self._epoch)
        node = await self._node(review.node)
        if node is None:
            return unknown_node(review)
        proposal = proposal_for(
            uid,
            node.node,
            row,
            spec=demand.spec,
            group=demand.group if share is None else share.group,
            worker=self._name,
            epoch=epoch,
            dry_run=review.dry_run,
            shards=self._ledger.shards,
            known=node.seq,
            lease_ms=BINDING_LEASE_MS,
            seen=() if share is None else share.seen,
        )
        shard, ledger_epoch = shard_of(review.node, self._ledger.shards), self._ledger.epoch
        decision = await self._decide(shard, proposal)
        verdict = int(decision.verdicts[0])
        if verdict == Verdict.STALE_EPOCH:
            await self._granted(epoch)
            return None
        if verdict == Verdict.NODE_GONE:  # the index may be another node's by now
            self._forget_node(review.node)
            return None if await self._node(review.node) else unknown_node(review)
        if verdict == Verdict.CONFLICT_TOPOLOGY and share is not None:
            return None  # somebody took an equal name since
        return await self._answer(review, uid, shard, decision, ledger_epoch)

    async def _answer(
        self, review: Review, uid: bytes, shard: int, decision: Decision, ledger_epoch: str
    ) -> ReviewAnswer | None:
        """None: what was reserved is gone already, or is not decided yet."""
        verdict, where = int(decision.verdicts[0]), int(decision.nodes[0])
        if verdict == Verdict.DUPLICATE:
            self._forget_node(review.node)  # the index may be another node's by now
            known = await self._node(review.node)
            if known is None or where != known.node:
                other = PodLocation(where % self._ledger.shards, where)
                return reserved_elsewhere(review, await self._name_of(other))
        if verdict == Verdict.COMMITTED:
            if self._ledger.epoch != ledger_epoch:
                return None  # reserved in a ledger that is lost
            self.under_way.reserved(review, shard, uid, decision.seq, ledger_epoch)
        if verdict == Verdict.DUPLICATE and not review.dry_run:
            lasts = await self._begin(review, shard, uid, int(decision.duplicate_seqs[0]))
            return answer_of(review, decision, self._schema) if lasts else None
        return answer_of(review, decision, self._schema)

    async def _amounts(self, spec: PodSpec) -> tuple[list[int], str]:
        """See `amounts_row`."""
        row, missing = amounts_row(spec, self._schema)
        if missing:  # a newer node may offer it
            self._schema = await self._ledger.schema()
            row, missing = amounts_row(spec, self._schema)
        return row, missing

    async def _granted(self, lost: int) -> int:
        """A new epoch, unless `lost` was replaced meanwhile."""
        async with self._granting:
            if self._epoch == lost:
                self._epoch = await self._ledger.grant(self._name)
            return self._epoch

    async def _node(self, name: str) -> _KnownNode | None:
        """The node in the ledger; None: the ledger does not have it. Everything cached belongs to one ledger
        epoch."""
        if self._ledger_epoch != self._ledger.epoch:
            epoch = self._ledger.epoch
            self._schema = await self._ledger.schema()  # first: if it fails, the next review reads it
            self._nodes, self._complete_nodes, self._ledger_epoch = {}, {}, epoch
        known = self._nodes.get(name)
        if known is None:
            shard = shard_of(name, self._ledger.shards)
            seq = await self._ledger.seq(shard)  # first: a node that comes after this is refused
            (index,) = (await self._ledger.node_indexes(shard, [name])).tolist()
            if index == NONE_U32:
                return None
            if len(self._nodes) >= _NODES_CACHED:  # names of nodes that are gone
                self._nodes, self._complete_nodes = {}, {}
            known = self._nodes[name] = _KnownNode(index, seq)
        return known

    def _forget_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._complete_nodes.pop(name, None)

    async def _name_of(self, location: PodLocation) -> str:
        """Reads the whole shard, which is rare."""
        spec = (await self._ledger.snapshot(location.shard)).specs.get(location.node)
        return (
            common_pb2.NodeSpec.FromString(spec).name if spec else f"number {location.node}, which is gone,"
        )


def _uid_of(pod: Object) -> bytes:
    return uid_from_text(str(pod["metadata"]["uid"]))
