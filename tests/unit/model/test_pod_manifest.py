import pytest

from hoss.errors import InvalidInput
from hoss.manifests.pod import rules_not_obeyed
from hoss.model.node import Toleration
from hoss.model.pod import DeviceRequest, HostPort, QosClass
from hoss.model.selectors import Requirement


def test_a_plain_pod_is_read_with_the_defaults(template):
    read = template({"cpu": "500m", "memory": "1Gi"})
    assert read.spec.namespace == "default"
    assert read.spec.requests == (("cpu", 500), ("memory", 2**30))
    assert (read.spec.nonzero_cpu_milli, read.spec.nonzero_memory_bytes) == (500, 2**30)
    assert read.spec.priority == 0
    assert read.scheduler_name == "hoss"
    assert read.qos_class is QosClass.BURSTABLE
    assert read.owner_kind == ""
    assert read.termination_grace_seconds == 0


def test_a_grace_period_counts_only_where_it_is_given(template):
    assert template(terminationGracePeriodSeconds=45).termination_grace_seconds == 45


def test_labels_and_selectors_come_sorted_so_that_equal_pods_are_equal(template):
    one = template(metadata={"labels": {"b": "2", "a": "1"}}, nodeSelector={"z": "1", "y": ""})
    other = template(metadata={"labels": {"a": "1", "b": "2"}}, nodeSelector={"y": "", "z": "1"})
    assert one == other
    assert hash(one) == hash(other)
    assert one.spec.labels == (("a", "1"), ("b", "2"))


def test_asking_for_zero_is_asking_for_nothing_but_naming_it_counts_in_scores(template):
    assert template({"cpu": "0", "memory": "0"}).spec.requests == ()
    assert template({"cpu": "0", "memory": "0"}).spec.nonzero_cpu_milli == 0
    assert template().spec.nonzero_cpu_milli == 100


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, 0),
        ({"priority": 7}, 7),
        ({"priorityClassName": "system-node-critical"}, 2_000_001_000),
        ({"priorityClassName": "system-cluster-critical"}, 2_000_000_000),
        ({"priorityClassName": "system-cluster-critical", "priority": -5}, -5),
        ({"priorityClassName": "mine"}, 0),
    ],
)
def test_priority_is_the_number_or_the_well_known_class(template, fields, priority):
    assert template(**fields).spec.priority == priority


def test_whole_cards_are_a_device_request_and_an_amount(template):
    spec = template(limits={"nvidia.com/gpu": 2}).spec
    assert spec.devices == DeviceRequest(2, 1000)
    assert spec.requests == (("nvidia.com/gpu", 2),)


def test_a_share_of_a_card_is_a_device_request_alone(template):
    spec = template({"cpu": "1", "hoss.dev/gpu-milli": "460"}).spec
    assert spec.devices == DeviceRequest(1, 460)
    assert spec.requests == (("cpu", 1000),)


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        ({"hoss.dev/gpu-milli": "1000"}, "is 1000 in all; a share of a card is 1 to 999"),
        ({"hoss.dev/gpu-milli": "0"}, "is 0 in all"),
        ({"hoss.dev/gpu-milli": "500", "nvidia.com/gpu": "1"}, "whole cards or a share of one"),
        ({"nvidia.com/gpu": "17"}, "no node can have more than 16 cards"),
    ],
)
def test_impossible_cards_are_refused(template, requests, problem):
    with pytest.raises(InvalidInput, match=problem):
        template(requests)


def test_host_ports_of_containers_and_sidecars_count_and_of_other_init_containers_do_not(template):
    ports = [
        {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"},
    ]
    spec = template(
        containers=[{"name": "c", "ports": ports}],
        initContainers=[
            {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 1}]},
            {"name": "i", "ports": [{"containerPort": 2, "hostPort": 2}]},
        ],
    ).spec
    assert spec.host_ports == (HostPort(1), HostPort(53, "UDP", "10.0.0.1"), HostPort(8080))


