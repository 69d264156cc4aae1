"""Whatever columns and messages hold, a service reads them, or refuses them by InvalidInput, within a second.

Feed entries and work come from HOSS's own services. A worker that fails on one would fail again after each
restart, because it gets the same entry again."""

from random import Random

import numpy as np
import pytest
from fuzz.inputs import LONGEST_ERROR, SEEDS, MessageMaker, damaged_bytes, inputs, within_a_second
from google.protobuf.message import DecodeError
from hypothesis import given
from integration.proposing import NODES, batch

from dispatcher.api.intake import read_order
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.workers.link import read_heartbeat, read_outcomes, read_registration
from hoss.errors import InvalidInput
from hoss.v1 import common_pb2, dispatcher_pb2, objects_pb2, resolver_pb2, workerlink_pb2
from hoss.wire.columns import I64, U8, U16, U32, U64, decode, decode_uids, encode, numbered_uids
from hoss.wire.convert import node_from_proto, node_to_proto, pod_spec_from_proto, template_from_proto
from hoss.wire.convert_objects import object_from_proto
from resolver.messages.nodes import check_nodes, node_change
from resolver.messages.parts import LedgerContents
from resolver.messages.proposals import read_announcement, read_gang, read_proposal
from scheduler_worker import messages
from scheduler_worker.core.cache.node_info import NodeInfoCache

pb = resolver_pb2
UIDS = numbered_uids(b"test-prefix-", 0, 2).tobytes()
COLUMNS = (UIDS, bytes(8), bytes(2), (1).to_bytes(4, "little"), batch(1, [0]).requests, bytes(24 + 16 * 6))
TEXTS = ("web", "default", "w1", "n0", "n1", "cpu", "memory", "pods", "host", "In", "NoExecute", "app", "TCP")
GROUP = pb.PodGroup(
    namespace="default", labels=[common_pb2.Label(key="app", value="web")]
).SerializeToString()
ACCOUNTS = pb.Accounts(
    resources=6, indexes=encode([0, 1], U32), records=bytes(2 * (24 + 16 * 6)), card_indexes=b"", cards=b""
)
FEED = pb.FeedMessage(
    shard=0, seq=3, shards=1, snapshot=True, schema=["cpu", "memory", "ephemeral-storage", "pods", "a", "b"],
    accounts=ACCOUNTS, nodes=[pb.NodeEntry(index=i, spec=node_to_proto(NODES[i])) for i in range(2)],
    groups=[pb.GroupRun(group=GROUP, nodes=encode([0, 1], U32))],
)  # fmt: skip
OUTCOMES = workerlink_pb2.Outcomes(
    batch_id=1, positions=encode([0, 1], U32), codes=encode([1, 2], U8), nodes=encode([0, 1], U32),
    reasons=encode([0, 0], U16), reason_texts=["full"],
)  # fmt: skip
HEARTBEAT = workerlink_pb2.Heartbeat(
    cost_classes=encode([0], U32), cost_micros=bytes(4), refusal_counts=encode([1], U32),
    refusal_winners=encode([1], U64), refusal_verdicts=encode([3], U8), refusing_nodes=encode([0, 1], U32),
)  # fmt: skip
ANSWER = workerlink_pb2.PreemptionAnswer(
    uids=UIDS, nodes=encode([0, 1], U32), classes=encode([0, 0], U32), since_ms=encode([1, 1], I64),
    grace_ms=encode([1, 1], U32), class_specs=[common_pb2.PodSpec(namespace="default").SerializeToString()],
)  # fmt: skip
VERDICTS = pb.VerdictBatch(
    verdicts=encode([1, 2], U8), nodes=encode([0, 1], U32), duplicate_seqs=bytes(8), fresh=ACCOUNTS
)
SUBMIT = dispatcher_pb2.SubmitRequest(
    templates=[dispatcher_pb2.PodTemplate(spec=common_pb2.PodSpec(namespace="default"))],
    jobs=[dispatcher_pb2.Job(name="web", replicas=3)],
    pods=dispatcher_pb2.PodList(names=["a", "b"], templates=bytes(8), uids=UIDS),
)
PART = pb.LedgerPart(
    nodes=[pb.NodeEntry(index=0, spec=node_to_proto(NODES[0]))],
    kinds=[pb.PodKind(requests=[common_pb2.Amount(resource="cpu", amount=1)], group=GROUP)],
    pods=pb.PodColumns(
        uids=UIDS, nodes=bytes(8), kinds=bytes(8), card_masks=bytes(4), assumed=bytes(2), attempts=bytes(4),
        epochs=bytes(16),
    ),
)  # fmt: skip


