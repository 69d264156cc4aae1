"""What a new class costs to be routed by a policy of many rules, in the dispatcher's own core."""

import time
from dataclasses import dataclass

from dispatcher.core.membership import Membership
from dispatcher.core.routing import Routing
from dispatcher.core.templates import Kind, TemplateTable
from dispatcher.policy_document import parse_policy
from dispatcher.spec_facts import facts_from_bytes
from hoss.model.pod import PodSpec, QosClass
from hoss.v1 import common_pb2
from hoss.wire.convert import pod_spec_from_proto, pod_spec_to_proto
from hossctl.console import Document
from hossctl.figures import median

GOAL_MICROS = 10.0
_CLASSES = 2000
_REPEAT = 5


@dataclass(frozen=True, slots=True)
class RoutingCost:
    """Microseconds for one class."""

    class_micros: float
    goal_micros: float = GOAL_MICROS

    def as_json(self) -> Document:
        """For the JSON document."""
        return {
            "classMicros": round(self.class_micros, 2),
            "goalMicros": self.goal_micros,
        }


def policy_yaml(rules: int) -> str:
    """A policy of so many rules, each for one app's pods of some priorities, the last for everything."""
    head = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules:\n"
    some = "".join(
        f"  - name: rule-{i}\n    match: {{labels: {{matchLabels: {{app: only-{i}}}}}, priority: {{min: {i % 7}}}}}\n"
        for i in range(rules - 1)
    )
    return f"{head}{some}  - name: rest\n"


def routing_cost(rules: int) -> RoutingCost:
    """CPU time, the median over repetitions of 2,000 classes each, none of which a rule before the last matches. What rules match on is
    read from the class's bytes, as the dispatcher does it."""
    policy = parse_policy(policy_yaml(rules))
    specs = [
        pod_spec_to_proto(
            PodSpec(labels=(("app", f"app-{i}"), ("team", "a")), priority=9, requests=(("cpu", i + 1),))
        ).SerializeToString(deterministic=True)
        for i in range(_CLASSES)
    ]
    seconds = []
    for _ in range(_REPEAT):
        routing = Routing(policy, Membership())
        templates = TemplateTable(_decode, facts_from_bytes)
        kind = Kind("default", "hoss", "", QosClass.BURSTABLE, "Job")
        numbers = [templates.intern(spec, kind, 9)[0] for spec in specs]
        started = time.process_time()
        for number in numbers:
            routing.assign(templates, number)
        seconds.append(time.process_time() - started)
    return RoutingCost(1e6 * median(seconds) / _CLASSES)


def _decode(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))
