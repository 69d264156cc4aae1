"""Whatever a document holds, it is read, or refused by an error that says where and what, within a second."""

import contextlib
import copy
import io
from pathlib import Path
from random import Random

import pytest
from fuzz.inputs import LONGEST_ERROR, SEEDS, damaged, damaged_bytes, inputs, within_a_second
from histories import play
from hypothesis import given

from dispatcher.config import KIND as DISPATCHER
from dispatcher.config import DispatcherConfig
from dispatcher.policy.documents import DEFAULT_YAML, parse_policy
from hoss.config import parse_document
from hoss.errors import InvalidInput
from hoss.manifests.documents import read_manifest
from hoss.manifests.fields import parse_label_selector
from hoss.manifests.guarded import json_value
from hoss.model.quantity import parse_quantity, read_quantity
from hoss.v1 import resolver_pb2
from hossctl.history import events
from hossctl.history.checker import check
from hossctl.ledger_file import parts_of
from resolver.api.rebuilding import collect
from resolver.config import KIND as RESOLVER
from resolver.config import ResolverConfig
from scheduler_worker.config import KIND as WORKER
from scheduler_worker.config import WorkerConfig, chosen_profile
from scheduler_worker.core.plugins import REGISTRY

ROOT = Path(__file__).parents[2]
MANIFESTS = tuple(  # noqa: RUF005
    file.read_text() for file in (*(ROOT / "examples").glob("*.yaml"), *(ROOT / "deploy").glob("nodes.yaml"))
) + (
    """\
apiVersion: v1
kind: Pod
metadata:
  name: a
  labels: {app: web}
  annotations: {hoss.dev/gpu-milli: "500", hoss.dev/min-available: "2"}
spec:
  priority: 5
  schedulingGates: [{name: g}]
  nodeSelector: {disk: ssd}
  overhead: {cpu: 10m}
  containers:
  - &c {name: c, image: i, ports: [{hostPort: 80, protocol: TCP}], resources: {requests: {cpu: 500m, memory: 1Gi}}}
  - {<<: *c, name: d, ports: []}
  tolerations: [{key: x, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
  affinity:
    nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [
      {key: a, operator: Gt, values: ["1"]}]}]}}
    podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: host,
      labelSelector: {matchLabels: {app: web}, matchExpressions: [{key: b, operator: In, values: [c]}]}}]}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule,
    minDomains: 2, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [h]}]
""",
    """\
{"apiVersion": "v1", "kind": "List", "items": [
 {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "b", "generateName": "x-"},
  "spec": {"parallelism": 3, "completions": 9, "template": {"spec": {"containers": [{"name": "c"}]}}}},
 {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "p", "namespace": "n"},
  "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}},
 {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "h"}, "value": 1000},
 {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "web"}}},
 {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}, "spec": {"minAvailable": 2,
  "tasks": [{"name": "t", "replicas": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}]}},
 {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": [{"key": "k", "effect":
  "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}]}, "status": {"allocatable": {"cpu": "8", "memory": "1Gi"},
  "images": [{"names": ["i"], "sizeBytes": 5}]}}]}
""",
)  # fmt: skip
POLICIES = (DEFAULT_YAML, (ROOT / "deploy" / "policy.yaml").read_text())
_HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: "
CONFIGURATIONS = {
    DISPATCHER: (
        DispatcherConfig,
        "listen: 127.0.0.1:0\nlease_seconds: 1.5\nresolvers: [a:1, b:2]\nsteering: {overlap: auto, workers: 3}\n"  # noqa: ISC004
        "worker_labels: {'w-*': {tier: [gold]}}\nkubernetes: {scheduler_names: [hoss], ignored: []}\n",
    ),
    RESOLVER: (
        ResolverConfig,
        "redis_url: redis://127.0.0.1:6379/0\nshards: 2\nquarantine: {refusals: 3, most_share: 0.1}\n"  # noqa: ISC004
        "webhook: {listen: 0.0.0.0:8443, hosts: [a]}\nkubernetes: {kubeconfig: /x}\n",
    ),
    WORKER: (
        WorkerConfig,
        "name: w1\nlabels: {tier: gold}\nprofile: mine\nprofiles: [{name: mine, plugins: [{name: NodeResourcesFit, "  # noqa: ISC004
        "weight: 2, args: {strategy: MostAllocated, resources: [{name: cpu, weight: 1}]}}]}]\n",
    ),
}
QUANTITIES = ("500m", "1.5Gi", "-12e6", "+0.000000001n", "9Ei", "1E3", ".5", "5.")
SELECTORS = ("app=web,tier in (a, b),!canary", "example.com/x!=y,z notin (c)", "size>5,a==b")


def _is_named(error: InvalidInput) -> None:
    assert error.text.strip()
    assert len(str(error)) <= LONGEST_ERROR, f"{len(str(error)):,} characters"
    str(error).encode()  # a log line and a status can carry it


def reads_or_refuses(read) -> bool:
    """Whether it was read. Anything but InvalidInput fails the test."""
    with within_a_second():
        try:
            read()
        except InvalidInput as exc:
            _is_named(exc)
            return False
    return True


@inputs()
@given(SEEDS)
def test_any_manifest_is_read_or_refused(seed):
    rng = Random(seed)
    text = damaged(rng, MANIFESTS)
    data = damaged_bytes(rng, text.encode("utf-8", "surrogatepass")) if rng.random() < 0.1 else text
    reads_or_refuses(lambda: read_manifest(data, where="pods.yaml"))


