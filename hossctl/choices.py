"""The choices of options of comparisons, benchmarks and traces, and the base values of comparisons.

Help needs only this module, and not the modules that compare, measure or read traces."""

from enum import Enum
from typing import Final


class Mode(str, Enum):
    """Names of what schedules in a comparison, and how several schedulers avoid conflicts: those of HOSS. A
    comparison may have modes of others (hossctl/compare/modes.py)."""

    SINGLE = "single"  # one worker
    UNCOORDINATED = "multi-uncoordinated"  # several with private caches; placements are not validated
    PARTITIONED = "multi-partitioned"  # several, each with its own nodes
    LOCKED = "multi-locked"  # several under one global lock
    HOSS = "multi-hoss"  # several; the resolver validates every placement
    KUBE_SCHEDULER = "kube-scheduler"  # the peer, on a private control plane
    KUBE_HOSS = "kube-hoss"  # HOSS in Kubernetes mode, on an equal control plane


# Modes whose pods are created and bound at an API server. Their costs include it and its etcd, so these modes
# are compared with one another only.
ON_KUBERNETES: Final = (Mode.KUBE_SCHEDULER, Mode.KUBE_HOSS)
ONE_SCHEDULER: Final = (Mode.SINGLE, Mode.KUBE_SCHEDULER)  # the number of workers does not apply to them
WITH_HOSS: Final = (Mode.HOSS, Mode.KUBE_HOSS)


class Claim(str, Enum):
    """What each pod of `hoss bench kubernetes` claims."""

    NOTHING = "nothing"
    VOLUME = "volume"  # of a class that waits for the first consumer
    DEVICE = "device"


class RebalanceGoal(str, Enum):
    """What a plan of moves is for."""

    FIT_PENDING = "fit-pending"
    EMPTY_NODES = "empty-nodes"
    SPREAD = "spread"
    DEFRAGMENT_GPUS = "defragment-gpus"
    QUIET_NODES = "quiet-nodes"


class SimulatedCare(str, Enum):
    """What is done about holes in `hoss simulate rebalance`."""

    NONE = "none"
    NIGHTLY = "nightly"  # all pods are packed anew each night
    CONTROLLER = "controller"


class SimulatedPlacer(str, Enum):
    """Where a pod goes in `hoss simulate rebalance`, of the nodes that accept it."""

    FULLEST = "fullest"
    EMPTIEST = "emptiest"


class Load(str, Enum):
    """Names of the pods of a comparison, those of HOSS; hossctl/compare/loads.py makes them."""

    UNIFORM = "uniform"
    OPENB = "openb"
    UNIQUE = "unique"
    GANGS = "gangs"
    CONSTRAINED = "constrained"
    CHURN = "churn"
    SKEWED = "skewed"
    TRACE = "trace"


MODES: Final = tuple(mode for mode in Mode if mode not in ON_KUBERNETES)  # those without a control plane
DEFAULT_SCHEDULER: Final = "default"  # of a comparison: HOSS's workers as they are

# What Tab offers: the names of HOSS's profiles and algorithms, which are made where NumPy is imported.
PROFILES: Final = ("spread", "binpack", "random", "best-fit", "fgd")
ALGORITHMS: Final = ("random", "best-fit", "fgd")
SCHEDULERS: Final = (DEFAULT_SCHEDULER, *PROFILES, *(f"algorithm={name}" for name in ALGORITHMS))
BASE_NODES: Final = 1000
BASE_FILL: Final = 0.95
BASE_WORKERS: Final = 4


class Mix(str, Enum):
    """The pods of a benchmark."""

    UNIFORM = "uniform"  # all equal
    OPENB = "openb"  # as in the Alibaba GPU trace
    UNIQUE = "unique"  # no two with the same requests
    CONSTRAINED = "constrained"  # nine in ten have a required rule about other pods


class Submitted(str, Enum):
    """What `python -m tools.bench dispatch` submits."""

    REPLICAS = "replicas"  # one job
    DISTINCT = "distinct"  # bare pods, no two equal, 500 a message


class Peer(str, Enum):
    """The scheduler that `hoss bench kubernetes` compares HOSS with."""

    KUBE_SCHEDULER = "kube-scheduler"
    NOBODY = "nobody"


class TraceFormat(str, Enum):
    """Formats of cluster traces."""

    OPENB = "openb"
    GOOGLE2019 = "google2019"
    AZURE2020 = "azure2020"
