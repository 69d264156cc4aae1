"""Node affinity, tolerations and host ports of pods, and taints of nodes, from manifests.

Fields that change the meaning of a rule are checked as strictly as by the API server. Lists that mean a set
are sorted, so that equal pods compare equal."""

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import (
    Object,
    boolean,
    check_key,
    check_label_value,
    choice,
    integer,
    mapping,
    mappings,
    moment,
    read_weight,
    text,
    texts,
)
from hoss.model.node import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration
from hoss.model.pod import EVERY_ADDRESS, HostPort
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, PreferredTerm, Requirement

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_EFFECTS = (NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE)
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_NODE_FIELD = "metadata.name"  # the only field that Kubernetes lets matchFields name
_MOST_SECONDS = 2**63 - 1  # Kubernetes' type
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def read_node_affinity(spec: Object, path: str) -> tuple[NodeSelector | None, tuple[PreferredTerm, ...]]:
    """The required and the preferred terms of spec.affinity.nodeAffinity."""
    affinity = mapping(mapping(spec, "affinity", path), "nodeAffinity", f"{path}.affinity")
    if not affinity:
        return None, ()
    place = f"{path}.affinity.nodeAffinity"
    required = None
    if affinity.get(_REQUIRED) is not None:
        required = read_node_selector(mapping(affinity, _REQUIRED, place), f"{place}.{_REQUIRED}")
    preferred = []
    for i, entry in enumerate(mappings(affinity, _PREFERRED, place)):
        where = f"{place}.{_PREFERRED}[{i}]"
        weight = read_weight(entry, where)
        term = _read_term(mapping(entry, "preference", where), f"{where}.preference")
        preferred.append(PreferredTerm(weight, term))
    return required, tuple(preferred)


def read_tolerations(spec: Object, path: str) -> tuple[Toleration, ...]:
    """spec.tolerations, sorted. The operators Lt and Gt (KEP-5471; off in Kubernetes 1.36) are errors."""
    tolerations = set()
    for i, entry in enumerate(mappings(spec, "tolerations", path)):
        place = f"{path}.tolerations[{i}]"
        key = text(entry, "key", place)
        operator = choice(entry, "operator", place, ("Equal", "Exists"), default="Equal")
        value = text(entry, "value", place)
        effect = choice(entry, "effect", place, _EFFECTS) if text(entry, "effect", place) else ""
        if key:
            check_key(key, f"{place}.key")
        elif operator != "Exists":
            problem = "is Equal without a key; to tolerate every taint use Exists"
            raise InvalidInput(problem, where=f"{place}.operator")
        if operator == "Exists" and value:
            problem = f"is {quoted(value)}; with operator Exists there is no value"
            raise InvalidInput(problem, where=f"{place}.value")
        seconds = _read_toleration_seconds(entry, place, effect)
        tolerations.add(Toleration(key, operator, value, effect, seconds))
    return tuple(sorted(tolerations, key=_toleration_order))


def read_taints(spec: Object, path: str) -> tuple[Taint, ...]:
    """spec.taints of a node, in their order."""
    taints = []
    for i, entry in enumerate(mappings(spec, "taints", path)):
        place = f"{path}.taints[{i}]"
        key = check_key(text(entry, "key", place), f"{place}.key")
        value = check_label_value(text(entry, "value", place), f"{place}.value")
        effect = choice(entry, "effect", place, _EFFECTS)
        added_ms = int(1000 * moment(entry, "timeAdded", place, default=0)) if effect == NO_EXECUTE else 0
        taints.append(Taint(key, value, effect, added_ms))
    return tuple(taints)


def read_host_ports(spec: Object, path: str) -> tuple[HostPort, ...]:
    """Ports of the node that containers and sidecars take, sorted. With hostNetwork every container port is a
    port of the node.

    Other init containers do not count: they have ended when the pod runs (kube-scheduler's NodePorts)."""
    host_network = boolean(spec, "hostNetwork", path)
    ports = set()
    for kind in ("containers", "initContainers"):
        for i, container in enumerate(mappings(spec, kind, path)):
            if kind == "initContainers" and container.get("restartPolicy") != "Always":
                continue
            place = f"{path}.{kind}[{i}]"
            for j, entry in enumerate(mappings(container, "ports", place)):
                port = _read_host_port(entry, f"{place}.ports[{j}]", host_network=host_network)
                if port is not None:
                    ports.add(port)
    return tuple(sorted(ports, key=lambda p: (p.port, p.protocol, p.host_ip)))


