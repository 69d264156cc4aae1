"""The policy in force: which lane a template has, and which workers a lane may go to at this moment."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.balance import Balancer, make_balancer
from dispatcher.core.membership import Membership, Worker
from dispatcher.core.policy import Lane, Policy, Rule, target
from dispatcher.core.rule_index import RuleIndex
from dispatcher.core.templates import TemplateTable


@dataclass(frozen=True, slots=True)
class Destination:
    """Workers that may have a lane's pods and the rule that says so, or the problem why none may."""

    rule: Rule | None
    workers: tuple[Worker, ...]
    balancer: Balancer | None
    problem: str


class Routing:
    """Lanes are numbered for the queue; a number keeps its meaning until the policy is replaced."""

    def __init__(self, policy: Policy, members: Membership) -> None:
        self.policy = policy
        self._index = RuleIndex(policy)
        self._members = members
        self._lanes: list[Lane] = []
        self._lane_numbers: dict[Lane, int] = {}
        self._balancers: list[Balancer] = [make_balancer(rule.balance) for rule in policy.rules]
        self._destinations: dict[int, Destination] = {}  # of this generation of members
        self._generation = -1

    def assign(self, templates: TemplateTable, template_id: int) -> None:
        """Give a new template its lane. Matches once per template; a policy that takes all alike costs no decoding."""
        spec = templates.spec(template_id)
        if self.policy.sees_templates:
            lane = self._index.lane(templates.facts(template_id), spec)
        else:
            lane = self._index.lane_of_all(spec)
        templates.lane[template_id] = self._number(lane)

    def replace(self, policy: Policy, templates: TemplateTable) -> NDArray[np.bool_]:
        """Put another policy in force. The queue must be laned anew. Returns, by template id, which templates other rules apply
        to than before."""
        old_ways, old_lanes = [self._way(lane) for lane in self._lanes], templates.lane.copy()
        self.policy, self._index = policy, RuleIndex(policy)
        self._lanes, self._lane_numbers, self._destinations = [], {}, {}
        self._balancers = [make_balancer(rule.balance) for rule in policy.rules]
        live = templates.live_ids()
        for template_id in live:
            self.assign(templates, template_id)
        if not live:
            return np.zeros(len(templates.lane), np.bool_)
        new_ways = [self._way(lane) for lane in self._lanes]
        moved = np.zeros(len(templates.lane), np.bool_)
        pairs, which = np.unique(np.stack([old_lanes[live], templates.lane[live]]), axis=1, return_inverse=True)
        differs = np.array([old_ways[old] != new_ways[new] for old, new in pairs.T.tolist()], np.bool_)
        moved[live] = differs[which.ravel()]
        return moved

    def _way(self, lane: Lane) -> tuple[Rule, ...]:
        return tuple(self.policy.rules[number] for number in lane.chain)

    def destination(self, lane: int) -> Destination:
        """Where a lane's pods may go, from labels alone; load and state come after."""
        if self._generation != self._members.generation:
            self._destinations, self._generation = {}, self._members.generation
        found = self._destinations.get(lane)
        if found is None:
            found = self._destinations[lane] = self._resolve(self._lanes[lane])
        return found

    @property
    def balancers(self) -> list[Balancer]:
        """One a rule."""
        return self._balancers

    def bucket(self, lane: int) -> int:
        """The lane's hash bucket."""
        return self._lanes[lane].bucket

    def _resolve(self, lane: Lane) -> Destination:
        living = self._members.living()
        found = target(self.policy, lane, [worker.labels for worker in living])
        if found.rule is None:
            return Destination(None, (), None, found.problem)
        return Destination(
            self.policy.rules[found.rule],
            tuple(living[i] for i in found.workers),
            self._balancers[found.rule],
            found.problem,
        )

    def _number(self, lane: Lane) -> int:
        number = self._lane_numbers.get(lane)
        if number is None:
            number = self._lane_numbers[lane] = len(self._lanes)
            self._lanes.append(lane)
        return number
