"""The dispatcher's configuration document, kind DispatcherConfig."""

import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dispatcher.core.dispatch.batches import BatchRules
from dispatcher.core.dispatch.overlap_control import OverlapControlRules
from dispatcher.core.dispatch.work_stealing import StealRules
from dispatcher.core.pods.faults import LEAST_LIMIT, MAX_FAULTS
from dispatcher.core.queue.pressure import PressureLimits
from hoss.config import Document
from hoss.kube.config import KubernetesConfig
from hoss.limits.callers import CallerLimitsConfig
from hoss.model.conflicts import Overlap
from hoss.security.options import SecurityConfig
from hoss.telemetry.options import TelemetryConfig

KIND = "DispatcherConfig"
_ANY_HOST = ("", "0.0.0.0", "[::]")  # noqa: S104 - recognised here, not listened on


class OverlapControlSection(Document):
    """Overlap control: the answer to conflicts (docs/adr/0019-steering-by-conflicts.md,
    docs/adr/0076-a-partition-before-a-bulk.md)."""

    # shared, shuffled or soft-partition; auto: a soft partition for a bulk of pods, else the one that costs
    # least, by measurements.
    overlap: Literal["auto", "shared", "shuffled", "soft-partition"] = "auto"

    # How many workers of a rule get work at once; auto: all, or fewer while conflicts waste more than further
    # workers add.
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=10_000)] = "auto"

    # Seconds of work by which a step is measured, and seconds with little work after which a bulk is over.
    # Heartbeats carry the figures, so it takes several of them. Below ten, because a longer window would miss
    # conflicts that come and go in seconds.
    window_seconds: float = Field(default=3.0, ge=0.5, le=600)

    # Seconds without conflicts before a looser setting is tried. Long compared with the window: trying costs
    # conflicts.
    calm_seconds: float = Field(default=60.0, ge=1, le=86_400)


class ClusterSection(KubernetesConfig):
    """Kubernetes mode: the cluster whose pods are scheduled."""

    # HOSS places pods whose spec.schedulerName is one of these. All other pods are counted on their nodes.
    # None: HOSS places nothing, and keeps the ledger for the binding webhook alone.
    scheduler_names: tuple[str, ...] = ("hoss",)

    # Events (Scheduled, FailedScheduling) written a second, at most; a burst may have five seconds' worth.
    # The rest is dropped and counted. Each costs the API server as much as a binding. 0: none. Conditions of
    # pods are always written.
    events_per_second: float = Field(default=100.0, ge=0, le=10_000)

    # Namespaces whose bindings the binding webhook does not see, beside HOSS's own (that of `lease`): those
    # that its namespaceSelector leaves out by name. Elsewhere a pod that was bound without a review is
    # reported, unless its namespace has the label hoss.dev/binding-guard=off.
    exempt_namespaces: tuple[str, ...] = ("kube-system",)

    # What pods of HOSS request and HOSS ignores when it places them: persistent volume claims, ephemeral
    # volumes, resource claims.
    ignored: tuple[Literal["persistent volume claims", "ephemeral volumes", "resource claims"], ...] = ()

    # How long a placed pod waits until its volumes are bound or provisioned. Then it is placed anew
    # (kube-scheduler's bindTimeoutSeconds).
    volume_bind_timeout_seconds: float = Field(default=600.0, ge=1, le=86_400)

    # How long a move waits for the API server to evict its pod, as disruption budgets may forbid; and how
    # long it waits for the pod's successor, beyond the pod's grace period. Then its new place is free again.
    move_timeout_seconds: float = Field(default=120.0, ge=1, le=3_600)

    # Delete pods that HOSS placed and a kubelet rejected (OutOfcpu and the like). Otherwise they stay Failed,
    # until their owner or the cluster's pod garbage collector deletes them.
    delete_rejected: bool = False

    # A coordination.k8s.io Lease, "namespace/name", that the active dispatcher holds besides its lease in
    # Redis: so the cluster sees which one leads, and a dispatcher that cannot reach the API server gives way
    # to one that can. "": only the lease in Redis.
    lease: str = Field(
        default="", pattern=r"^([a-z0-9.-]+/[a-z0-9.-]+)?$", description="a Lease as NAMESPACE/NAME"
    )

    # Seconds that this Lease lasts from each renewal; it is renewed three times in that. As long as
    # kube-scheduler's.
    lease_seconds: int = Field(default=15, ge=2, le=600)

    @property
    def unguarded_namespaces(self) -> frozenset[str]:
        """Those whose bindings the binding webhook does not see."""
        own = self.lease.partition("/")[0]
        return frozenset({*self.exempt_namespaces, own} - {""})


