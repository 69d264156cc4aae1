"""`python -m tools.bench policy`: the cost of a policy for each class of pods that the dispatcher sees for
the first time, in the dispatcher's own core, in this process.

Templates of different classes are assigned to their sub-queues, alternately by a policy that treats all pods
the same and by a policy of many rules. The rules match on labels, namespaces, priorities and resources,
priority classes and owners. A pod of a known class costs nothing.

The JSON document (camel case, microseconds of CPU time a class, medians over the repetitions):

    rules, classes, repeat, seed
    microsAlike      one rule that matches every pod: nothing is read from a class
    micros           all rules: their fields are read from the class's bytes, and the rules are matched
    policyMicros     the difference
    compileMillis    building the index of the rules, once for each policy
"""

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dispatcher.core.dispatch.routing import Routing
from dispatcher.core.pods.templates import TemplateKind, TemplateTable
from dispatcher.core.policy.index import RuleIndex
from dispatcher.core.policy.rules import Match, Policy, Rule, Selector
from dispatcher.core.workers.membership import Membership
from dispatcher.policy.documents import facts_from_bytes, parse_policy
from hoss.model.pod import PodSpec, QosClass
from hoss.model.selectors import Requirement
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
        return {"classMicros": round(self.class_micros, 2), "goalMicros": self.goal_micros}


def policy_yaml(rules: int) -> str:
    """A policy of so many rules, each for one app's pods of some priorities, the last for everything."""
    head = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\nrules:\n"
    some = "".join(
        f"  - name: rule-{i}\n    match: "
        f"{{labels: {{matchLabels: {{app: only-{i}}}}}, priority: {{min: {i % 7}}}}}\n"
        for i in range(rules - 1)
    )
    return f"{head}{some}  - name: rest\n"


def routing_cost(rules: int) -> RoutingCost:
    """CPU time, the median over repetitions of 2,000 classes each. Only the last rule matches them. The
    fields for the rules are read from the class's bytes, as in the dispatcher."""
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
        kind = TemplateKind("default", "hoss", "", QosClass.BURSTABLE, "Job")
        numbers = [templates.intern(spec, kind, 9)[0] for spec in specs]
        started = time.process_time()
        for number in numbers:
            routing.assign(templates, number)
        seconds.append(time.process_time() - started)
    return RoutingCost(1e6 * median(seconds) / _CLASSES)


def _decode(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))


_ONE_RULE = Policy((Rule("all"),))


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    rules: int
    classes: int
    repeat: int
    seed: int


def measure(setting: Setting) -> Document:
    """The JSON document."""
    policy = Policy((*(_rule(number) for number in range(setting.rules - 1)), Rule("rest")))
    templates = TemplateTable(_decode, facts_from_bytes)
    kind = TemplateKind("default", "hoss", "", QosClass.BURSTABLE, "Job")
    chance = random.Random(setting.seed)
    ids = [
        templates.intern(_class(number, setting.rules, chance), kind, 0)[0]
        for number in range(setting.classes)
    ]
    one_rule, ruled, compiled = [], [], []
    for _ in range(setting.repeat):
        one_rule.append(_micros(_assigning(_ONE_RULE, templates, ids)) / len(ids))
        ruled.append(_micros(_assigning(policy, templates, ids)) / len(ids))
        compiled.append(_micros(lambda: RuleIndex(policy)) / 1000)
    return {
        **asdict(setting),
        "microsAlike": median(one_rule),
        "micros": median(ruled),
        "policyMicros": median(ruled) - median(one_rule),
        "compileMillis": median(compiled),
    }


def _rule(number: int) -> Rule:
    """Five kinds of rules in turn."""
    labels = Selector(
        (Requirement("app", "In", (f"app-{number}",)), Requirement("tier", "NotIn", ("canary",)))
    )
    team = Selector((Requirement(f"team-{number}", "Exists"), Requirement("size", "Gt", (str(number),))))
    matches = (
        Match(labels=labels),
        Match(namespaces=frozenset({f"space-{number}"})),
        Match(priority_min=number, priority_max=number + 3, resources=frozenset({f"example.com/r{number}"})),
        Match(labels=team),
        Match(priority_class_names=frozenset({f"class-{number}"}), owner_kinds=frozenset({"Job"})),
    )
    return Rule(f"rule-{number}", matches[number % len(matches)])


def _class(number: int, rules: int, chance: random.Random) -> bytes:
    """A unique class. Some rule matches it with a probability of about one half."""
    spec = PodSpec(
        namespace=f"space-{chance.randrange(2 * rules)}",
        labels=(("app", f"app-{chance.randrange(2 * rules)}"), ("index", str(number)), ("tier", "stable")),
        priority=chance.randrange(100),
        requests=(("cpu", 100), ("memory", 2**28)),
    )
    return pod_spec_to_proto(spec).SerializeToString(deterministic=True)


def _assigning(policy: Policy, templates: TemplateTable, ids: list[int]) -> Callable[[], None]:
    routing = Routing(policy, Membership())

    def run() -> None:
        for template_id in ids:
            routing.assign(templates, template_id)

    return run


def _micros(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return (time.thread_time() - started) * 1e6
