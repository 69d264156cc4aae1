"""Chooses devices of one node for claims: structured parameters as kube-scheduler 1.36 allocates them.

The search takes claims, their requests and the devices in order, with backtracking. The first solution
counts. It knows claims by their *shape* alone: claims of one shape get the same answer, so a StatefulSet's
thousand claims are judged once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hoss.model.devices import (
    MOST_DEVICES,
    NOT_ALLOCATABLE,
    Allocation,
    AttributeValue,
    ClaimConstraint,
    ClaimRequest,
    CounterAmounts,
    DeviceCapacity,
    DeviceClass,
    DeviceId,
    DeviceResult,
    DeviceUsage,
    ExactRequest,
    ResourceClaim,
)
from hoss.model.node import NO_EXECUTE, NO_SCHEDULE
from hoss.model.quantity import NANO, Notation, Quantity, parse_quantity
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from scheduler_worker.core.devices.cel_values import CelError
from scheduler_worker.core.devices.pools import (
    DevicePool,
    OfferedDevice,
    PoolId,
    SelectorTable,
    reaches,
)

INVALID_POOLS = "invalid resource pools were encountered"
TIMED_OUT = "timed out trying to allocate devices"

# kube-scheduler gives up after ten seconds. So many tries take less than half a second on a slow core: a
# try is a look at one device, also at one that the search has taken itself.
MOST_TRIES = 20_000
_LONG_SEARCH = 500  # tries after which it pays to ask whether there can be a solution at all


@dataclass(frozen=True, slots=True)
class ClaimShape:
    """What of a claim decides its allocation."""

    requests: tuple[ClaimRequest, ...]
    constraints: tuple[ClaimConstraint, ...] = ()

    @classmethod
    def of(cls, claim: ResourceClaim) -> "ClaimShape":
        """The shape of a claim, which is that of all claims that ask alike."""
        return cls(claim.requests, claim.constraints)

    @property
    def expressions(self) -> tuple[str, ...]:
        """Its own selectors."""
        return tuple(s for request in self.requests for a in request.alternatives for s in a.selectors)


@dataclass(frozen=True, slots=True)
class AllocationError:
    """Why claims cannot be judged: kube-scheduler gives up the pod. `claim` is the claim's position; -1: the
    text stands alone."""

    claim: int
    text: str

    def words(self, titles: Sequence[str]) -> str:
        """With the claims' names."""
        return self.text if self.claim < 0 else f"claim {titles[self.claim]}{self.text}"


@dataclass(frozen=True, slots=True)
class Found:
    """The answer for one node: an allocation for each claim, or else a reason or an error."""

    allocations: tuple[Allocation, ...] = ()
    reason: str = ""
    error: AllocationError | None = None
    tries: int = 0  # devices that the search looked at


@dataclass(frozen=True, slots=True)
class OneNodeOffer:
    """What one node is offered, and what is taken of it."""

    name: str
    labels: Mapping[str, str]
    pools: Sequence[DevicePool]
    usage: DeviceUsage
    classes: Mapping[str, DeviceClass]
    selectors: SelectorTable


def allocate(shapes: Sequence[ClaimShape], offer: OneNodeOffer, most_tries: int = MOST_TRIES) -> Found:
    """Devices of the node for all claims together. All classes of their requests must exist. The search is
    given up after `most_tries` devices."""
    search = _Search(shapes, offer, most_tries)
    try:
        search.prepare()
        if search.claim(0):
            allocations = tuple(search.allocation(i) for i in range(len(shapes)))
            return Found(allocations, tries=search.tries)
    except _StopError as stop:
        return Found(error=stop.error, tries=search.tries)
    except _HopelessError:
        pass
    except (_ExhaustedError, RecursionError):
        return Found(reason=TIMED_OUT, tries=search.tries)
    invalid = any(pool.invalid for pool in offer.pools)
    return Found(reason=INVALID_POOLS if invalid else NOT_ALLOCATABLE, tries=search.tries)


class _StopError(Exception):
    def __init__(self, claim: int, text: str) -> None:
        super().__init__(text)
        self.error = AllocationError(claim, text)


class _HopelessError(Exception):
    """There is no solution."""


class _ExhaustedError(Exception):
    """The search has made too many tries."""


@dataclass(slots=True)
class _Taken:
    """A device that the search has taken for a request."""

    request: ClaimRequest
    alternative: ExactRequest
    offered: OfferedDevice
    pool: DevicePool
    consumed: dict[str, Quantity]  # by capacity; empty: the whole device
    counted: bool  # whether it uses counters of the pool, for which no share before it does


@dataclass(slots=True)
class _Condition:
    """A constraint, and the values of the devices taken under it."""

    constraint: ClaimConstraint
    values: list[AttributeValue] = field(default_factory=list)

    def admits(self, value: AttributeValue | None) -> bool:
        if value is None:
            return False
        if self.constraint.distinct:
            return not any(_same(value, other) for other in self.values)
        return not self.values or _same(value, self.values[0])


