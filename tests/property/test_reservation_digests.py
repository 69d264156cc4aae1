"""The dispatcher's digests agree with the ledger: a reservation has the digest of a pod exactly where the
ledger, when it is told of that pod, leaves the reservation as it is."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples

from dispatcher.ledger.contents import digest_of_kind, digests_of_chunk
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import numbered_uids
from resolver.core.values import LedgerNodeChange, Verdict
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.ledger.memory import MemoryLedger
from resolver.messages.proposals import reservation_chunk

_GROUPS = [
    b"",
    pb.PodGroup(namespace="default", labels=[common_pb2.Label(key="app", value="web")]).SerializeToString(),
    pb.PodGroup(namespace="default", unreviewed=True).SerializeToString(),
]
_UID = numbered_uids(b"test-prefix-", 0, 1)


@st.composite
def kinds(draw: st.DrawFn) -> pb.PodKind:
    """Pods that differ in few ways, so that equal ones are frequent. What they ask for comes in any order."""
    amounts = [("pods", 1), *((name, draw(st.integers(0, 2))) for name in ("cpu", "example.com/gpu"))]
    cards = draw(st.integers(0, 2))
    return pb.PodKind(
        requests=[common_pb2.Amount(resource=n, amount=a) for n, a in draw(st.permutations(amounts))],
        priority=draw(st.integers(-1, 1)),
        cards=cards,
        card_milli=draw(st.sampled_from([300, 1000])) if cards else 0,
        group=draw(st.sampled_from(_GROUPS)),
    )


async def _told(ledger: MemoryLedger, writer: int, kind: pb.PodKind) -> int:
    columns = pb.PodColumns(uids=_UID.tobytes(), nodes=bytes(4), kinds=bytes(4))
    request = pb.UpsertPodsRequest(writer="mirror", epoch=writer, kinds=[kind], pods=columns)
    [verdict] = (await ExistingPodReservations(ledger, None).upsert(request)).verdicts
    return verdict


async def _agrees(before: pb.PodKind, now: pb.PodKind) -> None:
    ledger = MemoryLedger(1, lambda: 0, lease_ms=0)
    schema = await ledger.schema(["cpu", "pods"])
    node = LedgerNodeChange(
        "n0", common_pb2.NodeSpec(name="n0", cards=4).SerializeToString(), (10,) * len(schema), False, 4
    )
    await ledger.upsert_nodes(0, [node])
    writer = await ledger.grant("mirror")
    assert await _told(ledger, writer, before) == Verdict.COMMITTED
    [part] = [part async for part in ledger.reservations(0)]
    schema = await ledger.schema()
    held = digests_of_chunk(reservation_chunk(0, part), schema, {})
    assert held.tolist() == [digest_of_kind(before)]
    is_right = bool(held[0] == np.uint64(digest_of_kind(now)))
    assert await _told(ledger, writer, now) == (Verdict.DUPLICATE if is_right else Verdict.COMMITTED)


@given(kinds(), kinds())
@examples(200)
def test_a_reservation_is_right_by_its_digest_where_the_ledger_leaves_it_as_it_is(
    before: pb.PodKind, now: pb.PodKind
) -> None:
    asyncio.run(_agrees(before, now))
