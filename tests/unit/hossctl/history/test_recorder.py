"""What the recorder makes of messages that a small platform seldom sends."""

from typing import Any, cast

import numpy as np
import pytest

from hoss.v1 import common_pb2, dispatcher_pb2, resolver_pb2
from hoss.wire.columns import FLAG_QUARANTINED, FLAG_SHRUNK, U32, account_dtype, encode
from hoss.wire.uids import uid_text
from hossctl.endpoints import Clients
from hossctl.history.checker import check
from hossctl.history.events import History
from hossctl.history.recorder import Recorder, _pod_set, _told
from hossctl.history.recorder_ledger import LedgerRecorder

SCHEMA = ["cpu", "pods"]


@pytest.fixture
def history() -> History:
    return History(lambda: 1.0, source="test", sees=["accounts"])


@pytest.fixture
def feed(history: History) -> Any:
    """`feed(seq, {index: (requested cpu, flags)})`: a change of shard 0 of 1, or a snapshot of it."""
    recorder = LedgerRecorder(None, history, lambda: None)

    def apply(seq: int, changed: dict[int, tuple[int, int]], **fields: Any) -> None:
        records = np.zeros(len(changed), account_dtype(2))
        for record, (requested, flags) in zip(records, changed.values(), strict=True):
            record["flags"] = flags
            record["amounts"] = [[1000, requested], [10, 1]]
        accounts = resolver_pb2.Accounts(
            resources=2, indexes=encode(list(changed), U32), records=records.tobytes()
        )
        fields = {"previous_seq": seq - 1, "schema": SCHEMA, "shards": 1, **fields}
        recorder._apply(resolver_pb2.FeedMessage(seq=seq, accounts=accounts, **fields))

    return apply


class Moving:
    """A dispatcher that tells of one run of moves."""

    def __init__(self, **run: Any) -> None:
        self.status = dispatcher_pb2.RebalanceStatus(**run)
        self.asked = 0

    async def rebalance(self, request: dispatcher_pb2.RebalanceRequest) -> dispatcher_pb2.RebalanceStatus:
        assert request.action == dispatcher_pb2.REBALANCE_STATUS
        self.asked += 1
        return self.status

    async def list_workers(self) -> list[dispatcher_pb2.WorkerInfo]:
        return []


MOVE = dispatcher_pb2.MoveStatus(pod="default/a", source="n1", target="n2")
BACK = dispatcher_pb2.MoveStatus(pod="default/a", source="n2", target="n1")
ENDED = {"state": "Done", "purpose": "spread", "moves": [MOVE], "moved": 1}


@pytest.mark.parametrize(
    ("before", "later", "noted"),
    [
        ({}, {}, False),
        (ENDED, ENDED, False),
        (ENDED, {}, False),  # a dispatcher that took over
        ({**ENDED, "state": "Paused"}, ENDED, False),
        (ENDED, {**ENDED, "state": "Running"}, True),
        ({**ENDED, "moved": 0, "waiting": 1}, ENDED, True),
        ({**ENDED, "moved": 0, "evicted": 1}, ENDED, True),
        ({}, ENDED, True),
        (ENDED, {**ENDED, "moves": [BACK]}, True),
        (ENDED, {**ENDED, "begun_by": "controller"}, True),
        (None, ENDED, True),  # it did not answer before
    ],
)
async def test_moves_are_noted_while_they_are_made_or_if_they_were_since_the_watch_began(
    history: History, before: dict[str, Any] | None, later: dict[str, Any], noted: bool
) -> None:
    dispatcher: Any = Moving(**(before or {}))
    recorder = Recorder(Clients(dispatcher, cast("Any", None)), history)
    if before is not None:
        await recorder._note_earlier_moves()
    dispatcher.status = dispatcher_pb2.RebalanceStatus(**later)
    for _ in range(2):
        await recorder._note_moves()
    assert [event["event"] for event in history.events].count("moving") == noted


