"""From queue to worker: which pods leave in which batch to whom.

Again and again the most urgent lane gives a batch to one of its workers, until no lane has both pods and a worker with
credit. A batch leaves when it is full, when its first pod has waited the linger time, or at once to an idle worker.
"""

from dataclasses import dataclass

import numpy as np

from dispatcher.core.balance import Chance, WorkerLoad
from dispatcher.core.estimates import Estimates
from dispatcher.core.membership import Batch, Worker
from dispatcher.core.messages import SendWork
from dispatcher.core.phases import PhaseTimes
from dispatcher.core.podtable import Phase, Rows
from dispatcher.core.policy import DEFAULT_RULE, Rule
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry
from dispatcher.core.routing import Destination, Routing

# A batch may be twice as large where its pods are known to take the worker no longer than this each: it is done in a slice of
# the worker's time all the same, with half the messages and longer runs. What nobody has measured may be dear.
CHEAP_MICROS = 20.0
MOST_PODS = 1000  # of a proposal

# A small job is spread over its workers, but not into crumbs: a message costs as much as placing this many pods.
SMALLEST_SHARE = 64


@dataclass(frozen=True, slots=True)
class BatchRules:
    """`batch_pods` a message at most; a batch that is not full waits `linger_seconds` for more. A worker is given up to
    `work_ahead_seconds` of estimated work: what is still queued, others can have, and its order can change."""

    batch_pods: int = 500
    linger_seconds: float = 0.002
    work_ahead_seconds: float = 1.0

    @property
    def work_ahead_micros(self) -> float:
        """The same in microseconds."""
        return self.work_ahead_seconds * 1e6


DEFAULT_BATCH_RULES = BatchRules()


def load_of(worker: Worker, weight_label: str) -> WorkerLoad:
    """The worker as balancing sees it."""
    weight = worker.weight(weight_label)
    return WorkerLoad(worker.name, worker.outstanding, worker.window, weight, worker.work_micros)


