import json

import pytest

from hoss.errors import InvalidInput
from hoss.manifests import guarded
from hoss.manifests.documents import random_suffix, read_manifest
from hoss.manifests.guarded import MAX_MANIFEST_BYTES

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: c
    resources: {requests: {cpu: 500m}}
"""


def pod(name="p"):
    return POD.replace("NAME", name)


def read(text, **options):
    return read_manifest(text.encode(), where="pods.yaml", **options)


def names(manifest):
    return [w.name for w in manifest.workloads]


def test_documents_are_read_in_order_and_empty_ones_passed_over():
    manifest = read(f"---\n# nothing\n---\n{pod('a')}---\n---\n{pod('b')}...\n")
    assert names(manifest) == ["a", "b"]
    assert manifest.warnings == ()


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# only a comment\n", "\ufeff"])
def test_nothing_asks_for_nothing(text):
    assert read(text) == read("---\n---\n")


def test_json_and_yaml_mean_the_same():
    value = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
    }
    text = json.dumps(value)
    assert read(text) == read(pod())
    other = json.dumps({**value, "metadata": {"name": "q"}})
    assert names(read(f"\ufeff{text}\n{other}\n")) == ["p", "q"]


def test_equal_templates_are_one_object():
    first, second = read(f"{pod('a')}---\n{pod('b')}").workloads
    assert first.template is second.template


def test_lists_are_opened_at_any_kind_and_depth():
    item = json.loads(json.dumps({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}))
    whole = {"apiVersion": "v1", "kind": "Pod", **item, "metadata": {"name": "q"}}
    nested = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [whole, {"apiVersion": "v1", "kind": "PodList", "items": [item]}],
    }
    assert names(read(json.dumps(nested))) == ["q", "p"]


def test_nodes_are_collected_apart():
    manifest = read(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: 4, pods: 110}}\n"
    )
    assert [n.name for n in manifest.nodes] == ["n1"]
    assert manifest.workloads == ()


def test_other_kinds_are_warned_of_with_kind_name_and_place():
    manifest = read(f"{pod()}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: s, namespace: x}}\n")
    assert names(manifest) == ["p"]
    assert len(manifest.warnings) == 1
    assert manifest.warnings[0].startswith("pods.yaml document 2: ConfigMap x/s is skipped")


def test_names_are_generated_where_asked_for():
    text = pod().replace("name: NAME", "").replace("{name: p}", "{generateName: p-}")
    first, second = read(f"{text}---\n{text}").workloads
    assert first.name.startswith("p-")
    assert first.name != second.name
    assert len(random_suffix()) == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"{pod()}---\n{pod().replace('500m', '500x')}",
            "document 2: spec.containers[0].resources.requests.cpu: '500x' is no",
        ),
        (f"{pod()}---\n{pod()}", "document 2: pod default/p stands in pods.yaml document 1 already"),
        ("just text", "document 1: is 'just text', where a mapping with apiVersion and kind belongs"),
        ("- a\n- b\n", "document 1: is a list, where a mapping"),
        ("a: 1\n", "document 1: kind: is missing"),
        ("a: [1, 2\n", "document 1: is no valid YAML or is cut off"),
        ('a: "open', "(line 1, column"),
        ("a: 1\nb\n", "(line 3, column 1)"),
        ("a: 1\na: 2\n", "has the key 'a' twice in one mapping (line 2, column 1)"),
        ("a: *b\n", "*b names no anchor that ends before it (line 1, column 4)"),
        ("a: &a [*a]\n", "*a names no anchor that ends before it"),
        ("a: !!python/object:os.system x\n", "has the tag tag:yaml.org,2002:python/object:os.system"),
        ("a: !!int x\n", "'x' does not fit its tag"),
        ("? [a]\n: b\n", "has a mapping or list as a key"),
        ("a: \x07\n", "is no valid YAML"),
        ('{"a": 1', "is no valid JSON or is cut off"),
        (
            '{"apiVersion": "v1", "kind": "X"}\n x',
            "document 2: is no valid JSON or is cut off: Expecting value (line 2, column 2)",
        ),
        ("[" * 100_000, "is nested more than 200 levels deep"),
        ("- " * 100_000, "is nested more than 200 levels deep"),
        ("a: " + "[" * 100_000, "is nested more than 200 levels deep"),
        ("apiVersion: v1\nkind: List\nitems: 5\n", "List.items: is 5, where a list belongs"),
    ],
)
def test_a_broken_manifest_is_refused_whole_with_the_place(text, problem):
    with pytest.raises(InvalidInput) as refusal:
        read(text)
    assert str(refusal.value).startswith("pods.yaml")
    assert problem in str(refusal.value)


def test_an_error_in_a_list_names_the_item():
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c"}]},
        }
    ] * 2
    with pytest.raises(
        InvalidInput, match=r"document 1 items\[1\]: pod default/p stands in .* document 1 items\[0\] already"
    ):
        read(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def test_owners_of_different_kinds_share_one_space_of_names():
    spec = "{template: {spec: {containers: [{name: c}]}}}"
    text = f"apiVersion: apps/v1\nkind: KIND\nmetadata: {{name: w}}\nspec: {spec}\n"
    one, other = text.replace("KIND", "Deployment"), text.replace("KIND", "StatefulSet")
    with pytest.raises(InvalidInput, match="StatefulSet default/w stands in"):
        read(f"{one}---\n{other}")
    assert names(read(f"{one}---\n{pod('w')}")) == ["w", "w"]


def test_a_pod_uid_may_stand_once_and_must_be_one():
    def with_uid(name, uid):
        return pod(name).replace("}", f", uid: {uid}}}", 1)

    uid = "0b5c9f6e-8f1d-4a57-9d6f-2f1e6c1d7a01"
    assert read(with_uid("a", uid)).workloads[0].uid == uid
    with pytest.raises(
        InvalidInput, match=rf"document 2: pod UID {uid.upper()} stands in pods.yaml document 1 already"
    ):
        read(f"{with_uid('a', uid)}---\n{with_uid('b', uid.upper())}")
    with pytest.raises(InvalidInput, match=r"document 1: metadata\.uid: 'u1' is no UID"):
        read(with_uid("a", "u1"))


def test_a_manifest_that_is_too_large_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidInput, match=r"pods\.yaml: has more than 33,554,432 bytes, which is the most"):
        read_manifest(b"[" * (50 * 2**20), where="pods.yaml")
    assert MAX_MANIFEST_BYTES == 33_554_432


def test_what_is_no_utf_8_is_refused():
    with pytest.raises(InvalidInput, match=r"is no UTF-8 text: byte 3 is 0xff"):
        read_manifest(b"a: \xff", where="pods.yaml")


def test_a_few_lines_of_aliases_cannot_mean_a_billion_nodes():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(InvalidInput, match="means more than 1,000,000 nodes through its aliases"):
        read("\n".join(lines))
    merges = [
        "a0: &a0 {x: 1}",
        *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 10)),
    ]
    with pytest.raises(InvalidInput, match="means more than 1,000,000 nodes through its aliases"):
        read("\n".join(merges))


def values(text):
    return [value for _, value in guarded.yaml_documents(text, "x")]


def test_anchors_and_merges_mean_what_they_say():
    text = (
        "base: &b {cpu: 1, memory: 2}\nlike: *b\nmore: {<<: *b, cpu: 3}\n"
        "both: {<<: [{z: 1}, *b, {cpu: 9}], y: &t text}\nlast: *t\n"
    )
    assert values(text) == [
        {
            "base": {"cpu": 1, "memory": 2},
            "like": {"cpu": 1, "memory": 2},
            "more": {"cpu": 3, "memory": 2},
            "both": {"y": "text", "z": 1, "cpu": 1, "memory": 2},
            "last": "text",
        }
    ]
    with pytest.raises(InvalidInput, match="merges"):
        values("a: {<<: text}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ('"5"', "5"),
        ("5", 5),
        ("0.5", 0.5),
        ("1e3", "1e3"),
        ("500m", "500m"),
        ("true", True),
        ("~", None),
        ("", None),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("=", "="),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text, value):
    read_value = values(f"a: {text}")[0]["a"]
    assert read_value == value
    assert type(read_value) is type(value)


def test_keys_are_text_as_written():
    assert values("1: a\ntrue: b\n2024-01-01: c\n") == [{"1": "a", "true": "b", "2024-01-01": "c"}]