def test_with_host_network_every_container_port_is_a_port_of_the_node(template):
    spec = template(hostNetwork=True, containers=[{"name": "c", "ports": [{"containerPort": 80}]}]).spec
    assert spec.host_ports == (HostPort(80),)
    with pytest.raises(
        InvalidInput, match=r"spec\.containers\[0\]\.ports\[0\]\.hostPort: is 81; with hostNetwork"
    ):
        template(
            hostNetwork=True, containers=[{"name": "c", "ports": [{"containerPort": 80, "hostPort": 81}]}]
        )


RESTART_ALL = {"restartPolicyRules": [{"action": "Restart"}, {"action": "RestartAllContainers"}]}
RESTART_ONE = {"restartPolicyRules": [{"action": "Restart"}]}


@pytest.mark.parametrize(
    ("spec", "features"),
    [
        ({}, ()),
        ({"containers": [{"name": "c", **RESTART_ONE}]}, ()),
        ({"containers": [{"name": "c", **RESTART_ALL}]}, ("RestartAllContainersOnContainerExits",)),
        ({"initContainers": [{"name": "i", **RESTART_ALL}]}, ("RestartAllContainersOnContainerExits",)),
        ({"hostNetwork": True, "hostUsers": False}, ("UserNamespacesHostNetworkSupport",)),
        ({"hostNetwork": True, "hostUsers": True}, ()),
        ({"hostNetwork": True}, ()),
        ({"hostUsers": False}, ()),
        (
            {"hostNetwork": True, "hostUsers": False, "initContainers": [{"name": "i", **RESTART_ALL}]},
            ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"),
        ),
    ],
)
def test_features_that_a_node_must_declare_follow_from_the_spec(template, spec, features):
    assert template(**spec).spec.required_features == features


def test_node_affinity_is_read_whole(template):
    term = {
        "matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "nvme", "ssd"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}],
    }
    spec = template(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, {}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": term}],
            }
        }
    ).spec
    read = spec.required_node_affinity.terms[0]
    assert read.match_expressions == (Requirement("disk", "In", ("nvme", "ssd")),)
    assert read.match_fields == (Requirement("metadata.name", "NotIn", ("n1",)),)
    assert not spec.required_node_affinity.terms[1].matches({"disk": "ssd"}, "n2")
    assert [(p.weight, p.term) for p in spec.preferred_node_affinity] == [(5, read)]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (
            {"key": "a", "operator": "Within", "values": ["1"]},
            r"operator: is 'Within'; allowed: In, NotIn, Exists",
        ),
        ({"key": "a", "values": ["1"]}, r"operator: is missing"),
        ({"key": "a", "operator": "In"}, r"values: is empty; In takes at least one value"),
        ({"key": "a", "operator": "Exists", "values": ["1"]}, r"values: has 1 values; Exists takes none"),
        ({"key": "a", "operator": "Gt", "values": ["1", "2"]}, r"values: has 2 values; Gt takes exactly one"),
        (
            {"key": "a", "operator": "In", "values": [1]},
            r"values\[0\]: is 1, where a string belongs; put it in quotes",
        ),
        ({"key": "", "operator": "Exists"}, r"key: '' is no valid key"),
    ],
)
def test_an_unusable_requirement_is_refused_with_its_path(template, expression, problem):
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    place = rf"^spec\.affinity\.nodeAffinity\.{REQUIRED}\.nodeSelectorTerms\[0\]\.matchExpressions\[0\]\."
    with pytest.raises(InvalidInput, match=place + problem):
        template(affinity=affinity)


def test_gt_with_a_word_is_allowed_and_matches_nothing(template):
    term = {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["many"]}]}
    spec = template(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}).spec
    assert not spec.required_node_affinity.matches({"cores": "64"}, "n")


@pytest.mark.parametrize(
    ("affinity", "problem"),
    [
        ({REQUIRED: {"nodeSelectorTerms": []}}, "nodeSelectorTerms: is empty"),
        ({PREFERRED: [{"preference": {}}]}, r"\[0\]\.weight: is missing"),
        (
            {PREFERRED: [{"weight": 101, "preference": {}}]},
            r"\[0\]\.weight: is 101; it must lie between 1 and 100",
        ),
        (
            {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}
                    ]
                }
            },
            r"matchFields\[0\]\.key: is 'spec.x'; allowed: metadata.name",
        ),
        (
            {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}
                    ]
                }
            },
            r"matchFields\[0\]\.values: has 2 names",
        ),
    ],
)
def test_an_unusable_affinity_is_refused(template, affinity, problem):
    with pytest.raises(InvalidInput, match=problem):
        template(affinity={"nodeAffinity": affinity})


