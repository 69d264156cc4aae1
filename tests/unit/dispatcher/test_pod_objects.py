"""Reading pod objects of an API server."""

import pytest

from dispatcher.core.kubernetes.pod_groups import GroupKind, GroupRef
from dispatcher.core.kubernetes.pod_objects import PodReader
from dispatcher.core.pods.sets import NewGang
from hoss.errors import InvalidInput
from hoss.manifests.pod import ANNOTATION, read_pod_template
from hoss.model.devices import ClaimUse, ContainerRequests
from hoss.model.pod import DuringExecution
from hoss.model.volumes import ClaimMount, PodVolumes

UID = "11111111-2222-3333-4444-5555555555{:02}"


def pod(number=1, *, name="", labels=None, annotations=None, owner="", status=None, deleted=False, **spec):
    metadata = {
        "uid": UID.format(number),
        "namespace": "default",
        "name": name or f"p{number}",
        "labels": labels or {},
    }
    if annotations:
        metadata["annotations"] = annotations
    if owner:
        metadata["ownerReferences"] = [
            {"kind": owner, "apiVersion": "apps/v1", "name": "o", "uid": "o", "controller": True}
        ]
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    container = {"name": f"c{number}", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    container["volumeMounts"] = [{"name": f"kube-api-access-{number}", "mountPath": "/token"}]
    volumes = [{"name": f"kube-api-access-{number}", "projected": {}}]
    return {
        "metadata": metadata,
        "spec": {"schedulerName": "hoss", "containers": [container], "volumes": volumes, **spec},
        "status": status or {"phase": "Pending"},
    }


@pytest.fixture
def reader():
    return PodReader(("hoss",))


def test_pods_that_differ_in_names_uids_tokens_and_nodes_only_share_one_template(reader):
    first, second = reader.read(pod(1, nodeName="n1")), reader.read(pod(2, nodeName="n2"))
    assert first.template is second.template
    assert first.template.spec.node_name == ""
    assert (first.node, second.node) == ("n1", "n2")


@pytest.mark.parametrize(
    "other",
    [
        {"labels": {"a": "b"}},
        {"owner": "Job"},
        {"priority": 5},
        {"nodeSelector": {"zone": "a"}},
        {"hostNetwork": True, "hostUsers": False},
        {"containers": [{"image": "i", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]},
    ],
    ids=str,
)
def test_pods_that_are_placed_otherwise_have_templates_of_their_own(reader, other):
    assert reader.read(pod(1)).template != reader.read(pod(2, **other)).template


def test_whose_a_pod_is_its_scheduler_s_name_says(reader):
    assert reader.read(pod()).ours
    assert not reader.read(pod(schedulerName="default-scheduler")).ours


def test_where_a_pod_stands_in_its_life(reader):
    assert reader.read(pod(deleted=True)).leaving
    assert [reader.read(pod(status={"phase": p})).ended for p in ("Running", "Succeeded", "Failed")] == [
        False,
        True,
        True,
    ]


def test_gates_are_told(reader):
    assert reader.read(pod(schedulingGates=[{"name": "b/x"}, {"name": "a/x"}])).gates == ("a/x", "b/x")


CLAIM = {
    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
    "resourceClaims": [{"name": "gpu"}],
}


def test_pods_of_ours_keep_their_resource_claims_and_learn_their_names_from_the_status(reader):
    claims = reader.read(pod(**CLAIM)).template.spec.claims
    assert claims.uses == (ClaimUse(None, from_template=True),)
    made = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gpu-x7"}]}
    claims = reader.read(pod(status=made, **CLAIM)).template.spec.claims
    assert claims.uses == (ClaimUse("gpu-x7", from_template=True),)
    assert reader.read(pod(schedulerName="others", **CLAIM)).template.spec.claims is None


def test_a_pod_of_ours_that_names_one_claim_twice_is_not_placed(reader):
    """kube-scheduler never binds it either: the API server refuses to list the pod in the claim twice."""
    entries = [{"name": "x", "resourceClaimName": "shared"}, {"name": "y", "resourceClaimName": "shared"}]
    problem = reader.read(pod(resourceClaims=entries)).problem
    assert problem == (
        'running PreBind plugin "DynamicResources": add reservation to claim default/shared: '
        "the pod names it twice"
    )
    assert not reader.read(pod(2, resourceClaims=entries[:1])).problem
    assert not reader.read(pod(3, resourceClaims=entries, schedulerName="others")).problem
    unmade = [{"name": name, "resourceClaimTemplateName": "t"} for name in "xy"]
    assert not reader.read(pod(4, resourceClaims=unmade)).problem


GPU = "example.com/gpu"


def wanting(resource=GPU, **fields):
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", resource: "2"}}}
    return pod(containers=[container], **fields)


def test_extended_resources_are_claims_if_a_device_class_stands_for_them(reader):
    assert reader.read(wanting()).template.spec.claims is None
    assert reader.set_device_resources(frozenset([GPU]))
    assert not reader.set_device_resources(frozenset([GPU]))
    claims = reader.read(wanting()).template.spec.claims
    assert (claims.uid, claims.containers) == (UID.format("01"), (ContainerRequests("c", 0, ((1, GPU, 2),)),))
    assert reader.read(wanting("example.com/other")).template.spec.claims is None
    assert reader.read(wanting("deviceclass.resource.kubernetes.io/gpu")).template.spec.claims is not None
    assert reader.read(wanting(schedulerName="others")).template.spec.claims is None


def test_what_a_pod_has_as_devices_it_does_not_take_of_its_node(reader):
    made = {"requestMappings": [{"resourceName": GPU}], "resourceClaimName": "c"}
    status = {"phase": "Pending", "extendedResourceClaimStatus": made}
    for fields in ({}, {"schedulerName": "others"}):
        requests = dict(reader.read(wanting(nodeName="n1", status=status, **fields)).template.spec.requests)
        assert requests == {"cpu": 1000}
        assert GPU in dict(reader.read(wanting(nodeName="n1", **fields)).template.spec.requests)
    assert GPU in dict(reader.read(wanting(status=status)).template.spec.requests), "left by an attempt"


def test_cards_that_a_pod_has_as_devices_are_not_cards_of_its_node(reader):
    made = {"requestMappings": [{"resourceName": "nvidia.com/gpu"}], "resourceClaimName": "c"}
    status = {"phase": "Running", "extendedResourceClaimStatus": made}
    assert reader.read(wanting("nvidia.com/gpu", nodeName="n1", status=status)).template.spec.devices is None
    assert reader.read(wanting("nvidia.com/gpu", nodeName="n1")).template.spec.devices.count == 2


def test_what_is_to_be_ignored_is(reader):
    ignoring = PodReader(("hoss",), ignored=("persistent volume claims", "resource claims"))
    assert not ignoring.read(pod(**CLAIM)).problem
    spec = ignoring.read(pod(**CLAIM)).template.spec
    assert (spec.volumes, spec.claims) == (None, None)


def test_pods_of_every_scheduler_keep_their_volumes(reader):
    mounted = PodVolumes((ClaimMount("d"),))
    assert reader.read(pod(**CLAIM)).template.spec.volumes == mounted
    assert reader.read(pod(schedulerName="others", **CLAIM)).template.spec.volumes == mounted
    assert reader.read(pod()).template.spec.volumes is None


def test_what_pods_have_in_common_is_read_once_whatever_each_of_them_claims(reader, monkeypatch):
    """A StatefulSet's pods, and those of a ResourceClaimTemplate, have claims of their own."""
    read = []

    def reading(*given, **options):
        read.append(given)
        return read_pod_template(*given, **options)

    monkeypatch.setattr("dispatcher.core.kubernetes.pod_objects.read_pod_template", reading)
    names = [f"data-{number}" for number in range(20)]
    templates = []
    for name in [*names, *names]:
        volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": name}}]
        templates.append(reader.read(pod(volumes=volumes)).template)
    assert [found.spec.volumes.claims[0].claim for found in templates] == [*names, *names]
    assert all(first is again for first, again in zip(templates[:20], templates[20:], strict=True))
    assert len(read) == 1


def test_an_ephemeral_volume_belongs_to_its_pod_alone(reader):
    found = reader.read(pod(volumes=[{"name": "scratch", "ephemeral": {}}])).template.spec.volumes
    [mount] = found.claims
    assert mount.owner is not None
    assert mount.claim == f"{mount.owner.name}-scratch"


def test_what_no_account_can_be_kept_of_is_named(reader):
    huge = {"name": "c", "image": "i", "resources": {"requests": {"memory": "1Ei"}}}
    for made in ({"schedulerName": "others"}, {"nodeName": "n1"}):
        with pytest.raises(InvalidInput, match=r"spec\.containers: is empty"):
            reader.read(pod(containers=[], **made))
        with pytest.raises(InvalidInput, match=r"requests\.memory: is 1Ei, .*; HOSS counts up to"):
            reader.read(pod(containers=[huge], **made))
    # Of ours it is told, on the pod.
    assert reader.read(pod(containers=[huge])).problem.startswith(
        "spec.containers[0].resources.requests.memory: is 1Ei, 1152921504606846976 whole units; HOSS counts"
    )


def test_pods_of_a_deployment_spread_among_those_of_their_replica_set(reader):
    labels = {"app": "web", "pod-template-hash": "abc"}
    own = reader.read(pod(labels=labels, owner="ReplicaSet")).template.spec
    assert own.default_spread is not None
    assert own.default_spread.matches(labels)
    assert not own.default_spread.matches({**labels, "pod-template-hash": "def"}), "an earlier revision of it"


SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}]


