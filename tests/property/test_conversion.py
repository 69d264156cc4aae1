"""Messages lose nothing of what the model holds."""

from hypothesis import given
from hypothesis import strategies as st

from hoss.model.cluster import NominatedPod, ObjectKey, StorageUpdate
from hoss.model.devices import (
    Allocation,
    ClaimUse,
    ContainerRequests,
    DeviceId,
    DeviceResult,
    HeldClaim,
    PodClaims,
    RequestMapping,
)
from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import (
    DeviceRequest,
    DuringExecution,
    HostPort,
    Movable,
    PodAffinity,
    PodAffinityTerm,
    PodGroup,
    PodSpec,
    PodTemplate,
    QosClass,
    SpreadConstraint,
    WeightedPodTerm,
)
from hoss.model.quantity import parse_quantity
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, PreferredTerm, Requirement
from hoss.model.volumes import (
    ClaimMount,
    ClaimReference,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    CsiVolume,
    EphemeralOwner,
    InlineDisk,
    PersistentVolume,
    PersistentVolumeClaim,
    PodVolumes,
    StorageClass,
    VolumeAttachment,
)
from hoss.v1 import common_pb2, dispatcher_pb2, objects_pb2
from hoss.wire import convert
from hoss.wire.convert_rules import definition_of, group_defined
from hoss.wire.convert_storage import (
    OBJECTS_PER_MESSAGE,
    storage_changes_from_proto,
    storage_changes_to_proto,
    storage_from_proto,
    storage_to_proto,
)

texts = st.text(max_size=8)
amounts = st.integers(0, 2**53)
pairs = st.dictionaries(texts, texts, max_size=3).map(lambda d: tuple(sorted(d.items())))
amount_lists = st.dictionaries(texts, amounts, max_size=4).map(lambda d: tuple(sorted(d.items())))


def tuples(of, most=2):
    return st.lists(of, max_size=most).map(tuple)


