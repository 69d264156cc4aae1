"""DynamicResources: nodes that can give a pod the devices of its claims.

A claim that has devices decides which nodes reach them. For the others together devices are chosen on each
node (`devices.allocator`). Extended resources that a device class stands for become one more claim on nodes
that do not offer the resource themselves. Such a claim belongs to one pod."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hoss.model import reserved_names as names_of
from hoss.model.devices import (
    BINDING_SECONDS,
    CLAIM_UNREACHABLE,
    LEFT_OVER,
    MOST_ALTERNATIVES,
    NOT_ALLOCATABLE,
    Allocation,
    ClaimRequest,
    ClaimUse,
    ContainerRequests,
    ExactRequest,
    HeldClaim,
    PodClaims,
    RequestMapping,
    ResourceClaim,
    extended_claim_name,
)
from hoss.model.pod import PodSpec
from scheduler_worker.core.cache.devices import DeviceFits
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.devices.allocator import INVALID_POOLS, TIMED_OUT, ClaimShape
from scheduler_worker.core.framework.extension_points import (
    MAX_SCORE,
    Code,
    Failure,
    FilterPlugin,
    FilterState,
    Reads,
    Refusals,
    Rejection,
    Reserved,
    ScorePlugin,
    ScoreState,
)
from scheduler_worker.core.nodes import Mask

_PREPARED_PARTS = 4  # of nodes that offer different extended resources; see Cycle._prepared
EXTENDED_CLAIM = "<extended-resources>"  # the claim of a pod's extended resources, before it has a name


class DynamicResources(FilterPlugin, ScorePlugin):
    """Devices of claims, and of extended resources by device classes."""

    name = "DynamicResources"
    filter_reads = score_reads = Reads.PODS

    def __init__(self, bind_seconds: float | None = None) -> None:
        self.bind_seconds = bind_seconds

    def filter_state(self, spec: PodSpec, cache: NodeInfoCache) -> FilterState | None:
        """See FilterPlugin."""
        if spec.claims is None:
            return None
        return ClaimedDevices(spec.namespace, spec.claims, cache, self.bind_seconds)

    def score_state(self, spec: PodSpec, cache: NodeInfoCache) -> ScoreState | None:
        """See ScorePlugin. Alternatives of a request that come first are worth more."""
        if spec.claims is None:
            return None
        return _AlternativeScores(ClaimedDevices(spec.namespace, spec.claims, cache))


@dataclass(frozen=True, slots=True)
class _Part:
    """Nodes on which the same claims are to be allocated."""

    nodes: Mask
    fits: DeviceFits
    claims: tuple[ResourceClaim, ...]
    mappings: tuple[RequestMapping, ...]


class ClaimedDevices(FilterState):
    """The result for one class, with the devices that its claims get on each node."""

    def __init__(
        self, namespace: str, claims: PodClaims, cache: NodeInfoCache, bind_seconds: float | None = None
    ) -> None:
        """`bind_seconds`: how long devices may take to become ready."""
        self._bind_seconds = BINDING_SECONDS if bind_seconds is None else bind_seconds
        self.passed: Mask = np.zeros(0, np.bool_)
        self.allocated: list[tuple[ResourceClaim, Allocation]] = []
        self.left_over = False  # an attempt before has left its claim for the pod's extended resources
        self._unreachable: list[tuple[ResourceClaim, Mask]] = []
        self._namespace = namespace
        self._pod = claims
        self._cache = cache
        self._parts: list[_Part] = []
        self._refused: dict[str, Mask] = {}
        self._as_of: tuple[int, ...] = ()

    def refresh(self) -> bool:
        """See FilterState."""
        cache, devices = self._cache, self._cache.devices
        devices.refresh()
        as_of = self._present()
        if as_of == self._as_of:
            return False
        self._as_of = as_of
        self._parts, self._refused, self.failure, self.allocated = [], {}, None, []
        self.left_over, self._unreachable = False, []
        self.passed = np.zeros(cache.size, np.bool_)
        self.rejection = self._look_up()
        if self.rejection is None:
            self._judge()
        return True

    def prepare(self) -> bool:
        """See FilterState."""
        cache, devices = self._cache, self._cache.devices
        devices.refresh()
        if self._present() == self._as_of or self._look_up() is not None:
            return True
        wanted = islice((claims for _, claims, _ in self._to_allocate()), _PREPARED_PARTS)
        return all(devices.fits(tuple(map(ClaimShape.of, claims))).prepare(cache.size) for claims in wanted)

    def _present(self) -> tuple[int, ...]:
        devices = self._cache.devices
        return devices.version, devices.claim_version, self._cache.spec_changes.position, self._cache.size

    def refusals(self) -> Refusals:
        """See FilterState."""
        order = (LEFT_OVER, TIMED_OUT, INVALID_POOLS, NOT_ALLOCATABLE, CLAIM_UNREACHABLE)
        none = np.zeros(len(self.passed), np.bool_)
        reasons = tuple((reason, self._refused.get(reason, none)) for reason in order)
        return Refusals(reasons, unresolvable=~self.passed)

    def may_be_deallocated(self, nodes: Mask) -> bool:
        """Whether a claim whose devices are out of reach of some of these nodes is reserved for no other pod.
        Then kube-scheduler takes its devices back, so that it may get others."""
        return any(
            set(claim.users) <= {self._pod.uid} and bool((unreached & nodes).any())
            for claim, unreached in self._unreachable
        )

    def reserve(self, node: int) -> Reserved:
        """The claims and their devices, and the counters that devices share."""
        devices, mappings = self._allocations(node)
        held, names = self._held(devices, mappings), list[str]()
        for claim in held:
            names.append(names_of.resource_claim(claim.namespace, claim.name))
            for result in claim.allocation.results:
                if not result.admin_access:
                    names.append(names_of.device(result.id))
                    names += self._counters(node, result.id.driver, result.id.pool, result.id.device)
        return Reserved(tuple(names), devices=devices, mappings=mappings, held=held)

    def _allocations(self, node: int) -> tuple[dict[str, Allocation], tuple[RequestMapping, ...]]:
        """By claim that is to be allocated on this node, which passes, its devices; and for extended
        resources whose request is whose."""
        for part in self._parts:
            if part.nodes[node]:
                found = part.fits.at(node)
                return {c.name: a for c, a in zip(part.claims, found, strict=bool(found))}, part.mappings
        return {}, ()

    def _held(
        self, devices: Mapping[str, Allocation], mappings: tuple[RequestMapping, ...]
    ) -> tuple[HeldClaim, ...]:
        """What a pod of the class holds with these devices: claims whose devices the API server does not know
        yet."""
        found = [
            HeldClaim(self._namespace, claim.name, allocation)
            for claim, allocation in dict(self.allocated).items()  # once, under however many names
            if claim.allocation is None
        ]
        for name, allocation in devices.items():
            if name == EXTENDED_CLAIM:
                own = extended_claim_name(self._pod.pod, self._pod.uid)
                found.append(HeldClaim(self._namespace, own, allocation, mappings))
            else:
                found.append(HeldClaim(self._namespace, name, allocation))
        return tuple(found)

    def alternative_scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        """0 to MAX_SCORE for feasible nodes, (size,); None: no claim to be allocated has alternatives."""
        claims = {claim for part in self._parts for claim in part.claims}
        claims |= {claim for claim, _ in self.allocated}
        if not self._parts or not any(r.prioritized for claim in claims for r in claim.requests):
            return None
        allocated = sum(_worth(claim, allocation) for claim, allocation in self.allocated)
        points: NDArray[np.int64] = np.zeros(len(feasible), np.int64)
        for part in self._parts:
            for node in np.flatnonzero(feasible & part.nodes).tolist():
                found = zip(part.claims, part.fits.at(node), strict=False)
                points[node] = allocated + sum(_worth(claim, allocation) for claim, allocation in found)
        highest = int(points.max(initial=0))
        return points * MAX_SCORE // highest if highest else points

    def _counters(self, node: int, driver: str, pool: str, device: str) -> list[str]:
        offer = self._cache.devices.offer(node)
        return [
            names_of.counters(driver, pool, counter_set)
            for offered in (() if offer is None else offer.pools)
            if offered.id == (driver, pool)
            for one in offered.devices
            if one.id.device == device
            for counter_set, _ in one.use
        ]

    def _look_up(self) -> Rejection | None:
        """Why no node can take the pod, by the claims and classes alone."""
        devices, namespace = self._cache.devices, self._namespace
        found = []
        for use in self._needed():
            if use.claim is None:
                return _rejected(f'pod "{namespace}/{self._pod.pod}": ResourceClaim not created yet')
            claim = devices.claims.get((namespace, use.claim))
            if claim is None:
                return _rejected(f'could not find ResourceClaim "{namespace}/{use.claim}"')
            if use.from_template and claim.controller_uid != self._pod.uid:
                owner = f"Pod {namespace}/{self._pod.pod} (Pod is not owner)"
                return _rejected(f"ResourceClaim {claim.title} was not created for {owner}")
            if claim.deleting:
                return _rejected(f'resourceclaim "{claim.name}" is being deleted')
            found.append(claim)
        return next(filter(None, map(self._class_missing, found)), None)

    def _class_missing(self, claim: ResourceClaim) -> Rejection | None:
        devices = self._cache.devices
        if devices.allocation((self._namespace, claim.name)) is not None:
            return None
        for request in claim.requests:
            for alternative in request.alternatives:
                if alternative.device_class not in devices.classes:
                    missing = f"device class {alternative.device_class} does not exist"
                    return _rejected(f"request {request.result_name(alternative)}: {missing}")
        return None

    def _needed(self) -> list[ClaimUse]:
        return [use for use in self._pod.uses if use.needed]

    def _by_allocation(self) -> tuple[list[ResourceClaim], list[tuple[ResourceClaim, Allocation]]]:
        """The pod's claims, which are there: those without devices, and the others with theirs."""
        waiting, allocated = [], []
        # One that a pod has under two names needs devices twice, as in kube-scheduler.
        for use in self._needed():
            key = self._namespace, use.claim or ""
            claim, allocation = self._cache.devices.claims[key], self._cache.devices.allocation(key)
            if allocation is None:
                waiting.append(claim)
            else:
                allocated.append((claim, allocation))
        return waiting, allocated

    def _to_allocate(self) -> Iterator[tuple[Mask, tuple[ResourceClaim, ...], tuple[RequestMapping, ...]]]:
        """Sets of nodes, with the claims that are to be allocated there."""
        if self._has_left_over():
            return
        waiting, _ = self._by_allocation()
        for nodes, resources in self._by_resources():
            extra, mappings = _extended_claim(self._namespace, self._pod.containers, resources)
            claims = tuple(waiting) if extra is None else (*waiting, extra)
            if claims:
                yield nodes, claims, mappings

    def _judge(self) -> None:
        cache, devices = self._cache, self._cache.devices
        _, self.allocated = self._by_allocation()
        self.passed[:] = True
        self.left_over = self._has_left_over()
        if self.left_over:
            self._refuse(LEFT_OVER, np.ones(cache.size, np.bool_))
            return
        for nodes, claims, mappings in self._to_allocate():
            self._allocate(nodes, claims, mappings)
        for claim, allocation in self.allocated:
            reached = np.ones(cache.size, np.bool_)
            if not allocation.usable(devices.now, self._bind_seconds):
                reached[:] = False
            elif allocation.nodes is not None:
                reached = cache.node_sets.matching(allocation.nodes, cache.size)
            self._unreachable.append((claim, ~reached))
            self._refuse(CLAIM_UNREACHABLE, ~reached)

    def _allocate(
        self, nodes: Mask, claims: tuple[ResourceClaim, ...], mappings: tuple[RequestMapping, ...]
    ) -> None:
        fits = self._cache.devices.fits(tuple(map(ClaimShape.of, claims)))
        fits.refresh(self._cache.size)
        self._parts.append(_Part(nodes, fits, claims, mappings))
        for reason, refused in fits.refused.items():
            self._refuse(reason, refused & nodes)
        texts = dict[int, str]() if self.failure is None else dict(self.failure.texts)
        titles = [claim.title for claim in claims]
        for node, found in fits.failing.items():
            if nodes[node] and found.error is not None:
                texts[node] = found.error.words(titles)
        self.failure = Failure(DynamicResources.name, texts) if texts else None

    def _refuse(self, reason: str, nodes: Mask) -> None:
        refused = nodes & self.passed
        if refused.any():
            self._refused.setdefault(reason, np.zeros(len(nodes), np.bool_))[refused] = True
            self.passed &= ~refused

    def _by_resources(self) -> list[tuple[Mask, dict[str, str]]]:
        """Sets of nodes, each with the extended resources that are devices there: name of the class by that
        of the resource."""
        cache, by_class, wanted = self._cache, self._cache.devices.extended_resources, self._extended_names()
        numbers: NDArray[np.int64] = np.zeros(cache.size, np.int64)
        for bit, name in enumerate(wanted):
            row = cache.schema.get(name)
            missing = np.ones(cache.size, np.bool_)
            if row is not None:
                missing = cache.accounts.allocatable[row, : cache.size] == 0
            numbers += missing.astype(np.int64) << bit
        return [
            (
                numbers == number,
                {name: by_class[name] for bit, name in enumerate(wanted) if number >> bit & 1},
            )
            for number in np.unique(numbers).tolist()
        ]

    def _extended_names(self) -> list[str]:
        """The pod's extended resources that a class stands for."""
        by_class = self._cache.devices.extended_resources
        return sorted({name for c in self._pod.containers for _, name, _ in c.requests if name in by_class})

    def _has_left_over(self) -> bool:
        """Whether an attempt before has left its claim for the pod's extended resources."""
        return bool(self._extended_names()) and any(
            claim.for_extended_resources and claim.controller_uid == self._pod.uid
            for claim in self._cache.devices.claims.values()
            if claim.namespace == self._namespace
        )


