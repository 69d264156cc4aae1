"""Back pressure: how full the dispatcher is, whether it accepts more, and when a client may retry.

The dispatcher holds waiting pods, one row each, and the record of every submission (names, classes). Above a
part of its limits it slows streams of submissions, the more the fuller it is, and a client that is limited to
a tenant may submit no more than that tenant's share, so that the rest is left to others. Above its limits it
refuses whole submissions. What was accepted is never dropped."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dispatcher.core.pods.registry import PodRegistry
from dispatcher.core.pods.table import Phase
from dispatcher.core.queue.tenants import Tenants
from hoss.model.slices import Steps

LONGEST_PAUSE_SECONDS = 1.0
SOONEST_RETRY_SECONDS = 0.1
LATEST_RETRY_SECONDS = 10.0
IDLE_RETRY_SECONDS = 1.0  # while nothing drains, which may change at any moment

# Counting reads one column of all pods: 0.2 ms for a million, in one step.
_COUNT_SECONDS = 0.1
_COUNT_SECONDS_PER_POD = 1e-7
# Whose they are takes ten times as long, and is asked only where the dispatcher is nearly full.
_TENANT_COUNT_SECONDS_PER_POD = 1e-6

_WAITING = tuple(
    phase for phase in Phase if phase not in (Phase.ABSENT, Phase.BOUND, Phase.FAILED, Phase.DELETED)
)
_SETTLED = (Phase.BOUND, Phase.FAILED, Phase.DELETED)
_DRAINED = ("bound", "deleted", "failed")


@dataclass(frozen=True, slots=True)
class PressureLimits:
    """Limits on unbound pods, and on bytes of submission records. From the part `slow_from` of either limit
    on streams are slowed, and tenants are held to their shares of it."""

    pods: int = 10_000_000
    record_bytes: int = 256 * 2**20
    slow_from: float = 0.8


DEFAULT_LIMITS = PressureLimits()


@dataclass(frozen=True, slots=True)
class BackPressure:
    """Why a submission is refused, and when to retry; None: never, as it is."""

    text: str
    retry_after_seconds: float | None


class Pressure:
    """The back pressure of one registry. `counters` are the machine's."""

    def __init__(
        self, limits: PressureLimits, registry: PodRegistry, tenants: Tenants, counters: Mapping[str, int]
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._tenants = tenants
        self._counters = counters
        self._waiting_by_tenant: Mapping[str, int] = {}
        self._holdings: dict[str, tuple[int, float]] = {}  # of tenants that were asked for since the count
        self._tenants_counted_at = float("-inf")
        self._waiting = 0
        self._counted_at = float("-inf")
        self._drained = 0
        self._pods_per_second = 0.0

    def pause_seconds(self, now: float) -> float:
        """How long to wait before reading the next message of a stream."""
        limits = self._limits
        full = max(self._waiting_pods(now) / limits.pods, self._registry.record_bytes / limits.record_bytes)
        over = (full - limits.slow_from) / (1 - limits.slow_from)
        return LONGEST_PAUSE_SECONDS * min(max(over, 0.0), 1.0)

    def refusal(
        self, pods: int, record_bytes: int, now: float, tenant: str = ""
    ) -> Steps[BackPressure | None]:
        """Why so much more cannot be accepted now. None: it can, and it is counted as accepted. `tenant`: to
        which the client is limited; "": to none. Only one may be asked for at a time."""
        limits = self._limits
        if pods > limits.pods or record_bytes > limits.record_bytes:
            text = f"{pods} pods in {record_bytes} bytes are more than this dispatcher ever holds at once"
            return BackPressure(
                f"{text} ({limits.pods} pods, {limits.record_bytes} bytes): submit them in parts", None
            )
        waiting = self._waiting_pods(now)
        if waiting + pods > limits.pods:
            excess, text = waiting + pods - limits.pods, f"{waiting} pods wait and {limits.pods} may"
            return BackPressure(f"{text}: nothing of these {pods} was accepted", self._retry_after(excess))
        held = self._registry.record_bytes
        if held + record_bytes > limits.record_bytes:
            text = f"records of submissions hold {held} bytes and {limits.record_bytes} may be held"
            return BackPressure(
                f"{text}: nothing was accepted; deleting jobs makes room", LATEST_RETRY_SECONDS
            )
        refusal = (yield from self._beyond_share(pods, record_bytes, now, tenant)) if tenant else None
        if refusal is not None:
            return refusal
        self._waiting += pods
        return None

    def _beyond_share(
        self, pods: int, record_bytes: int, now: float, tenant: str
    ) -> Steps[BackPressure | None]:
        """Why a tenant may have no more of a dispatcher that is nearly full."""
        limits, registry = self._limits, self._registry
        crowded = self._waiting + pods > limits.slow_from * limits.pods
        heavy = registry.record_bytes + record_bytes > limits.slow_from * limits.record_bytes
        if not crowded and not heavy:
            return None
        waiting, part = yield from self._holding(tenant, now)
        if crowded and waiting + pods > (most := int(part * limits.pods)):
            text = f"{waiting} pods of tenant {tenant!r} wait, and its share of a full dispatcher is {most}"
            excess = waiting + pods - most
            return BackPressure(f"{text}: nothing of these {pods} was accepted", self._retry_after(excess))
        held = registry.tenant_bytes[tenant]
        if heavy and held + record_bytes > (most := int(part * limits.record_bytes)):
            text = (
                f"records of tenant {tenant!r} hold {held} bytes, and its share of a full dispatcher is"
                f" {most}"
            )
            return BackPressure(
                f"{text}: nothing was accepted; deleting jobs makes room", LATEST_RETRY_SECONDS
            )
        self._holdings[tenant] = waiting + pods, part
        return None

    def _holding(self, tenant: str, now: float) -> Steps[tuple[int, float]]:
        """How many pods of a tenant wait, and its part of the limits."""
        elapsed = now - self._tenants_counted_at
        if elapsed >= max(_COUNT_SECONDS, _TENANT_COUNT_SECONDS_PER_POD * self._registry.pods.size):
            self._waiting_by_tenant = yield from self._tenants.pods_in(_WAITING)
            self._holdings.clear()
            self._tenants_counted_at = now
        if tenant not in self._holdings:
            self._holdings[tenant] = self._waiting_by_tenant.get(tenant, 0), self._tenants.part(tenant)
        return self._holdings[tenant]

    def _waiting_pods(self, now: float) -> int:
        pods = self._registry.pods
        elapsed = now - self._counted_at
        if elapsed >= max(_COUNT_SECONDS, _COUNT_SECONDS_PER_POD * pods.size):
            phase = pods.phase[: pods.size]
            self._waiting = pods.in_use - sum(int(np.count_nonzero(phase == settled)) for settled in _SETTLED)
            drained = sum(self._counters[name] for name in _DRAINED)
            self._pods_per_second = (drained - self._drained) / elapsed
            self._drained, self._counted_at = drained, now
        return self._waiting

    def _retry_after(self, excess: int) -> float:
        if not self._pods_per_second:
            return IDLE_RETRY_SECONDS
        return min(max(excess / self._pods_per_second, SOONEST_RETRY_SECONDS), LATEST_RETRY_SECONDS)
