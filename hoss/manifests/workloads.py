"""Reads Kubernetes objects into workloads: the kinds that HOSS places, their numbers of pods, their names."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hoss.errors import InvalidInput
from hoss.manifests.fields import Object, api_group, boolean, check_name, integer, mapping, text
from hoss.manifests.pod import read_namespace, read_pod_template, rules_not_obeyed
from hoss.manifests.pod_rules import read_optional_selector
from hoss.model.pod import PodTemplate, Workload

# API groups by kind. A kind of the same name in another group is another kind (a Volcano Job is no batch
# Job).
_GROUPS = {"Pod": "", "Job": "batch", "Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps"}

# Kinds whose pods are spread by default. A Deployment has the selector of its ReplicaSets.
_SPREAD_KINDS = frozenset({"Deployment", "ReplicaSet", "StatefulSet"})

_MOST_REPLICAS = 2**32 - 1  # a pod's place in its set is a u32


@dataclass(frozen=True, slots=True)
class ReadObject:
    """The workload of one object, if it has any, and warnings for the user."""

    workload: Workload | None
    warnings: tuple[str, ...] = ()


def read_workload(manifest: Object, generate_suffix: Callable[[], str]) -> ReadObject:
    """The workload of one object that is not a Node or a List.

    Kinds that HOSS does not place give no workload and a warning. `generate_suffix` completes
    metadata.generateName. Raises InvalidInput with the field's path, the value and what would be right."""
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
        workload = Workload(name, template, 1, text(metadata, "uid", "metadata"))
        return ReadObject(workload, _warnings(title, spec))
    pod = mapping(spec, "template", "spec")
    pod_metadata, pod_spec = mapping(pod, "metadata", "spec.template"), mapping(pod, "spec", "spec.template")
    template = read_pod_template(
        pod_metadata, pod_spec, "spec.template", namespace=namespace, owner_kind=kind
    )
    template = _spread_by_owner(template, kind, spec)
    replicas = _job_pods(spec) if kind == "Job" else _count(spec, "replicas", 1)
    if not replicas:
        return ReadObject(None, (f"{title} is skipped: it asks for no pods",))
    return ReadObject(Workload(name, template, replicas), _warnings(title, pod_spec))


def _spread_by_owner(template: PodTemplate, kind: str, spec: Object) -> PodTemplate:
    """The template with the selector of default spreading: the owner's. Jobs have none (kube-scheduler's
    DefaultSelector)."""
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
        problem = "is missing; an object has an apiVersion and a kind, such as v1 and Pod"
        raise InvalidInput(problem, where="kind")
    if not version:
        problem = f"is missing; a {kind} needs one, such as v1 for Pod or apps/v1 for Deployment"
        raise InvalidInput(problem, where="apiVersion")
    return kind, api_group(version)


def _job_pods(spec: Object) -> int:
    # The pods that run at once: `parallelism`, and at most `completions`. HOSS does not see pods finish: as
    # many pods as `completions` would reserve resources that the job never uses at once.
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
            problem = "is missing; give a name, or a generateName to have one made"
            raise InvalidInput(problem, where="metadata.name")
        name = prefix + generate_suffix()
    return check_name(name, "metadata.name")


def _title(kind: str, manifest: Object) -> str:
    metadata = mapping(manifest, "metadata", kind)
    name = metadata.get("name") or metadata.get("generateName") or "without a name"
    namespace = metadata.get("namespace")
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _warnings(title: str, spec: Object) -> tuple[str, ...]:
    ignored = ", ".join(rules_not_obeyed(spec))
    return (f"{title} is placed without regard to {ignored}: not supported yet",) if ignored else ()
