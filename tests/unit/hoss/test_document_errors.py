"""What is said about a wrong document: where, what is there, and what belongs there. Never pydantic's words,
for any field of any document."""

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from dispatcher.config import DispatcherConfig
from dispatcher.policy.documents import PolicyDocument
from hoss.config import Document
from hoss.document_errors import describe_validation
from hoss.security.users import AuthenticationConfig
from hossctl.compare.document import Comparison
from hossctl.load.nodes import SimulatedNodes
from hossctl.local.pools import PlatformDocument
from hossctl.rebalance.policy import RebalancePolicy
from resolver.config import ResolverConfig
from scheduler_worker.config import WorkerConfig

MODELS: tuple[type[BaseModel], ...] = (
    AuthenticationConfig,
    Comparison,
    DispatcherConfig,
    PlatformDocument,
    PolicyDocument,
    RebalancePolicy,
    ResolverConfig,
    SimulatedNodes,
    WorkerConfig,
)


def problem_of(model: type[BaseModel], fields: object) -> str:
    """What is said about such a document; empty for a good one."""
    try:
        model.model_validate(fields)
    except ValidationError as error:
        return describe_validation(error, model)
    return ""


def rule(**fields: object) -> dict[str, object]:
    return {"rules": [{"name": "a", **fields}]}


@pytest.mark.parametrize(
    ("model", "fields", "sentence"),
    [
        (
            PlatformDocument,
            {"pools": [{"name": "a", "cuont": 3}]},
            "pools[0].cuont: is no field here; did you mean 'count'?",
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "a", "workers": 3}]},
            (
                "pools[0].workers: is no field here; there are name, count, labels, node_labels, profile, "
                "kube_scheduler_config, plugins, algorithm"
            ),
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "a", "count": -1}]},
            "pools[0].count: is -1, where a whole number from 0 to 1,000 belongs",
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "a", "count": "some"}]},
            "pools[0].count: is 'some', where a whole number from 0 to 1,000 belongs",
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "A b"}]},
            (
                "pools[0].name: is 'A b', where a name of at most 50 lower-case letters, digits and '-',"
                " with a "
                "letter or digit at both ends belongs"
            ),
        ),
        (PlatformDocument, {}, "pools: is missing; a list of 1 item or more belongs there"),
        (PlatformDocument, {"pools": []}, "pools: is an empty list, where a list of 1 item or more belongs"),
        (PlatformDocument, {"pools": None}, "pools: is empty, where a list of 1 item or more belongs"),
        (
            PlatformDocument,
            {"pools": [{"name": "a", "labels": {"tier": 1.2}}]},
            "pools[0].labels.tier: is 1.2, where a text belongs; put it in quotes",
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "a", "labels": {"example.com/tier": True}}]},
            "pools[0].labels[example.com/tier]: is true, where a text belongs; put it in quotes",
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "a", "labels": {7: "x"}}]},
            "pools[0].labels[7]: is 7, where a text belongs; put it in quotes",
        ),
        (
            PlatformDocument,
            {"pools": [{"name": "a"}, {"name": "a"}]},
            "pools: pools must differ in name; given more than once: a",
        ),
        (
            PolicyDocument,
            rule(balance={"algorithm": "Randon"}),
            (
                "rules[0].balance.algorithm: is 'Randon', where LeastOutstanding, PowerOfTwoChoices, "
                "WeightedRoundRobin, ConsistentHash or Random belongs; did you mean 'Random'?"
            ),
        ),
        (
            PolicyDocument,
            rule(balance="Random"),
            (
                "rules[0].balance: is 'Random', where a mapping with algorithm, weightLabel, bound, choices "
                "belongs"
            ),
        ),
        (
            PolicyDocument,
            {**rule(), "tenants": {"by": "Namspace"}},
            (
                "tenants.by: is 'Namspace', where Namespace or a mapping with label belongs; did you mean "
                "'Namespace'?"
            ),
        ),
        (
            PolicyDocument,
            {**rule(), "tenants": {"by": {"lable": "team"}}},
            (
                "2 problems:\n  tenants.by.label: is missing; a text belongs there\n  "
                "tenants.by.lable: is no field here; did you mean 'label'?"
            ),
        ),
        (
            PolicyDocument,
            {**rule(), "tenants": {"weights": {"blue": 0}}},
            "tenants.weights.blue: is 0, where a number above 0 and of at most 1,000,000 belongs",
        ),
        (
            PolicyDocument,
            rule(match={"qosClasses": ["Best"]}),
            "rules[0].match.qosClasses[0]: is 'Best', where BestEffort, Burstable or Guaranteed belongs",
        ),
        (
            DispatcherConfig,
            {"steering": {"workers": 0}},
            "steering.workers: is 0, where auto or a whole number from 1 to 10,000 belongs",
        ),
        (
            DispatcherConfig,
            {"redis_ulr": "redis://x"},
            "redis_ulr: is no field here; did you mean 'redis_url'?",
        ),
        (
            RebalancePolicy,
            {"windows": [{"begin": "22:00", "end": "25:00"}]},
            "windows[0].end: is '25:00', where a time of the day such as '22:00' belongs",
        ),
        (
            RebalancePolicy,
            {"passSeconds": float("nan")},
            "passSeconds: is nan, where a number from 1 to 86,400 belongs",
        ),
        (RebalancePolicy, {"goals": {}}, "goals: is an empty mapping, where a list belongs"),
        (WorkerConfig, {"unchecked": "maybe"}, "unchecked: is 'maybe', where true or false belongs"),
        (
            WorkerConfig,
            {"profiles": [{"name": "a", "plugins": [{"weight": 101}]}]},
            (
                "2 problems:\n  profiles[0].plugins[0].name: is missing; a text belongs there\n  "
                "profiles[0].plugins[0].weight: is 101, where a whole number from 0 to 100 belongs"
            ),
        ),
    ],
)
def test_a_sentence_says_where_what_is_there_and_what_belongs_there(model, fields, sentence):
    assert problem_of(model, fields) == sentence


def test_many_problems_are_not_all_told():
    lines = problem_of(SimulatedNodes, {"pools": [{"name": f"a{i}"} for i in range(20)]}).splitlines()
    assert (lines[0], len(lines), lines[-1]) == ("40 problems:", 12, "  and 30 more")


# Of pydantic's sentences, and of the names of its types.
FOREIGN = re.compile(
    r"Input should|Extra inputs|Field required|String should|Value error|valid"
    r" (int|num|str|dict|list|tup|bool|path)"
    r"|[Tt]uple|NoneType|literal\[|function-|constrained|<class|instance of|finite"
)
WRONG = (None, -(2.5**70), "?! \n", [], [object()], {}, {"x/y": {}}, True, float("inf"), 10**30)


def places(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and all sections of it."""
    yield model
    for field in model.model_fields.values():
        yield from (inner for part in parts(field.annotation) for inner in places(part))


def parts(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from parts(argument)


@pytest.mark.parametrize("model", MODELS)
def test_no_field_of_any_document_is_told_of_in_pydantics_words(model):
    told = 0
    for section in {*places(model)}:
        for name, field in section.model_fields.items():
            for value in WRONG:
                if text := problem_of(section, {field.alias or name: value}):
                    assert not FOREIGN.search(text), text
                    assert "a value belongs" not in text, text
                    told += 1
    assert told > 10


def test_a_type_of_pydantics_that_nobody_foresaw_is_told_as_well():
    class Odd(Document):
        number: complex

    assert problem_of(Odd, {"number": "x"}) == "number: is 'x', where a value belongs"
