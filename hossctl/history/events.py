"""The format of histories: which events there are, which fields they have, and how files of them are read.

A history is a list of events in the order in which they happened. In a file each is one line, a JSON object,
so the n-th event stands on line n. docs/reliability.md describes every event. Version 1; other versions are
refused. This module uses the standard library alone: the checker reads histories with it."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import IO, Any

VERSION = 1

Event = dict[str, Any]

# What a history may hold completely (`sees` of its first event).
CLIENTS = "clients"  # every operation of clients, and every answer
RESERVATIONS = "reservations"  # every change of the ledger names the pods
ACCOUNTS = "accounts"  # every change of the ledger has the accounts of the nodes that it changed
SIGHTS = (CLIENTS, RESERVATIONS, ACCOUNTS)

# Phases of pods, as watchers and tables have them.
BOUND, FAILED, DELETED, UNSCHEDULABLE, SCHEDULING = (
    "Bound",
    "Failed",
    "Deleted",
    "Unschedulable",
    "Scheduling",
)
STATES = ("Queued", SCHEDULING, BOUND, UNSCHEDULABLE, "Backoff", FAILED, DELETED)


class _Count(int):
    """Of shapes: a whole number from 0 on."""


# A shape is a type; [shape], a list; {"*": shape}, an object with any keys; {"#": shape}, one whose keys are
# whole numbers; or an object with these keys, of which those with a question mark may be missing. A tuple is
# a choice of words.
_AMOUNTS = {"*": _Count}
_SAID = {"*": int}  # by the ledger or a cache, which may be wrong: below 0 is a broken promise
_PORTS = [{"port": _Count, "protocol?": str, "ip?": str}]
_CARDS = {"count": _Count, "milli": _Count}
_POD_SETS = [
    {
        "uids?": [str],
        "count?": _Count,
        "name?": str,
        "requests": _AMOUNTS,
        "priority?": int,
        "gang?": str,
        "minimum?": _Count,
        "ports?": _PORTS,
        "cards?": _CARDS,
        "selector?": {"*": str},
        "node?": str,
        "tolerations?": [{"key?": str, "operator?": str, "value?": str, "effect?": str}],
        "gates?": [str],
        "rules?": [str],
    }
]
_RESERVED = {
    "uid": str,
    "node": str,
    "state?": ("prepared", "assumed", "confirmed", "terminating"),
    "requests?": _AMOUNTS,
    "ports?": _PORTS,
    "cards?": {"#": _Count},
    "shard?": _Count,
    "seq?": _Count,
    "epoch?": _Count,
    "target_of?": str,
}
_ROWS = [{"uid": str, "state": STATES, "node?": str, "reason?": str, "gates?": [str]}]
_CHANGE = {"shard?": _Count, "seq?": _Count, "previous?": _Count}

SHAPES: dict[str, dict[str, Any]] = {
    "begin": {"version": int, "source": str, "sees": [SIGHTS], "blind?": {"*": str}, "unix?": float},
    "gap": {"of": str, "text?": str},
    "fault": {"kind": str, "target?": str, "text?": str},
    "quiet": {"text?": str},
    # Clients.
    "submit": {"request": str, "pods": _POD_SETS},
    "delete": {"request": str, "uids": [str]},
    "ungate": {"request": str, "uids": [str], "gates?": [str]},
    "resize": {"request": str, "uids": [str], "requests": _AMOUNTS},
    "retry": {"request": str, "uids": [str]},
    "acknowledged": {"request": str, "uids?": [[str]]},
    "refused": {"request": str, "text?": str},
    "unknown": {"request": str, "text?": str},
    "accepted": {"pods": _POD_SETS},
    "foreign": {"uids": [str], "gone?": bool},
    "moving": {},
    # Watchers.
    "watch": {"revision?": _Count},
    "told": {"pods": _ROWS, "revision?": _Count, "listing?": bool},
    "unwatch": {"text?": str},
    # The ledger.
    "node": {
        "name": str,
        "allocatable": _AMOUNTS,
        "cards?": _Count,
        "labels?": {"*": str},
        "taints?": [{"key": str, "value?": str, "effect": str}],
        "closed?": bool,
        **_CHANGE,
    },
    "node-removed": {"name": str, **_CHANGE},
    "ledger": {
        "shard": _Count,
        "seq": _Count,
        "previous?": _Count,
        "ledger?": str,
        "epoch?": _Count,
        "worker?": str,
        "term?": _Count,
        "reserved?": [_RESERVED],
        "committed?": [str],
        "confirmed?": [str],
        "terminating?": [str],
        "released?": [str],
        "moved?": [str],
        "sources?": [{"uid": str, "node": str, "seq": _Count}],
        "resized?": [{"uid": str, "requests": _AMOUNTS}],
        "shared?": [{"uid": str, "requests": _AMOUNTS}],
        "accounts?": [
            {"node": str, "requested": _SAID, "allocatable?": _SAID, "excused?": bool},
        ],
        "snapshot?": bool,
        "lost?": bool,
        "repair?": bool,
        "unchecked?": bool,
        "why?": str,
    },
    "granted": {"worker": str, "epoch": _Count, "shard?": _Count, "exact?": bool},
    "fenced": {"worker": str, "epoch": _Count, "shard?": _Count},
    "term": {"term": _Count, "shard?": _Count},
    # Observations. `final`: of the end, after which nothing happens.
    "reservations": {"rows": [_RESERVED], "seqs": {"#": _Count}, "final?": bool},
    "table": {"pods": _ROWS, "final?": bool},
    "journal": {"uids": [str], "final?": bool},
    "workers": {"ready": [str], "final?": bool},
    "cache": {
        "shard": _Count,
        "seq": _Count,
        "digest?": str,
        "accounts?": [{"node": str, "requested": _SAID}],
        "idle?": bool,
        "follows?": bool,
        "final?": bool,
    },
    "digest": {"shard": _Count, "seq": _Count, "digest": str, "final?": bool},
}
_COMMON = {"at": float, "by": str, "event": str}


class BadHistory(ValueError):  # noqa: N818 - the name says what it is
    """A history that cannot be judged: what is wrong with which line, and what to do."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(f"line {line}: {text}")
        self.text = text
        self.line = line


