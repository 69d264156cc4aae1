"""The closed sets of answers, numbered as in proto/hoss/v1."""

from enum import IntEnum


class Outcome(IntEnum):
    """What became of a pod, for the dispatcher (OutcomeCode)."""

    BOUND = 1
    UNSCHEDULABLE = 2
    CONFLICT = 3
    RETURNED = 4
    INVALID = 5
    FENCED = 6


class Verdict(IntEnum):
    """What the ledger says to a placement, as far as the worker tells them apart; all others are refusals."""

    COMMITTED = 1
    DUPLICATE = 2
    CONFLICT_PORT = 4
    CONFLICT_TOPOLOGY = 6
    STALE_EPOCH = 9
    CONFLICT_VERSION = 11
