"""Gangs: HOSS's annotation, Volcano's Job, and the PodGroups of Volcano, the coscheduling plugin or
Kubernetes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hoss.errors import InvalidInput, quoted
from hoss.manifests.fields import Object, check_name, integer, mapping, mappings, read_name, text
from hoss.manifests.pod import read_namespace, read_pod_template, rules_not_obeyed
from hoss.model.pod import GangSpec, Workload
from hoss.model.quantity import whole_number

MIN_AVAILABLE_ANNOTATION = "hoss.dev/min-available"
MIN_AVAILABLE = f"metadata.annotations[{MIN_AVAILABLE_ANNOTATION}]"
# Volcano's, the first of which counts. Its controllers write both or either.
GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"  # the coscheduling plugin's

VOLCANO_JOB = ("Job", "batch.volcano.sh")
POD_GROUPS = frozenset(
    {
        ("PodGroup", "scheduling.volcano.sh"),
        ("PodGroup", "scheduling.x-k8s.io"),
        ("PodGroup", "scheduling.k8s.io"),  # its pods name it in spec.schedulingGroup
    }
)

_MOST_PODS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A Volcano Job: a workload for each of its tasks, all in one gang, and warnings for the user."""

    workloads: tuple[Workload, ...]
    warnings: tuple[str, ...]


def read_volcano_job(manifest: Object) -> ReadJob:
    """Tasks become workloads named <job>-<task>, so that pods have the names that Volcano gives them.

    Raises InvalidInput with the field's path, also where minAvailable exceeds the tasks' replicas."""
    metadata, spec = mapping(manifest, "metadata", "Job"), mapping(manifest, "spec", "Job")
    name, namespace = read_name(metadata, "Job"), read_namespace(metadata, "metadata")
    workloads, warnings = [], []
    for number, task in enumerate(mappings(spec, "tasks", "spec")):
        place = f"spec.tasks[{number}]"
        pod = mapping(task, "template", place)
        pod_spec = mapping(pod, "spec", f"{place}.template")
        template = read_pod_template(
            mapping(pod, "metadata", f"{place}.template"),
            pod_spec,
            f"{place}.template",
            namespace=namespace,
            owner_kind="Job",
        )
        replicas = integer(task, "replicas", place, least=0, most=_MOST_PODS, default=1)
        task_name = check_name(text(task, "name", place) or f"default{number}", f"{place}.name")
        if replicas:
            workloads.append(Workload(f"{name}-{task_name}", template, replicas))
        ignored = list(rules_not_obeyed(pod_spec))
        if task.get("minAvailable"):
            ignored.append("minAvailable of a task")
        if ignored:
            fields = ", ".join(ignored)
            warnings.append(
                f"Job {name}, task {task_name} is placed without regard to {fields}: not supported yet"
            )
    pods = sum(workload.replicas for workload in workloads)
    minimum = integer(spec, "minAvailable", "spec", least=0, most=_MOST_PODS, default=pods)
    if minimum > pods:
        raise InvalidInput(f"is {minimum}; the tasks have {pods} replicas in all", where="spec.minAvailable")
    gang = GangSpec(namespace, name, minimum) if minimum else None
    return ReadJob(tuple(replace(workload, gang=gang) for workload in workloads), tuple(warnings))


def min_available(manifest: Object, workload: Workload) -> Workload:
    """The workload as a gang of its own where MIN_AVAILABLE_ANNOTATION is set. Raises InvalidInput."""
    annotations = mapping(mapping(manifest, "metadata", "object"), "annotations", "metadata")
    value = text(annotations, MIN_AVAILABLE_ANNOTATION, "metadata.annotations")
    if not value:
        return workload
    minimum = read_minimum(value)
    if minimum > workload.replicas:
        raise InvalidInput(f"is {value}; there are {workload.replicas} replicas", where=MIN_AVAILABLE)
    gang = GangSpec(workload.template.spec.namespace, workload.name, minimum) if minimum else None
    return replace(workload, gang=gang)


def read_minimum(value: str) -> int:
    """The number in MIN_AVAILABLE_ANNOTATION. Raises InvalidInput."""
    minimum = whole_number(value)
    if minimum is None:
        raise InvalidInput(f"is {quoted(value)}; it is a whole number of pods", where=MIN_AVAILABLE)
    return minimum


def group_name(manifest: Object) -> str:
    """The PodGroup that an object's pods name; "" for none."""
    owner, pod = mapping(manifest, "metadata", "object"), manifest
    if manifest.get("kind") != "Pod":
        pod = mapping(mapping(manifest, "spec", "object"), "template", "spec")
    group = mapping(mapping(pod, "spec", "pod"), "schedulingGroup", "spec")
    named = text(group, "podGroupName", "spec.schedulingGroup")
    return named or _group_in(mapping(pod, "metadata", "pod")) or _group_in(owner)


def _group_in(metadata: Object) -> str:
    annotations = mapping(metadata, "annotations", "metadata")
    labels = mapping(metadata, "labels", "metadata")
    annotated = [text(annotations, name, "metadata.annotations") for name in GROUP_ANNOTATIONS]
    return next(filter(None, annotated), "") or text(labels, GROUP_LABEL, "metadata.labels")


def read_pod_group(manifest: Object) -> GangSpec:
    """A PodGroup of any of POD_GROUPS. One of Kubernetes with the policy `basic` has a minimum of 1, and so has
    one whose minMember is 0: whoever writes it by the Go types leaves a 0 out. Raises InvalidInput with the
    field's path."""
    metadata, spec = mapping(manifest, "metadata", "PodGroup"), mapping(manifest, "spec", "PodGroup")
    policy = mapping(spec, "schedulingPolicy", "spec")
    field, where, parent, least = "minMember", "spec", spec, 0
    if policy:
        field, where, least = "minCount", "spec.schedulingPolicy.gang", 1
        parent = mapping(policy, "gang", "spec.schedulingPolicy")
    minimum = max(1, integer(parent, field, where, least=least, most=_MOST_PODS, default=1))
    return GangSpec(read_namespace(metadata, "metadata"), read_name(metadata, "PodGroup"), minimum)


def join_groups(
    workloads: Iterable[tuple[Workload, str]],
    groups: Iterable[tuple[GangSpec, str]],
    warn: Callable[[str], None],
) -> list[Workload]:
    """Workloads with their gangs, from (workload, name of its PodGroup) and (gang, place of its manifest).

    Raises InvalidInput for a group that has fewer pods than its minMember."""
    by_name = {(gang.namespace, gang.name): gang for gang, _ in groups}
    joined, members = [], dict.fromkeys(by_name, 0)
    for workload, group in workloads:
        key = (workload.template.spec.namespace, group)
        if group and key in by_name:
            members[key] += workload.replicas
            joined.append(replace(workload, gang=by_name[key]))
            continue
        if group and workload.gang is None:
            missing = f"PodGroup {key[0]}/{group}, which is not here"
            warn(f"{workload.name} names {missing}: its pods are placed one by one")
        joined.append(workload)
    for gang, place in groups:
        count = members[gang.namespace, gang.name]
        if count == 0:
            warn(f"PodGroup {gang.namespace}/{gang.name} is skipped: no pod here names it")
        elif count < gang.minimum:
            problem = f"is {gang.minimum}; {count} pods name the group"
            raise InvalidInput(problem, where=f"{place}: spec.minMember")
    return joined
