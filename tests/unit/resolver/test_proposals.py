"""What the resolver accepts as a proposal, before anything is written."""

import numpy as np
import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import PodGroup
from hoss.model.volumes import ClaimMount, PodVolumes
from hoss.v1 import common_pb2 as pb_common
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.convert_rules import definition_of, definition_taking, group_defined
from resolver.core.rules import RESERVED_NAMES
from resolver.core.values import ReservationState, Verdict
from resolver.messages.proposals import group_of, read_gang, read_proposal


def batch(**fields):
    """A good proposal of one pod, with some columns replaced."""
    columns = {
        "worker": "w1",
        "uids": bytes(16),
        "slots": bytes(2),
        "candidates": 1,
        "nodes": bytes(4),
        "resources": 6,
        "requests": np.array([100, 0, 0, 1, 0, 0], "<i8").tobytes(),
        "priorities": bytes(4),
        "attempts": bytes(2),
    }
    return pb.ProposalBatch(**(columns | fields))


def read(message, shards=2):
    return read_proposal(message, shards=shards, schema=7, allow_unchecked=False)


def test_columns_become_arrays_of_rows():
    message = batch(
        candidates=2,
        nodes=np.array([4, 0xFFFFFFFF], "<u4").tobytes(),
        devices=np.array([1, 500], "<u2").tobytes(),
    )
    proposal = read(message)
    assert proposal.nodes.tolist() == [[4, 0xFFFFFFFF]]
    assert proposal.requests.tolist() == [[100, 0, 0, 1, 0, 0]]
    assert proposal.devices.tolist() == [[1, 500]]


def test_devices_that_nobody_wants_are_none():
    assert read(batch(devices=bytes(4))).devices is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"slots": b"\0"}, "slots: 1 bytes"),
        ({"victim_uids": bytes(16)}, "victim_counts: 0 rows"),
        ({"victim_uids": bytes(16), "victim_counts": b"\2\0"}, "victim_counts: 2 in all where there are 1"),
        ({"victim_uids": bytes(32), "victim_counts": b"\2\0"}, "victim_uids: a pod is listed twice"),
        (
            {"victim_uids": bytes(16), "victim_counts": b"\1\0", "gang_minimum": 1},
            "victim_uids: 1 pods; up to 1000 are evicted for the pods of a batch, and nobody for a gang",
        ),
        ({"victim_uids": bytes(16 * 1001), "victim_counts": b"\xe9\3"}, "victim_uids: 1001 pods"),
        ({"slots": b"\1\0"}, "slots: slot 1"),
        ({"uids": b"short"}, "uids: 5 bytes"),
        ({"uids": b""}, "uids: 0 pods"),
        ({"uids": bytes(16 * 1001)}, "uids: 1001 pods"),
        ({"nodes": b"\0\0\0\0\1\0\0\0"}, "nodes: 2 rows"),
        ({"nodes": b"\xff\xff\xff\xff"}, "nodes: a pod has no first"),
        ({"nodes": np.array([1], "<u4").tobytes()}, "nodes: node 1 is not on shard 0 of 2"),
        ({"candidates": 0}, "candidates: 0"),
        ({"requests": np.array([-1, 0, 0, 1, 0, 0], "<i8").tobytes()}, "requests: -1"),
        ({"requests": np.array([2**53 + 1, 0, 0, 1, 0, 0], "<i8").tobytes()}, "requests: 9007199254740993"),
        ({"requests": np.array([1, 0, 0, 2, 0, 0], "<i8").tobytes()}, "requests: every pod counts"),
        ({"resources": 40}, "resources: 40"),
        ({"shard": 3}, "shard: 3"),
        ({"worker": ""}, "worker: needs"),
        ({"attempts": b""}, "attempts: 0 rows"),
        ({"devices": np.array([1, 1001], "<u2").tobytes()}, "devices: [1, 1001]"),
        ({"unchecked": True}, "unchecked: "),
        ({"priorities": b"\0"}, "priorities: 1 bytes"),
        ({"priorities": b""}, "slots: slot 0 where there are 0"),
        ({"priorities": bytes(4 * 1001)}, "priorities, groups: 1001 slots"),
        ({"groups": [b""] * 1001}, "priorities, groups: 1 slots and 1001 groups"),
        ({"requests": bytes(8)}, "requests: 1 rows"),
        ({"devices": bytes(2)}, "devices: 1 rows"),
        ({"slot_groups": b"\1\0", "groups": [b""]}, "slot_groups: group 1 where there are 1"),
        ({"groups": [b"no message"], "slot_groups": b"\0\0"}, "groups: is no PodGroup"),
        ({"candidates": 17, "nodes": bytes(4 * 17)}, "candidates: 17"),
        ({"snapshot_seq": 2**60}, "epoch, snapshot_seq, sending: the ledger counts"),
        ({"seen": bytes(8)}, "seen: 1 rows"),
        ({"criteria": 9}, "criteria: 9 is none of 0 (FIT), 1 (VERSION), 2 (STRICT)"),
        ({"displace_gap": 5, "gang_minimum": 1}, "displace_gap: a gang, or a proposal"),
    ],
)
def test_a_malformed_batch_is_refused_with_its_field(fields, said):
    with pytest.raises(InvalidInput) as refused:
        read(batch(**fields))
    assert str(refused.value).startswith(said)


