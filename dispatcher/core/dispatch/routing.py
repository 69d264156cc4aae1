"""Routing: the policy in force, the sub-queue of each template, and which workers a sub-queue may use now."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.dispatch.balance import Balancer, make_balancer
from dispatcher.core.pods.templates import TemplateTable
from dispatcher.core.policy.index import RuleIndex
from dispatcher.core.policy.rules import Policy, Rule, SubQueue, target
from dispatcher.core.workers.membership import Membership, Worker


@dataclass(frozen=True, slots=True)
class Destination:
    """The workers that may have a sub-queue's pods and the deciding rule, or the problem why there is
    none."""

    rule: Rule | None
    workers: tuple[Worker, ...]
    balancer: Balancer | None
    problem: str


def workers_taking_work(workers: Iterable[Worker], worker_limit: int) -> list[Worker]:
    """The workers that take work. With a `worker_limit` these are the first by name, so always the same ones;
    0: all."""
    working = [worker for worker in workers if worker.takes_work]
    return sorted(working, key=lambda worker: worker.name)[:worker_limit] if worker_limit else working


class Routing:
    """Sub-queues are numbered; a number keeps its meaning until the policy is replaced."""

    def __init__(self, policy: Policy, members: Membership) -> None:
        self.policy = policy
        self._index = RuleIndex(policy)
        self._members = members
        self._sub_queues: list[SubQueue] = []
        self._numbers: dict[SubQueue, int] = {}
        self.balancers: list[Balancer] = [make_balancer(rule.balance) for rule in policy.rules]
        self._destinations: dict[int, Destination] = {}  # of the current generation of members
        self._generation = -1
        self.worker_limit = 0  # of a destination's workers; 0: all

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {"sub_queues": len(self._sub_queues)}

    def assign(self, templates: TemplateTable, template_id: int) -> None:
        """Give a new template its sub-queue. Matches once per template; a policy that treats all pods alike
        decodes nothing."""
        spec = templates.spec(template_id)
        if self.policy.sees_templates:
            sub_queue = self._index.sub_queue(templates.facts(template_id), spec)
        else:
            sub_queue = self._index.sub_queue_of_all(spec)
        templates.sub_queue[template_id] = self._number(sub_queue)

    def replace(self, policy: Policy, templates: TemplateTable) -> NDArray[np.bool_]:
        """Put another policy into force; the caller re-routes the queue. Returns, by template id, which
        templates other rules apply to."""
        old_routes = [self._route(sub_queue) for sub_queue in self._sub_queues]
        old_sub_queues = templates.sub_queue.copy()
        self.policy, self._index = policy, RuleIndex(policy)
        self._sub_queues, self._numbers, self._destinations = [], {}, {}
        self.balancers = [make_balancer(rule.balance) for rule in policy.rules]
        live = templates.live_ids()
        for template_id in live:
            self.assign(templates, template_id)
        if not live:
            return np.zeros(len(templates.sub_queue), np.bool_)
        new_routes = [self._route(sub_queue) for sub_queue in self._sub_queues]
        moved = np.zeros(len(templates.sub_queue), np.bool_)
        old_and_new = np.stack([old_sub_queues[live], templates.sub_queue[live]])
        pairs, which = np.unique(old_and_new, axis=1, return_inverse=True)
        differs = np.array([old_routes[old] != new_routes[new] for old, new in pairs.T.tolist()], np.bool_)
        moved[live] = differs[which.ravel()]
        return moved

    def _route(self, sub_queue: SubQueue) -> tuple[Rule, ...]:
        return tuple(self.policy.rules[number] for number in sub_queue.chain)

    def destination(self, sub_queue: int) -> Destination:
        """Where a sub-queue's pods may go, by labels alone, without load and state."""
        if self._generation != self._members.generation:
            self._destinations, self._generation = {}, self._members.generation
        found = self._destinations.get(sub_queue)
        if found is None:
            found = self._destinations[sub_queue] = self._resolve(self._sub_queues[sub_queue])
        return found

    def working(self, destination: Destination) -> list[Worker]:
        """Workers that may get the destination's pods now."""
        return workers_taking_work(destination.workers, self.worker_limit)

    def bucket(self, sub_queue: int) -> int:
        return self._sub_queues[sub_queue].bucket

    def _resolve(self, sub_queue: SubQueue) -> Destination:
        living = self._members.living()
        found = target(self.policy, sub_queue, [worker.labels for worker in living])
        if found.rule is None:
            return Destination(None, (), None, found.problem)
        return Destination(
            self.policy.rules[found.rule],
            tuple(living[i] for i in found.workers),
            self.balancers[found.rule],
            found.problem,
        )

    def _number(self, sub_queue: SubQueue) -> int:
        number = self._numbers.get(sub_queue)
        if number is None:
            number = self._numbers[sub_queue] = len(self._sub_queues)
            self._sub_queues.append(sub_queue)
        return number
