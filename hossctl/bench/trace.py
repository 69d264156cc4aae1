"""The classes of a trace's pods, to draw a load of any size from."""

from collections import Counter
from pathlib import Path

from hoss.model.pod import PodTemplate
from hossctl.load import MIB, TraceClass
from hossctl.openb import read_pods


def trace_classes(path: Path) -> list[TraceClass]:
    """What the openb trace's pods ask for, the commonest first. Card models are left out: simulated nodes have others."""
    counts: Counter[PodTemplate] = Counter(pod.template for pod in read_pods(path))
    return [_trace_class(template, pods) for template, pods in counts.most_common()]


def _trace_class(template: PodTemplate, pods: int) -> TraceClass:
    requests, devices = dict(template.spec.requests), template.spec.devices
    return TraceClass(
        pods,
        requests.get("cpu", 0),
        requests.get("memory", 0) // MIB,
        devices.count if devices else 0,
        devices.milli if devices else 0,
    )
