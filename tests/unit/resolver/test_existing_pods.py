"""Pods that stand on their nodes already, and bindings of those that are reserved; on the ledger in
memory."""

from dataclasses import replace

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.model.devices import Allocation, HeldClaim
from hoss.model.pod import PodGroup
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import FLAG_SHRUNK, account_dtype, numbered_uids
from hoss.wire.convert_rules import definition_of
from hoss.wire.uids import uid_text
from resolver.core.kubernetes.binding_review import BindResult, Bound
from resolver.core.values import ANYBODY, LedgerNodeChange, Verdict
from resolver.kubernetes.binder import BindingRequest
from resolver.kubernetes.existing_pods import ExistingPodReservations
from resolver.ledger.memory import MemoryLedger
from resolver.messages.nodes import shard_of

HOLDING = PodGroup(held_claims=(HeldClaim("default", "gpus", Allocation(())),))
UIDS = numbered_uids(b"test-prefix-", 0, 8)


class Ground:
    """A ledger of two shards with two nodes on the first, of 1,000 milli cpu each, and one on the second."""

    def __init__(self):
        self.ledger = MemoryLedger(2, lambda: 0, lease_ms=0)
        self.bound = []
        self.ended, self.silent = (
            {},
            set(),
        )  # claims of pods that are over, and those about which it is silent
        self.standing = ExistingPodReservations(self.ledger, self)
        self.nodes = {}
        self.epoch = 0
        self.unreviewed = []  # of the last upsert

    async def build(self):
        schema = await self.ledger.schema(["cpu", "pods"])
        amounts = {"cpu": 1000, "pods": 10}
        for name in ("n0", "n1", "x1"):
            allocatable = tuple(amounts.get(resource, 0) for resource in schema)
            change = LedgerNodeChange(
                name, common_pb2.NodeSpec(name=name).SerializeToString(), allocatable, False, 0
            )
            upserted = await self.ledger.upsert_nodes(shard_of(name, 2), [change])
            self.nodes[name] = int(upserted.indexes[0])
        self.epoch = await self.ledger.grant("mirror")
        return self

    async def bind(self, requests):  # in the place of a Binder
        self.bound += requests
        return [Bound(BindResult.DONE) for _ in requests]

    async def end_claims(self, pods):  # likewise
        self.ended |= pods
        return self.silent & pods.keys()

    async def upsert(self, *places, cpu=600, epoch=None, named=None, group=None):
        """Pods 0, 1, ... stand on the nodes of these names. `named`: by index, as the writer names them."""
        kind = pb.PodKind(group=b"" if group is None else definition_of(group))
        kind.requests.add(resource="cpu", amount=cpu)
        kind.requests.add(resource="pods", amount=1)
        nodes = np.array([self.nodes[place] for place in places], "<u4")
        columns = pb.PodColumns(
            uids=UIDS[: len(places)].tobytes(), nodes=nodes.tobytes(), kinds=bytes(4 * len(places))
        )
        request = pb.UpsertPodsRequest(
            writer="mirror", epoch=self.epoch if epoch is None else epoch, kinds=[kind], pods=columns
        )
        for index, name in (named or {}).items():
            request.node_names.add(index=index, name=name)
        reply = await self.standing.upsert(request)
        self.unreviewed = list(reply.unreviewed)
        return list(reply.verdicts)

    async def places(self):
        """Names of nodes by number of the pod."""
        names = {index: name for name, index in self.nodes.items()}
        found = {}
        for shard in range(2):
            held = (await self.ledger.lookup(shard, UIDS))["node"].tolist()
            found |= {number: names[node] for number, node in enumerate(held) if node in names}
        return found

    async def requested(self, name):
        """cpu that is requested of a node, and whether it counts as shrunk."""
        rows = (await self.ledger.state(shard_of(name, 2))).snapshot.accounts
        records = np.frombuffer(rows.records, account_dtype(rows.resources))
        account = records[np.frombuffer(rows.indexes, "<u4").tolist().index(self.nodes[name])]
        return int(account["amounts"][0, 1]), bool(account["flags"] & FLAG_SHRUNK)


@pytest.fixture
async def ground():
    return await Ground().build()


async def test_what_stands_is_reserved_beyond_what_there_is_and_stays_without_anybody_confirming_it(ground):
    assert await ground.upsert("n0", "n0") == [Verdict.COMMITTED] * 2
    assert await ground.requested("n0") == (1200, True)
    assert [await ground.ledger.reap(shard) for shard in range(2)] == [0, 0]


async def test_pods_that_nobody_had_reserved_for_are_named_where_bindings_are_reviewed_and_once(ground):
    await ground.upsert("n0")
    assert ground.unreviewed == []  # nobody reviews bindings here
    ground.standing = ExistingPodReservations(ground.ledger, ground, reviews_bindings=True)
    await ground.upsert("n1", "n1", "x1")
    assert ground.unreviewed == [0, 1, 1]
    await ground.upsert("n1", "n1", "x1")
    assert ground.unreviewed == [0, 0, 0]


async def test_a_second_time_changes_nothing(ground):
    await ground.upsert("n0", "n1")
    assert await ground.upsert("n0", "n1") == [Verdict.DUPLICATE] * 2
    assert await ground.requested("n0") == (600, False)


