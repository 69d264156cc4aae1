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
from hoss.model.slices import Steps

_TEMPLATE_MICROS = 5.0  # to find the sub-queue of a template, by estimate


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
        self._members = members
        self._sub_queues = Routes(policy)
        self._prepared: Routes | None = None  # for the policy that is next
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
        templates.sub_queue[template_id] = self._sub_queues.of_template(templates, template_id)
        if self._prepared is not None:
            self._prepared.by_template.pop(template_id, None)  # the id may have been another template's

    def preparing(self, policy: Policy, templates: TemplateTable) -> Steps["Routes"]:
        """What `replace` needs to be quick, in slices: the sub-queues of the present templates under another
        policy. Nothing changes."""
        self._prepared = prepared = Routes(policy)
        for template_id in templates.live_ids():
            if templates.is_live(template_id):
                prepared.by_template[template_id] = prepared.of_template(templates, template_id)
            yield _TEMPLATE_MICROS
        return prepared

    def replace(
        self, policy: Policy, templates: TemplateTable, prepared: "Routes | None" = None
    ) -> NDArray[np.bool_]:
        """Put another policy into force; the caller re-routes the queue. Returns, by template id, which
        templates other rules apply to."""
        before, now = self._sub_queues, prepared or Routes(policy)
        known, now.by_template, self._prepared = now.by_template, {}, None
        self.policy, self._sub_queues, self._destinations = policy, now, {}
        self.balancers = [make_balancer(rule.balance) for rule in policy.rules]
        live = np.array(templates.live_ids(), np.int64)
        moved = np.zeros(len(templates.sub_queue), np.bool_)
        if not len(live):
            return moved
        numbers = [
            known[template_id] if template_id in known else now.of_template(templates, template_id)
            for template_id in live.tolist()
        ]
        pairs = templates.sub_queue[live].astype(np.uint64) << np.uint64(32) | np.array(numbers, np.uint64)
        templates.sub_queue[live] = numbers
        distinct, which = np.unique(pairs, return_inverse=True)
        differs = [before.rules(pair >> 32) != now.rules(pair & 0xFFFFFFFF) for pair in distinct.tolist()]
        moved[live] = np.array(differs, np.bool_)[which.ravel()]
        return moved

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
        """Its bucket for consistent hashing."""
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


class Routes:
    """The sub-queues under one policy, by number."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._index = RuleIndex(policy)
        self._all: list[SubQueue] = []
        self._numbers: dict[SubQueue, int] = {}
        self.by_template: dict[int, int] = {}  # while the policy is not in force: of those looked at

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> SubQueue:
        return self._all[number]

    def of_template(self, templates: TemplateTable, template_id: int) -> int:
        """The number of the template's sub-queue; a sub-queue that is new gets the next one."""
        spec = templates.spec(template_id)
        if self._policy.sees_templates:
            sub_queue = self._index.sub_queue(templates.facts(template_id), spec)
        else:
            sub_queue = self._index.sub_queue_of_all(spec)
        number = self._numbers.get(sub_queue)
        if number is None:
            number = self._numbers[sub_queue] = len(self._all)
            self._all.append(sub_queue)
        return number

    def rules(self, number: int) -> tuple[Rule, ...]:
        """The rules that apply to a sub-queue, in their order."""
        return tuple(self._policy.rules[rule] for rule in self._all[number].chain)
