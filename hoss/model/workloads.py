"""From Kubernetes objects to workloads: which kinds HOSS places, how many pods each stands for, and their names."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hoss.errors import InvalidInput
from hoss.model.fields import Object, boolean, integer, mapping, text
from hoss.model.names import check_name
from hoss.model.pod import PodTemplate, Workload
from hoss.model.pod_manifest import read_namespace, read_pod_template, rules_not_obeyed
from hoss.model.pod_rules_manifest import read_optional_selector

# Kinds by API group. The same kind of another group is another thing (a Volcano Job is no batch Job).
_GROUPS = {"Pod": "", "Job": "batch", "Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps"}

# Kinds whose pods are spread by default. A Deployment's belong to its ReplicaSet, which selects what it does.
_SPREAD_KINDS = frozenset({"Deployment", "ReplicaSet", "StatefulSet"})

_MOST_REPLICAS = 2**32 - 1  # a pod's place in its set is a u32


@dataclass(frozen=True, slots=True)
class ReadObject:
    """What came of one object: its pods, if it stands for any, and remarks for the user."""

    workload: Workload | None
    remarks: tuple[str, ...] = ()


def read_workload(manifest: Object, generate_suffix: Callable[[], str]) -> ReadObject:
    """The workload of one object that is not a Node or a List.

    Kinds that HOSS does not place give no workload and a remark. `generate_suffix` completes metadata.generateName.
    Raises InvalidInput with the field's path, the value given and what would be right.
    """
    kind, group = kind_and_group(manifest)
    title = _title(kind, manifest)
    if _GROUPS.get(kind) != group:
        shown = f"{title} of {manifest['apiVersion']}" if kind in _GROUPS else title
        return ReadObject(None, (f"{shown} is skipped: HOSS places {', '.join(_GROUPS)} and lists of them",))
    metadata, spec = mapping(manifest, "metadata", kind), mapping(manifest, "spec", kind)
    if not spec:
        raise InvalidInput(f"is missing; a {kind} has one", where="spec")
    name, namespace = _read_name(metadata, generate_suffix), read_namespace(metadata, "metadata")
    if kind == "Pod":
        template = read_pod_template(metadata, spec, "", namespace=namespace)
        return ReadObject(Workload(name, template, 1, text(metadata, "uid", "metadata")), _remarks(title, spec))
    pod = mapping(spec, "template", "spec")
    pod_metadata, pod_spec = mapping(pod, "metadata", "spec.template"), mapping(pod, "spec", "spec.template")
    template = read_pod_template(pod_metadata, pod_spec, "spec.template", namespace=namespace, owner_kind=kind)
    template = _spread_by_owner(template, kind, spec)
    replicas = _job_pods(spec) if kind == "Job" else _count(spec, "replicas", 1)
    if not replicas:
        return ReadObject(None, (f"{title} is skipped: it asks for no pods",))
    return ReadObject(Workload(name, template, replicas), _remarks(title, pod_spec))


def _spread_by_owner(template: PodTemplate, kind: str, spec: Object) -> PodTemplate:
    """With what default spreading counts: the pods that the owner selects. Jobs have none (kube-scheduler's DefaultSelector)."""
    if kind not in _SPREAD_KINDS or template.spec.spread:
        return template
    selector = read_optional_selector(spec, "selector", "spec")
    if selector is None or selector.everything:
        return template
    return replace(template, spec=replace(template.spec, default_spread=selector))


def kind_and_group(manifest: Object) -> tuple[str, str]:
    """An object's kind and API group ("" for core). Raises InvalidInput where either is missing."""
    kind, version = text(manifest, "kind", "object"), text(manifest, "apiVersion", "object")
    if not kind:
        raise InvalidInput("is missing; an object has an apiVersion and a kind, such as v1 and Pod", where="kind")
    if not version:
        raise InvalidInput(
            f"is missing; a {kind} needs one, such as v1 for Pod or apps/v1 for Deployment", where="apiVersion"
        )
    group, slash, _ = version.partition("/")
    return kind, group if slash else ""


def _job_pods(spec: Object) -> int:
    # As many as may run at once, which is what needs room: `parallelism`, but no more than are to complete at all.
    # HOSS binds pods and does not see them finish, so `completions` pods at once would ask for room the job never uses.
    if boolean(spec, "suspend", "spec"):
        return 0
    parallelism = _count(spec, "parallelism", 1)
    return min(parallelism, _count(spec, "completions", parallelism))


def _count(spec: Object, key: str, default: int) -> int:
    return integer(spec, key, "spec", least=0, most=_MOST_REPLICAS, default=default)


def _read_name(metadata: Object, generate_suffix: Callable[[], str]) -> str:
    name = text(metadata, "name", "metadata")
    if not name:
        prefix = text(metadata, "generateName", "metadata")
        if not prefix:
            raise InvalidInput("is missing; give a name, or a generateName to have one made", where="metadata.name")
        name = prefix + generate_suffix()
    return check_name(name, "metadata.name")


def _title(kind: str, manifest: Object) -> str:
    metadata = mapping(manifest, "metadata", kind)
    name = metadata.get("name") or metadata.get("generateName") or "without a name"
    namespace = metadata.get("namespace")
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _remarks(title: str, spec: Object) -> tuple[str, ...]:
    ignored = rules_not_obeyed(spec)
    return (f"{title} is placed without regard to {', '.join(ignored)}: not supported yet",) if ignored else ()
