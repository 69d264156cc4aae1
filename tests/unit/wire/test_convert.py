import pytest

from hoss.errors import InvalidInput
from hoss.model.node import Toleration
from hoss.model.pod import HostPort
from hoss.v1 import common_pb2
from hoss.wire import convert


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
