"""The dispatcher's configuration document, kind DispatcherConfig."""

from pathlib import Path

from pydantic import Field

from dispatcher.core.dispatch import BatchRules
from dispatcher.core.stealing import StealRules
from hoss.config import Document

KIND = "DispatcherConfig"


class DispatcherConfig(Document):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Loopback unless said otherwise: the protocol has no authentication.
    listen: str = "127.0.0.1:7100"

    # Which Redis holds the journal, with its database. May be the ledger's: keys do not collide.
    redis_url: str = "redis://127.0.0.1:6379/0"

    # Resolvers, host:port each; any of them answers for the whole ledger.
    resolvers: tuple[str, ...] = Field(default=("127.0.0.1:7101",), min_length=1)

    # A SchedulingPolicy document; without one every pod may go to any worker, the least busy first.
    policy: Path | None = None

    # Pods in one work batch, at most. More make the ledger's script block Redis for longer; fewer cost a message each.
    batch_pods: int = Field(default=500, ge=1, le=1000)

    # Milliseconds a batch that is not full waits for more, unless its worker is idle. Far below what a pod takes to be
    # bound, and long enough to gather a stream's messages.
    linger_ms: float = Field(default=2.0, ge=0, le=1000)

    # Seconds of estimated work that a worker has in hand at most. Enough that none idles between two answers; what waits
    # in the queue instead, other workers can have, and more urgent pods overtake it.
    work_ahead_seconds: float = Field(default=1.0, ge=0.05, le=600)

    # Milliseconds of estimated work: who has more of it not started gives some back when another worker has next to
    # none. Half of a worker's time ahead, so that it acts well before a second of work waits beside an idle worker. 0: never.
    steal_after_ms: float = Field(default=500.0, ge=0, le=600_000)

    # Which labels workers may register with, by patterns of their names; of several that match, the first. A worker that
    # claims another label or value, or whose name no pattern matches, is turned away. Empty: workers are trusted.
    worker_labels: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)

    # Seconds without a word after which a worker is lost and its pods go to others. Four heartbeats: one may be late.
    worker_timeout_seconds: float = Field(default=2.0, gt=0.2, le=600)

    # Pod events kept for watchers that are behind, 30 bytes each.
    event_log_pods: int = Field(default=1_000_000, ge=1000, le=100_000_000)

    def batch_rules(self) -> BatchRules:
        """As the core has them."""
        return BatchRules(self.batch_pods, self.linger_ms / 1000, self.work_ahead_seconds)

    def steal_rules(self) -> StealRules:
        """As the core has them."""
        return StealRules(self.steal_after_ms / 1000)

    @property
    def heartbeat_ms(self) -> int:
        """How often workers are asked to send heartbeats."""
        return int(self.worker_timeout_seconds * 1000 / 4)
