"""kube-scheduler's own answers (README.md in this folder), every case: nodes, reasons, scores, messages,
preemption.

Stricter than compare.py: which plugin speaks and the order of its reasons count too.
"""

import json
from pathlib import Path

import pytest

from hossctl.explain.offline import answer_case

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.jsonl")))
def test_every_case_is_answered_as_the_reference_does(file):
    cases = [json.loads(line) for line in (FOLDER / file).read_text(encoding="utf-8").splitlines()]
    differing = {}
    for case in cases:
        # Out and in again: an answer is what a program reads from the command's output.
        answer = json.loads(json.dumps(answer_case(case)))
        assert answer["id"] == case["id"]
        if different := differences(case["want"], answer["want"]):
            differing[case["id"]] = different
    assert not differing, f"{len(differing)} of {len(cases)} cases differ"


def differences(want, got):
    """(wanted, answered) by field. A plugin without a score and one with score 0 are the same."""
    found = {}
    for key in {*want, *got}:
        wanted, answered = want.get(key), got.get(key)
        if key == "scores":
            wanted, answered = without_zeros(wanted), without_zeros(answered)
        if wanted != answered and (key in want or key not in ABSENT_WHERE_IT_OVERFLOWS):
            found[key] = (wanted, answered)
    return found


ABSENT_WHERE_IT_OVERFLOWS = ("value", "milli")


def without_zeros(scores):
    return {
        node: {plugin: score for plugin, score in by_plugin.items() if score}
        for node, by_plugin in scores.items()
    }
