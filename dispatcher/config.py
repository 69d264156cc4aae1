"""The dispatcher's configuration document, kind DispatcherConfig."""

import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dispatcher.core.dispatch import BatchRules
from dispatcher.core.faults import LEAST_LIMIT, MAX_FAULTS
from dispatcher.core.pressure import Limits
from dispatcher.core.stealing import StealRules
from dispatcher.core.steering import SteeringRules
from hoss.config import Document
from hoss.kube.config import KubernetesConfig
from hoss.model.overlap import Overlap
from hoss.telemetry.options import TelemetryConfig

KIND = "DispatcherConfig"
_ANY_HOST = ("", "0.0.0.0", "[::]")  # noqa: S104 - recognised here, not listened on


class Steering(Document):
    """What is done about conflicts (docs/adr/0019-steering-by-conflicts.md)."""

    # shared, shuffled or soft-partition; auto: whichever costs least by what was measured.
    overlap: Literal["auto", "shared", "shuffled", "soft-partition"] = "auto"

    # So many workers of a rule get work at once; auto: all, or fewer while conflicts waste more than the others bring.
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=10_000)] = "auto"

    # Seconds of work that a step is judged by. Heartbeats bring the figures, so several of them; below ten, or what
    # comes and goes in seconds is never answered.
    window_seconds: float = Field(default=3.0, ge=0.5, le=600)

    # Seconds without conflicts before a looser way is tried. Long against the window: it costs conflicts to find out.
    calm_seconds: float = Field(default=60.0, ge=1, le=86_400)


class Cluster(KubernetesConfig):
    """Kubernetes mode: the cluster whose pods are scheduled."""

    # Pods whose spec.schedulerName is one of these are for HOSS to place. All others are counted where they are.
    scheduler_names: tuple[str, ...] = Field(default=("hoss",), min_length=1)

    # Events (Scheduled, FailedScheduling) written a second, at most, with five seconds' worth saved up; the rest is left out and
    # counted. Each costs the API server as much as a binding. 0: none. Conditions of pods are always written.
    events_per_second: float = Field(default=100.0, ge=0, le=10_000)

    # Placed as if pods did not ask for them, by rules that HOSS does not know: persistent volume claims, ephemeral volumes,
    # resource claims. Otherwise such pods stay pending and are told so.
    ignored: tuple[Literal["persistent volume claims", "ephemeral volumes", "resource claims"], ...] = ()

    # Delete pods that HOSS placed and a kubelet did not take (OutOfcpu and the like). Otherwise they stay as Failed, until their
    # owner or the cluster's pod garbage collector takes them away.
    delete_rejected: bool = False

    # A coordination.k8s.io Lease, "namespace/name", that the active dispatcher holds beside its lease in Redis: so the cluster sees
    # who leads, and one that cannot reach the API server gives way to one that can. "": Redis' alone.
    lease: str = Field(default="", pattern=r"^([a-z0-9.-]+/[a-z0-9.-]+)?$")

    # Seconds that it lasts from each renewal; renewed three times in that. As long as kube-scheduler's.
    lease_seconds: int = Field(default=15, ge=2, le=600)


