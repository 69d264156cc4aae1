"""The dispatcher's configuration document, kind DispatcherConfig."""

import socket
from pathlib import Path

from pydantic import Field

from dispatcher.core.dispatch import BatchRules
from dispatcher.core.faults import LEAST_LIMIT, MAX_FAULTS
from hoss.config import Document

KIND = "DispatcherConfig"
_ANY_HOST = ("", "0.0.0.0", "[::]")  # noqa: S104 - recognised here, not listened on


class DispatcherConfig(Document):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Loopback unless said otherwise: the protocol has no authentication.
    listen: str = "127.0.0.1:7100"

    # host:port under which others reach this dispatcher; what a standby tells those that ask it. Left out: `listen`, with this
    # machine's name where that is 0.0.0.0.
    advertise: str = ""

    # Seconds that the lease of the active dispatcher lasts from each renewal; renewed four times in that. A standby takes over
    # within this and a tenth after a kill; a dispatcher that stalls or cannot reach Redis for longer gives way.
    lease_seconds: float = Field(default=1.5, ge=0.3, le=60)

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

    # Seconds without a word after which a worker is lost and its pods go to others. Four heartbeats: one may be late.
    worker_timeout_seconds: float = Field(default=2.0, gt=0.2, le=600)

    # Workers that may be lost with a pod in hand before the pod is given up. Pods that only travelled with it are found to be
    # innocent before the fourth.
    max_faults: int = Field(default=MAX_FAULTS, ge=LEAST_LIMIT, le=255)

    # Pod events kept for watchers that are behind, 30 bytes each.
    event_log_pods: int = Field(default=1_000_000, ge=1000, le=100_000_000)

    def batch_rules(self) -> BatchRules:
        """As the core has them."""
        return BatchRules(self.batch_pods, self.linger_ms / 1000)

    def advertised(self, port: int) -> str:
        """Where others reach this dispatcher, which listens on `port`."""
        host = self.listen.rpartition(":")[0]
        return self.advertise or f"{socket.gethostname() if host in _ANY_HOST else host}:{port}"

    @property
    def heartbeat_ms(self) -> int:
        """How often workers are asked to send heartbeats."""
        return int(self.worker_timeout_seconds * 1000 / 4)