@pytest.mark.parametrize(
    "fields",
    [
        {"owner": "Job", "labels": {"pod-template-hash": "abc"}},
        {"owner": "ReplicaSet", "labels": {"app": "web"}},
        {"owner": "ReplicaSet", "labels": {"pod-template-hash": "abc"}, "topologySpreadConstraints": SPREAD},
        {"owner": "ReplicaSet", "labels": {"pod-template-hash": "abc"}, "schedulerName": "default-scheduler"},
    ],
    ids=["of-a-job", "of-no-deployment", "with-constraints-of-its-own", "somebody-else-s"],
)
def test_other_pods_spread_by_no_owner(reader, fields):
    assert reader.read(pod(**fields)).template.spec.default_spread is None


@pytest.mark.parametrize(
    ("value", "asked"),
    [("report", DuringExecution.REPORT), ("evict", DuringExecution.EVICT), ("maybe", DuringExecution.IGNORE)],
)
def test_what_is_asked_for_while_it_runs_is_read_and_what_is_no_word_of_ours_keeps_no_pod_from_being_counted(
    reader, value, asked
):
    reader.read(pod(1))  # alike but for the annotation
    assert reader.read(pod(2, annotations={ANNOTATION: value})).template.during_execution is asked


JOB = {"kind": "Job", "apiVersion": "batch/v1", "name": "train", "uid": "of-the-job", "controller": True}
MINIMUM, GROUP, GROUP_LABEL = (
    "hoss.dev/min-available", "scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group",
)  # fmt: skip