class Dispatch:
    """Forms batches. `wake_at` is when a lingering batch is due, None if none lingers."""

    def __init__(
        self,
        registry: PodRegistry,
        queues: Queues,
        routing: Routing,
        estimates: Estimates,
        *,
        rules: BatchRules,
        chance: Chance,
        times: PhaseTimes | None = None,
    ) -> None:
        self.times = times or PhaseTimes()
        self._registry = registry
        self._queues = queues
        self._routing = routing
        self._estimates = estimates
        self._rules = rules
        self._chance = chance
        self._serial = 0
        self._kept_free: set[str] = set()  # workers that a more urgent gang waits for
        self.wake_at: float | None = None

    def pump(self, now: float, now_ms: int) -> list[SendWork]:
        """Every batch that may leave now."""
        sent: list[SendWork] = []
        stuck: set[int] = set()
        self.wake_at = None
        self._kept_free = set()
        self._queues.active.begin(now)
        while (lane := self._queues.active.most_urgent(stuck)) is not None:
            gang, suspects = self._queues.active.next_gang(lane), self._queues.active.suspects_next(lane)
            worker, count = (
                self._choose_for_company(lane, gang, suspects) if gang or suspects else self._choose(lane, now)
            )
            if worker is None:
                if gang or suspects:
                    self._queues.active.pass_over(lane)  # other tenants' pods need not wait for it
                else:
                    stuck.add(lane)
                continue
            if gang:
                rows = self._queues.take_gang(lane)
            elif suspects:
                rows = self._queues.take_suspects(lane)
            else:
                rows = self._queues.active.take(lane, count, self._registry.pods.phase)
            if len(rows):
                sent.append(self._send(worker, rows, now_ms, self._routing.destination(lane).rule or DEFAULT_RULE))
                if suspects:
                    worker.isolating = self._serial
        return sent

    def _choose(self, lane: int, now: float) -> tuple[Worker | None, int]:
        """A worker for the lane's next batch and the batch's size, or None if it must wait."""
        destination = self._routing.destination(lane)
        working = self._working(destination)
        if not working:
            return None, 0
        queued = self._queues.active.count(lane)
        in_hand = sum(worker.outstanding for worker in working)
        share = max(SMALLEST_SHARE, -(-(queued + in_hand) // len(working)))
        # Credit for a few pods of many is no reason for a message: the worker still has half its window to do.
        # The same goes for time: it has half of what it may have still in front of it.
        class_id = self._next_class(lane)
        open_to_it = [
            w
            for w in working
            if w.credit >= min(self._batch_limit(w, class_id), share, queued)
            and w.work_micros <= self._rules.work_ahead_micros / 2
        ]
        if not open_to_it:
            return None, 0
        worker = self._balance(destination, open_to_it, lane)
        limit = self._batch_limit(worker, class_id)
        due = self._queues.active.waiting_since(lane) + self._rules.linger_seconds
        if queued < limit and worker.outstanding and now < due:
            self.wake_at = due if self.wake_at is None else min(due, self.wake_at)
            return None, 0
        return worker, min(limit, share, worker.credit, self._pods_in_time(worker, class_id))

    def _working(self, destination: Destination) -> list[Worker]:
        """Workers that may get pods, those that had some recalled only where there are no others."""
        working = [w for w in self._routing.working(destination) if w.name not in self._kept_free]
        return [w for w in working if not w.yields] or working

    def _next_class(self, lane: int) -> int:
        """The class of the lane's next pod."""
        template = self._registry.pods.template[self._queues.active.next_row(lane)]
        return int(self._registry.templates.class_id[template])

    def _batch_limit(self, worker: Worker, class_id: int) -> int:
        """How many pods a batch for the worker has at most that begins with this class."""
        pods = self._rules.batch_pods
        if pods < MOST_PODS and self._estimates.known_to_take(worker, class_id) <= CHEAP_MICROS:
            pods = min(2 * pods, MOST_PODS)
        return worker.batch_limit(pods)

    def _pods_in_time(self, worker: Worker, class_id: int) -> int:
        """How many pods of the class the worker can be given before it has enough for its time."""
        micros = self._estimates.next_pod(worker, class_id)
        return max(1, int((self._rules.work_ahead_micros - worker.work_micros) / micros))

    def _choose_for_company(self, lane: int, gang: int, suspects: bool) -> tuple[Worker | None, int]:
        """A worker that has credit for all that is next in the lane, a gang; one with nothing in hand may exceed its window, and
        suspects go to no other."""
        destination, size = self._routing.destination(lane), self._queues.gang_size(lane) if gang else 0
        working = self._working(destination)
        open_to_it = [w for w in working if (not suspects and w.credit >= size) or not w.outstanding]
        if open_to_it:
            return self._balance(destination, open_to_it, lane), size
        if (
            working
        ):  # one of them gets nothing else until it has room, or smaller batches would keep it from that for ever
            self._kept_free.add(max(working, key=lambda w: w.credit).name)
        return None, 0

    def _balance(self, destination: Destination, workers: list[Worker], lane: int) -> Worker:
        if len(workers) == 1 or destination.rule is None or destination.balancer is None:
            return workers[0]
        weight_label = destination.rule.balance.weight_label
        loads = [load_of(worker, weight_label) for worker in workers]
        return workers[destination.balancer.choose(loads, self._routing.bucket(lane), self._chance)]

    def _send(self, worker: Worker, rows: Rows, now_ms: int, rule: Rule) -> SendWork:
        pods, templates = self._registry.pods, self._registry.templates
        template_ids = pods.template[rows]
        classes, attempts = templates.class_id[template_ids], pods.attempts[rows]
        if (classes != classes[0]).any() or (attempts != attempts[0]).any():
            order = np.lexsort((attempts, classes, -templates.priority[template_ids]))
            rows, classes, attempts = rows[order], classes[order], attempts[order]
        starts = np.concatenate(
            ([0], np.flatnonzero((classes[1:] != classes[:-1]) | (attempts[1:] != attempts[:-1])) + 1)
        )
        run_classes = classes[starts]
        new, forgotten = worker.classes.introduce(run_classes.tolist())
        run_counts = np.diff(starts, append=len(rows)).astype(np.uint32)
        self._serial += 1
        micros = self._estimates.price(worker, run_classes, run_counts, len(new))
        change = self._queues.changes
        worker.take_on(Batch(self._serial, rows, len(rows), change, run_classes, run_counts, len(new), micros))
        self.times.queued.add((now_ms - pods.since_ms[rows]) / 1000)
        pods.worker[rows] = worker.number
        self._registry.move(rows, Phase.SCHEDULING, now_ms)
        pods.batch[rows] = self._serial
        pods.outdated[rows] = False
        gangs = self._registry.gangs
        whole = next(iter(gangs.incomplete(rows)), None)
        return SendWork(
            link=worker.link,
            batch=self._serial,
            classes=tuple((class_id, templates.specs[class_id]) for class_id in new),
            forgotten=tuple(forgotten),
            run_classes=run_classes,
            run_counts=run_counts,
            run_attempts=attempts[starts],
            uids=pods.uid[rows],
            lowest_priority=templates.lowest_priority,
            gang="" if whole is None else whole.name,
            gang_minimum=0 if whole is None else gangs.needed(whole),
            scope=rule.nodes,
            conflicts=rule.conflicts,
        )
