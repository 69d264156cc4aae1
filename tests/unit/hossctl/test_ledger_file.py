"""Files that are no dump are refused with the line."""

import json

import pytest

from hoss.errors import InvalidInput
from hoss.v1 import resolver_pb2 as pb
from hossctl.ledger_file import parts_of

HEAD = {"kind": "Ledger", "version": 1, "epoch": "x", "shards": 1, "schema": ["cpu"]}
NODE = {"kind": "Node", "index": 0, "spec": {"name": "alpha"}}
KIND = {
    "kind": "PodKind",
    "number": 0,
    "requests": {"cpu": 1},
    "priority": 0,
    "cards": 0,
    "cardMilli": 0,
    "group": None,
}
HELD = {
    "kind": "Reservation",
    "uid": "0" * 32,
    "node": "alpha",
    "podKind": 0,
    "cards": [],
    "assumed": False,
    "attempt": 0,
    "workerEpoch": 1,
}


def read(*lines: object) -> list[pb.LedgerPart]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return list(parts_of(texts, pb.LedgerHead(), where="dump.jsonl"))


def test_a_good_file_is_read_head_first() -> None:
    head, rest = read(HEAD, NODE, KIND, HELD)
    assert list(head.head.schema) == ["cpu"]
    assert (len(rest.nodes), len(rest.kinds), len(rest.pods.uids)) == (1, 1, 16)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["{"], "line 1"),
        ([{"kind": "Pod"}], "line 1: does not begin with"),
        ([{**HEAD, "version": 2}], "line 1: does not begin with"),
        ([HEAD, {"kind": "Pod"}], "line 2: kind: 'Pod' is none of"),
        ([HEAD, {"kind": "Node", "index": 0, "spec": {"nam": "alpha"}}], "line 2: .*nam"),
        ([HEAD, NODE, KIND, {**HELD, "node": "beta"}], "line 4: node: there is no node 'beta' above"),
        ([HEAD, NODE, KIND, {**HELD, "uid": "7"}], "line 4: uid: '7' is no UID"),
        ([HEAD, NODE, {"kind": "PodKind"}], "line 3: has no 'group'"),
    ],
)
def test_a_bad_line_is_named(lines: list[object], says: str) -> None:
    with pytest.raises(InvalidInput, match=f"dump.jsonl {says}"):
        read(*lines)
