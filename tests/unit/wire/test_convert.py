import pytest

from hoss.errors import InvalidInput
from hoss.model.pod import HostPort
from hoss.model.taints import Toleration
from hoss.v1 import common_pb2, dispatcher_pb2
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


def test_an_unknown_qos_class_is_refused():
    with pytest.raises(InvalidInput, match="qos_class: 'Golden' is none of BestEffort, Burstable, Guaranteed"):
        convert.template_from_proto(dispatcher_pb2.PodTemplate(qos_class="Golden"))
