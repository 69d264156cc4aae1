"""What happens in a simulation, as data: what clients do, and which faults strike, each at its moment.

A plan is known before the simulation begins. It can be written down, made smaller, and carried out again."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# What clients do.
SUBMIT, DELETE, UNGATE = "submit", "delete", "ungate"
ADD_NODE, REMOVE_NODE, SHRINK_NODE, CORDON, UNCORDON = (
    "add node",
    "remove node",
    "shrink node",
    "cordon",
    "uncordon",
)
RESIZE, EVICT, END_PODS = "resize", "evict", "end pods"  # of a job, in Kubernetes mode
DELETE_GROUP = "delete pod group"
# Every pod, or those of a job, `number` nodes on.
MOVE, UNDO_MOVES = "move pods", "undo moves"
CONTROL = "controller begins"  # a rebalance controller with this goal

# Faults. With `seconds`: until it is over.
KILL, KILL_AT_STEP, STOP, FREEZE = "kill", "kill at step", "stop", "freeze"
FREEZE_AT_STEP = "freeze at step"
# At a step after a target was reserved. Only `draw_moves` has them.
KILL_AMID_MOVE, FREEZE_AMID_MOVE = "kill amid a move", "freeze amid a move"
CUT, BREAK, DROP_REPLIES = "cut", "break connections", "drop replies"
CUT_ONE_WAY = "cut one way"  # nothing comes from the target to the other
REDIS_SILENT, REDIS_REFUSED, REDIS_RESTART = "redis silent", "redis refused", "redis restarts"
REDIS_REFUSES_WRITES, REDIS_LOSES_REPLIES = "redis refuses writes", "redis loses replies"
REDIS_ROLLS_BACK, REDIS_EMPTIED, REDIS_CLOCK, CLOCK = (
    "redis rolls back",
    "redis emptied",
    "redis clock steps",
    "clock steps",
)
REDIS_DRIFTS, DRIFT = (
    "redis clock drifts",
    "clock drifts",
)  # for the rest of the time; `number`: in thousandths

# Of the API server and the binding webhook. Only `draw_kubernetes` has them. A target: of one service alone.
API_SILENT, API_REFUSED, API_BUSY = "api server silent", "api server refused", "api server busy"
API_LOSES_ANSWERS, API_LATE = "api server loses answers", "api server late"
WATCHES_LAG, WATCHES_CUT, HISTORY_FORGOTTEN = "watches lag", "watches cut", "history forgotten"
WEBHOOK_AWAY, WEBHOOK_LATE = "webhook away", "webhook answers late"
BINDINGS_LATE, BINDINGS_ABANDONED = "bindings late", "bindings abandoned"

OF_CLUSTERS = (
    *(API_SILENT, API_REFUSED, API_BUSY, API_LOSES_ANSWERS, API_LATE),
    *(WATCHES_LAG, WATCHES_CUT, HISTORY_FORGOTTEN),
    *(WEBHOOK_AWAY, WEBHOOK_LATE, BINDINGS_LATE, BINDINGS_ABANDONED),
)

# After these, only a living dispatcher knows what was promised.
LOSSES = (REDIS_ROLLS_BACK, REDIS_EMPTIED)

# A target: the dispatcher that holds the lease when the fault strikes.
LEADER = "leader"

# Of a Redis that goes back: the keys of one slot, as one server of a Redis Cluster has them.
COMMON_SLOT = "{hoss}"  # with the journal
SHARD_SLOT = "{{hoss:{}}}"

NODE_CPU = 2000
TENANT = "team"  # of clients that may submit no more than its share: the namespace is the tenant

KINDS = (
    *(KILL, KILL_AT_STEP, KILL_AT_STEP, STOP, FREEZE, FREEZE_AT_STEP),
    *(CUT, CUT_ONE_WAY, BREAK, DROP_REPLIES),
    *(REDIS_SILENT, REDIS_REFUSED, REDIS_RESTART, REDIS_LOSES_REPLIES, REDIS_REFUSES_WRITES),
    *(REDIS_CLOCK, CLOCK, REDIS_DRIFTS, DRIFT),
)


@dataclass(frozen=True)
class Act:
    """Something at a moment. `what` is one of the words above."""

    at: float
    what: str
    target: str = ""
    other: str = ""
    seconds: float = 0.0
    number: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_fault(self) -> bool:
        return self.what not in (
            *(SUBMIT, DELETE, UNGATE, RESIZE, EVICT, END_PODS, DELETE_GROUP),
            *(ADD_NODE, REMOVE_NODE, SHRINK_NODE, CORDON, UNCORDON),
            *(MOVE, UNDO_MOVES, CONTROL),
        )

    def __str__(self) -> str:
        parts = [self.target, self.other, f"for {self.seconds:.2f} s" if self.seconds else ""]
        parts += [str(self.number) if self.number else "", *(f"{k}={v}" for k, v in self.options.items())]
        return " ".join([f"{self.at:8.3f}", self.what, *(part for part in parts if part)])


@dataclass(frozen=True)
class ClusterPlan:
    """Of Kubernetes mode. `page`: the most objects in one page of a list. `lease`: see ClusterSection.
    `ignores_failures`: the webhook's failurePolicy is Ignore. `storage`: nodes have volumes and devices."""

    webhook: bool = True
    ignores_failures: bool = False
    lease: str = ""
    page: int = 1000
    storage: bool = False


@dataclass(frozen=True)
class Plan:
    """A whole simulation."""

    seed: int
    shards: int
    dispatchers: int
    resolvers: int
    workers: int
    nodes: int
    acts: tuple[Act, ...]
    # Of plans that were written down before nodes had names as labels: rules about nodes meant nothing.
    named_nodes: bool = False
    lease_seconds: float = 30.0  # of a commit that is not confirmed
    cluster: ClusterPlan | None = None  # of Kubernetes mode; None: the platform's own mode
    most_waiting: int = 0  # pods that may wait at once; 0: as many as a dispatcher allows by itself

    @property
    def names(self) -> list[str]:
        """Of the services."""
        return [
            *(f"dispatcher-{n + 1}" for n in range(self.dispatchers)),
            *(f"resolver-{n + 1}" for n in range(self.resolvers)),
            *(f"w{n + 1}" for n in range(self.workers)),
        ]

    def with_acts(self, acts: Iterable[Act]) -> "Plan":
        """The same platform, to which less happens."""
        return replace(self, acts=tuple(acts))

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Plan":
        acts, cluster = tuple(Act(**act) for act in document["acts"]), document.get("cluster")
        return cls(**{**document, "acts": acts, "cluster": ClusterPlan(**cluster) if cluster else None})
