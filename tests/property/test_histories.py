"""The checker of histories accepts whatever keeps the promises, and finds any single thing that breaks
one."""

from collections.abc import Callable
from random import Random
from typing import Any

from histories import play
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from hossctl.history.checker import check
from hossctl.history.checker_judgement import Promise
from hossctl.history.events import SHAPES, SIGHTS, BadHistory, Event

_Events = list[Event]
_Mutation = Callable[[_Events, Random], bool]  # changes the events; False: there was nothing to break
SEEDS = st.integers(0, 2**32 - 1)


def _of(events: _Events, kind: str) -> _Events:
    return [event for event in events if event["event"] == kind]


def _final(events: _Events, kind: str) -> Event:
    return next(event for event in events if event["event"] == kind and event.get("final"))


def _rows(events: _Events, state: str) -> list[Event]:
    return [row for row in _final(events, "table")["pods"] if row["state"] == state]


def shrink_a_node_before_it_gets_a_pod(events: _Events, rng: Random) -> bool:
    """The commit was refused by the real ledger; here it stands."""
    commits = [event for event in _of(events, "ledger") if event.get("reserved")]
    if not commits:
        return False
    commit = rng.choice(commits)
    node = commit["reserved"][0]["node"]
    at = events.index(commit)
    before = next(e for e in reversed(events[:at]) if e["event"] == "node" and e["name"] == node)
    small = {**before, "at": commit["at"], "allocatable": {"cpu": 50, "pods": 10}}
    del small["shard"], small["seq"]
    events.insert(at, small)
    return True


def reserve_a_bound_pod_elsewhere(events: _Events, rng: Random) -> bool:
    bound = _rows(events, "Bound")
    if not bound:
        return False
    pod = rng.choice(bound)
    extra = {"uid": pod["uid"], "node": "nowhere", "requests": {"cpu": 100}}
    at = events.index(_of(events, "quiet")[0])
    change = {"at": events[at]["at"], "by": "ledger", "event": "ledger", "shard": 7, "seq": 1}
    events.insert(at, {**change, "reserved": [extra]})
    return True


def drop_a_confirmed_pods_reservation(events: _Events, rng: Random) -> bool:
    confirmations = [event for event in _of(events, "ledger") if event.get("confirmed")]
    if not confirmations:
        return False
    uid = rng.choice(confirmations)["confirmed"][0]
    for event in _of(events, "ledger"):
        event["reserved"] = [row for row in event.get("reserved", ()) if row["uid"] != uid]
    return True


def lose_a_pod(events: _Events, rng: Random) -> bool:
    acknowledged = {event["request"] for event in _of(events, "acknowledged")}
    table = _final(events, "table")["pods"]
    lost = [row for row in table if row["uid"].rpartition("-")[0] in acknowledged]
    if not lost:
        return False
    table.remove(rng.choice(lost))
    return True


def bring_a_refused_pod_into_being(events: _Events, rng: Random) -> bool:
    refused = {event["request"] for event in _of(events, "refused")}
    uids = [uid for e in _of(events, "submit") if e["request"] in refused for uid in e["pods"][0]["uids"]]
    if not uids:
        return False
    at = events.index(_of(events, "quiet")[0])
    row = {"uid": rng.choice(uids), "state": "Queued"}
    events.insert(at, {"at": events[at]["at"], "by": "watcher", "event": "told", "pods": [row]})
    return True


def place_with_a_fenced_epoch(events: _Events, rng: Random) -> bool:
    commits = [
        e for e in _of(events, "ledger") if e.get("epoch") and (e.get("reserved") or e.get("committed"))
    ]
    if not commits:
        return False
    commit = rng.choice(commits)
    fence = {"at": commit["at"], "by": "ledger", "event": "fenced"}
    events.insert(events.index(commit), {**fence, "worker": commit["worker"], "epoch": commit["epoch"]})
    return True


def tell_half_a_gang(events: _Events, rng: Random) -> bool:
    gangs = [event for event in _of(events, "submit") if event["pods"][0].get("gang")]
    acknowledged = {event["request"] for event in _of(events, "acknowledged")}
    gangs = [event for event in gangs if event["request"] in acknowledged]
    if not gangs:
        return False
    gang = rng.choice(gangs)
    at = events.index(gang) + 2
    row = {"uid": gang["pods"][0]["uids"][0], "state": "Bound", "node": "n0"}
    events.insert(at, {"at": events[at]["at"], "by": "another", "event": "told", "pods": [row]})
    return True


def keep_a_watcher_in_the_dark(events: _Events, rng: Random) -> bool:
    row = {row["uid"]: row for row in _rows(events, "Bound")}
    if not row:
        return False
    uid = rng.choice(sorted(row))
    for event in _of(events, "told"):
        event["pods"] = [each for each in event["pods"] if each["uid"] != uid]
    return True


def give_a_reservation_to_nobody(events: _Events, rng: Random) -> bool:
    node = rng.choice(_of(events, "node"))
    at = events.index(_of(events, "quiet")[0])
    change = {"at": events[at]["at"], "by": "ledger", "event": "ledger", "shard": 7, "seq": 1}
    events.insert(at, {**change, "reserved": [{"uid": "nobody", "node": node["name"], "requests": {}}]})
    return True


