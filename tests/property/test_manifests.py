import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hoss.errors import InvalidInput
from hoss.manifests.documents import Manifest, read_manifest
from hoss.manifests.guarded import yaml_documents

SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

WHOLE = """\
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: "web"}}
spec:
  containers:
  - &c
    name: c
    resources:
      requests: {cpu: 500m, memory: 1Gi}
  - {<<: *c, name: d}
  tolerations:
  - key: "x"
    operator: Exists
---
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "b"},
 "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "c"}]}}}}
"""
JSON = json.dumps(next(iter(yaml_documents(WHOLE, "x")))[1])


def outcome(data):
    """Whether it is read, or the text of the refusal."""
    try:
        return isinstance(read_manifest(data, where="the file"), Manifest)
    except InvalidInput as refusal:
        return str(refusal)


def reads_or_refuses(data):
    came = outcome(data)
    assert came is True or came.startswith("the file")


@given(st.integers(0, len(WHOLE)), st.sampled_from([WHOLE, JSON]))
def test_a_manifest_cut_off_anywhere_is_read_or_refused_with_its_place(length, text):
    reads_or_refuses(text[:length].encode())


@pytest.mark.parametrize("text", [WHOLE, JSON])
@given(st.data())
def test_a_manifest_damaged_anywhere_is_read_or_refused_with_its_place(text, data):
    at = data.draw(st.integers(0, len(text) - 1))
    damage = data.draw(st.text(max_size=3) | st.sampled_from(list("{}[]:,-&*!|>\"'#%@`?<\n\t 0")))
    reads_or_refuses((text[:at] + damage + text[at + 1 :]).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    reads_or_refuses(data)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(values.filter(lambda v: v is not None), max_size=3), st.booleans())
def test_documents_written_by_pyyaml_are_read_as_pyyaml_reads_them(documents, flow):
    text = yaml.safe_dump_all(documents, default_flow_style=flow, explicit_start=True, allow_unicode=True)
    # Not `documents` themselves: PyYAML writes some spaces of Unicode as it then does not read them.
    assert [value for _, value in yaml_documents(text, "x")] == list(yaml.load_all(text, Loader=SafeLoader))
