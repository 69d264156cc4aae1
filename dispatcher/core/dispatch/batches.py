"""Forms batches: which pods leave together, and to which worker.

The most urgent sub-queue gives a batch to one of its workers, again and again, until no sub-queue has both
pods and a worker with credit. A batch leaves when it is full, when its first pod has waited the linger time,
or at once to an idle worker."""

from dataclasses import dataclass, field

import numpy as np

from dispatcher.core.dispatch.balance import Chance, WorkerLoad
from dispatcher.core.dispatch.estimates import Estimates
from dispatcher.core.dispatch.routing import Destination, Routing
from dispatcher.core.messages import SendWork
from dispatcher.core.pods.history import PhaseTimes
from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase, Rows
from dispatcher.core.policy.rules import DEFAULT_RULE, Rule
from dispatcher.core.queue.queues import Queues
from dispatcher.core.workers.membership import Batch, Worker

# A batch may be twice as large if its pods are known to cost the worker at most this much each: it still fits
# a slice of the worker's time, with half the messages and longer runs. Unmeasured pods may be expensive.
CHEAP_MICROS = 20.0
MAX_PODS = 1000  # per proposal

# A small job is spread over its workers, but not into tiny batches: a message costs as much as placing this
# many pods.
MIN_SHARE_PODS = 64


@dataclass(frozen=True, slots=True)
class BatchRules:
    """`batch_pods` per message at most; a batch that is not full waits `linger_seconds` for more. A worker
    gets up to `work_ahead_seconds` of estimated work. What stays queued can go to others, and its order can
    change."""

    batch_pods: int = 500
    linger_seconds: float = 0.002
    work_ahead_seconds: float = 1.0

    @property
    def work_ahead_micros(self) -> float:
        return self.work_ahead_seconds * 1e6


DEFAULT_BATCH_RULES = BatchRules()


def load_of(worker: Worker, weight_label: str) -> WorkerLoad:
    """The worker as balancing sees it. Its weight is the number in the label `weight_label`, see
    Worker.weight."""
    weight = worker.weight(weight_label)
    return WorkerLoad(worker.name, worker.outstanding, worker.window, weight, worker.work_micros)