def _worth(claim: ResourceClaim, allocation: Allocation) -> int:
    """The points for the alternatives that a claim got."""
    chosen = {result.request for result in allocation.results}
    return sum(
        MOST_ALTERNATIVES - number
        for request in claim.requests
        if request.prioritized
        for number, alternative in enumerate(request.alternatives)
        if request.result_name(alternative) in chosen
    )


def _rejected(reason: str) -> Rejection:
    return Rejection(DynamicResources.name, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reason)


def _extended_claim(
    namespace: str, containers: tuple[ContainerRequests, ...], classes: dict[str, str]
) -> tuple[ResourceClaim | None, tuple[RequestMapping, ...]]:
    """The claim for a pod's extended resources, by the class of each; None: it has none of them.

    Containers and sidecars have requests of their own. An init container that ends uses those of what starts
    after it. Where these are too few it has a request for the rest; only the largest such request stays,
    because init containers run one after the other."""
    requests: list[ClaimRequest] = []
    mappings: list[RequestMapping] = []
    for resource in sorted(classes):
        found, users = _requests_of(resource, classes[resource], containers)
        requests += found
        mappings += users
    if not requests:
        return None, ()
    requests.sort(key=lambda request: request.name)
    claim = ResourceClaim(namespace, EXTENDED_CLAIM, tuple(requests))
    return claim, tuple(mappings)


