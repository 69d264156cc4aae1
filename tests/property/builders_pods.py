"""Random clusters with few names, so that pods, rules and domains meet."""

from hypothesis import strategies as st

from hoss.model.cluster import BoundPod, Cluster
from hoss.model.node import NodeSpec, Taint, Toleration
from hoss.model.pod import HostPort, PodAffinity, PodAffinityTerm, PodSpec, SpreadConstraint, WeightedPodTerm
from hoss.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement

GIB = 2**30
HOSTNAME, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"
NAMESPACES = {"default": {}, "prod": {"team": "a"}, "test": {"team": "b", "stage": "x"}}


def several(of, most=2):
    return st.lists(of, max_size=most).map(tuple)


def labels_of(**choices):
    return st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in choices.items()}).map(
        lambda labels: tuple(sorted(labels.items()))
    )


pod_labels = labels_of(app=["web", "db"], tier=["front", "back"])
namespaces = st.sampled_from(["default"] * 5 + ["prod", "test", "unknown"])


def requirements(keys, values):
    valued = st.builds(
        Requirement,
        st.sampled_from(keys),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True).map(tuple),
    )
    return valued | st.builds(Requirement, st.sampled_from(keys), st.sampled_from(["Exists", "DoesNotExist"]))


_WEB = LabelSelector((Requirement("app", "In", ("web",)),))
selectors = st.sampled_from([None, _WEB, _WEB, _WEB]) | st.builds(
    LabelSelector, several(requirements(["app", "tier"], ["web", "db", "front", "back"]))
)
namespace_selectors = st.none() | st.builds(
    LabelSelector, several(requirements(["team", "stage"], ["a", "b", "x"]), 1)
)
terms = st.builds(
    PodAffinityTerm,
    st.sampled_from([HOSTNAME, ZONE, RACK]),
    selectors,
    several(namespaces).map(lambda names: tuple(sorted(set(names)))),
    namespace_selectors,
)
weighted = st.builds(WeightedPodTerm, st.integers(1, 100), terms)
affinities = st.none() | st.builds(
    PodAffinity, several(terms), several(weighted), several(terms, 1), several(weighted, 1)
)
constraints = st.builds(
    SpreadConstraint,
    st.integers(1, 3),
    st.sampled_from([HOSTNAME, ZONE, RACK]),
    selectors,
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
host_ports = st.builds(
    HostPort,
    st.sampled_from([80, 443]),
    st.sampled_from(["TCP", "UDP"]),
    st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"]),
)


@st.composite
def nodes(draw, most=6):
    found = []
    for i in range(draw(st.integers(1, most))):
        labels = dict(draw(labels_of(**{ZONE: ["a", "b"], RACK: ["r1", "r2", "r3"]})))
        if draw(st.integers(0, 9)):
            labels[HOSTNAME] = f"n{i}"
        found.append(
            NodeSpec(
                f"n{i}",
                labels=tuple(sorted(labels.items())),
                taints=draw(st.sampled_from([(), (), (Taint("key", "", "NoSchedule"),)])),
                allocatable=(("cpu", 4000), ("memory", 8 * GIB), ("pods", 20)),
                images=draw(several(st.sampled_from([("big:1", 900 << 20), ("small:1", 40 << 20)]))),
            )
        )
        found[-1] = NodeSpec(**{**fields(found[-1]), "images": tuple(sorted(set(found[-1].images)))})
    return found


def fields(node):
    return {name: getattr(node, name) for name in type(node).__slots__}


@st.composite
def pod_specs(draw, *, spread=True):
    found = draw(several(constraints)) if spread else ()
    kept = {(c.topology_key, c.required): c for c in found}
    return PodSpec(
        namespace=draw(namespaces),
        labels=draw(pod_labels),
        requests=(("cpu", 100), ("memory", GIB // 4)),
        nonzero_cpu_milli=100,
        nonzero_memory_bytes=GIB // 4,
        pod_affinity=draw(affinities),
        spread=tuple(kept.values()),
        default_spread=draw(selectors) if spread and not kept else None,
        host_ports=tuple(sorted(set(draw(several(host_ports))), key=repr)),
        tolerations=draw(st.sampled_from([(), (Toleration(operator="Exists"),)])),
        required_node_affinity=draw(st.sampled_from([None, None, ONLY_IN_A_ZONE])),
        images=draw(st.sampled_from([(), ("big:1",), ("big:1", "small:1")])),
        image_containers=2,
    )


ONLY_IN_A_ZONE = NodeSelector((NodeSelectorTerm((Requirement(ZONE, "Exists"),)),))


def bound(spec, node, name="", *, deleting=False, started_at=0.0):
    return BoundPod(
        name=name or f"{node}-pod",
        node=node,
        spec=spec,
        requests=spec.requests,
        nonzero_cpu_milli=spec.nonzero_cpu_milli,
        nonzero_memory_bytes=spec.nonzero_memory_bytes,
        deleting=deleting,
        started_at=started_at,
    )


@st.composite
def clusters(draw):
    found = draw(nodes())
    pods = draw(
        st.lists(
            st.builds(
                bound,
                pod_specs(spread=False),
                st.sampled_from([node.name for node in found]),
                deleting=st.sampled_from([False, False, True]),
            ),
            max_size=14,
        )
    )
    return Cluster(nodes=found, pods=pods, namespaces=NAMESPACES)
