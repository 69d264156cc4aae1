"""Tenants: which pods belong to whom, and how much of the cluster each tenant holds.

A tenant's *dominant share* is the largest part of any one cluster resource that its pods hold, dispatched or
bound. Of the waiting tenants the one with the least share for its weight is next (dominant resource fairness,
Ghodsi et al., NSDI 2011). Dispatched pods are charged at once; released resources are seen at the next count
of the pod table."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import Phase, PodTable, Rows
from dispatcher.core.pods.templates import TemplateTable
from dispatcher.core.policy.rules import Sharing
from hoss.model.pod import PodSpec
from hoss.model.resources import DEVICE_RESOURCE, WHOLE_CARD_MILLI
from hoss.model.slices import Steps, finished

PODS = "pods"

_LIVE: tuple[Phase, ...] = tuple(phase for phase in Phase if phase not in (Phase.ABSENT, Phase.DELETED))

# As many fit the processor's cache: all at once takes nearly twice as long.
_ROWS_AT_ONCE = 1 << 17
_COUNT_MICROS = 0.005  # a row, by estimate

# A count reads two columns of all pods, 7 ms for a million. It may take a hundredth of the time at most.
COUNT_SECONDS = 1.0
COUNT_SECONDS_PER_POD = 1e-6


class Holding(NamedTuple):
    """What a tenant holds: `share` (0 to 1) of `resource`, its dominant one."""

    name: str
    weight: float
    share: float
    resource: str
    phases: dict[Phase, int]  # number of its pods


class Tenants:
    """All tenants by number. The template table's `tenant` column holds the tenant of a template's pods."""

    def __init__(
        self,
        sharing: Sharing,
        pods: PodTable,
        templates: TemplateTable,
        requests: Callable[[bytes], Mapping[str, float]],
    ) -> None:
        """`requests` reads from the bytes of a class what one pod of it holds."""
        self._requests = requests
        self._pods = pods
        self._templates = templates
        # Until the first node is known, tenants hold nothing but pods, of a cluster that has room for one.
        self._resources: tuple[str, ...] = (PODS,)
        self._allocatable = np.ones(1)  # (resources,)
        self._begin(sharing)

    def _begin(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._shares: list[float] = []  # divided by the weight
        self._users: list[int] = []  # templates of each
        self._free: list[int] = []  # numbers without a tenant
        self._forget_amounts()

    def _forget_amounts(self) -> None:
        self._amounts = np.zeros((0, len(self._resources)))  # (templates, resources): requests of one pod
        self._known = np.zeros(0, np.bool_)  # (templates,)
        self._held = np.zeros((len(self._names), len(self._resources)))  # (tenants, resources)
        self._counted_at = float("-inf")
        self._uncounted: list[tuple[int, Rows]] = []

    def replace(self, sharing: Sharing) -> None:
        """Distinguish tenants in another way. The caller re-routes the queue."""
        if sharing == self.sharing:
            return
        self._begin(sharing)
        for template_id in self._templates.live_ids():
            self.assign(template_id)

    def set_allocatable(self, allocatable: Mapping[str, int]) -> None:
        """The allocatable totals of all nodes, by resource. A resource without any does not count for
        shares."""
        positive = {name: amount for name, amount in sorted(allocatable.items()) if amount > 0} or {PODS: 1}
        self._allocatable = np.array(list(positive.values()), np.float64)
        if tuple(positive) != self._resources:
            self._resources = tuple(positive)
            self._forget_amounts()
        self._counted_at = float("-inf")

    def assign(self, template_id: int) -> None:
        """Set the tenant of a new template. Reads its class only where a label decides."""
        name = self._templates.kind(template_id).namespace
        if self.sharing.label:
            name = dict(self._templates.template(template_id).spec.labels).get(self.sharing.label, "")
        number = self._numbers.get(name)
        if number is None:
            number = self._add(name)
        self._users[number] += 1
        self._templates.tenant[template_id] = number
        if template_id < len(self._known):
            self._known[template_id] = False  # the template id was reused

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {"tenants": len(self._numbers), "tenant_numbers": len(self._names)}

    def release(self, template_id: int) -> None:
        """The template is forgotten. A tenant without templates has no pods, and is forgotten as well."""
        number = int(self._templates.tenant[template_id])
        self._users[number] -= 1
        if not self._users[number]:
            del self._numbers[self._names[number]]
            self._names[number] = ""
            self._uncounted = [charge for charge in self._uncounted if charge[0] != number]
            self._free.append(number)

    def _add(self, name: str) -> int:
        if self._free:
            number = self._free.pop()
            self._names[number], self._shares[number], self._held[number] = name, 0.0, 0.0
        else:
            number = len(self._names)
            self._names.append(name)
            self._shares.append(0.0)
            self._users.append(0)
            self._held = np.concatenate([self._held, np.zeros((1, len(self._resources)))])
        self._numbers[name] = number
        return number

    def name(self, tenant: int) -> str:
        return self._names[tenant]

    def number(self, name: str) -> int | None:
        """The number of a tenant; None if no pod has been its."""
        return self._numbers.get(name)

    def share(self, tenant: int) -> float:
        """Its dominant share divided by its weight, as of the last `refresh` plus later charges."""
        return self._shares[tenant]

    def defer_charge(self, tenant: int, rows: Rows) -> None:
        """These pods of a tenant were dispatched. The charge is only computed if shares are needed."""
        self._uncounted.append((tenant, rows))

    def charge(self, tenant: int, rows: Rows) -> None:
        """These pods of a tenant were dispatched: its share rises."""
        template_ids = self._pods.template[rows]
        if (template_ids == template_ids[0]).all():
            self._held[tenant] += len(template_ids) * self._requested(template_ids[:1])[0]
        else:
            self._held[tenant] += self._requested(template_ids).sum(axis=0)
        share = float((self._held[tenant] / self._allocatable).max())
        self._shares[tenant] = share / self.sharing.weight(self._names[tenant])

    def refresh(self, now: float) -> None:
        """Bring shares up to date: with the deferred charges, or by a count if the last one is too old."""
        if self._stale(now):
            self._count()
            self._counted_at = now
            self._uncounted.clear()
        for tenant, rows in self._uncounted:
            self.charge(tenant, rows)
        self._uncounted.clear()

    def drop_deferred(self, now: float) -> None:
        """Shares are not needed. Deferred charges that the next count will see anyway are dropped."""
        if self._uncounted and self._stale(now):
            self._uncounted.clear()

    def holdings(self, now: float) -> list[Holding]:
        """Every tenant that has pods, counted now."""
        return finished(self.counting(now))

    def counting(self, now: float) -> Steps[list[Holding]]:
        """`holdings` in slices."""
        self._count()
        self._counted_at = now
        self._uncounted.clear()
        yield self._pods.size * _COUNT_MICROS
        counts = yield from self._pods_by_phase()
        parts = self._held / self._allocatable
        found = []
        for number, name in enumerate(self._names):
            mine = {phase: int(counts[number, phase]) for phase in _LIVE}
            if any(mine.values()):
                dominant = int(parts[number].argmax())
                share, resource = float(parts[number, dominant]), self._resources[dominant]
                found.append(Holding(name, self.sharing.weight(name), share, resource, mine))
        return found

    def part(self, name: str) -> float:
        """The part of anything that a tenant may have when it is shared by weight among it and all tenants
        with pods."""
        names = {name, *self._numbers}
        return self.sharing.weight(name) / sum(map(self.sharing.weight, names))

    def pods_in(self, phases: Sequence[Phase]) -> Steps[dict[str, int]]:
        """How many pods of each tenant are in one of these phases, counted now."""
        by_phase = yield from self._pods_by_phase()
        counts = by_phase[:, list(phases)].sum(axis=1).tolist()
        return {name: count for name, count in zip(self._names, counts, strict=True) if count}

    def _pods_by_phase(self) -> Steps[NDArray[np.int64]]:
        """(tenants, phases)"""
        phases, flat = len(Phase), np.zeros(0, np.int64)
        for start in range(0, self._pods.size, _ROWS_AT_ONCE):
            part = slice(start, min(start + _ROWS_AT_ONCE, self._pods.size))
            keys = self._templates.tenant[self._pods.template[part]] * phases + self._pods.phase[part]
            flat = _sum(flat, np.bincount(keys))
            yield _ROWS_AT_ONCE * _COUNT_MICROS
        # Tenants may have come since the first slice.
        return _sum(flat, np.zeros(len(self._names) * phases, np.int64)).reshape(-1, phases)

    def _stale(self, now: float) -> bool:
        return now - self._counted_at >= max(COUNT_SECONDS, COUNT_SECONDS_PER_POD * self._pods.size)

    def _count(self) -> None:
        counts = np.zeros(0, np.int64)
        for start in range(0, self._pods.size, _ROWS_AT_ONCE):
            part = slice(start, min(start + _ROWS_AT_ONCE, self._pods.size))
            phase = self._pods.phase[part]
            held = self._pods.template[part][(phase == Phase.SCHEDULING) | (phase == Phase.BOUND)]
            counts = _sum(counts, np.bincount(held))
        ids = np.flatnonzero(counts).astype(np.uint32)
        self._held[:] = 0.0
        np.add.at(self._held, self._templates.tenant[ids], counts[ids, None] * self._requested(ids))
        weights = [self.sharing.weight(name) for name in self._names]
        self._shares = ((self._held / self._allocatable).max(axis=1) / weights).tolist() if weights else []

    def _requested(self, template_ids: NDArray[np.uint32]) -> NDArray[np.float64]:
        """(n, resources): requests of a pod of each template. Each class is read once."""
        most = int(template_ids.max(initial=0))
        if most >= len(self._known):
            more = max(1024, 2 * most) - len(self._known)
            self._known = np.concatenate([self._known, np.zeros(more, np.bool_)])
            self._amounts = np.concatenate([self._amounts, np.zeros((more, len(self._resources)))])
        for template_id in np.unique(template_ids[~self._known[template_ids]]).tolist():
            requested = {PODS: 1.0, **self._requests(self._templates.spec(template_id))}
            self._amounts[template_id] = [requested.get(resource, 0) for resource in self._resources]
            self._known[template_id] = True
        amounts: NDArray[np.float64] = self._amounts[template_ids]
        return amounts


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two columns; what one is shorter is 0."""
    less, more = sorted((one, other), key=len)
    more[: len(less)] += less
    return more


def held_by(spec: PodSpec) -> dict[str, float]:
    """What one pod holds, with shares of cards as fractions of whole cards."""
    devices = spec.devices
    return dict(spec.requests) | (shares_of_cards(devices.count, devices.milli) if devices else {})


def shares_of_cards(count: int, milli: int) -> dict[str, float]:
    """A share of a card is not in the requests of a pod; whole cards are."""
    return {DEVICE_RESOURCE: count * milli / WHOLE_CARD_MILLI} if milli < WHOLE_CARD_MILLI else {}
