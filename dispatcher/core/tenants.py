"""Whose pods are whose, and how much of the cluster each tenant holds.

A tenant's *dominant share* is the largest part of any one of the cluster's resources that its pods hold, dispatched or
bound; of tenants that wait, the one with the least share for its weight is next (dominant resource fairness, Ghodsi et al.,
NSDI 2011). What is dispatched is charged at once; what was given back is seen at the next count of the pod table.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, PodTable, Rows
from dispatcher.core.sharing import Sharing
from dispatcher.core.templates import TemplateTable
from hoss.model.fit import WHOLE_CARD_MILLI
from hoss.model.pod import PodSpec
from hoss.model.resources import DEVICE_RESOURCE

PODS = "pods"

_LIVE: tuple[Phase, ...] = tuple(phase for phase in Phase if phase is not Phase.ABSENT and phase is not Phase.DELETED)

# A count reads two columns of all pods, 7 ms for a million: then it takes less than a hundredth of the time.
COUNT_SECONDS = 1.0
COUNT_SECONDS_PER_POD = 1e-6


class Holding(NamedTuple):
    """What a tenant holds: `share` (0 to 1) of `resource`, the one it holds most of."""

    name: str
    weight: float
    share: float
    resource: str
    phases: dict[Phase, int]  # its pods


class Tenants:
    """All tenants by number. The template table's `tenant` column says whose a template's pods are."""

    def __init__(
        self,
        sharing: Sharing,
        pods: PodTable,
        templates: TemplateTable,
        requests: Callable[[bytes], Mapping[str, float]],
    ) -> None:
        """`requests` reads from a class's bytes what one pod of it holds."""
        self._requests = requests
        self._pods = pods
        self._templates = templates
        # Before the first node is known every tenant holds nothing but pods, of a cluster that has room for one.
        self._resources: tuple[str, ...] = (PODS,)
        self._allocatable = np.ones(1)  # (resources,)
        self._begin(sharing)

    def _begin(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._shares: list[float] = []  # for the weight
        self._forget_amounts()

    def _forget_amounts(self) -> None:
        self._amounts = np.zeros((0, len(self._resources)))  # (templates, resources): what one pod asks for
        self._known = np.zeros(0, np.bool_)  # (templates,)
        self._held = np.zeros((len(self._names), len(self._resources)))  # (tenants, resources)
        self._counted_at = float("-inf")
        self._uncounted: list[tuple[int, Rows]] = []

    def replace(self, sharing: Sharing) -> None:
        """Tell tenants apart in another way from now on. The queue must be laned anew."""
        self._begin(sharing)
        for template_id in self._templates.live_ids():
            self.assign(template_id)

    def set_allocatable(self, allocatable: Mapping[str, int]) -> None:
        """What all nodes have together, by resource. What they have nothing of counts for no share."""
        positive = {name: amount for name, amount in sorted(allocatable.items()) if amount > 0} or {PODS: 1}
        self._allocatable = np.array(list(positive.values()), np.float64)
        if tuple(positive) != self._resources:
            self._resources = tuple(positive)
            self._forget_amounts()
        self._counted_at = float("-inf")

    def assign(self, template_id: int) -> None:
        """Say whose a new template is. Looks into its class only where a label decides."""
        name = self._templates.kind(template_id).namespace
        if self.sharing.label:
            name = dict(self._templates.template(template_id).spec.labels).get(self.sharing.label, "")
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
            self._shares.append(0.0)
            self._held = np.concatenate([self._held, np.zeros((1, len(self._resources)))])
        self._templates.tenant[template_id] = number
        if template_id < len(self._known):
            self._known[template_id] = False  # the number was another's before

    def name(self, tenant: int) -> str:
        """A tenant by number."""
        return self._names[tenant]

    def share(self, tenant: int) -> float:
        """Its dominant share for its weight, as of the last `refresh` and what was charged since."""
        return self._shares[tenant]

    def note(self, tenant: int, rows: Rows) -> None:
        """These pods of its were dispatched; nobody asks for shares now."""
        self._uncounted.append((tenant, rows))

    def charge(self, tenant: int, rows: Rows) -> None:
        """These pods of its were dispatched: its share rises."""
        template_ids = self._pods.template[rows]
        if (template_ids == template_ids[0]).all():
            self._held[tenant] += len(template_ids) * self._asked(template_ids[:1])[0]
        else:
            self._held[tenant] += self._asked(template_ids).sum(axis=0)
        share = float((self._held[tenant] / self._allocatable).max())
        self._shares[tenant] = share / self.sharing.weight(self._names[tenant])

    def refresh(self, now: float) -> None:
        """Bring shares up to date: with what was noted, or, if that is too long ago, by counting."""
        if self._stale(now):
            self._count()
            self._counted_at = now
            self._uncounted.clear()
        for tenant, rows in self._uncounted:
            self.charge(tenant, rows)
        self._uncounted.clear()

    def relax(self, now: float) -> None:
        """Nobody asks for shares. What the next count will see anyway is not kept."""
        if self._uncounted and self._stale(now):
            self._uncounted.clear()

    def holdings(self, now: float) -> list[Holding]:
        """Every tenant that has pods, counted now."""
        self._count()
        self._counted_at = now
        self._uncounted.clear()
        size, phases = self._pods.size, len(Phase)
        keys = self._templates.tenant[self._pods.template[:size]].astype(np.int64) * phases + self._pods.phase[:size]
        counts = np.bincount(keys, minlength=len(self._names) * phases).reshape(-1, phases)
        parts = self._held / self._allocatable
        found = []
        for number, name in enumerate(self._names):
            mine = {phase: int(counts[number, phase]) for phase in _LIVE}
            if any(mine.values()):
                dominant = int(parts[number].argmax())
                share, resource = float(parts[number, dominant]), self._resources[dominant]
                found.append(Holding(name, self.sharing.weight(name), share, resource, mine))
        return found

    def _stale(self, now: float) -> bool:
        return now - self._counted_at >= max(COUNT_SECONDS, COUNT_SECONDS_PER_POD * self._pods.size)

    def _count(self) -> None:
        phase, template = self._pods.phase[: self._pods.size], self._pods.template[: self._pods.size]
        counts = np.bincount(template[(phase == Phase.SCHEDULING) | (phase == Phase.BOUND)])
        ids = np.flatnonzero(counts).astype(np.uint32)
        self._held[:] = 0.0
        np.add.at(self._held, self._templates.tenant[ids], counts[ids, None] * self._asked(ids))
        weights = [self.sharing.weight(name) for name in self._names]
        self._shares = ((self._held / self._allocatable).max(axis=1) / weights).tolist() if weights else []

    def _asked(self, template_ids: NDArray[np.uint32]) -> NDArray[np.float64]:
        """(n, resources): what a pod of each template asks for. Each is looked into once."""
        most = int(template_ids.max(initial=0))
        if most >= len(self._known):
            more = max(1024, 2 * most) - len(self._known)
            self._known = np.concatenate([self._known, np.zeros(more, np.bool_)])
            self._amounts = np.concatenate([self._amounts, np.zeros((more, len(self._resources)))])
        for template_id in np.unique(template_ids[~self._known[template_ids]]).tolist():
            asked = {PODS: 1.0, **self._requests(self._templates.spec(template_id))}
            self._amounts[template_id] = [asked.get(resource, 0) for resource in self._resources]
            self._known[template_id] = True
        asked_each: NDArray[np.float64] = self._amounts[template_ids]
        return asked_each


def held_by(spec: PodSpec) -> dict[str, float]:
    """What one pod holds, shares of cards as parts of whole ones."""
    return dict(spec.requests) | (shares_of_cards(spec.devices.count, spec.devices.milli) if spec.devices else {})


def shares_of_cards(count: int, milli: int) -> dict[str, float]:
    """A share of a card stands in no list of requests; whole cards do."""
    return {DEVICE_RESOURCE: count * milli / WHOLE_CARD_MILLI} if milli < WHOLE_CARD_MILLI else {}