OF_KUBERNETES, OF_VOLCANO, OF_PLUGINS = (
    GroupRef(kind, "default", "g") for kind in (GroupKind.WORKLOAD, GroupKind.VOLCANO, GroupKind.COSCHEDULING)
)


def member(annotations, *, labels=None, owners=(), **fields):
    made = pod(annotations=annotations, labels=labels, **fields)
    made["metadata"]["ownerReferences"] = list(owners)
    return made


@pytest.mark.parametrize(
    ("made", "group"),
    [
        (member({}, schedulingGroup={"podGroupName": "g"}), OF_KUBERNETES),
        (
            member({GROUP: "v"}, labels={GROUP_LABEL: "p"}, schedulingGroup={"podGroupName": "g"}),
            OF_KUBERNETES,
        ),
        (member({GROUP: "g"}, labels={GROUP_LABEL: "p"}), OF_VOLCANO),
        (member({"scheduling.volcano.sh/group-name": "g"}, labels={GROUP_LABEL: "p"}), OF_VOLCANO),
        (member({GROUP: "g", "scheduling.volcano.sh/group-name": "h"}), OF_VOLCANO),
        (member({}, labels={GROUP_LABEL: "g"}), OF_PLUGINS),
        (member({}, labels={GROUP_LABEL: ""}), None),
        (member({}, labels={GROUP_LABEL: "g"}, schedulerName="default-scheduler"), None),
    ],
    ids=[
        "by-its-spec",
        "by-all",
        "by-annotation-and-label",
        "by-volcano-s-own-annotation",
        "by-both-annotations",
        "by-its-label",
        "by-nothing",
        "somebody-else-s",
    ],
)
def test_a_pod_names_one_group(reader, made, group):
    assert reader.read(made).group == group