class DispatcherConfig(TelemetryConfig, SecurityConfig):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Beyond loopback it takes `tls_dir`, or `insecure`.
    listen: str = "127.0.0.1:7100"

    # host:port under which others reach this dispatcher; a standby refers clients to the active dispatcher's.
    # Left out: `listen`, with this machine's name for 0.0.0.0.
    advertise: str = ""

    # Seconds that the lease of the active dispatcher lasts from each renewal; it is renewed four times in
    # that. After a kill a standby takes over within this and a tenth. A dispatcher that stalls or cannot
    # reach Redis for longer gives way.
    lease_seconds: float = Field(default=1.5, ge=0.3, le=60)

    # Redis of the journal, with its database. It may be the ledger's: keys do not collide.
    redis_url: str = "redis://127.0.0.1:6379/0"

    # Resolvers, host:port each; each of them serves the whole ledger.
    resolvers: tuple[str, ...] = Field(default=("127.0.0.1:7101",), min_length=1)

    # A SchedulingPolicy document; without one each pod may go to any worker, the least busy first.
    policy: Path | None = None

    # Share of work batches whose traces are kept from Submit to confirmation. Of the others only those are
    # kept in which a pod was refused or something failed. A hundredth costs less than the measurement's
    # noise. All of them cost a third, and are for small clusters.
    trace_ratio: float = Field(default=0.01, ge=0, le=1)

    # Pods in one work batch, at most; twice as many, up to 1,000, if the batch begins with a class that the
    # worker has measured as cheap. Larger batches make the ledger's script block Redis for longer. Smaller
    # ones cost more messages, and shorten runs of equal pods.
    batch_pods: int = Field(default=500, ge=1, le=1000)

    # Milliseconds a batch that is not full waits for more pods, unless its worker is idle. Far below the time
    # that binding a pod takes, and long enough to collect a stream's messages.
    linger_ms: float = Field(default=2.0, ge=0, le=1000)

    # Seconds of estimated work that a worker has at most. Enough that no worker idles between two answers.
    # Pods that wait in the queue instead can go to other workers, and more urgent pods overtake them.
    work_ahead_seconds: float = Field(default=1.0, ge=0.05, le=600)

    # Milliseconds of estimated work. A worker that has more of it not started gives some back when another
    # worker has next to none. Half of `work_ahead_seconds`, so that it acts well before a second of work
    # waits beside an idle worker. 0: never.
    steal_after_ms: float = Field(default=500.0, ge=0, le=600_000)

    # How much the node preferences of workers overlap, and how many workers get work at once.
    steering: OverlapControlSection = OverlapControlSection()

    # Labels that workers may register with, by patterns of worker names; the first pattern that matches
    # counts. A worker that claims another label or value, or whose name no pattern matches, is rejected.
    # Empty: workers are trusted.
    worker_labels: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)

    # Seconds without a message after which a worker is lost and its pods go to others. Four heartbeats, so
    # that one may be late.
    worker_timeout_seconds: float = Field(default=2.0, gt=0.2, le=600)

    # Seconds after which the pods of a worker are taken back if it answers for none of them, although it
    # sends heartbeats and the ledger answers; ten times the estimate of its work is added. Many times what
    # Redis, a resolver or a worker takes to recover. 0: never.
    work_timeout_seconds: float = Field(default=30.0, ge=0, le=3600)

    # Seconds in the queue after which a pod is dispatched whatever its priority and tenant: a tenth of
    # dispatched pods are the longest waiting ones. As long as kube-scheduler keeps a pod unschedulable. 0:
    # never.
    aging_seconds: float = Field(default=300.0, ge=0, le=86_400)

    # Pods that may wait at once (queued, in backoff, unschedulable or with a worker), 60 bytes of memory
    # each. Further submissions are refused with RESOURCE_EXHAUSTED. As many as the largest job has, so that
    # every job can be submitted.
    max_waiting_pods: int = Field(default=10_000_000, ge=1, le=1_000_000_000)

    # Bytes of submissions that the dispatcher remembers, also those of bound pods, until the pods are
    # deleted. In memory they take some ten times as much, because names and classes are indexed.
    max_record_bytes: int = Field(default=256 * 2**20, ge=1024, le=64 * 2**30)

    # Affinity terms and spread constraints about other pods that one pod may have; a pod with more is
    # refused, or stays pending with a condition in Kubernetes mode. kube-apiserver has no such limit. A pod
    # of 200 takes a worker up to 0.1 s, one of 3,000 would hold it up for half a minute.
    max_pod_terms: int = Field(default=200, ge=1, le=10_000)

    # From this share of either limit on, streams of submissions are slowed down, by up to a second a message.
    slow_from: float = Field(default=0.8, ge=0, lt=1)

    # Workers that may be lost while they have a pod, before the pod fails. Other pods of the same batches are
    # found to be harmless before the fourth loss.
    max_faults: int = Field(default=MAX_FAULTS, ge=LEAST_LIMIT, le=255)

    # The cluster that HOSS schedules; left out: none, and pods come from clients.
    kubernetes: ClusterSection | None = None

    # An AuthenticationConfig document: whose bearer tokens are taken besides the platform's own. It takes
    # `tls_dir`. Dispatchers and resolvers are given the same one.
    authentication: Path | None = None

    # What each caller may do.
    limits: CallerLimitsConfig = CallerLimitsConfig()

    # Pod events kept for watchers that lag behind, 30 bytes each.
    event_log_pods: int = Field(default=1_000_000, ge=1000, le=100_000_000)

    def pressure_limits(self) -> PressureLimits:
        """For the core."""
        return PressureLimits(self.max_waiting_pods, self.max_record_bytes, self.slow_from)

    def batch_rules(self) -> BatchRules:
        """For the core."""
        return BatchRules(self.batch_pods, self.linger_ms / 1000, self.work_ahead_seconds)

    def steal_rules(self) -> StealRules:
        """For the core."""
        return StealRules(self.steal_after_ms / 1000)

    def steering_rules(self) -> OverlapControlRules:
        """For the core."""
        section = self.steering
        return OverlapControlRules(
            overlap=None if section.overlap == "auto" else Overlap(section.overlap),
            workers=None if section.workers == "auto" else section.workers,
            window_seconds=section.window_seconds,
            calm_seconds=section.calm_seconds,
        )

    def advertised(self, port: int) -> str:
        """The address under which others reach this dispatcher, which listens on `port`."""
        host = self.listen.rpartition(":")[0]
        return self.advertise or f"{socket.gethostname() if host in _ANY_HOST else host}:{port}"

    @property
    def heartbeat_ms(self) -> int:
        """The interval of workers' heartbeats."""
        return int(self.worker_timeout_seconds * 1000 / 4)
