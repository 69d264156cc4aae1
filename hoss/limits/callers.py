"""Limits per caller of a service's gRPC calls, in one place, before any handler runs.

A caller is named by a text (hoss.interceptor says which). Each has a rate of calls and a number of open
streams. No honest caller meets a limit, and a refused call changes nothing. At most so many callers are
remembered: one is forgotten when its burst is whole again."""

from collections import Counter
from collections.abc import Callable, Iterable

from pydantic import Field

from hoss.config import Document
from hoss.errors import Overloaded
from hoss.telemetry import logger
from hoss.telemetry.metrics import COUNTER, GAUGE, Family, Metric

REFUSED = Metric(
    "hoss_refused_calls_total",
    COUNTER,
    "Calls that were ended for their caller, by the reason: calls or streams (it had too many), slow_reader, "
    "malformed (bytes that are no message), identity (no valid certificate or token).",
    ("limit",),
)
OPEN_STREAMS = Metric("hoss_open_streams", GAUGE, "Streams of callers that are open.")
METRICS = (REFUSED, OPEN_STREAMS)

_REASONS = ("calls", "identity", "malformed", "slow_reader", "streams")

# A burst may have so many seconds' worth of calls.
BURST_SECONDS = 10.0
_MOST_CALLERS = 10_000
_SWEPT_CALLERS = 64
_LOG_SECONDS = 10.0
# Of callers without an identity so many lines are logged for an address at once, and then one each second.
_IDENTITY_LINES = 20.0
_IDENTITY_LINES_PER_SECOND = 1.0


class CallerLimitsConfig(Document):
    """Limits of each caller: of its identity, where the service speaks TLS, else of its address. Many workers
    or clients may share an address."""

    # Calls a second; a burst may have ten seconds' worth. More are refused with RESOURCE_EXHAUSTED, which
    # says when to try again. As many as a service of this kind can answer. 0: any number.
    calls_per_second: float = Field(default=2000.0, ge=0, le=1_000_000)

    # Streams open at once: a worker has one at the dispatcher, and two at a resolver. 0: any number.
    streams: int = Field(default=4000, ge=0, le=1_000_000)

    # Seconds in which a watcher or follower takes the next message. A slower one is cut, and resumes where it
    # was. 0: any time.
    slow_reader_seconds: float = Field(default=60.0, ge=0, le=86_400)


class TokenBucket:
    """A rate with a burst. Times are monotonic seconds, given by the caller."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._tokens, self._at = rate, burst, burst, now

    def take(self, now: float) -> float:
        """Take one: 0.0, or the seconds after which there is one again."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        return 0.0

    def full(self, now: float) -> bool:
        """Whether it is as if nothing had been taken."""
        return self._tokens + (now - self._at) * self._rate >= self._burst


class RateLimits:
    """A rate per key. At most `most_keys` are kept: one whose burst is whole is forgotten, and without such a
    one a new key is refused."""

    def __init__(
        self, rate: float, burst: float, *, clock: Callable[[], float], most_keys: int = _MOST_CALLERS
    ) -> None:
        self._rate, self._burst, self._clock, self._most = rate, burst, clock, most_keys
        self._buckets: dict[str, TokenBucket] = {}
        self._sweep_at = min(most_keys, _SWEPT_CALLERS)  # then those who may do anything again are forgotten

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Count one of this key: 0.0, or the seconds after which one is allowed again."""
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._buckets = {k: b for k, b in self._buckets.items() if not b.full(now)}
                self._sweep_at = min(self._most, max(_SWEPT_CALLERS, 2 * len(self._buckets)))
                if len(self._buckets) >= self._most:
                    return self._burst / self._rate
            bucket = self._buckets[key] = TokenBucket(self._rate, self._burst, now)
        return bucket.take(now)


class CallerLimits:
    """Counts what each caller does. A metrics source."""

    def __init__(self, config: CallerLimitsConfig, *, clock: Callable[[], float]) -> None:
        self.slow_reader_seconds = config.slow_reader_seconds
        self.refused: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._most_streams = config.streams
        self._clock = clock
        self._next_line = 0.0
        rate = config.calls_per_second
        self._rates = RateLimits(rate, max(1.0, rate * BURST_SECONDS), clock=clock) if rate else None
        self._lines = RateLimits(_IDENTITY_LINES_PER_SECOND, _IDENTITY_LINES, clock=clock)
        self._unlogged = 0

    def __call__(self) -> Iterable[Family]:
        return (
            REFUSED.by((limit, self.refused[limit]) for limit in _REASONS),
            OPEN_STREAMS.single(self._streams.total()),
        )

    def table_sizes(self) -> dict[str, int]:
        """The entries of what is remembered of callers."""
        return {
            "callers": 0 if self._rates is None else len(self._rates),
            "callers_with_streams": len(self._streams),
            "callers_refused": len(self._lines),
        }

    def begin(self, caller: str, *, stream: bool) -> None:
        """A call begins. Raises Overloaded where it may not. `end` follows for every stream that began."""
        wait_seconds = self._rates.take(caller) if self._rates is not None else 0.0
        if wait_seconds:
            self.note("calls", caller)
            raise Overloaded(
                f"{caller} makes more calls than the service's limits.calls_per_second; try again later",
                wait_seconds,
            )
        if stream:
            if self._most_streams and self._streams[caller] >= self._most_streams:
                self.note("streams", caller)
                raise Overloaded(
                    f"{caller} has {self._most_streams:,} streams open, which is the service's"
                    " limits.streams; close some",
                    1.0,
                )
            self._streams[caller] += 1

    def end(self, caller: str) -> None:
        """A stream of the caller has ended."""
        self._streams[caller] -= 1
        if self._streams[caller] <= 0:
            del self._streams[caller]

    def refuse_identity(self, address: str) -> int | None:
        """Count a caller at this address that showed nothing valid. Returns how many such calls were not
        logged before this one; None: neither is this one, because it has filled the log enough."""
        self.refused["identity"] += 1
        if self._lines.take(address):
            self._unlogged += 1
            return None
        unlogged, self._unlogged = self._unlogged, 0
        return unlogged

    def note(self, limit: str, caller: str) -> None:
        """Count a refusal. One line in ten seconds is logged, so that nobody fills the log."""
        self.refused[limit] += 1
        if self._clock() >= self._next_line:
            self._next_line = self._clock() + _LOG_SECONDS
            logger().warning("calls_refused", caller=caller, limit=limit, in_all=dict(self.refused))
