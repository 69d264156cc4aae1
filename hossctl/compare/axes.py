"""What a comparison varies, by the names that people give it, and what it varies around.

Apart from what measures and reads comparisons: help needs no more.
"""

from enum import Enum
from typing import Final


class Mode(str, Enum):
    """Who schedules, and what keeps several schedulers from selling the same room twice."""

    SINGLE = "single"  # one worker
    UNCOORDINATED = "multi-uncoordinated"  # several with caches of their own; nobody validates what they bind
    PARTITIONED = "multi-partitioned"  # several, each with nodes of its own
    LOCKED = "multi-locked"  # several that take turns under one global lock
    HOSS = "multi-hoss"  # several, every placement validated when it is made
    KUBE_SCHEDULER = "kube-scheduler"  # the peer, on a control plane of its own
    KUBE_HOSS = "kube-hoss"  # HOSS in Kubernetes mode, on a control plane just like it


# Modes whose pods are created at an API server and bound there. What they cost has it and its etcd in it, so they are compared
# with one another and not with the others.
ON_KUBERNETES: Final = (Mode.KUBE_SCHEDULER, Mode.KUBE_HOSS)
ONE_SCHEDULER: Final = (Mode.SINGLE, Mode.KUBE_SCHEDULER)  # whatever the number of workers of the others
WITH_HOSS: Final = (Mode.HOSS, Mode.KUBE_HOSS)


class Load(str, Enum):
    """What is submitted; `hossctl.compare.loads` says what each looks like."""

    UNIFORM = "uniform"
    OPENB = "openb"
    UNIQUE = "unique"
    GANGS = "gangs"
    CONSTRAINED = "constrained"
    CHURN = "churn"
    SKEWED = "skewed"
    TRACE = "trace"


MODES: Final = tuple(mode for mode in Mode if mode not in ON_KUBERNETES)  # which need a control plane
BASE_NODES: Final = 1000
BASE_FILL: Final = 0.95
BASE_WORKERS: Final = 4