def _same(a: AttributeValue, b: AttributeValue) -> bool:
    return type(a) is type(b) and a == b


class _Search:
    def __init__(self, shapes: Sequence[ClaimShape], offer: OneNodeOffer, most_tries: int) -> None:
        self.tries = 0
        self._most_tries = most_tries
        self._shapes = shapes
        self._offer = offer
        usable = [pool for pool in offer.pools if not pool.incomplete and not pool.invalid]
        everything = [(pool, offered) for pool in usable for offered in pool.devices]
        # Without and with administrative access.
        self._candidates = ([each for each in everything if not self._is_given(each[1])], everything)
        self._shareable = {offered.id for _, offered in everything if offered.device.shareable}
        self._taken: list[list[_Taken]] = [[] for _ in shapes]
        self._conditions = [[_Condition(c) for c in shape.constraints] for shape in shapes]
        self._exclusive: dict[
            DeviceId, set[int]
        ] = {}  # taken alone -> by which claims; more than one: for admins
        self._shared: dict[DeviceId, dict[str, int]] = {}  # what this search has taken of it, billionths
        self._sharers: dict[DeviceId, int] = {}
        self._counters: dict[PoolId, CounterAmounts] = {}  # what is left
        self._all: dict[tuple[int, int, int], list[tuple[DevicePool, OfferedDevice]]] = {}

    def prepare(self) -> None:
        """Find the devices of requests for all of them, and what is wrong before any search."""
        for c, shape in enumerate(self._shapes):
            least = 0
            for r, request in enumerate(shape.requests):
                sizes = []
                for a, alternative in enumerate(request.alternatives):
                    if alternative.all_devices:
                        found = self._all[c, r, a] = self._all_devices(c, alternative)
                        sizes.append(len(found))
                    else:
                        sizes.append(alternative.count)
                least += min(sizes)
            if least > MOST_DEVICES:
                raise _StopError(
                    c, f": number of requested devices {least} exceeds the claim limit of {MOST_DEVICES}"
                )

    def claim(self, c: int) -> bool:
        """Devices for this claim and all after it."""
        return c == len(self._shapes) or self._request(c, 0)

    def allocation(self, c: int) -> Allocation:
        """What claim `c` got."""
        results = tuple(
            DeviceResult(
                request=taken.request.result_name(taken.alternative),
                id=taken.offered.id,
                shared=taken.offered.device.shareable,
                # As it is read from where it is written.
                consumed=tuple((name, parse_quantity(q.canonical)) for name, q in taken.consumed.items()),
                admin_access=taken.alternative.admin_access,
                binding_conditions=taken.offered.device.binding_conditions,
                binding_failure_conditions=taken.offered.device.binding_failure_conditions,
            )
            for taken in self._taken[c]
        )
        return Allocation(results, _node_selector(self._taken[c], self._offer.name))

    def _all_devices(self, c: int, request: ExactRequest) -> list[tuple[DevicePool, OfferedDevice]]:
        found: list[tuple[DevicePool, OfferedDevice]] = []
        for pool in self._offer.pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                text = f"asks for all devices, but resource pool {pool.text} is currently {state}"
                raise _StopError(c, f", request {request.name}: {text}")
            for offered in pool.devices:
                self._try()
                if self._is_selected(c, request, offered) and self._has_room(request, offered):
                    found.append((pool, offered))
        return found

    def _request(self, c: int, r: int) -> bool:
        requests = self._shapes[c].requests
        if r == len(requests):
            return self.claim(c + 1)
        return any(
            self._every(c, r, a, 0) if alternative.all_devices else self._some(c, r, a, 0, 0)
            for a, alternative in enumerate(requests[r].alternatives)
        )

    def _every(self, c: int, r: int, a: int, number: int) -> bool:
        """The devices of a request for all of them, from `number` on, and all that comes after."""
        wanted = self._all[c, r, a]
        if number == len(wanted):
            return number > 0 and self._request(c, r + 1)
        if len(self._taken[c]) + len(wanted) - number > MOST_DEVICES:
            return False
        pool, offered = wanted[number]
        if not self._take(c, self._shapes[c].requests[r], a, pool, offered):
            return False
        if self._every(c, r, a, number + 1):
            return True
        self._give_back(c)
        return False

    def _some(self, c: int, r: int, a: int, number: int, start: int) -> bool:
        """Devices of a request for some, from candidate `start` on, and all that comes after."""
        request = self._shapes[c].requests[r]
        alternative = request.alternatives[a]
        if number == alternative.count:
            return self._request(c, r + 1)
        if len(self._taken[c]) + alternative.count - number > MOST_DEVICES:
            return False
        candidates = self._candidates[alternative.admin_access]
        for d in range(start, len(candidates)):
            pool, offered = candidates[d]
            self._try()
            if self._in_use(c, alternative, offered):
                continue
            if not self._is_selected(c, alternative, offered):
                continue
            if not self._take(c, request, a, pool, offered):
                continue
            if self._some(c, r, a, number + 1, d + 1):
                return True
            self._give_back(c)
        return False

    def _in_use(self, c: int, request: ExactRequest, offered: OfferedDevice) -> bool:
        """Whether the device has an owner that excludes this request. Administrators share all devices, but
        no claim has a device twice."""
        takers = self._exclusive.get(offered.id, ())
        if request.admin_access:
            return c in takers
        return bool(takers) or self._is_given(offered)

    def _is_given(self, offered: OfferedDevice) -> bool:
        """Whether the device was somebody's before the search."""
        usage = self._offer.usage
        return offered.id in usage.exclusive or (not offered.device.shareable and offered.id in usage)

    def _try(self) -> None:
        self.tries += 1
        if self.tries > self._most_tries:
            raise _ExhaustedError
        if self.tries == _LONG_SEARCH and self._is_hopeless():
            raise _HopelessError

    def _is_hopeless(self) -> bool:
        """Whether some requests have too few devices even without the others. Not where the search may end in
        an error instead, which depends on how far it gets."""
        if any(
            alternative.all_devices and shape.constraints
            for shape in self._shapes
            for request in shape.requests
            for alternative in request.alternatives
        ):
            return False
        try:
            wanted = [
                [(alternative, self._suitable(c, alternative)) for alternative in request.alternatives]
                for c, shape in enumerate(self._shapes)
                for request in shape.requests
            ]
        except _StopError:
            return False
        if any(
            all(not of.all_devices and len(found) < of.count for of, found in request) for request in wanted
        ):
            return True
        # Requests of which each has enough may still be too many for the devices that they have in common.
        needs = [
            (
                frozenset[DeviceId]().union(*(found for _, found in request)),
                min(of.count for of, _ in request),
            )
            for request in wanted
            if not any(of.admin_access or of.all_devices for of, _ in request)
        ]
        return any(
            len(those) < sum(count for others, count in needs if others <= those)
            for those in {found for found, _ in needs}
            if not those & self._shareable
        )

    def _suitable(self, c: int, request: ExactRequest) -> frozenset[DeviceId]:
        """The devices that the request could have if it were alone; of one for all devices, too."""
        candidates = self._candidates[request.admin_access or request.all_devices]
        selected = [offered for _, offered in candidates if self._is_selected(c, request, offered)]
        return frozenset(offered.id for offered in selected if self._tolerated(request, offered))

    def _is_selected(self, c: int, request: ExactRequest, offered: OfferedDevice) -> bool:
        device_class = self._offer.classes[request.device_class]
        try:
            if not self._all_true(device_class.selectors, offered):
                return False
        except CelError as exc:
            raise _StopError(-1, f"class {device_class.name}: {exc}") from None
        try:
            if not self._all_true(request.selectors, offered):
                return False
        except CelError as exc:
            raise _StopError(c, f": {exc}") from None
        return not offered.own_reach or reaches(offered.reach, self._offer.name, self._offer.labels)

    def _all_true(self, selectors: Sequence[str], offered: OfferedDevice) -> bool:
        for number, text in enumerate(selectors):
            try:
                if not self._offer.selectors.evaluate(text, offered):
                    return False
            except CelError as exc:  # noqa: PERF203 - which one fails belongs to the text
                raise CelError(f"selector #{number}: {exc}") from None
        return True

    def _take(self, c: int, request: ClaimRequest, a: int, pool: DevicePool, offered: OfferedDevice) -> bool:
        """Take the device, if the request can have it."""
        alternative, device = request.alternatives[a], offered.device
        if self._in_use(c, alternative, offered):
            return False
        counted = bool(offered.use) and not (device.shareable and self._is_shared(offered))
        if counted and not self._counters_suffice(pool, offered):
            return False
        if not self._tolerated(alternative, offered):
            return False
        conditions = [
            (condition, offered.attribute(condition.constraint.attribute))
            for condition in self._conditions[c]
            if condition.constraint.concerns(request.name, request.result_name(alternative))
        ]
        if not all(condition.admits(value) for condition, value in conditions):
            if alternative.all_devices:
                problem = f"cannot add device {offered.id} because a claim constraint would not be satisfied"
                raise _StopError(c, f", request {alternative.name}: {problem}")
            return False
        if not self._has_room(alternative, offered):
            return False
        for condition, value in conditions:
            if value is not None:
                condition.values.append(value)
        consumed = (_amounts(alternative, offered) or {}) if device.shareable else {}
        taken = _Taken(request, alternative, offered, pool, consumed, counted)
        self._taken[c].append(taken)
        self._count(c, taken, 1)
        return True

    def _give_back(self, c: int) -> None:
        taken = self._taken[c].pop()
        for condition in self._conditions[c]:
            if condition.constraint.concerns(
                taken.request.name, taken.request.result_name(taken.alternative)
            ):
                condition.values.pop()
        self._count(c, taken, -1)

    def _count(self, c: int, taken: _Taken, sign: int) -> None:
        device = taken.offered.id
        if not taken.offered.device.shareable:
            takers = self._exclusive.setdefault(device, set())
            (takers.add if sign > 0 else takers.remove)(c)
        else:
            self._sharers[device] = self._sharers.get(device, 0) + sign
            amounts = self._shared.setdefault(device, {})
            for name, amount in taken.consumed.items():
                amounts[name] = amounts.get(name, 0) + sign * amount.nano
            if not self._sharers[device]:
                del self._sharers[device], self._shared[device]
        if taken.counted:
            left = self._left(taken.pool)
            for key, nano in taken.offered.use.items():
                left[key] -= sign * nano

    def _is_shared(self, offered: OfferedDevice) -> bool:
        """Whether others have a share. A device that is shared uses its counters once."""
        return offered.id in self._sharers or bool(self._offer.usage.consumed.get(offered.id))

    def _has_room(self, request: ExactRequest, offered: OfferedDevice) -> bool:
        """Whether the device has the amounts that the request takes."""
        amounts = _amounts(request, offered)
        if amounts is None:
            return False
        used = self._offer.usage.consumed.get(offered.id, {})
        chosen = self._shared.get(offered.id, {})
        return all(
            used.get(name, 0) + chosen.get(name, 0) + amounts[name].nano <= capacity.value.nano
            for name, capacity in offered.device.capacity
        )

    def _counters_suffice(self, pool: DevicePool, offered: OfferedDevice) -> bool:
        """Whether all counters of the pool have what is used of them. One that has too little already, since
        its set became smaller, stops all devices that use counters."""
        return all(nano >= offered.use.get(key, 0) for key, nano in self._left(pool).items())

    def _left(self, pool: DevicePool) -> CounterAmounts:
        left = self._counters.get(pool.id)
        if left is None:
            devices = ((other.id, other.use) for other in pool.everywhere)
            left = self._offer.usage.counters_left(pool.counters or {}, devices)
            self._counters[pool.id] = left
        return left

    def _tolerated(self, request: ExactRequest, offered: OfferedDevice) -> bool:
        return all(
            taint.effect not in (NO_SCHEDULE, NO_EXECUTE)
            or any(toleration.tolerates(taint) for toleration in request.tolerations)
            for taint in offered.device.taints
        )


