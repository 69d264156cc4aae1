import pickle
import weakref

import pytest

from hoss.errors import InvalidInput
from hoss.model.node import Toleration
from hoss.model.pod import HostPort, PodGroup
from hoss.v1 import common_pb2
from hoss.wire import convert
from hoss.wire.convert_rules import definition_of, group_defined


def test_absent_fields_of_messages_mean_kubernetes_defaults():
    message = common_pb2.PodSpec(
        tolerations=[common_pb2.Toleration(key="a")], host_ports=[common_pb2.HostPort(port=80)]
    )
    spec = convert.pod_spec_from_proto(message)
    assert spec.tolerations == (Toleration("a", "Equal"),)
    assert spec.host_ports == (HostPort(80, "TCP", "0.0.0.0"),)
    assert spec.required_node_affinity is None
    assert spec.devices is None


def test_a_label_that_one_message_names_twice_is_refused():
    labels = [common_pb2.Label(key=key, value=value) for key, value in ("a1", "b1", "a2")]
    with pytest.raises(InvalidInput, match=r"^labels: the label 'a' is named twice$"):
        convert.pod_spec_from_proto(common_pb2.PodSpec(labels=labels))
    with pytest.raises(InvalidInput, match=r"^node_selector: the label 'a' is named twice$"):
        convert.pod_spec_from_proto(common_pb2.PodSpec(node_selector=labels))
    assert convert.pod_spec_from_proto(common_pb2.PodSpec(labels=labels[:2])).labels == (
        ("a", "1"),
        ("b", "1"),
    )


def test_a_group_is_read_once_as_long_as_anybody_has_it_and_no_longer():
    """However many others were read since: more than are remembered for those that have none."""
    definition = definition_of(PodGroup(labels=(("app", "web"),)))
    group = group_defined(definition)
    group_defined.cache_clear()
    assert group_defined(definition) is group
    group_defined.cache_clear()
    had = weakref.ref(group)
    del group
    assert had() is None
    assert group_defined(definition).labels == (("app", "web"),)


def test_a_group_that_another_process_gets_has_the_hash_of_that_process():
    group = PodGroup(labels=(("app", "web"),))
    assert hash(group) == hash(PodGroup(labels=(("app", "web"),)))
    received = pickle.loads(pickle.dumps(group))
    assert received == group
    assert vars(received) == vars(PodGroup(labels=(("app", "web"),)))