operators = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
requirements = tuples(st.builds(Requirement, texts, operators, tuples(texts)))
terms = st.builds(NodeSelectorTerm, requirements, requirements)
selectors = st.none() | st.builds(LabelSelector, requirements)
pod_terms = st.builds(PodAffinityTerm, texts, selectors, tuples(texts), selectors)
weighted_terms = st.builds(WeightedPodTerm, st.integers(1, 100), pod_terms)
constraints = st.builds(
    SpreadConstraint,
    st.integers(1, 9),
    texts,
    selectors,
    st.booleans(),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
host_addresses = st.sampled_from(["0.0.0.0", "::", "10.0.0.1"])
pod_specs = st.builds(
    PodSpec,
    namespace=texts,
    labels=pairs,
    priority=st.integers(-(2**31), 2**31 - 1),
    requests=amount_lists,
    nonzero_cpu_milli=amounts,
    nonzero_memory_bytes=amounts,
    node_name=texts,
    node_selector=pairs,
    required_node_affinity=st.none() | st.builds(NodeSelector, tuples(terms)),
    preferred_node_affinity=tuples(st.builds(PreferredTerm, st.integers(1, 100), terms)),
    tolerations=tuples(
        st.builds(
            Toleration,
            texts,
            st.sampled_from(["Equal", "Exists"]),
            texts,
            texts,
            st.none() | st.integers(0, 2**63 - 1),
        )
    ),
    host_ports=tuples(
        st.builds(HostPort, st.integers(1, 65535), st.sampled_from(["TCP", "UDP"]), host_addresses)
    ),
    devices=st.none() | st.builds(DeviceRequest, st.integers(1, 16), st.integers(1, 1000)),
    pending_nonzero=st.none() | st.tuples(amounts, amounts),
    pod_affinity=st.none()
    | st.builds(
        PodAffinity, tuples(pod_terms), tuples(weighted_terms), tuples(pod_terms), tuples(weighted_terms)
    ),
    spread=tuples(constraints),
    default_spread=selectors,
    images=tuples(texts),
    image_containers=st.integers(0, 9),
    scheduling_gates=tuples(texts),
    required_features=tuples(texts),
    may_preempt=st.booleans(),
    volumes=st.none()
    | st.builds(
        PodVolumes,
        tuples(
            st.builds(
                ClaimMount,
                texts,
                st.none() | st.builds(EphemeralOwner, texts, texts),
                volume=texts,
                provisioned=st.booleans(),
            )
        ),
        tuples(st.builds(InlineDisk, texts, tuples(texts), st.booleans(), tuples(texts))),
    ),
    claims=st.none()
    | st.builds(
        PodClaims,
        texts,
        texts,
        tuples(st.builds(ClaimUse, st.none() | texts.filter(bool), st.booleans(), st.booleans())),
        tuples(
            st.builds(
                ContainerRequests,
                texts,
                st.integers(0, 99),
                tuples(st.tuples(st.integers(0, 99), texts, amounts)),
                st.booleans(),
            )
        ),
    ),
)
quantities = st.sampled_from(["1", "500m", "1536Mi", "1e3"]).map(parse_quantity)
results = st.builds(
    DeviceResult,
    texts,
    st.builds(DeviceId, texts, texts, texts),
    st.booleans(),
    tuples(st.tuples(texts, quantities)),
    st.booleans(),
    tuples(texts),
    tuples(texts),
)
held_claims = st.builds(
    HeldClaim,
    texts,
    texts,
    st.builds(Allocation, tuples(results), st.none() | st.builds(NodeSelector, tuples(terms))),
    tuples(st.builds(RequestMapping, texts, texts, texts, texts)),
)
templates = st.builds(
    PodTemplate,
    pod_specs,
    texts,
    texts,
    st.sampled_from(QosClass),
    texts,
    st.sampled_from(DuringExecution),
    st.integers(0, 2**31 // 1000),
    movable=st.sampled_from(Movable),
)
nodes = st.builds(
    NodeSpec,
    name=texts,
    labels=pairs,
    taints=tuples(st.builds(Taint, texts, texts, texts)),
    unschedulable=st.booleans(),
    allocatable=amount_lists,
    cards=st.integers(0, 16),
    images=amount_lists,
    declared_features=tuples(texts),
)


@given(templates)
def test_a_template_survives_the_wire(template):
    message = convert.template_to_proto(template)
    message = dispatcher_pb2.PodTemplate.FromString(message.SerializeToString())
    assert convert.pod_spec_from_proto(message.spec) == template.spec
    assert (
        message.scheduler_name,
        message.priority_class_name,
        message.qos_class,
        message.owner_kind,
        message.required_during_execution,
        message.movable,
    ) == (
        template.scheduler_name,
        template.priority_class_name,
        template.qos_class.value,
        template.owner_kind,
        template.during_execution.value,
        template.movable.value,
    )
    assert convert.template_from_proto(message).movable is template.movable


@given(nodes)
def test_a_node_survives_the_wire(node):
    message = convert.node_to_proto(node).SerializeToString()
    assert convert.node_from_proto(common_pb2.NodeSpec.FromString(message)) == node


node_selectors = st.builds(NodeSelector, tuples(terms))
sizes = st.integers(0, 2**63 - 1)
storage_objects = st.one_of(
    st.builds(
        PersistentVolume,
        texts,
        pairs,
        texts,
        sizes,
        tuples(texts),
        texts,
        texts,
        texts,
        st.booleans(),
        st.none() | st.builds(ClaimReference, texts, texts, texts),
        st.none() | node_selectors,
        st.none() | st.builds(CsiVolume, texts, texts),
    ),
    st.builds(
        PersistentVolumeClaim,
        texts,
        texts,
        texts,
        texts,
        sizes,
        tuples(texts),
        texts,
        texts,
        selectors,
        texts,
        st.booleans(),
        texts,
        st.booleans(),
        texts,
        texts,
    ),
    st.builds(StorageClass, texts, texts, st.booleans(), tuples(terms)),
    st.builds(CsiNode, texts, amount_lists),
    st.builds(CsiDriver, texts, st.booleans()),
    st.builds(CsiStorageCapacity, texts, texts, texts, selectors, st.none() | sizes),
    st.builds(VolumeAttachment, texts, texts, texts, texts),
    st.builds(NominatedPod, texts, texts, texts, st.integers(-(2**31), 2**31 - 1), amount_lists),
)


@given(storage_objects)
def test_a_storage_object_survives_the_wire(item):
    message = storage_to_proto(item).SerializeToString()
    assert storage_from_proto(objects_pb2.StorageObject.FromString(message)) == item


def test_an_update_of_storage_comes_in_parts_and_the_last_one_says_so():
    drivers = tuple(CsiDriver(str(i)) for i in range(OBJECTS_PER_MESSAGE + 1))
    gone = (ObjectKey("PersistentVolume", "", "pv"),)
    update = StorageUpdate(drivers, gone, complete=True)
    messages = list(storage_changes_to_proto(update))
    assert [message.continued for message in messages] == [True, False]
    parts = list(map(storage_changes_from_proto, messages))
    assert sum((part.objects for part in parts), ()) == drivers
    assert sum((part.gone for part in parts), ()) == gone
    [empty] = storage_changes_to_proto(StorageUpdate(complete=True))
    assert (empty.complete, empty.continued) == (True, False)


@given(pod_specs, pod_specs)
def test_two_specs_are_one_class_just_if_their_bytes_are_equal(one, other):
    def serialized(spec):
        return convert.pod_spec_to_proto(spec).SerializeToString(deterministic=True)

    assert (serialized(one) == serialized(other)) == (one == other)
    assert serialized(one) == serialized(convert.pod_spec_from_proto(convert.pod_spec_to_proto(one)))


@given(tuples(held_claims))
def test_a_group_keeps_the_claims_that_its_pods_hold(held):
    group = PodGroup(claims_devices=True, held_claims=held)
    assert group_defined(definition_of(group)) == group
