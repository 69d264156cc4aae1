"""Metrics, read when a scrape or a push asks for them. The services count these figures anyway, so nothing is
added on any hot path.

Each metric is declared once, in its service's catalogue. A source yields families: metrics with their present
samples. Names are kube-scheduler's (scheduler_*) where they mean the same, and hoss_* otherwise.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from hoss import version
from hoss.statistics import BOUNDS_SECONDS, BOUNDS_SIZES, Histogram, SizeHistogram

# Every fourth bound, each twice the one before: 24 series a histogram, as fine as a dashboard shows.
_BUCKETS = np.arange(0, len(BOUNDS_SECONDS), 4)
_BOUNDS = tuple(BOUNDS_SECONDS[_BUCKETS].tolist())


class MetricKind(str, Enum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


COUNTER, GAUGE, HISTOGRAM = MetricKind


class BoundedCounts(NamedTuple):
    """A histogram as it is exported. `counts` has one number more than `bounds`: how many values were at most
    each bound and more than the bound before, then how many were more than all bounds. `total`: the sum of
    all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Value = float | Histogram | SizeHistogram


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its present samples. A sample has a value for each of the metric's labels."""

    metric: "Metric"
    samples: tuple[tuple[tuple[str, ...], Value], ...]

    def numbers(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """The samples of a counter or gauge."""
        for labels, value in self.samples:
            if not isinstance(value, Histogram | SizeHistogram):
                yield labels, value

    def histograms(self) -> Iterator[tuple[tuple[str, ...], BoundedCounts]]:
        """The samples of a histogram, as they are exported: of a histogram of times every fourth bound."""
        for labels, value in self.samples:
            if isinstance(value, SizeHistogram):
                yield labels, BoundedCounts(BOUNDS_SIZES, tuple(value.counts), value.total)
            elif isinstance(value, Histogram):
                sums = value.counts.cumsum()
                counts = np.diff([*sums[_BUCKETS].tolist(), sums.item(-1)], prepend=0)
                yield labels, BoundedCounts(_BOUNDS, tuple(counts.tolist()), value.total_seconds)


class Reading(NamedTuple):
    """The families of one source, and since when it counts, Unix nanoseconds."""

    since_ns: int
    families: list[Family]


@dataclass(frozen=True, slots=True)
class Metric:
    """A name, its help text, and the names of its labels. A pod is never a label's value."""

    name: str
    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()

    def single(self, value: Value) -> Family:
        """The family without labels."""
        return Family(self, (((), value),))

    def by(self, samples: Iterable[tuple[str | tuple[str, ...], Value]]) -> Family:
        """The family of these samples. A key is the value of the only label, or the values of all labels."""
        return Family(self, tuple(((key,) if isinstance(key, str) else key, value) for key, value in samples))

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in Prometheus."""
        return (
            tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
            if self.kind is HISTOGRAM
            else (self.name,)
        )


Source = Callable[[], Iterable[Family]]

BUILD = Metric("hoss_build_info", GAUGE, "1; which release this is.", ("service", "version"))
STARTED = Metric("process_start_time_seconds", GAUGE, "When the process started, Unix seconds.")
CPU = Metric("process_cpu_seconds_total", COUNTER, "CPU time of the process.")
MEMORY = Metric("process_resident_memory_bytes", GAUGE, "Memory of the process.")

LOOP_DELAY = Metric(
    "hoss_event_loop_delay_seconds",
    HISTOGRAM,
    "By how much a probe every 20 ms ran late: how long steps of the event loop held everything else up."
    " Counted from the first reading on.",
)

TABLES = Metric(
    "hoss_table_entries",
    GAUGE,
    "Entries of what a service remembers, by table. None grows for ever: an entry ends with what it is about,"
    " or when the table is full.",
    ("service", "table"),
)

PROCESS_METRICS = (BUILD, STARTED, CPU, MEMORY, LOOP_DELAY, TABLES)

_PROBE_SECONDS = 0.02


def process_source(service: str) -> Source:
    """The source of PROCESS_METRICS but for LOOP_DELAY and TABLES; every service has them."""

    def collect() -> Iterator[Family]:
        import psutil  # noqa: PLC0415 - only for the first reading

        process = psutil.Process(os.getpid())
        yield BUILD.by([((service, version()), 1)])
        yield STARTED.single(process.create_time())
        yield CPU.single(time.process_time())
        yield MEMORY.single(process.memory_info().rss)

    return collect


TableSizes = Callable[[], Mapping[str, int]]  # by the table's name


def tables_source(service: str, *owners: TableSizes) -> Source:
    """The source of TABLES. Owners count their tables when they are asked, and not before."""

    def collect() -> Iterator[Family]:
        yield TABLES.by(
            ((service, table), entries) for sizes in owners for table, entries in sorted(sizes().items())
        )

    return collect


class LoopDelay:
    """A metrics source: how long single steps hold up the event loop, measured while `run` runs, from the
    first reading on. A step that takes longer than the time between two probes is seen."""

    def __init__(self) -> None:
        self._delays = Histogram()
        self._is_read = asyncio.Event()

    def __call__(self) -> Iterable[Family]:
        self._is_read.set()
        return (LOOP_DELAY.single(self._delays),)

    async def run(self) -> None:
        """Probe until cancelled. Begins when the metrics are read for the first time: a service whose metrics
        nobody reads is not woken fifty times a second."""
        await self._is_read.wait()
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _PROBE_SECONDS
            await asyncio.sleep(_PROBE_SECONDS)
            self._delays.add_equal(max(0.0, loop.time() - due))


class Metrics:
    """The sources of a process. A source may be there for a while only, such as for a dispatcher's term."""

    def __init__(self, *sources: Source) -> None:
        self._sources = [(time.time_ns(), source) for source in sources]

    @contextlib.asynccontextmanager
    async def showing(self, source: Source) -> AsyncIterator[None]:
        """Read this source as well, within the block."""
        entry = time.time_ns(), source
        self._sources.append(entry)
        try:
            yield
        finally:
            self._sources.remove(entry)

    def readings(self) -> list[Reading]:
        """A reading of each source, now."""
        return [Reading(since_ns, list(source())) for since_ns, source in self._sources]

    def collect(self) -> list[Family]:
        """The families of all sources, now; each metric once, whatever number of sources it has."""
        samples: dict[Metric, tuple[tuple[tuple[str, ...], Value], ...]] = {}
        for family in (family for reading in self.readings() for family in reading.families):
            samples[family.metric] = samples.get(family.metric, ()) + family.samples
        return [Family(metric, found) for metric, found in samples.items()]


def table(metrics: Sequence[Metric]) -> str:
    """The rows of a Markdown table."""
    return "\n".join(
        f"| `{m.name}` | {m.kind.value} | {', '.join(f'`{label}`' for label in m.labels)} | {m.text} |"
        for m in metrics
    )