@pytest.mark.parametrize(
    ("made", "gang"),
    [
        (member({MINIMUM: "3", GROUP: "g"}, owners=[JOB]), NewGang("default", "g", 3, OF_VOLCANO.key)),
        (member({MINIMUM: "3"}, labels={GROUP_LABEL: "g"}), NewGang("default", "g", 3, OF_PLUGINS.key)),
        (member({MINIMUM: "3"}, owners=[JOB]), NewGang("default", "train", 3, "of-the-job")),
        (member({MINIMUM: "3", GROUP: "g"}, schedulerName="default-scheduler"), None),
        (member({GROUP: "g"}), NewGang("default", "g", 0, OF_VOLCANO.key)),
        (member({MINIMUM: "1", GROUP: "g"}), NewGang("default", "g", 1, OF_VOLCANO.key)),
        (member({MINIMUM: "1"}), None),
    ],
    ids=[
        "of-a-group",
        "by-its-label",
        "of-a-controller",
        "somebody-else-s",
        "as-its-group-says",
        "of-a-group-that-need-not-exist",
        "of-one-pod",
    ],
)
def test_of_which_gang_a_pod_is_its_annotation_and_its_group_or_controller_say(reader, made, gang):
    read = reader.read(made)
    assert (read.gang, read.problem) == (gang, "")


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({MINIMUM: "many", GROUP: "g"}, "is 'many'; it is a whole number of pods"),
        (
            {MINIMUM: "1001", GROUP: "g"},
            "is 1001; 1000 at most, which is as many as the ledger decides at once",
        ),
        ({MINIMUM: "2"}, "is 2, and the pod has neither a controller nor a PodGroup"),
    ],
)
def test_a_gang_that_cannot_be_is_the_pod_s_problem(reader, annotations, problem):
    read = reader.read(member(annotations))
    assert read.gang is None
    assert read.problem.startswith(f"metadata.annotations[hoss.dev/min-available]: {problem}")


@pytest.mark.parametrize(
    ("replica", "name"), [({}, "train/workers"), ({"podGroupReplicaKey": "7"}, "train/workers/7")]
)
def test_a_pod_of_a_workload_as_kubernetes_1_35_has_them_is_of_its_group_or_of_a_replica_of_it(
    reader, replica, name
):
    read = reader.read(member({}, workloadRef={"name": "train", "podGroup": "workers", **replica}))
    assert read.gang == NewGang("default", name, 0, f"workloads.scheduling.k8s.io/default/{name}")
    assert read.problem == ""


def test_a_pod_of_ours_with_too_many_terms_is_not_placed_and_any_pod_is_read():
    terms = [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": str(number)}}} for number in range(5)
    ]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    strict = PodReader(("hoss",), max_pod_terms=4)
    assert "has 5 affinity terms" in strict.read(pod(1, affinity=affinity)).problem
    assert "max_pod_terms of the dispatcher allows 4" in strict.read(pod(1, affinity=affinity)).problem
    assert not strict.read(pod(2, affinity=affinity, schedulerName="default-scheduler")).problem
    assert not PodReader(("hoss",), max_pod_terms=5).read(pod(1, affinity=affinity)).problem
