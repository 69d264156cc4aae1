"""Files of histories: what is refused, with the line and what to do."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from histories import play

from hossctl.history.checker import check
from hossctl.history.events import SHAPES, BadHistory, Event, History, read, written

BEGIN = {"at": 0, "by": "x", "event": "begin", "version": 1, "source": "test", "sees": []}
ROOT = Path(__file__).parents[4]


def line(**fields: Any) -> bytes:
    return written({"at": 1, "by": "x", **fields}).encode()


def judge(*lines: bytes) -> None:
    check(read(io.BytesIO(written(BEGIN).encode() + b"".join(lines))))


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (b"{nonsense\n", "line 2: is not JSON; a history has one JSON object on every line"),
        (b"\n", "line 2: is not JSON; a history has one JSON object on every line"),
        (b"[" * 100_000 + b"\n", "line 2: is not JSON; a history has one JSON object on every line"),
        (b"\x1f\x8b of gzip", "line 2: is not JSON; a history has one JSON object on every line"),
        (line(by="", event="quiet"), "line 2: by is empty; it names who did or saw what the line tells"),
        (b"\xff\n", "line 2: is not JSON; a history has one JSON object on every line"),
        (
            b'{"at": 1, "by": "x", "eve',
            "line 2: is cut off, as by a recorder that was killed; delete this line",
        ),
        (b"[1]\n", "line 2: is not a JSON object with at, by and event"),
        (b'{"by": "x", "event": "quiet"}\n', "line 2: at is None where a number is expected"),
        (b'{"at": true, "by": "x", "event": "quiet"}\n', "line 2: at is True where a number is expected"),
        (b'{"at": NaN, "by": "x", "event": "quiet"}\n', "line 2: at is nan, which is no time; write seconds"),
        (
            line(event="explosion"),
            "line 2: event 'explosion' is unknown; docs/reliability.md lists the events",
        ),
        (line(at=-1, event="quiet"), "line 2: time goes back from 0 s to -1 s; put the lines into the order"),
        (line(event="delete", request="r"), "line 2: delete lacks the field 'uids'"),
        (line(event="delete", request="r", uids=[1]), "line 2: delete.uids[0] is 1 where a text is expected"),
        (line(event="delete", request="r", uids="p"), "line 2: delete.uids is 'p' where a list is expected"),
        (line(event="quiet", colour="red"), "line 2: quiet has no field 'colour'; its fields are text"),
        (
            line(event="reservations", rows=[], seqs={"one": 1}),
            "line 2: reservations.seqs has the key 'one' where a whole number is expected",
        ),
        (
            line(event="told", pods=[{"uid": "p", "state": "Gone"}]),
            "line 2: told.pods[0].state is 'Gone', which is none of Queued, Scheduling,",
        ),
        (
            line(event="submit", request="r", pods=[{"requests": {"cpu": "1"}}]),
            "line 2: submit.pods[0].requests.cpu is '1' where a whole number from 0 on is expected",
        ),
        (
            line(event="submit", request="r", pods=[{"requests": {"cpu": -1}}]),
            "line 2: submit.pods[0].requests.cpu is -1 where a whole number from 0 on is expected",
        ),
        (line(event="ledger", shard=-1, seq=1), "line 2: ledger.shard is -1 where a whole number from 0 on"),
        (line(event="ledger", shard=0, seq=-1), "line 2: ledger.seq is -1 where a whole number from 0 on"),
        (
            line(event="reservations", rows=[], seqs={"-1": 1}),
            "line 2: reservations.seqs has the key '-1' where",
        ),
        (
            line(event="node", name="n", allocatable={"cpu": -5}),
            "line 2: node.allocatable.cpu is -5 where a whole number from 0 on is expected",
        ),
        (
            line(
                event="submit",
                request="r",
                pods=[{"requests": {}, "uids": ["p"]}, {"requests": {}, "uids": ["p"]}],
            ),
            "line 2: submit.pods has the UID 'p' twice; a pod is there once",
        ),
        (
            line(event="ledger", shard=0, seq=1, reserved=[{"uid": "p", "node": n} for n in ("a", "b")]),
            "line 2: ledger.reserved has the UID 'p' twice; a pod is there once",
        ),
        (
            line(event="ledger", shard=0, seq=1, released=["p", "p"]),
            "line 2: ledger.released has the UID 'p' twice",
        ),
        (
            line(**{**BEGIN, "at": 1}),
            "line 2: begins another history; put each history into a file of its own",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_line_that_is_no_event_is_refused_with_its_number(second: bytes, text: str) -> None:
    with pytest.raises(BadHistory) as refused:
        judge(second)
    assert str(refused.value).startswith(text)


def test_what_the_ledger_says_of_itself_may_be_below_0_and_is_judged() -> None:
    accounts = [{"node": "n", "requested": {"cpu": -1}}]
    judge(line(event="ledger", shard=0, seq=1, accounts=accounts))


def test_a_history_begins_with_its_beginning() -> None:
    with pytest.raises(BadHistory, match=r"line 1: has to be .*not the beginning of a history"):
        check(read(io.BytesIO(line(event="quiet"))))
    with pytest.raises(BadHistory, match="line 1: there is none: the history is empty"):
        check([])
    with pytest.raises(BadHistory, match="line 1: version 2 is not 1; check it with the hoss that wrote it"):
        check([{**BEGIN, "version": 2}])


def test_what_is_written_is_read_again() -> None:
    events = play(1)
    file = io.BytesIO("".join(map(written, events)).encode())
    assert list(read(file)) == events


def test_a_history_that_is_kept_elsewhere_stays_out_of_memory() -> None:
    kept: list[Event] = []
    history = History(lambda: 2.5, source="test", keep=kept.append)
    assert history.append("quiet", by="test") == 2
    assert (history.events, [event["at"] for event in kept]) == ([], [2.5, 2.5])


def test_the_document_names_every_event_and_field() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    for event, shape in SHAPES.items():
        assert f"`{event}`" in page
        for name in shape:
            assert f"`{name.rstrip('?')}`" in page, f"{event}: {name}"


def test_the_checker_needs_the_standard_library_alone() -> None:
    """import-linter keeps HOSS's own packages out; this, everything else."""
    program = (
        "import sys; before = set(sys.modules); import hossctl.history.checker\n"
        "import json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules.keys() - before})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT)
    assert [name for name in json.loads(done.stdout) if name not in sys.stdlib_module_names] == ["hossctl"]