def test_tolerations_are_a_sorted_set(template):
    a, b = (
        {"key": "a", "operator": "Exists"},
        {"key": "b", "value": "x", "effect": "NoSchedule"},
    )
    spec = template(tolerations=[b, a, b]).spec
    assert spec.tolerations == (Toleration("a", "Exists"), Toleration("b", "Equal", "x", "NoSchedule"))


def test_a_toleration_of_no_execute_may_be_for_a_time_and_less_than_nothing_is_nothing(template):
    timed = [{"key": "a", "effect": "NoExecute", "tolerationSeconds": s} for s in (300, -5)]
    seconds = [toleration.seconds for toleration in template(tolerations=timed).spec.tolerations]
    assert seconds == [0, 300]


@pytest.mark.parametrize(
    ("toleration", "problem"),
    [
        (
            {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3},
            "tolerationSeconds: is 3, but only with effect",
        ),
        ({"key": "a", "tolerationSeconds": 3}, "tolerationSeconds: is 3, but only with effect"),
        (
            {"key": "a", "effect": "NoExecute", "tolerationSeconds": "3"},
            "tolerationSeconds: is '3', where a whole",
        ),
        ({"key": "a", "operator": "Gt", "value": "1"}, "operator: is 'Gt'; allowed: Equal, Exists"),
        ({"key": "a", "effect": "NoSleep"}, "effect: is 'NoSleep'; allowed: NoSchedule"),
        ({"value": "x"}, "operator: is Equal without a key"),
        (
            {"key": "a", "operator": "Exists", "value": "x"},
            "value: is 'x'; with operator Exists there is no value",
        ),
    ],
)
def test_an_unusable_toleration_is_refused(template, toleration, problem):
    with pytest.raises(InvalidInput, match=r"spec\.tolerations\[0\]\." + problem):
        template(tolerations=[toleration])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"metadata": {"labels": {"a b": "1"}}}, r"metadata\.labels: 'a b' is no valid key"),
        ({"metadata": {"labels": {"a": "x/y"}}}, r"metadata\.labels\[a\]: 'x/y' is no valid label value"),
        (
            {"metadata": {"labels": {"version": 1}}},
            r"metadata\.labels\[version\]: is 1, where a string belongs; put it in quotes",
        ),
        ({"metadata": {"labels": ["a"]}}, r"metadata\.labels: is a list, where a mapping belongs"),
        ({"metadata": {"namespace": "Prod"}}, r"metadata\.namespace: 'Prod' is no valid namespace"),
        ({"nodeSelector": {"a": None}}, r"spec\.nodeSelector\[a\]: is null, where a string belongs"),
        (
            {"containers": 10**5000},
            r"spec\.containers: is a int with a number that is too long to show, where",
        ),
        ({"containers": "c" * 500}, r"spec\.containers: is 'c{100}'\.\.\. \(500 characters\), where a list"),
        ({"priority": "high"}, r"spec\.priority: is 'high', where a whole number belongs"),
        ({"priority": 2**31}, r"spec\.priority: is 2147483648; it must lie between"),
        ({"hostNetwork": "yes"}, r"spec\.hostNetwork: is 'yes', where true or false belongs"),
        ({"containers": ["c"]}, r"spec\.containers\[0\]: is 'c', where a mapping belongs"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_belongs_there(template, fields, problem):
    with pytest.raises(InvalidInput, match=problem):
        template(**fields)


def test_rules_that_are_read_over_are_named():
    spec = {
        "resourceClaims": [{"name": "gpu"}],
        "topologySpreadConstraints": [{}],
        "affinity": {"podAffinity": {}},
    }
    assert rules_not_obeyed(spec) == ("spec.resourceClaims",)