@dataclass(slots=True, eq=False)
class Dispatch:
    """Forms batches. `wake_at` is when a lingering batch is due, None if none lingers."""

    registry: PodRegistry
    queues: Queues
    routing: Routing
    estimates: Estimates
    rules: BatchRules
    chance: Chance
    times: PhaseTimes
    wake_at: float | None = field(default=None, init=False)
    _serial: int = field(default=0, init=False)
    _kept_for_gangs: set[str] = field(default_factory=set, init=False)  # workers kept for an urgent gang

    def pump(self, now: float, now_ms: int) -> list[SendWork]:
        """Every batch that may leave now."""
        sent: list[SendWork] = []
        stuck: set[int] = set()
        self.wake_at = None
        self._kept_for_gangs = set()
        self.queues.active.begin(now)
        while (sub_queue := self.queues.active.most_urgent(stuck)) is not None:
            head = self.queues.active.head(sub_queue)
            gang, suspects = head.gang, head.suspects
            worker, count = (
                self._choose_for_indivisible(sub_queue, gang, suspects)
                if gang or suspects
                else self._choose(sub_queue, now)
            )
            if worker is None:
                if gang or suspects:
                    self.queues.active.pass_over(sub_queue)  # other tenants' pods need not wait
                else:
                    stuck.add(sub_queue)
                continue
            if gang:
                rows = self.queues.take_gang(sub_queue)
            elif suspects:
                rows = self.queues.take_suspects(sub_queue)
            else:
                rows = self.queues.active.take(sub_queue, count, self.registry.pods.phase)
            if len(rows):
                rule = self.routing.destination(sub_queue).rule or DEFAULT_RULE
                sent.append(self._send(worker, rows, now_ms, rule))
                if suspects:
                    worker.isolated_batch = self._serial
        return sent

    def _choose(self, sub_queue: int, now: float) -> tuple[Worker | None, int]:
        """A worker for the sub-queue's next batch and the size of that batch; None if the batch must wait."""
        destination = self.routing.destination(sub_queue)
        working = self._working(destination)
        if not working:
            return None, 0
        queued = self.queues.active.count(sub_queue)
        in_hand = sum(worker.outstanding for worker in working)
        share = max(MIN_SHARE_PODS, -(-(queued + in_hand) // len(working)))
        # A little credit is no reason for a message while many pods wait: the worker still has half its
        # window to do, and likewise half of its work-ahead time.
        class_id = self._next_class(sub_queue)
        eligible = [
            w
            for w in working
            if w.credit >= min(self._batch_limit(w, class_id), share, queued)
            and w.work_micros <= self.rules.work_ahead_micros / 2
        ]
        if not eligible:
            return None, 0
        worker = self._balance(destination, eligible, sub_queue)
        limit = self._batch_limit(worker, class_id)
        due = self.queues.active.head(sub_queue).queued_at + self.rules.linger_seconds
        if queued < limit and worker.outstanding and now < due:
            self.wake_at = due if self.wake_at is None else min(due, self.wake_at)
            return None, 0
        return worker, min(limit, share, worker.credit, self._pods_in_time(worker, class_id))

    def _working(self, destination: Destination) -> list[Worker]:
        """Workers that may get pods; those with recalled pods, and those that fail at everything, only where
        there are no others."""
        working = [w for w in self.routing.working(destination) if w.name not in self._kept_for_gangs]
        working = [w for w in working if not w.heartbeat.failing] or working
        return [w for w in working if not w.served_last] or working

    def _next_class(self, sub_queue: int) -> int:
        """The class of the sub-queue's next pod."""
        template = self.registry.pods.template[self.queues.active.head(sub_queue).rows[0]]
        return int(self.registry.templates.class_id[template])

    def _batch_limit(self, worker: Worker, class_id: int) -> int:
        """The largest batch for this worker that begins with this class."""
        pods = self.rules.batch_pods
        if pods < MAX_PODS and self.estimates.known_to_take(worker, class_id) <= CHEAP_MICROS:
            pods = min(2 * pods, MAX_PODS)
        return worker.batch_limit(pods)

    def _pods_in_time(self, worker: Worker, class_id: int) -> int:
        """How many pods of the class fill the worker's work-ahead time."""
        micros = self.estimates.next_pod(worker, class_id)
        return max(1, int((self.rules.work_ahead_micros - worker.work_micros) / micros))

    def _choose_for_indivisible(self, sub_queue: int, gang: int, suspects: bool) -> tuple[Worker | None, int]:
        """A worker with credit for the whole gang that is next. A worker without outstanding pods may exceed
        its window; suspects go only to such a worker."""
        destination = self.routing.destination(sub_queue)
        size = self.queues.gang_size(sub_queue) if gang else 0
        working = self._working(destination)
        eligible = [w for w in working if (not suspects and w.credit >= size) or not w.outstanding]
        if eligible:
            return self._balance(destination, eligible, sub_queue), size
        # Keep one worker free until it has room. Otherwise smaller batches would fill it for ever.
        if working:
            self._kept_for_gangs.add(max(working, key=lambda w: w.credit).name)
        return None, 0

    def _balance(self, destination: Destination, workers: list[Worker], sub_queue: int) -> Worker:
        if len(workers) == 1 or destination.rule is None or destination.balancer is None:
            return workers[0]
        weight_label = destination.rule.balance.weight_label
        loads = [load_of(worker, weight_label) for worker in workers]
        return workers[destination.balancer.choose(loads, self.routing.bucket(sub_queue), self.chance)]

    def _send(self, worker: Worker, rows: Rows, now_ms: int, rule: Rule) -> SendWork:
        pods, templates = self.registry.pods, self.registry.templates
        template_ids = pods.template[rows]
        classes, attempts = templates.class_id[template_ids], pods.attempts[rows]
        if (classes != classes[0]).any() or (attempts != attempts[0]).any():
            order = np.lexsort((attempts, classes, -templates.priority[template_ids]))
            rows, classes, attempts = rows[order], classes[order], attempts[order]
        differs = (classes[1:] != classes[:-1]) | (attempts[1:] != attempts[:-1])
        starts = np.concatenate(([0], np.flatnonzero(differs) + 1))
        run_classes = classes[starts]
        new, forgotten = worker.classes.introduce(run_classes.tolist())
        run_counts = np.diff(starts, append=len(rows)).astype(np.uint32)
        self._serial += 1
        micros = self.estimates.price(worker, run_classes, run_counts, len(new))
        change = self.queues.changes
        queued_ms = now_ms - pods.since_ms[rows]
        batch = Batch(
            self._serial,
            rows,
            len(rows),
            change,
            run_classes,
            run_counts,
            len(new),
            micros,
            now_ms,
            max(0, int(queued_ms.mean())),
        )
        worker.add_batch(batch)
        self.times.queued.add(queued_ms / 1000)
        pods.worker[rows] = worker.number
        self.registry.move(rows, Phase.SCHEDULING, now_ms)
        pods.batch[rows] = self._serial
        pods.outdated[rows] = False
        gangs = self.registry.gangs
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
            gang_minimum=0 if whole is None else gangs.required(whole),
            scope=rule.nodes,
            conflicts=rule.conflicts,
        )
