"""What the dispatcher's state machine promises of pods and workers, checked against its columns. For tests; it reads everything."""

import math

import numpy as np

from dispatcher.core.membership import Membership
from dispatcher.core.podtable import Phase
from dispatcher.core.queues import Queues
from dispatcher.core.registry import PodRegistry
from hoss.errors import InvariantViolation


def check(registry: PodRegistry, members: Membership, queues: Queues) -> None:
    """Raise InvariantViolation if the module's promises do not hold."""
    pods = registry.pods
    in_batches = [b.rows[pods.batch[b.rows] == b.serial] for w in members for b in w.batches.values()]
    unfenced = [w.unfenced for w in members if w.unfenced is not None]
    held = np.concatenate([*in_batches, *unfenced, np.empty(0, np.uint32)])
    if len(np.unique(held)) != len(held):
        raise InvariantViolation("a pod is with two workers")
    scheduling = np.flatnonzero(pods.phase[: pods.size] == Phase.SCHEDULING)
    if len(np.setdiff1d(scheduling, held)):
        raise InvariantViolation(f"pods are SCHEDULING with no worker: rows {np.setdiff1d(scheduling, held)[:5]}")
    # Assigned meanwhile by somebody else, a pod is BOUND whatever its worker will say.
    if not (np.isin(pods.phase[held], (Phase.SCHEDULING, Phase.DELETED)) | pods.assigned[held]).all():
        raise InvariantViolation("a pod is with a worker and in a queue")
    standing = queues.standing()
    if not pods.in_queue[standing].all():
        raise InvariantViolation(
            f"a queue refers to rows {standing[~pods.in_queue[standing]][:5]}, not known to be in one"
        )
    for gang in registry.gangs.every_incomplete():
        if registry.gangs.bound(gang):
            raise InvariantViolation(f"{registry.gangs.bound(gang)} pods of {gang.name} are bound")
    for worker in members:
        unanswered = sum(int((pods.batch[b.rows] == b.serial).sum()) for b in worker.batches.values())
        within = unanswered <= worker.window or len(worker.batches) == 1  # a gang larger than the window
        left = sum(batch.micros_left for batch in worker.batches.values())
        if not math.isclose(worker.work_micros, left, rel_tol=1e-6, abs_tol=1e-3):
            raise InvariantViolation(f"{worker.name}: {worker.work_micros=}, and its batches sum up to {left}")
        if worker.living and not (worker.outstanding == unanswered and within):
            raise InvariantViolation(f"{worker.name}: {worker.outstanding=}, {unanswered=}, {worker.window=}")
