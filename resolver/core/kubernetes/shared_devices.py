"""What devices that claims share, and counters that devices share, have left for a claim that another
scheduler allocated.

What they offer is in the slices. What is taken is in the claims that have devices, by the API server's record
or, for claims that it does not show yet, by the pods in the ledger. A claim that only the record shows may be
*idle*: its pod is not bound, so it must not keep devices from another one. A device that no slice offers is
not judged: whoever allocated it knew more."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hoss.model.devices import (
    CounterAmounts,
    Device,
    DeviceId,
    DeviceUsage,
    HeldClaim,
    ResourceClaim,
    ResourceSlice,
    amounts_of,
    first_lack,
)
from hoss.model.quantity import Notation, Quantity
from resolver.core.kubernetes.held_view import ClaimKey, DeviceUse, HeldView, device_uses

_PoolId = tuple[str, str]  # driver, pool


class _Slice(NamedTuple):
    """Of a slice, its counters and those of its devices that have anything to share."""

    pool: _PoolId
    generation: int
    devices: Mapping[str, Device]
    counters: CounterAmounts


class _Claim(NamedTuple):
    """A claim that has devices."""

    uses: Mapping[DeviceId, DeviceUse]
    users: tuple[str, ...]  # UIDs


@dataclass(frozen=True, slots=True)
class _Pool:
    """The slices of one pool that have its newest generation."""

    id: _PoolId
    devices: dict[str, Device] = field(default_factory=dict)
    counters: CounterAmounts = field(default_factory=dict)

    def counter_use(self) -> Iterator[tuple[DeviceId, CounterAmounts]]:
        """The devices that use counters, and how much."""
        for name, device in self.devices.items():
            if device.consumes:
                yield DeviceId(*self.id, name), amounts_of(device.consumes)


class _Others(NamedTuple):
    """The claims that count beside those of a pod. `unrecorded`: those whose record does not count."""

    own: Collection[ClaimKey]
    unrecorded: Collection[ClaimKey]
    held: HeldView


class SharedDevices:
    """Follows slices and claims. An entry ends with its object."""

    def __init__(self) -> None:
        self._slices: dict[str, _Slice] = {}
        self._pools: dict[_PoolId, set[str]] = {}  # names of slices
        self._claims: dict[ClaimKey, _Claim] = {}
        self._users: dict[DeviceId, dict[ClaimKey, DeviceUse]] = {}

    def __len__(self) -> int:
        return len(self._slices) + len(self._claims)

    def put_slice(self, found: ResourceSlice) -> None:
        """The slice exists, and is like this."""
        self.remove_slice(found.name)
        pool = found.driver, found.pool
        self._slices[found.name] = _Slice(
            pool,
            found.generation,
            {device.name: device for device in found.devices if device.shareable or device.consumes},
            amounts_of(found.counter_sets),
        )
        self._pools.setdefault(pool, set()).add(found.name)

    def remove_slice(self, name: str) -> None:
        """There is no slice of the name."""
        gone = self._slices.pop(name, None)
        if gone is not None:
            names = self._pools[gone.pool]
            names.discard(name)
            if not names:
                del self._pools[gone.pool]

    def put_claim(self, claim: ResourceClaim) -> None:
        """The claim exists, and is like this."""
        key = claim.namespace, claim.name
        self.remove_claim(key)
        if claim.allocation is not None:
            uses = device_uses(key, claim.allocation)
            self._claims[key] = _Claim(uses, claim.users)
            for device, use in uses.items():
                self._users.setdefault(device, {})[key] = use

    def remove_claim(self, key: ClaimKey) -> None:
        """There is no such claim."""
        gone = self._claims.pop(key, None)
        for device in () if gone is None else gone.uses:
            users = self._users[device]
            del users[key]
            if not users:
                del self._users[device]

    def counter_sets(self, device: DeviceId) -> list[str]:
        """The sets of counters that the device uses."""
        offered = self._pool((device.driver, device.pool)).devices.get(device.device)
        return [] if offered is None else [counters.name for counters in offered.consumes]

    def recorded_users(self, given: Collection[HeldClaim]) -> dict[ClaimKey, tuple[str, ...]]:
        """The UIDs of the pods of each other claim that has devices of the same pools by the API server's
        record."""
        own = {(claim.namespace, claim.name) for claim in given}
        pools = {(d.driver, d.pool) for c in given for d in device_uses(("", c.name), c.allocation)}
        devices = {DeviceId(*pool, name) for pool in pools for name in self._pool(pool).devices}
        claims = {claim for device in devices for claim in self._users.get(device, ())}
        return {claim: self._claims[claim].users for claim in claims - own}

    def lack(self, given: Iterable[HeldClaim], held: HeldView, idle: Collection[ClaimKey] = ()) -> str:
        """What is missing for the devices that these claims of one pod have been given; "": nothing. Claims
        that are `idle` do not count by the record."""
        wanted: dict[_PoolId, list[tuple[DeviceId, DeviceUse]]] = {}
        own = set[ClaimKey]()
        for claim in given:
            key = claim.namespace, claim.name
            own.add(key)
            for device, use in device_uses(key, claim.allocation).items():
                wanted.setdefault((device.driver, device.pool), []).append((device, use))
        pools = ((self._pool(pool), uses) for pool, uses in wanted.items())
        lacks = (self._lack_in(pool, uses, _Others(own, own.union(idle), held)) for pool, uses in pools)
        return next(filter(None, lacks), "")

    def _lack_in(self, pool: _Pool, uses: list[tuple[DeviceId, DeviceUse]], others: _Others) -> str:
        counter_use = dict(pool.counter_use())
        usage = DeviceUsage()
        for device in counter_use.keys() | {device for device, _ in uses}:
            for other in self._uses_of(device, others):
                usage.add(device, other.consumed, shared=other.shared)
        for device, use in uses:
            offered = pool.devices.get(device.device)
            if offered is None:
                continue
            if offered.shareable and (lack := _capacity_lack(usage, offered, device, use)):
                return lack
            if device not in usage:
                left = usage.counters_left(pool.counters, counter_use.items())
                asked = {key: nano for key, nano in counter_use.get(device, {}).items() if key in left}
                if (short := first_lack(left, asked)) is not None:
                    amounts = _left(left[short], asked[short], _notation(offered, short))
                    return f"{amounts} of counter {'/'.join(short)} is left for device {device}"
            usage.add(device, use.consumed, shared=use.shared)
        return ""

    def _uses_of(self, device: DeviceId, others: _Others) -> list[DeviceUse]:
        """How the others have the device. The API server's record of a claim comes first."""
        users = {use.claim: use for use in others.held.uses(device) if use.claim not in others.own}
        recorded = self._users.get(device, {})
        users.update({claim: use for claim, use in recorded.items() if claim not in others.unrecorded})
        return list(users.values())

    def _pool(self, pool: _PoolId) -> _Pool:
        slices = [self._slices[name] for name in sorted(self._pools.get(pool, ()))]
        newest = max((part.generation for part in slices), default=0)
        found = _Pool(pool)
        for part in slices:
            if part.generation == newest:
                found.devices.update(part.devices)
                found.counters.update(part.counters)
        return found


def _capacity_lack(usage: DeviceUsage, offered: Device, device: DeviceId, use: DeviceUse) -> str:
    left = usage.capacity_left(offered, device)
    asked: dict[str, int] = {}
    for name, quantity in use.consumed:
        if name in left:
            asked[name] = asked.get(name, 0) + quantity.nano
    short = first_lack(left, asked)
    if short is None:
        return ""
    amount = next(quantity for name, quantity in use.consumed if name == short)
    return f"device {device} has {_left(left[short], asked[short], amount.notation)} left of capacity {short}"


def _notation(offered: Device, counter: tuple[str, str]) -> Notation:
    amounts = (q for s in offered.consumes for name, q in s.counters if (s.name, name) == counter)
    return next(amounts).notation


def _left(left: int, asked: int, notation: Notation) -> str:
    words = (Quantity(nano, notation).normalized for nano in (max(left, 0), asked))
    return " and not ".join(words)