def _amounts(request: ExactRequest, offered: OfferedDevice) -> dict[str, Quantity] | None:
    """What the request takes of each capacity; None: the device cannot give it to anyone."""
    requested = dict(request.capacity)
    if not requested.keys() <= {name for name, _ in offered.device.capacity}:
        return None
    found = {}
    for name, capacity in offered.device.capacity:
        amount = _amount(requested.get(name), capacity)
        if amount is None:
            return None
        found[name] = amount
    return found


def _amount(requested: Quantity | None, capacity: DeviceCapacity) -> Quantity | None:
    """The requested amount as the policy rounds it; None: the policy has no such amount."""
    policy = capacity.policy
    if policy is None:
        return capacity.value if requested is None else requested
    if requested is None:
        return capacity.value if policy.default is None else policy.default
    if policy.values:
        return next((value for value in policy.values if value.nano >= requested.nano), None)
    if policy.least is None:
        return requested
    amount = policy.least if requested.nano < policy.least.nano else requested
    if policy.step is not None and amount is requested:
        # Steps are counted in whole units, each number rounded up.
        steps = -(-(requested.value - policy.least.value) // policy.step.value)
        amount = Quantity((policy.least.value + steps * policy.step.value) * NANO, Notation.BINARY)
    return None if policy.most is not None and amount.nano > policy.most.nano else amount


def _node_selector(taken: Sequence[_Taken], node: str) -> NodeSelector | None:
    """The nodes that reach all these devices."""
    expressions: list[Requirement] = []
    fields: list[Requirement] = []
    for one in taken:
        reach = one.offered.reach
        if reach.node_name or one.offered.device.binds_to_node:
            only = Requirement("metadata.name", "In", (node,))
            return NodeSelector((NodeSelectorTerm(match_fields=(only,)),))
        for term in reach.selector.terms if reach.selector is not None else ():
            expressions += [r for r in term.match_expressions if r not in expressions]
            fields += [r for r in term.match_fields if r not in fields]
    if not expressions and not fields:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions), tuple(fields)),))