async def test_a_pod_that_is_reserved_elsewhere_moves_within_a_shard_and_across_shards(ground):
    assert len({shard_of(name, 2) for name in ground.nodes}) == 2
    for place in ("n0", "n1", "x1", "n0"):
        await ground.upsert(place)
        assert await ground.places() == {0: place}


async def test_what_was_assumed_is_confirmed(ground):
    await ground.upsert("n0")
    shard = shard_of("n0", 2)
    (arbiter,) = [a for a in ground.ledger.arbiters if a.shard == shard]
    (reservation,) = arbiter.reservations.values()
    arbiter.pending[reservation.seq] = (0, list(arbiter.reservations))
    await ground.upsert("n0")
    assert await ground.ledger.reap(shard) == 0


async def test_a_mirror_of_an_earlier_term_reserves_nothing(ground):
    await ground.ledger.grant("mirror")
    assert await ground.upsert("n0") == [Verdict.STALE_EPOCH]
    assert await ground.places() == {}


async def test_a_node_that_is_not_there_is_told(ground):
    ground.nodes["gone"] = 40
    assert await ground.upsert("gone") == [Verdict.NODE_GONE]


def asked(ground, *places):
    nodes = np.array([ground.nodes[place] for place in places], "<u4")
    return pb.BindRequest(
        uids=UIDS[: len(places)].tobytes(),
        nodes=nodes.tobytes(),
        pods=[f"default/p{number}" for number in range(len(places))],
        node_names=[common_pb2.NodeName(index=index, name=name) for name, index in ground.nodes.items()],
    )


async def test_only_what_is_reserved_on_that_very_node_is_bound(ground):
    await ground.upsert("n0", "n1")
    reply = await ground.standing.bind(asked(ground, "n0", "x1", "x1"))
    assert list(reply.results) == [BindResult.DONE, BindResult.UNRESERVED, BindResult.UNRESERVED]
    assert ground.bound == [BindingRequest("default/p0", uid_text(UIDS[0].tobytes()), "n0")]


async def test_versions_of_claims_are_those_of_their_pod(ground):
    await ground.upsert("n0", "n1")
    request = asked(ground, "n0", "n1")
    request.claim_versions.add(versions={"data": "7"})
    with pytest.raises(InvalidInput, match="claim_versions"):
        await ground.standing.bind(request)
    request.claim_versions.add()
    await ground.standing.bind(request)
    assert [made.versions for made in ground.bound] == [{"data": "7"}, {}]


async def test_a_pod_is_not_bound_before_the_last_pod_that_it_preempted_is_released(ground, make_proposal):
    await ground.upsert("n0")
    shard, node = shard_of("n0", 2), ground.nodes["n0"]
    await ground.ledger.grant("w1")
    victim = UIDS[0].tobytes()
    proposal = make_proposal([1], [[node]], cpu=500, priorities=[9], epoch=2)
    await ground.ledger.commit(shard, [replace(proposal, victims={0: (victim,)}, victims_terminate=True)])
    assert await ground.upsert("n0") == [Verdict.DUPLICATE]
    request = asked(ground, "n0", "n0")
    assert list((await ground.standing.bind(request)).results)[1] == BindResult.VICTIMS
    await ground.ledger.release(shard, UIDS[:1])
    assert list((await ground.standing.bind(request)).results) == [BindResult.UNRESERVED, BindResult.DONE]


async def test_a_resolver_that_knows_no_api_server_says_so(ground):
    with pytest.raises(InvalidInput, match="started without --kubeconfig"):
        await ExistingPodReservations(ground.ledger, None).bind(asked(ground, "n0"))


async def test_a_pod_is_not_counted_on_the_node_that_has_the_index_of_its_own_by_now(ground):
    index = ground.nodes["n0"]
    await ground.ledger.remove_nodes(shard_of("n0", 2), ["n0"])
    other = next(name for name in map("other-{}".format, range(99)) if shard_of(name, 2) == index % 2)
    schema = await ground.ledger.schema()
    change = LedgerNodeChange(other, b"other", tuple(9000 for _ in schema), False, 0)
    assert (await ground.ledger.upsert_nodes(index % 2, [change])).indexes.tolist() == [index]
    assert await ground.upsert("n0", "n1", named={index: "n0", ground.nodes["n1"]: "n1"}) == [
        Verdict.NODE_GONE,
        Verdict.COMMITTED,
    ]
    assert await ground.places() == {1: "n1"}


async def test_a_pod_with_devices_keeps_its_reservation_until_nobody_writes_them_into_its_claim_any_more(
    ground,
):
    await ground.upsert("n0", "n0", "n1", group=HOLDING)
    uids, texts = UIDS[:3], [uid_text(uid.tobytes()) for uid in UIDS[:3]]
    ground.silent = {texts[1]}
    assert await ground.standing.release(0, uids, ANYBODY) == (2, 1)
    assert ground.ended == dict.fromkeys(texts, HOLDING.held_claims)
    assert await ground.places() == {1: "n0"}
    ground.silent = set()
    assert await ground.standing.release(0, uids, ANYBODY) == (1, 0)
    assert await ground.places() == {}


async def test_pods_without_devices_are_released_without_a_word_to_the_api_server(ground):
    await ground.upsert("n0", "n1")
    assert await ground.standing.release(0, UIDS[:2], ANYBODY) == (2, 0)
    assert ground.ended == {}
    assert await ExistingPodReservations(ground.ledger, None).release(0, UIDS[:2], ANYBODY) == (0, 0)
