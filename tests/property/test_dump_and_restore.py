"""A ledger dumped to lines and restored, into as many shards or others, is the same ledger."""

import asyncio
import json
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property.profiles import examples

from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import U8, U16, U32, U64, encode, numbered_uids
from hossctl.ledger_file import lines_of, parts_of
from hossctl.local.redis_server import RedisServer
from resolver.api.auditing import audit_ledger
from resolver.api.rebuilding import RebuildService
from resolver.ledger.rebuild import RedisRebuild
from resolver.ledger.store import RedisLedger
from resolver.messages.nodes import shard_of
from resolver.messages.parts import read_parts

_GROUPS = [
    b"",
    pb.PodGroup(namespace="default", labels=[common_pb2.Label(key="app", value="web")]).SerializeToString(),
    pb.PodGroup(namespace="x", host_ports=[common_pb2.HostPort(port=80)]).SerializeToString(
        deterministic=True
    ),
]
_numbers = count()

kinds = st.builds(
    lambda cpu, gpu, priority, cards, group: pb.PodKind(
        requests=[
            common_pb2.Amount(resource=name, amount=amount)
            for name, amount in (("pods", 1), ("cpu", cpu), ("example.com/gpu", gpu))
            if amount
        ],
        priority=priority,
        cards=cards,
        card_milli=300 if cards else 0,
        group=group,
    ),
    st.integers(0, 10**9),
    st.integers(0, 3),
    st.integers(-5, 5),
    st.integers(0, 2),
    st.sampled_from(_GROUPS),
)


@st.composite
def ledgers(draw: st.DrawFn) -> list[pb.LedgerPart]:
    """Parts of a ledger of one shard to three."""
    shards = draw(st.integers(1, 3))
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6, unique=True))
    given_out = [0] * shards
    nodes = []
    for name in names:
        shard = shard_of(name, shards)
        spec = common_pb2.NodeSpec(name=name, cards=4, labels=[common_pb2.Label(key="n", value=name)])
        spec.allocatable.add(resource="cpu", amount=10**10)
        spec.allocatable.add(resource="pods", amount=100)
        spec.allocatable.add(resource="example.com/gpu", amount=100)
        nodes.append(pb.NodeEntry(index=given_out[shard] * shards + shard, spec=spec))
        given_out[shard] += 1
    of = draw(st.lists(kinds, min_size=1, max_size=3))
    pods = draw(
        st.lists(
            st.tuples(st.sampled_from(nodes), st.integers(0, len(of) - 1), st.booleans(), st.integers(0, 9)),
            max_size=12,
        )
    )
    part = pb.LedgerPart(nodes=nodes, kinds=of)
    part.pods.CopyFrom(
        pb.PodColumns(
            uids=numbered_uids(b"dump-prefix-", 0, len(pods)).tobytes(),
            nodes=encode([node.index for node, *_ in pods], U32),
            kinds=encode([kind for _, kind, *_ in pods], U32),
            assumed=encode([assumed for *_, assumed, _ in pods], U8),
            attempts=encode([attempt for *_, attempt in pods], U16),
            epochs=encode([7] * len(pods), U64),
        )
    )
    return [pb.LedgerPart(head=pb.LedgerHead(shards=shards, replaces="*")), part]


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=ledgers(), shards=st.integers(1, 3))
def test_a_restored_ledger_is_the_dumped_one_whatever_its_shards(
    redis_server: RedisServer, parts: list[pb.LedgerPart], shards: int
) -> None:
    asyncio.run(_round_trip(redis_server.url, parts, shards))


async def _round_trip(url: str, parts: list[pb.LedgerPart], shards: int) -> None:
    first, second = await _open(url, parts[0].head.shards), await _open(url, shards)
    try:
        await first[1].rebuild(parts[0].head, read_parts(parts))
        lines = [json.dumps(line) async for line in lines_of(first[1].dump())]
        again = list(
            parts_of(lines, pb.LedgerHead(replaces="*", operator=True, only_empty=True), where="dump")
        )
        await second[1].rebuild(again[0].head, read_parts(again[1:]))
        restored = [json.dumps(line) async for line in lines_of(second[1].dump())]
        assert _essence(restored) == _essence(lines)
        for ledger, _ in (first, second):
            # 1 is the generator's fault: it knows nothing of what fits, nor which ports clash.
            assert {v.invariant for v in (await audit_ledger(ledger)).violations} <= {1}
    finally:
        for ledger, _ in (first, second):
            await ledger.erase()
            await ledger.close()


async def _open(url: str, shards: int) -> tuple[RedisLedger, RebuildService]:
    ledger = RedisLedger(url, prefix=f"dump-{next(_numbers)}")
    await ledger.open(shards)
    store = RedisRebuild(ledger, feed_window=10, lease_ms=30_000)
    return ledger, RebuildService(ledger, store, now_us=lambda: 10**15)


def _essence(lines: list[str]) -> Any:
    """Everything but how shards and kinds are numbered."""
    read = [json.loads(line) for line in lines]
    of = {line["number"]: {**line, "number": 0} for line in read if line["kind"] == "PodKind"}
    nodes = sorted(json.dumps(line["spec"]) for line in read if line["kind"] == "Node")
    held = [{**line, "podKind": of[line["podKind"]]} for line in read if line["kind"] == "Reservation"]
    return nodes, sorted(json.dumps(line, sort_keys=True) for line in held)
