"""`hoss bench policy`: what a policy costs for each class that the dispatcher sees for the first time.

In this process, on the dispatcher's own core: templates of classes that are all different are given their lanes, by a policy
that treats all pods alike and by one of many rules, in turn. The rules match on what policies match on: labels, namespaces,
priorities and resources, priority classes and owners. A pod of a class seen before costs nothing.

The JSON document (camel case, microseconds of CPU time a class, medians over the repetitions):

    rules, classes, repeat, seed
    microsAlike      one rule that matches every pod: nothing is read of a class
    micros           all rules: what they match on is read from the class's bytes, and they are matched
    policyMicros     the difference
    compileMillis    making the index of the rules, once a policy
"""

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dispatcher.core.membership import Membership
from dispatcher.core.policy import Match, Policy, Rule, Selector
from dispatcher.core.routing import Routing
from dispatcher.core.rule_index import RuleIndex
from dispatcher.core.templates import Kind, TemplateTable
from dispatcher.spec_facts import facts_from_bytes
from hoss.model.pod import PodSpec, QosClass
from hoss.model.selectors import Requirement
from hoss.v1 import common_pb2
from hoss.wire.convert import pod_spec_from_proto, pod_spec_to_proto
from hossctl.console import Document
from hossctl.figures import median

_ALIKE = Policy((Rule("all"),))


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured."""

    rules: int
    classes: int
    repeat: int
    seed: int


def measure(setting: Setting) -> Document:
    """The document described above."""
    policy = Policy((*(_rule(number) for number in range(setting.rules - 1)), Rule("rest")))
    templates = TemplateTable(_decode, facts_from_bytes)
    kind = Kind("default", "hoss", "", QosClass.BURSTABLE, "Job")
    chance = random.Random(setting.seed)
    ids = [templates.intern(_class(number, setting.rules, chance), kind, 0)[0] for number in range(setting.classes)]
    alike, ruled, compiled = [], [], []
    for _ in range(setting.repeat):
        alike.append(_micros(_assigning(_ALIKE, templates, ids)) / len(ids))
        ruled.append(_micros(_assigning(policy, templates, ids)) / len(ids))
        compiled.append(_micros(lambda: RuleIndex(policy)) / 1000)
    return {
        **asdict(setting),
        "microsAlike": median(alike),
        "micros": median(ruled),
        "policyMicros": median(ruled) - median(alike),
        "compileMillis": median(compiled),
    }


def _rule(number: int) -> Rule:
    """Five sorts of rules in turn."""
    labels = Selector((Requirement("app", "In", (f"app-{number}",)), Requirement("tier", "NotIn", ("canary",))))
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
    """A class that is like no other, and that some rule is about as often as not."""
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


def _decode(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))