def part(shard, pod, **fields):
    """A part of a gang: one pod on a node of that shard."""
    node = np.array([shard], "<u4").tobytes()
    return batch(shard=shard, uids=bytes([pod]) + bytes(15), nodes=node, **fields)


def check(whole):
    parts = [whole, *whole.parts]
    read_gang(parts, [read(message) for message in parts])


def test_a_gang_of_two_parts_is_accepted():
    check(part(0, 1, gang_minimum=2, parts=[part(1, 2)]))


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (part(0, 1, gang_minimum=2), "gang_minimum: 2 of 1 pods"),
        (part(0, 1, gang_minimum=3, parts=[part(1, 2)]), "gang_minimum: 3 of 2 pods"),
        (part(0, 1, parts=[part(1, 2, seen=bytes(16))]), "parts: parts are of one worker's one view"),
        (part(0, 1, parts=[part(1, 1)]), "uids: a pod is in the whole twice"),
        (part(0, 1, gang_minimum=1, parts=[part(0, 2)]), "parts: has two parts on one shard"),
        (part(0, 1, gang_minimum=1, parts=[part(1, 2, worker="w2")]), "parts: parts are of one worker"),
        (part(0, 1, parts=[part(1, 2, sending=1)]), "parts: parts are of one worker, epoch and sending"),
        (
            part(0, 1, gang_minimum=1, parts=[part(1, 2, parts=[part(1, 3)])]),
            "parts: parts have no parts",
        ),
        (part(0, 1, gang_minimum=1, parts=[part(1, 1)]), "uids: a pod is in the whole twice"),
    ],
)
def test_a_malformed_gang_is_refused_with_its_field(whole, said):
    with pytest.raises(InvalidInput) as refused:
        check(whole)
    assert str(refused.value).startswith(said)


def test_verdicts_and_states_have_the_numbers_of_the_protocol():
    assert {verdict.name: verdict.value for verdict in Verdict} == {
        name: number for name, number in pb.Verdict.items() if number
    }
    states = {f"RESERVATION_{state.name}": state.value for state in ReservationState}
    assert states == dict(pb.ReservationState.items())


def test_names_of_what_a_pod_takes_are_read_once_each_and_no_view_counts_them():
    group = PodGroup(volumes=PodVolumes((ClaimMount("data"),)))
    definition = definition_taking(definition_of(group), ("b", "a", "b"))
    read = group_of(definition)
    assert (read.reserved_names, read.rules) == (("a", "b"), (RESERVED_NAMES,))
    assert read.key != group_of(definition_of(group)).key
    assert group_defined(definition) == group


def test_volumes_alone_say_that_pods_of_the_group_take_names():
    group = PodGroup(volumes=PodVolumes((ClaimMount("data"),)))
    assert group_of(definition_of(group)).rules == (RESERVED_NAMES,)
    assert group_of(definition_of(PodGroup())).rules == ()


def test_an_empty_name_is_refused():
    with pytest.raises(InvalidInput, match="reserved_names"):
        group_of(definition_taking(definition_of(PodGroup()), ("",)))


def test_a_group_that_claims_devices_has_the_rule_of_names_before_it_has_any():
    assert group_of(definition_of(PodGroup(claims_devices=True))).rules == (RESERVED_NAMES,)


def test_an_amount_of_a_device_that_is_no_quantity_is_refused():
    held = pb_common.HeldClaim(name="c", devices=[{"consumed": [{"name": "memory", "amount": "much"}]}])
    with pytest.raises(InvalidInput, match="much"):
        group_of(pb.PodGroup(claims_devices=True, held_claims=[held]).SerializeToString())


@pytest.mark.parametrize(
    "name",
    ["../../../secrets/s", "a/status", "a?dryRun=All", "a#b", "%2e%2e", "..", ".", "a\nb", "a" * 254],
    ids=lambda name: name[:12],
)
@pytest.mark.parametrize("field", ["claim", "volume"])
def test_a_claim_or_volume_whose_name_would_change_the_path_of_a_request_is_refused(field, name) -> None:
    group = pb.PodGroup(namespace="default")
    group.volumes.claims.add(**{"claim": "data", field: name})
    with pytest.raises(InvalidInput, match=f"groups.volumes.claims.{field}: .* cannot be the name"):
        group_of(group.SerializeToString())


def test_a_claim_without_a_name_is_refused_and_names_of_objects_are_accepted() -> None:
    unnamed, usual = pb.PodGroup(namespace="default"), pb.PodGroup(namespace="default")
    unnamed.volumes.claims.add(volume="pv-1")
    with pytest.raises(InvalidInput, match=r"groups\.volumes\.claims\.claim"):
        group_of(unnamed.SerializeToString())
    usual.volumes.claims.add(claim="data-web-0")
    usual.volumes.claims.add(claim="www.example", volume="pvc-7c9e6679-7425-40de-944b-e07fc1f90ae7")
    assert group_of(usual.SerializeToString()).namespace == "default"
