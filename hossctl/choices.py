"""What options of benchmarks and of traces choose from. Apart from what does it: help needs no more."""

from enum import Enum


class Mix(str, Enum):
    """What a benchmark's pods look like."""

    UNIFORM = "uniform"  # all alike
    OPENB = "openb"  # as in the Alibaba GPU trace
    UNIQUE = "unique"  # no two with the same requests
    CONSTRAINED = "constrained"  # nine in ten with a required rule about other pods, see _constrained


class Submitted(str, Enum):
    """What `hoss bench dispatch` submits."""

    REPLICAS = "replicas"  # one job
    DISTINCT = "distinct"  # bare pods of which no two are alike, 500 a message


class Peer(str, Enum):
    """With whom `hoss bench kubernetes` compares HOSS."""

    KUBE_SCHEDULER = "kube-scheduler"
    NOBODY = "nobody"


class TraceFormat(str, Enum):
    """Traces that can be read."""

    OPENB = "openb"
    GOOGLE2019 = "google2019"
    AZURE2020 = "azure2020"
