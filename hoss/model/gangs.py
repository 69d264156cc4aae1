"""Gangs in manifests: an annotation of ours, Volcano's Job, and the PodGroups of Volcano and of the coscheduling plugin."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hoss.errors import InvalidInput
from hoss.model.fields import Object, integer, mapping, mappings, text
from hoss.model.names import check_name
from hoss.model.pod import Gang, Workload
from hoss.model.pod_manifest import read_namespace, read_pod_template, rules_not_obeyed

MIN_AVAILABLE_ANNOTATION = "hoss.dev/min-available"
MIN_AVAILABLE = f"metadata.annotations[{MIN_AVAILABLE_ANNOTATION}]"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"  # Volcano's
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"  # the coscheduling plugin's

VOLCANO_JOB = ("Job", "batch.volcano.sh")
POD_GROUPS = frozenset({("PodGroup", "scheduling.volcano.sh"), ("PodGroup", "scheduling.x-k8s.io")})

_MOST_PODS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A Volcano Job: a workload for each of its tasks, all one gang, and remarks for the user."""

    workloads: tuple[Workload, ...]
    remarks: tuple[str, ...]


def read_volcano_job(manifest: Object) -> ReadJob:
    """Tasks become workloads named <job>-<task>, so that pods have the names that Volcano gives them.

    Raises InvalidInput with the field's path, also where minAvailable is over the tasks' replicas.
    """
    metadata, spec = mapping(manifest, "metadata", "Job"), mapping(manifest, "spec", "Job")
    name, namespace = (
        check_name(text(metadata, "name", "metadata"), "metadata.name"),
        read_namespace(metadata, "metadata"),
    )
    tasks = mappings(spec, "tasks", "spec")
    workloads, remarks = [], []
    for number, task in enumerate(tasks):
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
        ignored = [*rules_not_obeyed(pod_spec), *(["minAvailable of a task"] if task.get("minAvailable") else [])]
        if ignored:
            remarks.append(
                f"Job {name}, task {task_name} is placed without regard to {', '.join(ignored)}: not supported yet"
            )
    pods = sum(workload.replicas for workload in workloads)
    minimum = integer(spec, "minAvailable", "spec", least=0, most=_MOST_PODS, default=pods)
    if minimum > pods:
        raise InvalidInput(f"is {minimum}; the tasks have {pods} replicas in all", where="spec.minAvailable")
    gang = Gang(namespace, name, minimum) if minimum else None
    return ReadJob(tuple(replace(workload, gang=gang) for workload in workloads), tuple(remarks))


def min_available(manifest: Object, workload: Workload) -> Workload:
    """The workload as a gang by itself where our annotation asks for it. Raises InvalidInput."""
    annotations = mapping(mapping(manifest, "metadata", "object"), "annotations", "metadata")
    asked = text(annotations, MIN_AVAILABLE_ANNOTATION, "metadata.annotations")
    if not asked:
        return workload
    minimum = read_minimum(asked)
    if minimum > workload.replicas:
        raise InvalidInput(f"is {asked}; there are {workload.replicas} replicas", where=MIN_AVAILABLE)
    gang = Gang(workload.template.spec.namespace, workload.name, minimum) if minimum else None
    return replace(workload, gang=gang)


def read_minimum(asked: str) -> int:
    """The number in our annotation. Raises InvalidInput."""
    if not (asked.isascii() and asked.isdigit()):
        raise InvalidInput(f"is {asked!r}; it is a whole number of pods", where=MIN_AVAILABLE)
    return int(asked)


def group_name(manifest: Object) -> str:
    """The PodGroup that an object's pods say they belong to, "" for none."""
    owner = mapping(manifest, "metadata", "object")
    pod = owner if manifest.get("kind") == "Pod" else _template_metadata(manifest)
    return group_in(pod) or group_in(owner)


def group_in(metadata: Object) -> str:
    """The PodGroup that metadata name, "" for none."""
    annotations, labels = mapping(metadata, "annotations", "metadata"), mapping(metadata, "labels", "metadata")
    return text(annotations, GROUP_ANNOTATION, "metadata.annotations") or text(labels, GROUP_LABEL, "metadata.labels")


def read_pod_group(manifest: Object) -> Gang:
    """A PodGroup. Raises InvalidInput with the field's path."""
    metadata, spec = mapping(manifest, "metadata", "PodGroup"), mapping(manifest, "spec", "PodGroup")
    name = check_name(text(metadata, "name", "metadata"), "metadata.name")
    minimum = integer(spec, "minMember", "spec", least=1, most=_MOST_PODS, default=1)
    return Gang(read_namespace(metadata, "metadata"), name, minimum)


def join_groups(
    workloads: Iterable[tuple[Workload, str]], groups: Iterable[tuple[Gang, str]], remark: Callable[[str], None]
) -> list[Workload]:
    """Workloads with the gangs they name; groups stand beside their places. Raises InvalidInput for a group that has fewer
    pods than its minMember."""
    by_name = {(gang.namespace, gang.name): gang for gang, _ in groups}
    joined, members = [], dict.fromkeys(by_name, 0)
    for workload, group in workloads:
        key = (workload.template.spec.namespace, group)
        if group and key in by_name:
            members[key] += workload.replicas
            joined.append(replace(workload, gang=by_name[key]))
            continue
        if group and workload.gang is None:
            remark(
                f"{workload.name} names PodGroup {key[0]}/{group}, which is not here: its pods are placed one by one"
            )
        joined.append(workload)
    for gang, place in groups:
        count = members[gang.namespace, gang.name]
        if count == 0:
            remark(f"PodGroup {gang.namespace}/{gang.name} is skipped: no pod here names it")
        elif count < gang.minimum:
            raise InvalidInput(f"is {gang.minimum}; {count} pods name the group", where=f"{place}: spec.minMember")
    return joined


def _template_metadata(manifest: Object) -> Object:
    template = mapping(mapping(manifest, "spec", "object"), "template", "spec")
    return mapping(template, "metadata", "spec.template")
