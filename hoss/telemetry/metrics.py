"""Metrics, read when somebody asks for them: the services count what they count anyway, and nothing is added on any hot path.

A metric is declared once, in its service's catalogue; a source yields families, a metric with its present samples. Names are
kube-scheduler's (scheduler_*) where they mean the same, and hoss_* else.
"""

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from hoss import version
from hoss.model.histograms import BOUNDS_SECONDS, BOUNDS_SIZES, Histogram, SizeHistogram

# Every fourth bound, each twice the one before: 24 series a histogram, and nothing lost that a dashboard would show.
_BUCKETS = np.arange(0, len(BOUNDS_SECONDS), 4)
_BOUNDS = tuple(BOUNDS_SECONDS[_BUCKETS].tolist())


class Kind(str, Enum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class BoundedCounts(NamedTuple):
    """A histogram as it is shown: how many were at most each bound and more than the one before, then how many were more than all;
    and what all come to."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Value = float | Histogram | SizeHistogram


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its present samples, each beside the values of the metric's labels."""

    metric: "Metric"
    samples: tuple[tuple[tuple[str, ...], Value], ...]


class Reading(NamedTuple):
    """What a source showed, and since when it counts, Unix nanoseconds."""

    since_ns: int
    families: list[Family]


@dataclass(frozen=True, slots=True)
class Metric:
    """A name, what it means, and the names of its labels. Never one whose values are pods."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    def single(self, value: Value) -> Family:
        """Without labels."""
        return Family(self, (((), value),))

    def by(self, samples: Iterable[tuple[str | tuple[str, ...], Value]]) -> Family:
        """One sample for each value, or tuple of values, of the labels."""
        return Family(self, tuple(((key,) if isinstance(key, str) else key, value) for key, value in samples))

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus finds it."""
        return (
            tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
            if self.kind is Kind.HISTOGRAM
            else (self.name,)
        )


Source = Callable[[], Iterable[Family]]

BUILD = Metric("hoss_build_info", Kind.GAUGE, "1; which release this is.", ("service", "version"))
STARTED = Metric("process_start_time_seconds", Kind.GAUGE, "When the process started, Unix seconds.")
CPU = Metric("process_cpu_seconds_total", Kind.COUNTER, "CPU time of the process.")
MEMORY = Metric("process_resident_memory_bytes", Kind.GAUGE, "Memory of the process.")

PROCESS_METRICS = (BUILD, STARTED, CPU, MEMORY)


def process_source(service: str) -> Source:
    """What every service shows of its process."""

    def collect() -> Iterator[Family]:
        import psutil  # noqa: PLC0415 - not before somebody looks

        process = psutil.Process(os.getpid())
        yield BUILD.by([((service, version()), 1)])
        yield STARTED.single(process.create_time())
        yield CPU.single(time.process_time())
        yield MEMORY.single(process.memory_info().rss)

    return collect


class Metrics:
    """Everything a process shows. Sources come and go with what they read, such as a dispatcher's term."""

    def __init__(self, *sources: Source) -> None:
        self._sources = [(time.time_ns(), source) for source in sources]

    @contextlib.asynccontextmanager
    async def showing(self, source: Source) -> AsyncIterator[None]:
        """Show this too, for the length of the block."""
        entry = time.time_ns(), source
        self._sources.append(entry)
        try:
            yield
        finally:
            self._sources.remove(entry)

    def readings(self) -> list[Reading]:
        """As of now, each source's."""
        return [Reading(since_ns, list(source())) for since_ns, source in self._sources]

    def collect(self) -> list[Family]:
        """As of now."""
        return [family for reading in self.readings() for family in reading.families]


def exposition(families: Iterable[Family]) -> str:
    """Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for family in families:
        metric = family.metric
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind.value}"]
        for values, value in family.samples:
            labels = list(zip(metric.labels, values, strict=True))
            if isinstance(value, Histogram | SizeHistogram):
                lines += _histogram(metric.name, labels, value)
            else:
                lines.append(f"{metric.name}{_written(labels)} {_number(value)}")
    return "\n".join(lines) + "\n"


def table(metrics: Sequence[Metric]) -> str:
    """The rows of a Markdown table."""
    return "\n".join(
        f"| `{m.name}` | {m.kind.value} | {', '.join(f'`{label}`' for label in m.labels)} | {m.text} |" for m in metrics
    )


def counts_of(value: Histogram | SizeHistogram) -> BoundedCounts:
    """As it is shown: of a histogram of times every fourth bound."""
    if isinstance(value, SizeHistogram):
        return BoundedCounts(BOUNDS_SIZES, tuple(value.counts), value.total)
    sums = value.counts.cumsum()
    counts = np.diff([*sums[_BUCKETS].tolist(), sums.item(-1)], prepend=0)
    return BoundedCounts(_BOUNDS, tuple(counts.tolist()), value.total_seconds)


def _histogram(name: str, labels: list[tuple[str, str]], value: Histogram | SizeHistogram) -> Iterator[str]:
    shown = counts_of(value)
    counts = list(accumulate(shown.counts))
    bounds = (*(f"{bound:.7g}" for bound in shown.bounds), "+Inf")
    for bound, count in zip(bounds, counts, strict=True):
        yield f"{name}_bucket{_written([*labels, ('le', bound)])} {count}"
    yield f"{name}_sum{_written(labels)} {_number(shown.total)}"
    yield f"{name}_count{_written(labels)} {counts[-1]}"


def _written(labels: Iterable[tuple[str, str]]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