class History:
    """A history that a program writes while things happen.

    `clock` gives the seconds of `at`. `keep` gets each event; without it they stay in `events`, which
    `hossctl.history.checker.check` takes. Nothing is validated here, so that `append` is cheap."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        source: str,
        sees: Iterable[str] = SIGHTS,
        blind: Mapping[str, str] | None = None,
        keep: Callable[[Event], object] | None = None,
        **fields: Any,
    ) -> None:
        """`blind`: what the history cannot hold, and why."""
        self.events: list[Event] = []
        self.lines = 0
        self._clock = clock
        self._keep = self.events.append if keep is None else keep
        known = {"version": VERSION, "source": source, "sees": list(sees), "blind": dict(blind or {})}
        self.append("begin", by=source, **known, **fields)

    def append(self, event: str, *, by: str, **fields: Any) -> int:
        """Add an event of this moment. Returns its line number. The caller leaves the values unchanged."""
        self._keep({"at": round(self._clock(), 6), "by": by, "event": event, **fields})
        self.lines += 1
        return self.lines


def written(event: Event) -> str:
    """An event as a line."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n"


def read(file: IO[bytes]) -> Iterator[Event]:
    """The events of a file, in order. Raises BadHistory for a line that is not a JSON object."""
    for number, line in enumerate(file, 1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as exc:
            if line.startswith(b"{") and not line.endswith(b"\n"):
                problem = "is cut off, as by a recorder that was killed; delete this line, and check again"
                raise BadHistory(problem, number) from exc
            problem = "is not JSON; a history has one JSON object on every line"
            raise BadHistory(problem, number) from exc
        if not isinstance(event, dict):
            raise BadHistory("is not a JSON object with at, by and event", number)
        yield event


def verified(events: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """The events with their line numbers. Raises BadHistory for an unknown event, a missing, unknown or
    ill-typed field, a number below 0 that counts something, a UID that one record has twice, and a time that
    goes back."""
    last = -math.inf
    number = 0
    for number, event in enumerate(events, 1):
        problem = _problem_of(event, last)
        if not problem and not event["by"]:
            problem = "by is empty; it names who did or saw what the line tells"
        if number == 1 and not problem and event["event"] != "begin":
            problem = 'has to be {"event": "begin", ...}: this is not the beginning of a history'
        if number > 1 and not problem and event["event"] == "begin":
            problem = "begins another history; put each history into a file of its own"
        if problem:
            raise BadHistory(problem, number)
        last = event["at"]
        yield number, event
    if not number:
        raise BadHistory("there is none: the history is empty", 1)


def _problem_of(event: Event, last: float) -> str:
    has_shape = _has_shape(event)
    for name, shape in () if has_shape else _COMMON.items():
        if problem := _mismatch(event.get(name), shape, name):
            return problem
    at, name = event["at"], event["event"]
    if not math.isfinite(at):
        return f"at is {at}, which is no time; write seconds"
    if at < last:
        return f"time goes back from {last:g} s to {at:g} s; put the lines into the order of their times"
    if name not in SHAPES:
        return f"event {name!r:.60} is unknown; docs/reliability.md lists the events of version {VERSION}"
    if name == "begin" and event.get("version") != VERSION:
        return f"version {event.get('version')!r:.60} is not {VERSION}; check it with the hoss that wrote it"
    problem = "" if has_shape else _mismatch(_own_fields(event), SHAPES[name], name)
    return problem or _doubled(event)


def _own_fields(event: Event) -> Event:
    return {key: value for key, value in event.items() if key not in _COMMON}


def _has_shape(event: Event) -> bool:
    """Nearly every event has, and only for the others `_mismatch` finds out why not, which takes four times
    as long."""
    name = event.get("event")
    test = _TESTS.get(name) if isinstance(name, str) else None
    return test is not None and test(event)


# Lists of a change of the ledger, in each of which a pod is once.
_ONCE = (
    "reserved",
    "committed",
    "confirmed",
    "terminating",
    "released",
    "moved",
    "sources",
    "resized",
    "shared",
)


def _doubled(event: Event) -> str:
    """Which UID the event has twice where one pod can be once; empty: none. Only a pod's own record is meant:
    a list of reservations may show that a pod has two."""
    found: dict[str, list[str]] = {}
    if event["event"] == "submit":
        found["pods"] = [uid for pods in event["pods"] for uid in pods.get("uids", ())]
    elif event["event"] == "ledger":
        rows = ((name, event.get(name, ())) for name in _ONCE)
        found = {
            name: [row if isinstance(row, str) else row["uid"] for row in of_name] for name, of_name in rows
        }
    for name, uids in found.items():
        if len(set(uids)) == len(uids):
            continue
        if twice := next((uid for uid, count in Counter(uids).items() if count > 1), ""):
            return f"{event['event']}.{name} has the UID {twice!r:.60} twice; a pod is there once"
    return ""


def _mismatch(value: Any, shape: Any, path: str) -> str:
    """What is wrong with a value; empty if it has the shape."""
    return next(_mismatches(value, shape, path), "")


def _mismatches(value: Any, shape: Any, path: str) -> Iterator[str]:
    kind = shape if isinstance(shape, type) else list if isinstance(shape, list) else dict
    if isinstance(shape, tuple):
        if value not in shape:
            yield f"{path} is {value!r:.60}, which is none of {', '.join(shape)}"
    elif not _is_of(value, kind):
        yield f"{path} is {value!r:.60} where {_NAMES[kind]} is expected"
    elif isinstance(shape, list):
        for number, item in enumerate(value):
            yield from _mismatches(item, shape[0], f"{path}[{number}]")
    elif isinstance(shape, dict):
        yield from _mismatches_of(value, shape, path)


def _is_of(value: Any, kind: type) -> bool:
    if isinstance(value, bool):  # Python's are numbers, too
        return kind is bool
    if kind is _Count:
        return isinstance(value, int) and value >= 0
    return isinstance(value, (int, float) if kind is float else kind)


def _mismatches_of(value: Event, shape: dict[str, Any], path: str) -> Iterator[str]:
    for key, item in value.items():
        expected = shape.get(key, shape.get(f"{key}?", shape.get("*")))
        if "#" in shape:
            expected = shape["#"]
            if not key.isdecimal():
                yield f"{path} has the key {key!r:.60} where a whole number is expected"
        if expected is None:
            yield f"{path} has no field {key!r:.60}; its fields are {', '.join(k.rstrip('?') for k in shape)}"
        else:
            yield from _mismatches(item, expected, f"{path}.{key}")
    for key in shape:
        if key not in ("*", "#") and not key.endswith("?") and key not in value:
            yield f"{path} lacks the field {key!r}"


_NAMES = {
    str: "a text",
    int: "a whole number",
    _Count: "a whole number from 0 on",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


_Test = Callable[[Any], bool]


def _test_of(shape: Any) -> _Test:
    """Whether a value has the shape."""
    if isinstance(shape, type):
        return partial(_is_of, kind=shape)
    if isinstance(shape, tuple):
        return shape.__contains__
    if isinstance(shape, list):
        of_item = _test_of(shape[0])
        return lambda value: isinstance(value, list) and all(map(of_item, value))
    if "#" in shape:
        of_value = _test_of(shape["#"])
        return lambda value: (
            isinstance(value, dict) and all(map(str.isdecimal, value)) and all(map(of_value, value.values()))
        )
    fields = {name.rstrip("?"): _test_of(of_name) for name, of_name in shape.items() if name != "*"}
    required = [name for name in shape if name != "*" and not name.endswith("?")]
    of_others = _test_of(shape["*"]) if "*" in shape else _never

    def has_fields(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(fields.get(key, of_others)(item) for key, item in value.items())
            and all(key in value for key in required)
        )

    return has_fields


def _never(_value: Any) -> bool:
    return False


_TESTS = {name: _test_of({**_COMMON, **shape}) for name, shape in SHAPES.items()}
