"""`python -m tools.bench tracing`: the cost of tracing, by platforms without and with it in turn.

The JSON document: nodes, pods, ratio, repeat; microsPerPod off and on, CPU time of all services together, in
the order of the runs; the medians; and `overhead`, the median over the pairs of the extra cost with tracing,
as a share. The two runs of a pair are seconds apart on one machine, so other load of the machine mostly
cancels out."""

from dataclasses import dataclass, field, replace

from hossctl.bench.throughput import ThroughputSetting, measure
from hossctl.console import Document
from hossctl.figures import median


@dataclass(slots=True)
class TracingCost:
    """CPU microseconds per pod, run by run."""

    setting: ThroughputSetting
    off: list[float] = field(default_factory=list)
    on: list[float] = field(default_factory=list)

    @property
    def overhead(self) -> float:
        """The median over the pairs."""
        return median([on / off - 1 for off, on in zip(self.off, self.on, strict=True)])

    def as_json(self) -> Document:
        """All figures."""
        return {
            "nodes": self.setting.nodes,
            "pods": self.setting.pods,
            "ratio": self.setting.trace_ratio,
            "repeat": len(self.off),
            "offMicrosPerPod": [round(value, 3) for value in self.off],
            "onMicrosPerPod": [round(value, 3) for value in self.on],
            "medianOffMicrosPerPod": round(median(self.off), 3),
            "medianOnMicrosPerPod": round(median(self.on), 3),
            "overhead": round(self.overhead, 4),
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        return [
            (
                "CPU a pod, off",
                f"{median(self.off):.2f} us ({', '.join(f'{value:.2f}' for value in self.off)})",
            ),
            ("CPU a pod, on", f"{median(self.on):.2f} us ({', '.join(f'{value:.2f}' for value in self.on)})"),
            ("overhead", f"{self.overhead:+.1%}, the median of {len(self.off)} pairs"),
        ]


def measure_tracing(setting: ThroughputSetting, *, quiet: bool) -> TracingCost:
    """Run `setting.repeat` pairs; the order within a pair alternates."""
    cost = TracingCost(setting)
    for number in range(setting.repeat):
        for traced in (False, True) if number % 2 == 0 else (True, False):
            one = replace(setting, repeat=1, trace_ratio=setting.trace_ratio if traced else None)
            (run,) = measure(one, quiet=quiet).runs
            (cost.on if traced else cost.off).append(
                1e6 * sum(run.cpu_seconds.values()) / run.placement.bound
            )
    return cost
