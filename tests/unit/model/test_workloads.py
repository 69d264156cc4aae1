import pytest

from hoss.errors import InvalidInput
from hoss.manifests.workloads import read_workload

POD_SPEC = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
API_VERSIONS = {"Job": "batch/v1", "Deployment": "apps/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


def owner(kind, **spec):
    return {
        "apiVersion": API_VERSIONS[kind],
        "kind": kind,
        "metadata": {"name": "w", "namespace": "prod", "labels": {"of": "owner"}},
        "spec": {"template": {"metadata": {"labels": {"of": "pod"}}, "spec": POD_SPEC}, **spec},
    }


def read(manifest):
    return read_workload(manifest, lambda: "abcde")


@pytest.mark.parametrize("kind", API_VERSIONS)
def test_an_owner_stands_for_pods_of_its_template_in_its_namespace(kind):
    workload = read(owner(kind)).workload
    assert (workload.name, workload.replicas) == ("w", 1)
    assert workload.template.owner_kind == kind
    assert workload.template.spec.namespace == "prod"
    assert workload.template.spec.labels == (("of", "pod"),)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_are_counted(kind):
    assert read(owner(kind, replicas=3)).workload.replicas == 3


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"completions": 9}, 1),
        ({"parallelism": 4, "completions": 9}, 4),
        ({"parallelism": 9, "completions": 4}, 4),
    ],
)
def test_a_job_needs_room_for_the_pods_that_run_at_once(spec, pods):
    assert read(owner("Job", **spec)).workload.replicas == pods


@pytest.mark.parametrize(
    "manifest", [owner("Job", suspend=True), owner("Job", parallelism=0), owner("Deployment", replicas=0)]
)
def test_an_owner_of_no_pods_is_skipped_with_a_warning(manifest):
    result = read(manifest)
    assert result.workload is None
    assert result.warnings == (f"{manifest['kind']} prod/w is skipped: it asks for no pods",)


@pytest.mark.parametrize("replicas", [-1, 2**32, "3", 1.5, True])
def test_impossible_replicas_are_refused(replicas):
    with pytest.raises(InvalidInput, match=r"spec\.replicas: is"):
        read(owner("Deployment", replicas=replicas))


def test_a_bare_pod_keeps_its_name_and_uid():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u1"}, "spec": POD_SPEC}
    workload = read(pod).workload
    assert (workload.name, workload.uid, workload.replicas, workload.template.owner_kind) == (
        "p",
        "u1",
        1,
        "",
    )


def test_a_generated_name_is_completed():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": POD_SPEC}
    assert read(pod).workload.name == "p-abcde"


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({"apiVersion": "v1", "kind": "Pod", "spec": POD_SPEC}, r"metadata\.name: is missing; give a name"),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "A"}, "spec": POD_SPEC},
            r"metadata\.name: 'A' is no valid name",
        ),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, "spec: is missing; a Pod has one"),
        ({"kind": "Pod"}, "apiVersion: is missing; a Pod needs one"),
        ({"apiVersion": "v1"}, "kind: is missing"),
        ({"apiVersion": "v1", "kind": 5}, "kind: is 5, where a string belongs"),
        (owner("Job", template={"spec": {}}), r"^spec\.template\.spec\.containers: is empty"),
    ],
)
def test_a_broken_object_is_refused_with_the_field(manifest, problem):
    with pytest.raises(InvalidInput, match=problem):
        read(manifest)


@pytest.mark.parametrize(
    ("version", "kind", "title"),
    [
        ("v1", "Service", "Service x/s"),
        ("batch.volcano.sh/v1alpha1", "Job", "Job x/s of batch.volcano.sh/v1alpha1"),
    ],
)
def test_a_kind_that_is_not_placed_is_skipped_and_named(version, kind, title):
    result = read({"apiVersion": version, "kind": kind, "metadata": {"name": "s", "namespace": "x"}})
    assert result.workload is None
    assert result.warnings[0].startswith(f"{title} is skipped: HOSS places Pod, Job")


def test_rules_not_obeyed_give_a_warning():
    manifest = owner("Deployment")
    manifest["spec"]["template"]["spec"] = {**POD_SPEC, "resourceClaims": [{"name": "gpu"}]}
    assert read(manifest).warnings == (
        "Deployment prod/w is placed without regard to spec.resourceClaims: not supported yet",
    )
