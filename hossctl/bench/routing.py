"""What a new class costs to be routed by a policy of many rules, in the dispatcher's own core."""

import time
from dataclasses import dataclass

from dispatcher.core.membership import Membership
from dispatcher.core.routing import Routing
from dispatcher.core.templates import Kind, TemplateTable
from dispatcher.policy_document import parse_policy
from hoss.model.pod import PodSpec, QosClass
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
    """The median over repetitions of 2,000 classes each, none of which a rule before the last matches.

    Reading the class from its message is not in it: that is done once, too, and has nothing to do with rules.
    """
    policy = parse_policy(policy_yaml(rules))
    specs = {
        b"%d" % i: PodSpec(labels=(("app", f"app-{i}"), ("team", "a")), priority=9, requests=(("cpu", i + 1),))
        for i in range(_CLASSES)
    }
    seconds = []
    for _ in range(_REPEAT):
        routing = Routing(policy, Membership())
        templates = TemplateTable(specs.__getitem__)
        kind = Kind("default", "hoss", "", QosClass.BURSTABLE, "Job")
        numbers = [templates.intern(spec, kind, 9)[0] for spec in specs]
        started = time.perf_counter()
        for number in numbers:
            routing.assign(templates, number)
        seconds.append(time.perf_counter() - started)
    return RoutingCost(1e6 * median(seconds) / _CLASSES)