def _requests_of(
    resource: str, device_class: str, containers: tuple[ContainerRequests, ...]
) -> tuple[list[ClaimRequest], list[RequestMapping]]:
    asking = [
        (container, f"container-{container.position}-request-{place}", count)
        for container in containers
        for place, name, count in container.requests
        if name == resource
    ]
    lasting = [(c, name, count) for c, name, count in asking if not c.initial]
    mappings = [RequestMapping(c.name, resource, name, device_class) for c, name, _ in lasting]
    largest: tuple[str, int] | None = None
    extra: list[tuple[ContainerRequests, str, int]] = []
    for container, name, count in asking:
        if not container.initial:
            continue
        left = count
        for later, used, amount in lasting:
            if left > 0 and later.position > container.position:
                mappings.append(RequestMapping(container.name, resource, used, device_class))
                left -= amount
        if left > 0:
            extra.append((container, name, left))
            if largest is None or left > largest[1]:
                largest = name, left
    chosen = [] if largest is None else [largest]
    if largest is not None:
        mappings += [RequestMapping(c.name, resource, largest[0], device_class) for c, _, _ in extra]
    chosen += [(name, count) for _, name, count in lasting]
    return [
        ClaimRequest(name, (ExactRequest(name, device_class, count=count),)) for name, count in chosen
    ], mappings


class _AlternativeScores(ScoreState):
    """Scores by the alternatives chosen, see kube-scheduler's computeScore."""

    def __init__(self, devices: ClaimedDevices) -> None:
        self._devices = devices

    def refresh(self) -> bool:
        return self._devices.refresh()

    def scores(self, feasible: Mask) -> NDArray[np.int64] | None:
        devices = self._devices
        if devices.rejection is not None:
            return None
        return devices.alternative_scores(feasible)