def forget_a_pod_in_the_journal(events: _Events, rng: Random) -> bool:
    journal = _final(events, "journal")
    if journal["uids"]:
        journal["uids"].remove(rng.choice(journal["uids"]))
    else:
        journal["uids"].append("ghost")
    return True


def skip_a_change(events: _Events, rng: Random) -> bool:
    changes = [event for event in events if event.get("shard") == 0 and event["event"] in ("ledger", "node")]
    if len(changes) < 3:
        return False
    events.remove(changes[rng.randrange(1, len(changes) - 1)])
    return True


def make_room_beside_one_that_waits(events: _Events, rng: Random) -> bool:
    if not _rows(events, "Unschedulable"):
        return False
    at = events.index(_of(events, "quiet")[0])
    amounts = {"cpu": 10_000, "pods": 100}
    events.insert(
        at, {"at": events[at]["at"], "by": "x", "event": "node", "name": "new", "allocatable": amounts}
    )
    return True


def let_a_cache_differ(events: _Events, rng: Random) -> bool:
    rng.choice(_of(events, "cache"))["digest"] = "differs"
    return True


MUTATIONS: dict[_Mutation, set[Promise]] = {
    shrink_a_node_before_it_gets_a_pod: {Promise.NO_OVERCOMMIT},
    reserve_a_bound_pod_elsewhere: {Promise.ONE_NODE},
    drop_a_confirmed_pods_reservation: {Promise.STATES},
    lose_a_pod: {Promise.NOTHING_LOST},
    bring_a_refused_pod_into_being: {Promise.REFUSED},
    place_with_a_fenced_epoch: {Promise.FENCING},
    tell_half_a_gang: {Promise.GANGS},
    keep_a_watcher_in_the_dark: {Promise.WATCHERS},
    give_a_reservation_to_nobody: {Promise.OWNERS},
    forget_a_pod_in_the_journal: {Promise.AGREEMENT},
    skip_a_change: {Promise.AGREEMENT},
    let_a_cache_differ: {Promise.AGREEMENT},
    make_room_beside_one_that_waits: {Promise.LIVENESS},
}


@examples(500)
@given(SEEDS)
def test_a_history_that_keeps_every_promise_is_accepted(seed: int) -> None:
    judgement = check(play(seed))
    assert judgement.violations == []
    assert judgement.exit_code == 0


@examples(1000)
@given(SEEDS)
def test_any_single_breach_is_found_and_named(seed: int) -> None:
    rng, events = Random(seed), play(seed)
    for mutation in rng.sample(list(MUTATIONS), len(MUTATIONS)):
        if mutation(events, rng):
            found = {violation.promise for violation in check(events).violations}
            assert MUTATIONS[mutation] <= found, mutation.__name__
            return


def _values(shape: Any) -> st.SearchStrategy[Any]:
    """Values of a shape, with few names, so that events are about the same things."""
    if isinstance(shape, tuple):
        return st.sampled_from(shape)
    if isinstance(shape, list):
        return st.lists(_values(shape[0]), max_size=3)
    if isinstance(shape, dict) and (key := next(iter(shape), "")) in ("*", "#"):
        keys = st.sampled_from(["0", "1"] if key == "#" else ["cpu", "pods", "a"])
        return st.dictionaries(keys, _values(shape[key]), max_size=2)
    if isinstance(shape, dict):
        optional = {key.rstrip("?"): _values(value) for key, value in shape.items() if key.endswith("?")}
        required = {key: _values(value) for key, value in shape.items() if not key.endswith("?")}
        return st.fixed_dictionaries(required, optional=optional)
    simple = {str: st.sampled_from(["", "a", "b", "p"]), bool: st.booleans(), float: st.floats(0, 9)}
    return simple.get(shape, st.integers(-1 if shape is int else 0, 4))


_EVENTS = st.lists(
    st.sampled_from(sorted(SHAPES.keys() - {"begin"})).flatmap(
        lambda kind: _values(SHAPES[kind]).map(
            lambda fields: {"at": 1.0, "by": fields.get("worker") or "a", "event": kind, **fields}
        )
    ),
    max_size=12,
)


@examples(400)
@given(_EVENTS)
def test_whatever_is_well_formed_is_judged(events: _Events) -> None:
    """However little sense it makes: what a history says is never a fault of the checker's."""
    first = {"at": 0, "by": "a", "event": "begin", "version": 1, "source": "a", "sees": list(SIGHTS)}
    try:
        judgement = check([first, *events])
    except BadHistory as exc:
        assert "twice; a pod is there once" in str(exc)  # noqa: PT017 - only this is refused
        return
    assert judgement.events == len(events) + 1
    for violation in judgement.violations:
        assert all(0 < line <= judgement.events for line in violation.lines)


def test_every_breach_is_reached_and_every_promise_has_one() -> None:
    reached = set()
    for seed in range(20):
        for mutation, broken in MUTATIONS.items():
            events = play(seed)
            if mutation(events, Random(seed)):
                reached.add(mutation)
                found = {violation.promise for violation in check(events).violations}
                assert broken <= found, (seed, mutation.__name__)
    assert reached == set(MUTATIONS)
    assert set.union(*MUTATIONS.values()) == set(Promise)