@pytest.mark.parametrize(
    ("second", "asked"),
    [
        ([{"state": "Bound", "node": "n1"}], 0),
        ([{"state": "Queued"}, {"state": "Bound", "node": "n2"}], 0),
        ([{"state": "Deleted"}], 0),
        ([{"state": "Bound", "node": "n2"}], 1),
    ],
)
async def test_the_dispatcher_is_asked_for_moves_where_a_pod_is_told_on_another_node_and_not_all_the_time(
    history: History, second: list[dict[str, str]], asked: int
) -> None:
    """Each question is a line of its audit log."""
    dispatcher: Any = Moving()
    recorder = Recorder(Clients(dispatcher, cast("Any", None)), history)
    recorder._described.add("a")
    for row in ({"state": "Bound", "node": "n1"}, *second):
        recorder._note([{"uid": "a", **row}])
        for _ in range(3):
            await recorder._list_once()
    assert dispatcher.asked == asked


def entry(index: int, **fields: Any) -> resolver_pb2.NodeEntry:
    spec = common_pb2.NodeSpec(name=f"n{index}")
    spec.allocatable.add(resource="cpu", amount=1000)
    return resolver_pb2.NodeEntry(index=index, spec=spec, **fields)


def test_a_snapshot_after_another_is_a_gap_and_nodes_that_it_lacks_are_gone(
    history: History, feed: Any
) -> None:
    feed(5, {0: (100, 0), 1: (0, 0)}, snapshot=True, nodes=[entry(0), entry(1)])
    feed(6, {0: (300, 0)}, worker_epoch=4)
    feed(20, {1: (0, 0)}, snapshot=True, nodes=[entry(1)])
    assert [event["event"] for event in history.events] == [
        *("begin", "ledger", "node", "node", "ledger", "gap", "ledger", "node")
    ]
    assert history.events[4]["epoch"] == 4
    assert [row["node"] for row in history.events[6]["accounts"]] == ["n1"]
    assert check(history.events).violations == []


def test_a_quarantine_closes_a_node_and_its_end_opens_it(history: History, feed: Any) -> None:
    feed(1, {0: (0, 0)}, snapshot=True, nodes=[entry(0)])
    feed(2, {0: (0, FLAG_QUARANTINED)})
    feed(3, {0: (0, 0)})
    assert [event["closed"] for event in history.events if event["event"] == "node"] == [False, True, False]


def test_what_the_ledger_itself_calls_too_much_is_not_judged(history: History, feed: Any) -> None:
    feed(1, {0: (0, 0)}, snapshot=True, nodes=[entry(0)])
    feed(2, {0: (1200, FLAG_SHRUNK)})
    judgement = check(history.events)
    assert judgement.violations == []
    feed(3, {0: (1300, 0)})
    (found,) = check(history.events).violations
    assert "went from 1200 to 1300 of cpu, and 1000 are allocatable" in found.text


def test_a_removed_node_is_said_to_be_removed(history: History, feed: Any) -> None:
    feed(1, {0: (0, 0)}, snapshot=True, nodes=[entry(0)])
    feed(2, {}, nodes=[entry(0, removed=True)])
    assert (history.events[-1]["event"], history.events[-1]["name"]) == ("node-removed", "n0")
    assert check(history.events).violations == []


def test_pods_are_told_with_the_names_that_their_stream_has_given_or_with_those_of_the_ledger() -> None:
    batch = dispatcher_pb2.WatchBatch(
        uids=bytes(32),
        phases=bytes([dispatcher_pb2.BOUND] * 2),
        nodes=encode([3, 4], U32),
        node_names=[common_pb2.NodeName(index=3, name="n3")],
    )
    rows = _told(batch, {}, lambda index: f"ledger's n{index}")
    assert [row["node"] for row in rows] == ["n3", "ledger's n4"]
    assert rows[0]["uid"] == uid_text(bytes(16))


def test_rules_that_the_checker_does_not_model_are_named() -> None:
    spec = common_pb2.PodSpec()
    spec.required_node_affinity.terms.add()
    spec.pod_affinity.anti_required.add(topology_key="zone")
    spec.spread.add(max_skew=1, topology_key="zone")
    spec.devices.count, spec.devices.milli = 2, 1000
    pod = dispatcher_pb2.PodInfo(
        namespace="default", name="p", template=dispatcher_pb2.PodTemplate(spec=spec)
    )
    job = dispatcher_pb2.JobInfo(namespace="default", name="j", min_available=3, gang="g")
    fields = _pod_set(pod, ["u"], job, policed=True)
    assert fields["rules"] == ["nodeAffinity", "podAntiAffinity", "topologySpread", "policy"]
    assert (fields["gang"], fields["minimum"], fields["cards"]) == (
        "default/g",
        3,
        {"count": 2, "milli": 1000},
    )
