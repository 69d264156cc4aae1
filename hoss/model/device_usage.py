"""Which devices claims have, and whether more of a device or of its pool's counters can be had.

Workers choose devices by this, and the binding webhook checks by it what other schedulers chose
(docs/adr/0062-devices.md). Amounts are billionths, so that sums are exact."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from hoss.model.devices import CounterSet, Device, DeviceId
from hoss.model.quantity import Quantity

CounterAmounts = dict[tuple[str, str], int]  # by counter set and counter
KeyT = TypeVar("KeyT")


def amounts_of(counter_sets: Iterable[CounterSet]) -> CounterAmounts:
    """The counters of these sets. What several of them say of one counter is added up."""
    found: CounterAmounts = {}
    for counter_set in counter_sets:
        for name, amount in counter_set.counters:
            key = counter_set.name, name
            found[key] = found.get(key, 0) + amount.nano
    return found


def first_lack(left: Mapping[KeyT, int], asked: Mapping[KeyT, int]) -> KeyT | None:
    """The first of what is asked for that is not left; None: all of it is there."""
    return next((key for key, nano in asked.items() if nano > left.get(key, 0)), None)


class DeviceUsage:
    """Which devices are in use: those of claims, by the API server or by the ledger. Nothing is counted twice
    if `add` and `remove` come in pairs."""

    def __init__(self) -> None:
        self.exclusive: dict[DeviceId, int] = {}  # how many claims have it
        self.consumed: dict[DeviceId, dict[str, int]] = {}  # of shared devices, billionths by capacity
        self._sharers: dict[DeviceId, int] = {}

    def __contains__(self, device: DeviceId) -> bool:
        """Whether any claim has it."""
        return device in self.exclusive or device in self._sharers

    def add(self, device: DeviceId, consumed: Iterable[tuple[str, Quantity]], *, shared: bool) -> None:
        """One more claim has the device."""
        if not shared:
            self.exclusive[device] = self.exclusive.get(device, 0) + 1
            return
        self._sharers[device] = self._sharers.get(device, 0) + 1
        amounts = self.consumed.setdefault(device, {})
        for name, quantity in consumed:
            amounts[name] = amounts.get(name, 0) + quantity.nano

    def remove(self, device: DeviceId, consumed: Iterable[tuple[str, Quantity]], *, shared: bool) -> None:
        """One claim less has the device."""
        if not shared:
            self.exclusive[device] -= 1
            if not self.exclusive[device]:
                del self.exclusive[device]
            return
        self._sharers[device] -= 1
        amounts = self.consumed[device]
        for name, quantity in consumed:
            amounts[name] -= quantity.nano
        if not self._sharers[device]:
            del self._sharers[device], self.consumed[device]

    def capacity_left(self, device: Device, identity: DeviceId) -> dict[str, int]:
        """What claims have left of a device that they share."""
        used = self.consumed.get(identity, {})
        return {name: capacity.value.nano - used.get(name, 0) for name, capacity in device.capacity}

    def counters_left(
        self, counters: CounterAmounts, devices: Iterable[tuple[DeviceId, CounterAmounts]]
    ) -> CounterAmounts:
        """What the devices in use leave of their pool's counters. `devices`: all that use counters of the
        pool, on any node. One that claims share uses its counters once."""
        left = dict(counters)
        for identity, use in devices:
            if use and identity in self:
                for key, nano in use.items():
                    left[key] = left.get(key, 0) - nano
        return left