def read_node_selector(selector: Object, path: str, *, as_written: bool = False) -> NodeSelector:
    """A NodeSelector of the core API: terms, of which one must match. `as_written`: values keep their order,
    for selectors that are written to other objects."""
    terms = mappings(selector, "nodeSelectorTerms", path)
    if not terms:
        raise InvalidInput("is empty; a requirement has at least one term", where=f"{path}.nodeSelectorTerms")
    return NodeSelector(
        tuple(
            _read_term(t, f"{path}.nodeSelectorTerms[{i}]", as_written=as_written)
            for i, t in enumerate(terms)
        )
    )


def _read_term(term: Object, path: str, *, as_written: bool = False) -> NodeSelectorTerm:
    expressions = []
    for i, entry in enumerate(mappings(term, "matchExpressions", path)):
        place = f"{path}.matchExpressions[{i}]"
        requirement = _read_requirement(entry, place, as_written=as_written)
        check_key(requirement.key, f"{place}.key")
        expressions.append(requirement)
    fields = []
    for i, entry in enumerate(mappings(term, "matchFields", path)):
        place = f"{path}.matchFields[{i}]"
        requirement = _read_requirement(entry, place, as_written=as_written)
        choice(entry, "key", place, (_NODE_FIELD,))
        choice(entry, "operator", place, ("In", "NotIn"))
        if len(requirement.values) != 1:
            problem = f"has {len(requirement.values)} names; a field takes exactly one"
            raise InvalidInput(problem, where=f"{place}.values")
        fields.append(requirement)
    return NodeSelectorTerm(tuple(expressions), tuple(fields))


def _read_requirement(entry: Object, path: str, *, as_written: bool = False) -> Requirement:
    operator = choice(entry, "operator", path, _OPERATORS)
    values = texts(entry, "values", path)
    if operator in ("In", "NotIn"):
        if not values:
            raise InvalidInput(f"is empty; {operator} takes at least one value", where=f"{path}.values")
        values = values if as_written else tuple(sorted(set(values)))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            raise InvalidInput(f"has {len(values)} values; {operator} takes none", where=f"{path}.values")
    elif len(values) != 1:
        raise InvalidInput(f"has {len(values)} values; {operator} takes exactly one", where=f"{path}.values")
    return Requirement(text(entry, "key", path), operator, values)


def _read_toleration_seconds(entry: Object, path: str, effect: str) -> int | None:
    if entry.get("tolerationSeconds") is None:
        return None
    seconds = integer(
        entry, "tolerationSeconds", path, least=-_MOST_SECONDS - 1, most=_MOST_SECONDS, default=0
    )
    if effect != NO_EXECUTE:
        problem = f"is {seconds}, but only with effect NoExecute do pods leave after a time"
        raise InvalidInput(problem, where=f"{path}.tolerationSeconds")
    return max(0, seconds)  # a negative number means zero, as in Kubernetes


def _toleration_order(toleration: Toleration) -> tuple[str, str, str, str, int]:
    seconds = -1 if toleration.seconds is None else toleration.seconds
    return toleration.key, toleration.operator, toleration.value, toleration.effect, seconds


def _read_host_port(entry: Object, path: str, *, host_network: bool) -> HostPort | None:
    host = integer(entry, "hostPort", path, least=0, most=65535, default=0)
    if host_network:
        container = integer(entry, "containerPort", path, least=1, most=65535, default=0)
        if host and host != container:
            problem = f"is {host}; with hostNetwork it is the containerPort, {container}"
            raise InvalidInput(problem, where=f"{path}.hostPort")
        host = container
    if not host:
        return None
    protocol = choice(entry, "protocol", path, _PROTOCOLS, default="TCP")
    return HostPort(host, protocol, text(entry, "hostIP", path) or EVERY_ADDRESS)