class DispatcherConfig(TelemetryConfig):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Loopback unless said otherwise: the protocol has no authentication.
    listen: str = "127.0.0.1:7100"

    # host:port under which others reach this dispatcher; what a standby tells those that ask it. Left out: `listen`, with this
    # machine's name where that is 0.0.0.0.
    advertise: str = ""

    # Seconds that the lease of the active dispatcher lasts from each renewal; renewed four times in that. A standby takes over
    # within this and a tenth after a kill; a dispatcher that stalls or cannot reach Redis for longer gives way.
    lease_seconds: float = Field(default=1.5, ge=0.3, le=60)

    # host:port of the web dashboard; port 0 takes a free one. Empty: there is none. Whoever reaches it may look.
    dashboard_listen: str = ""

    # A file with the token that lets viewers of the dashboard cordon and drain. Without one they only look.
    dashboard_token_file: Path | None = None

    # Which Redis holds the journal, with its database. May be the ledger's: keys do not collide.
    redis_url: str = "redis://127.0.0.1:6379/0"

    # Resolvers, host:port each; any of them answers for the whole ledger.
    resolvers: tuple[str, ...] = Field(default=("127.0.0.1:7101",), min_length=1)

    # A SchedulingPolicy document; without one every pod may go to any worker, the least busy first.
    policy: Path | None = None

    # Share of work batches whose traces are kept from Submit to confirmation. Of the others only those are in which a pod was refused or
    # something failed. A hundredth costs less than the measurement's noise; all of them, for a look at a small cluster, a third.
    trace_ratio: float = Field(default=0.01, ge=0, le=1)

    # Pods in one work batch, at most; twice as many, up to 1,000, where they begin with a class that the worker has measured as
    # cheap. More make the ledger's script block Redis for longer; fewer cost a message each, and shorten runs of equal pods.
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

    # How much workers' node preferences overlap, and how many get work at once.
    steering: Steering = Steering()

    # Which labels workers may register with, by patterns of their names; of several that match, the first. A worker that
    # claims another label or value, or whose name no pattern matches, is turned away. Empty: workers are trusted.
    worker_labels: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)

    # Seconds without a word after which a worker is lost and its pods go to others. Four heartbeats: one may be late.
    worker_timeout_seconds: float = Field(default=2.0, gt=0.2, le=600)

    # Seconds in the queue after which a pod is owed a turn whatever its priority and tenant: a tenth of what is dispatched goes
    # to the longest waiting. As long as kube-scheduler lets a pod rest that it could not place. 0: never.
    aging_seconds: float = Field(default=300.0, ge=0, le=86_400)

    # Pods that may wait at once (queued, in backoff, unschedulable or with a worker), 60 bytes of memory each. Beyond it
    # submissions answer RESOURCE_EXHAUSTED. As many as the largest job has, so that every job can be submitted.
    max_waiting_pods: int = Field(default=10_000_000, ge=1, le=1_000_000_000)

    # Bytes of the submissions that the dispatcher remembers, bound pods' too, until they are deleted. In memory they take some
    # ten times as much: names and classes are kept to be found.
    max_record_bytes: int = Field(default=256 * 2**20, ge=1024, le=64 * 2**30)

    # From this part of either limit on, streams of submissions are slowed, by up to a second a message.
    slow_from: float = Field(default=0.8, ge=0, lt=1)

    # Workers that may be lost with a pod in hand before the pod is given up. Pods that only travelled with it are found to be
    # innocent before the fourth.
    max_faults: int = Field(default=MAX_FAULTS, ge=LEAST_LIMIT, le=255)

    # The cluster that is scheduled; left out: none, and pods come from clients.
    kubernetes: Cluster | None = None

    # Pod events kept for watchers that are behind, 30 bytes each.
    event_log_pods: int = Field(default=1_000_000, ge=1000, le=100_000_000)

    def limits(self) -> Limits:
        """As the core has them."""
        return Limits(self.max_waiting_pods, self.max_record_bytes, self.slow_from)

    def batch_rules(self) -> BatchRules:
        """As the core has them."""
        return BatchRules(self.batch_pods, self.linger_ms / 1000, self.work_ahead_seconds)

    def steal_rules(self) -> StealRules:
        """As the core has them."""
        return StealRules(self.steal_after_ms / 1000)

    def steering_rules(self) -> SteeringRules:
        """As the core has them."""
        told = self.steering
        return SteeringRules(
            overlap=None if told.overlap == "auto" else Overlap(told.overlap),
            workers=None if told.workers == "auto" else told.workers,
            window_seconds=told.window_seconds,
            calm_seconds=told.calm_seconds,
        )

    def advertised(self, port: int) -> str:
        """Where others reach this dispatcher, which listens on `port`."""
        host = self.listen.rpartition(":")[0]
        return self.advertise or f"{socket.gethostname() if host in _ANY_HOST else host}:{port}"

    @property
    def heartbeat_ms(self) -> int:
        """How often workers are asked to send heartbeats."""
        return int(self.worker_timeout_seconds * 1000 / 4)
