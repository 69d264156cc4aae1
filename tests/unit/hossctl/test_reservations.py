"""`hoss get reservations`: whose they are, on whose proposal, since when assumed; and which of them."""

import json
import time

import numpy as np
import pytest

from hoss.errors import TransportError
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.uids import uid_text


def uid(name):
    return name.encode().ljust(16, b"\1")


def chunk(names, nodes, epochs, *, assumed_since_ms=(), first=False):
    """Reservations of pods by name; those with an `assumed_since_ms` other than 0 are assumed, with a lease
    of 30 s."""
    rows = len(names)
    since = np.array(assumed_since_ms or [0] * rows, np.int64)
    told = pb.ReservationChunk(
        shard=0,
        uids=b"".join(map(uid, names)),
        nodes=np.array(nodes, "<u4").tobytes(),
        seqs=np.arange(rows, dtype="<u8").tobytes(),
        epochs=np.array(epochs, "<u8").tobytes(),
        priorities=bytes(4 * rows),
        attempts=bytes(2 * rows),
        card_masks=np.full(rows, 0b101, "<u2").tobytes(),
        card_millis=np.full(rows, 500, "<u2").tobytes(),
        resources=2,
        requests=np.array([[500, 2**30]] * rows, "<i8").tobytes(),
        assumed=(since > 0).astype(np.uint8).tobytes(),
        assumed_since_ms=since.tobytes(),
        lease_ends_ms=np.where(since > 0, since + 30_000, 0).tobytes(),
        workers=[pb.WorkerEpoch(epoch=1, worker="w1"), pb.WorkerEpoch(epoch=2, worker="w2")],
    )
    if first:
        told.schema.extend(["cpu", "memory"])
        told.node_names.add(index=0, name="n0")
        told.node_names.add(index=1, name="n1")
    return told


@pytest.fixture
def held(hoss, a_pod):
    """Pods a to e on two nodes, by two workers and one that nobody remembers; b is assumed. c is told of
    twice."""
    now_ms = int(time.time() * 1000)
    hoss.resolver.chunks = [
        chunk(["c", "b", "a"], [1, 0, 0], [1, 2, 1], assumed_since_ms=[0, now_ms - 4000, 0], first=True),
        chunk(["d", "c", "e"], [1, 1, 0], [2, 1, 7]),
    ]
    hoss.dispatcher.pods = [a_pod(name) for name in "abcd"]
    for pod in hoss.dispatcher.pods[:2]:
        pod.template.spec.labels.add(key="app", value="web")
    return hoss


def listed(hoss, *arguments):
    result = hoss("get", "reservations", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["items"]


def names(documents):
    return "".join(chr(int(document["uid"][:2], 16)) for document in documents)


def test_each_is_listed_once_by_node_with_its_pod_and_worker(held):
    documents = listed(held)
    assert names(documents) == "abecd"
    assert [d["node"] for d in documents] == ["n0", "n0", "n0", "n1", "n1"]
    assert [d["worker"] for d in documents] == ["w1", "w2", "epoch 7", "w1", "w2"]
    assert [d["pod"] for d in documents] == ["default/a", "default/b", "", "default/c", "default/d"]
    assert documents[0]["requests"] == {"cpu": 500, "memory": 2**30}
    assert (documents[0]["cards"], documents[0]["cardMilli"]) == ([0, 2], 500)


def test_an_assumed_one_says_since_when_and_until_when(held):
    documents = {document["uid"]: document for document in listed(held)}
    assumed, standing = documents[uid_text(uid("b"))], documents[uid_text(uid("a"))]
    assert (assumed["state"], standing["state"]) == ("Assumed", "Confirmed")
    assert assumed["leaseEndsUnixMs"] - assumed["assumedSinceUnixMs"] == 30_000
    assert "assumedSinceUnixMs" not in standing
    lines = held("get", "reservations", "-o", "wide").stdout.splitlines()
    assert "Assumed for " in lines[2]
    assert "ends in 2" in lines[2]
    assert lines[0].split()[:6] == ["UID", "NODE", "STATE", "REQUESTS", "CARDS", "WORKER"]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--node", "n1"], "cd"),
        (["--worker", "w1"], "ac"),
        (["--worker", "epoch 7"], "e"),
        (["--state", "assumed"], "b"),
        (["--state", "confirmed", "--node", "n0"], "ae"),
        (["-l", "app=web"], "ab"),
        (["-l", "app=web", "--state", "confirmed"], "a"),
        (["--node", "nowhere"], ""),
    ],
)
def test_filters_leave_those_that_match_all_of_them(held, arguments, left):
    assert names(listed(held, *arguments)) == left


def test_names_are_uids_and_the_table_needs_no_dispatcher(held):
    held.dispatcher.fails_with = TransportError("nobody answers")
    told = held("get", "reservations", "-o", "name").stdout.splitlines()
    assert told[0] == f"reservation/{uid_text(uid('a'))}"
    assert len(held("get", "reservations").stdout.splitlines()) == 6
    result = held("get", "reservations", "-o", "wide")
    assert "warning: the names of the pods are not known: nobody answers" in result.stderr
    assert len(result.stdout.splitlines()) == 6
    assert held("get", "reservations", "-l", "app=web").exit_code == 3


def test_filters_of_reservations_are_refused_elsewhere_and_there_are_four_states(hoss):
    result = hoss("get", "pods", "--worker", "w1")
    assert (result.exit_code, "are about reservations, not pods" in result.stderr) == (2, True)
    assert "--state: is 'bound', where prepared" in hoss("get", "reservations", "--state", "bound").output
    assert hoss("get", "reservations").stderr == "no reservations found\n"


def test_one_that_is_only_prepared_is_told_as_such(hoss):
    now_ms = int(time.time() * 1000)
    since = [now_ms, now_ms, 0, now_ms]
    told = chunk(["a", "b", "c", "d"], [0] * 4, [1] * 4, assumed_since_ms=since, first=True)
    told.states = bytes(
        [
            pb.RESERVATION_PREPARED,
            pb.RESERVATION_ASSUMED,
            pb.RESERVATION_CONFIRMED,
            pb.RESERVATION_PRE_BINDING,
        ]
    )
    hoss.resolver.chunks = [told]
    assert [document["state"] for document in listed(hoss)] == [
        "Prepared",
        "Assumed",
        "Confirmed",
        "Pre-binding",
    ]
    assert names(listed(hoss, "--state", "prepared")) == "a"
    assert names(listed(hoss, "--state", "assumed")) == "b"
    assert names(listed(hoss, "--state", "pre-binding")) == "d"