def _propose(message):
    parts = [message, *message.parts]
    proposals = [read_proposal(part, shards=2, schema=6, allow_unchecked=False) for part in parts]
    if message.gang_minimum or message.parts:
        read_gang(parts, proposals)


def _restore(message):
    contents = LedgerContents()
    contents.add(message)
    contents.groups()
    contents.pods(contents.resources())


def _follow(message):
    update = messages.feed_update(message)
    cache = NodeInfoCache()
    cache.apply_feed(messages.feed_update(FEED))
    if not any(run.gone for run in update.pods):  # the cache trusts its resolver that they had come
        cache.apply_feed(update)


def _upsert(message):
    check_nodes([message], set())
    node_change(message, [amount.resource for amount in message.allocatable])
    node_from_proto(message)


# By who reads: a valid message, and the reader.
READERS = {
    "dispatcher, submissions": (SUBMIT, read_order),
    "dispatcher, registrations": (
        workerlink_pb2.Register(name="w1", window=5),
        lambda m: read_registration(m, 1),
    ),
    "dispatcher, heartbeats": (HEARTBEAT, lambda m: read_heartbeat(m, 1)),
    "dispatcher, outcomes": (OUTCOMES, lambda m: read_outcomes(m, 1)),
    "dispatcher, feed": (FEED, lambda m: list(ClusterNodes().read(m))),
    "dispatcher, templates": (SUBMIT.templates[0], template_from_proto),
    "dispatcher, objects": (
        objects_pb2.ClusterObject(budget=objects_pb2.PodDisruptionBudget(namespace="default", name="b")),
        object_from_proto,
    ),
    "resolver, proposals": (batch(1, [0, 1]), _propose),
    "resolver, rules": (pb.ProposalBatch(worker="w1", groups=[GROUP]), read_announcement),
    "resolver, nodes": (node_to_proto(NODES[0]), _upsert),
    "resolver, parts": (PART, _restore),
    "worker, feed": (FEED, _follow),
    "worker, verdicts": (VERDICTS, lambda m: messages.verdicts(m, 2)),
    "worker, preemption": (ANSWER, messages.preemption_answer),
    "worker, classes": (common_pb2.PodSpec(namespace="default"), pod_spec_from_proto),
    "worker, surroundings": (
        objects_pb2.Surroundings(namespaces=[objects_pb2.Namespace(name="a")]),
        messages.surroundings,
    ),
}


@pytest.mark.parametrize("reader", READERS)
@inputs(1_000, quick=60)  # by reader, of which there are ten and more
@given(SEEDS)
def test_any_message_is_read_or_refused(reader, seed):
    rng = Random(seed)
    valid, read = READERS[reader]
    make = MessageMaker(rng, TEXTS, COLUMNS)
    message = type(valid)()
    if rng.random() < 0.2:
        make.fill(message)
    else:
        message.CopyFrom(valid)
        for _ in range(rng.randint(1, 3)):
            make.damage(message)
    if rng.random() < 0.2:
        try:
            message = type(valid).FromString(damaged_bytes(rng, message.SerializeToString()))
        except DecodeError:
            return
    with within_a_second():
        try:
            read(message)
        except InvalidInput as exc:
            assert exc.text.strip()  # noqa: PT017 - whatever it says
            assert len(str(exc)) <= LONGEST_ERROR  # noqa: PT017


@inputs()
@given(SEEDS)
def test_any_column_is_viewed_or_refused(seed):
    rng = Random(seed)
    data = rng.randbytes(rng.choice((0, 1, 15, 16, 17, 64, 1000)))
    rows = rng.choice((None, 0, 1, 4, 8, 2**31))
    for view in (
        lambda: decode(data, rng.choice((U8, U16, U32, U64)), name="x", rows=rows),
        lambda: decode_uids(data, rows=rows),
    ):
        try:
            column = view()
        except InvalidInput as exc:  # noqa: PERF203
            assert exc.where in ("x", "uids")  # noqa: PT017
        else:
            assert column.nbytes == len(data)
            assert rows is None or len(column) == rows
            assert not column.flags.writeable or not np.size(column)
