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
