"""Nodes and pods of a comparison's loads as Kubernetes objects. `WITHOUT_FORM` names the loads that have no
form that both schedulers know, and why."""

from collections.abc import Mapping
from typing import Any, Final

from hoss.kube.api import Object
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from hoss.model.selectors import LabelSelector
from hossctl.choices import Load

WITHOUT_FORM: Final[Mapping[str, str]] = {
    Load.OPENB.value: "kube-scheduler knows no share of a card",
    Load.GANGS.value: "kube-scheduler's default profile binds pods one by one",
    Load.CHURN.value: "its rate is more than an API server on the same cores takes",
    Load.TRACE.value: "a recording's times and cards have no such form",
}


def node_object(node: NodeSpec) -> Object:
    """A ready Node without a kubelet. Taints and images are left out: the loads' nodes have none."""
    amounts = {name: _quantity(name, amount) for name, amount in node.allocatable}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": node.name, "labels": dict(node.labels)}, "status": status}


def pod_object(name: str, spec: PodSpec, scheduler: str) -> Object:
    """A bare pod of one container, with everything that the loads use: amounts, labels, a node selector,
    required anti-affinity and spreading."""
    requests = {resource: _quantity(resource, amount) for resource, amount in spec.requests}
    body: Object = {
        "schedulerName": scheduler,
        "containers": [{"name": "c", "image": "none", "resources": {"requests": requests}}],
    }
    if spec.node_selector:
        body["nodeSelector"] = dict(spec.node_selector)
    if spec.pod_affinity is not None:
        terms = [
            {"topologyKey": term.topology_key, "labelSelector": _selector(term.selector)}
            for term in spec.pod_affinity.anti_required
        ]
        body["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if spec.spread:
        body["topologySpreadConstraints"] = [
            {
                "maxSkew": constraint.max_skew,
                "topologyKey": constraint.topology_key,
                "whenUnsatisfiable": "DoNotSchedule" if constraint.required else "ScheduleAnyway",
                "labelSelector": _selector(constraint.selector),
            }
            for constraint in spec.spread
        ]
    return {"metadata": {"name": name, "labels": dict(spec.labels)}, "spec": body}


def _selector(selector: LabelSelector | None) -> dict[str, Any] | None:
    if selector is None:
        return None
    terms = [{"key": r.key, "operator": r.operator, "values": list(r.values)} for r in selector.requirements]
    return {"matchExpressions": terms}


def _quantity(resource: str, amount: int) -> str:
    return f"{amount}m" if resource == "cpu" else str(amount)