@inputs()
@given(SEEDS)
def test_any_policy_is_read_or_refused(seed):
    text = damaged(Random(seed), POLICIES)
    reads_or_refuses(lambda: parse_policy(text))


@inputs()
@given(SEEDS)
def test_any_configuration_of_a_service_is_read_or_refused(seed):
    rng = Random(seed)
    kind = rng.choice(tuple(CONFIGURATIONS))
    model, fields = CONFIGURATIONS[kind]
    text = damaged(rng, (f"{_HEAD}{kind}\n{fields}", fields))
    if rng.random() < 0.7 and not text.startswith("apiVersion"):
        text = f"{_HEAD}{kind}\n{text}"

    def read():
        config = parse_document(text, kind, model, where="config.yaml")
        if isinstance(config, WorkerConfig):
            chosen_profile(config, REGISTRY)

    reads_or_refuses(read)


@inputs()
@given(SEEDS)
def test_any_quantity_is_read_or_refused(seed):
    rng = Random(seed)
    text = damaged(rng, QUANTITIES)
    value = rng.choice(
        (text, text, rng.randrange(-(2**70), 2**70), 1 << 20_000, float("nan"), None, [text], {})
    )
    reads_or_refuses(lambda: parse_quantity(text))
    reads_or_refuses(lambda: read_quantity(value))


@inputs()
@given(SEEDS)
def test_any_label_selector_is_read_or_refused(seed):
    text = damaged(Random(seed), SELECTORS)
    reads_or_refuses(lambda: parse_label_selector(text, where="label_selector"))


@inputs()
@given(SEEDS)
def test_any_json_of_a_request_is_read_or_refused(seed):
    rng = Random(seed)
    text = damaged(rng, ('{"state": "cordoned", "more": [1, 2.5e3, null, true]}', MANIFESTS[-1]))
    data = damaged_bytes(rng, text.encode("utf-8", "surrogatepass"))
    reads_or_refuses(lambda: json_value(data, "body"))


DUMP = """\
{"kind":"Ledger","version":1,"epoch":"e","shards":1,"schema":["cpu","memory","pods"]}
{"kind":"Node","index":0,"spec":{"name":"n1","allocatable":[{"resource":"cpu","amount":"4000"}]}}
{"kind":"PodKind","number":0,"requests":{"cpu":100,"pods":1},"priority":0,"cards":1,"cardMilli":500,"group":{}}
{"kind":"Reservation","uid":"01234567-89ab-cdef-0123-456789abcdef","node":"n1","podKind":0,"cards":[0],\
"assumed":false,"attempt":1,"workerEpoch":3}
"""


@inputs()
@given(SEEDS)
def test_any_dump_is_read_or_refused(seed):
    rng = Random(seed)
    text = damaged(rng, (DUMP,))

    async def parts(found):
        for part in found:
            yield part

    def read():
        found = list(parts_of(io.StringIO(text), resolver_pb2.LedgerHead(), where="dump.jsonl"))

        async def restored():
            head, contents = await collect(parts(found))
            contents.pods([*head.schema, *contents.resources()])
            contents.groups()

        with contextlib.suppress(StopIteration):
            restored().send(None)  # it waits for nothing

    reads_or_refuses(read)


HISTORY = "".join(map(events.written, play(5, 8)))


@inputs(quick=150)
@given(SEEDS)
def test_any_history_is_judged_or_refused(seed):
    rng = Random(seed)
    text = damaged(rng, (HISTORY,))
    with within_a_second():
        try:
            judgement = check(events.read(io.BytesIO(text.encode("utf-8", "surrogatepass"))))
        except events.BadHistory as exc:
            assert exc.line >= 1  # noqa: PT017 - whatever it says
            assert len(str(exc)) <= LONGEST_ERROR  # noqa: PT017
        else:
            judgement.as_json()


_COUNTS = ("seq", "shard", "previous", "epoch", "term", "revision", "minimum", "count", "port", "cpu", "pods")
_ONCE = ("reserved", "committed", "confirmed", "released")
_EVENTS = list(events.read(io.BytesIO(HISTORY.encode())))


def _numbers(item):
    """The places of numbers from 0 on in an event: (object, key)."""
    if isinstance(item, list):
        return [place for each in item for place in _numbers(each)]
    if not isinstance(item, dict):
        return []
    here = [(item, key) for key, value in item.items() if key in _COUNTS and isinstance(value, int)]
    return here + [
        place for key, value in item.items() if key not in ("accounts", "at") for place in _numbers(value)
    ]


@inputs(quick=60)
@given(SEEDS)
def test_an_impossible_record_is_refused_with_its_number(seed):
    """A number below 0, or one pod twice in a change."""
    rng = Random(seed)
    lines = [
        line for line, event in enumerate(_EVENTS) if _numbers(event) or any(event.get(n) for n in _ONCE)
    ]
    at = rng.choice(lines)
    event = copy.deepcopy(_EVENTS[at])
    numbers, doubled = _numbers(event), [name for name in _ONCE if event.get(name)]
    if doubled and (not numbers or rng.random() < 0.5):
        name = rng.choice(doubled)
        event[name] = [*event[name], rng.choice(event[name])]
        what = f"{event['event']}.{name} has the UID"
    else:
        where, key = rng.choice(numbers)
        where[key] = -rng.choice((1, 2**40, 2**70))
        what = f"{key} is -"
    with pytest.raises(events.BadHistory) as refused:
        check([*_EVENTS[:at], event, *_EVENTS[at + 1 :]])
    assert refused.value.line == at + 1
    assert what in str(refused.value)
