"""Profiles from a KubeSchedulerConfiguration: what is honoured, and what is refused with name and place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hoss.errors import ConfigError
from hoss.model.cluster import BoundPod, Cluster, Service
from hoss.model.node import NodeSpec
from hoss.model.pod import (
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    SpreadConstraint,
    WeightedPodTerm,
    group_of,
)
from hoss.model.resources import ResourceSchema
from hoss.model.selectors import LabelSelector, Requirement
from hossctl.explain.offline import explain
from scheduler_worker.config import WorkerConfig, chosen_profile
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.classes import DemandTable, compile_demand
from scheduler_worker.core.nodes import NodeCatalogue, NodeSpecs
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.plugins.pods.topology_spread import HOSTNAME

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
DEFAULT_WEIGHTS = {
    plugin.name: plugin.weight for plugin in DEFAULT_PLUGINS if plugin.weight and plugin.name != "PolicyNodes"
}


@pytest.fixture
def choose(tmp_path):
    def chosen(text, profile=None, head=HEAD):
        path = tmp_path / "scheduler.yaml"
        path.write_text(head + text)
        return chosen_profile(WorkerConfig(kube_scheduler_config=path, profile=profile), REGISTRY)

    return chosen


def scores(profile):
    scored = (*profile.static_scores, *profile.dynamic_scores, *profile.pod_scores)
    return {plugin.name: weight for plugin, weight in scored if plugin.name != "PolicyNodes"}


def plugin_of(profile, name):
    found = (*profile.filters, *(plugin for plugin, _ in profile.static_scores))
    return next(plugin for plugin in found if plugin.name == name)


def profiles(text):
    return "profiles:\n- schedulerName: a\n" + "\n".join(f"  {line}" for line in text.splitlines())


def arguments(plugin, args):
    return profiles(f"pluginConfig: [{{name: {plugin}, args: {args}}}]")


def test_a_file_without_profiles_is_kube_schedulers_default_profile(choose):
    name, profile = choose("leaderElection: {leaderElect: true}")
    assert name == "default-scheduler"
    assert scores(profile) == DEFAULT_WEIGHTS
    assert profile.samples


def test_the_scheduler_name_chooses_among_profiles(choose):
    text = "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {score: {disabled: [{name: '*'}]}}}]"
    assert scores(choose(text, "a")[1]) == DEFAULT_WEIGHTS
    assert scores(choose(text, "b")[1]) == {}
    with pytest.raises(ConfigError, match="profile: is missing; choose one of a, b"):
        choose(text)
    with pytest.raises(ConfigError, match="profile: 'c' is none of a, b"):
        choose(text, "c")


@pytest.mark.parametrize(
    ("plugins", "changed"),
    [
        ("score: {disabled: [{name: ImageLocality}]}", {"ImageLocality": 0}),
        ("multiPoint: {disabled: [{name: ImageLocality}]}", {"ImageLocality": 0}),
        ("score: {enabled: [{name: NodeAffinity, weight: 7}]}", {"NodeAffinity": 7}),
        ("multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}", {"NodeAffinity": 7}),
        ("multiPoint: {enabled: [{name: NodeAffinity}]}", {"NodeAffinity": 1}),
        (
            (
                "{multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}, "
                "score: {enabled: [{name: NodeAffinity, weight: 9}]}}"
            ),
            {"NodeAffinity": 9},
        ),
        ("multiPoint: {enabled: [{name: GpuBestFit, weight: 5}]}", {"GpuBestFit": 5}),
        ("score: {enabled: [{name: NodeAffinity, weight: 100000}]}", {"NodeAffinity": 100_000}),
        ("filter: {disabled: [{name: ImageLocality}]}", {}),
        (
            "score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 4}]}",
            {**dict.fromkeys(DEFAULT_WEIGHTS, 0), "NodeResourcesFit": 4},
        ),
    ],
)
def test_plugin_sets_are_merged_as_kube_scheduler_does(choose, plugins, changed):
    plugins = plugins if plugins.startswith("{") else f"{{{plugins}}}"
    expected = {name: weight for name, weight in {**DEFAULT_WEIGHTS, **changed}.items() if weight}
    profile = choose(profiles(f"plugins: {plugins}"))[1]
    assert scores(profile) == expected
    assert {p.name for p in profile.filters} == {p.name for p in REGISTRY.profile(DEFAULT_PLUGINS).filters}


def test_what_a_policy_says_outweighs_all_scores_of_the_file(choose):
    text = profiles("plugins: {score: {enabled: [{name: NodeAffinity, weight: 100}]}}")
    weights = {plugin.name: weight for plugin, weight in choose(text)[1].static_scores}
    assert weights["PolicyNodes"] > 100


def test_where_nodes_to_score_are_named_no_pod_is_scored_on_a_sample(choose):
    assert not choose("percentageOfNodesToScore: 50")[1].samples
    assert choose("percentageOfNodesToScore: 0")[1].samples
    assert choose("percentageOfNodesToScore: 50\n" + profiles("percentageOfNodesToScore: 0"))[1].samples


def test_the_scoring_strategy_is_that_of_the_file(choose):
    shape = "{shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}"
    args = (
        "{scoringStrategy: {type: RequestedToCapacityRatio, resources: [{name: cpu, weight: 3}], "
        f"requestedToCapacityRatio: {shape}}}}}"
    )
    fit = plugin_of(choose(arguments("NodeResourcesFit", args))[1], "NodeResourcesFit")
    assert fit._strategy == "RequestedToCapacityRatio"
    assert fit._resources == (("cpu", 3),)
    assert np.array_equal(fit._shape, np.arange(101))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("extenders: [{urlPrefix: http://x}]", "extenders: is not supported: HOSS calls no extenders"),
        ("podMaxBackoffSeconds: 60", "podMaxBackoffSeconds: is not supported"),
        ("profile: [{schedulerName: a}]", "strict decoding error: unknown field .profile."),
        ("profiles: {schedulerName: a}", r"^\S*: profiles: is a mapping, where a list belongs"),
        ("leaderElection: {leaderElects: true}", "unknown field .leaderElection.leaderElects"),
        ("leaderElection: true", "leaderElection: is true, where a mapping belongs"),
        ("leaderElection: {leaderElect: 1}", "leaderElection.leaderElect: is 1, where true or false belongs"),
        ("clientConnection: {qps: fast}", "clientConnection.qps: is 'fast', where a number belongs"),
        ("clientConnection: {burst: true}", "clientConnection.burst: is true, where a whole number belongs"),
        ("enableProfiling: 1", "enableProfiling: is 1, where true or false belongs"),
        (
            profiles("plugins: {multiPoint: {enabled: [{name: Coscheduling}]}}"),
            "PreFilterPlugin .Coscheduling. does not exist; HOSS reads PodGroups without a plugin",
        ),
        (
            profiles("plugins: {filter: {disabled: [{name: '*'}], enabled: [{name: NodeName}]}}"),
            r"plugins.filter.disabled\[0\]: is not supported: NodeUnschedulable cannot be disabled",
        ),
        (
            "percentageOfNodesToScore: 101",
            r"percentageOfNodesToScore: Invalid value: 101: not in valid range \[0-100\]",
        ),
        (profiles("colour: red"), r"strict decoding error: unknown field .profiles\[0\].colour"),
        ("profiles: [{schedulerName: a}, {}]", r"profiles\[1\].schedulerName: Required value"),
        (
            "profiles: [{schedulerName: a}, {schedulerName: a}]",
            r"profiles\[1\].schedulerName: Duplicate value: .profiles\[0\].schedulerName",
        ),
        (
            profiles("plugins: {score: {enabled: [{name: Nope}]}}"),
            r"profiles\[0\].plugins.score.enabled\[0\]: ScorePlugin .Nope. does not exist",
        ),
        (
            profiles("plugins: {score: {enabled: [{name: PolicyNodes, weight: 1}]}}"),
            "ScorePlugin .PolicyNodes. does not exist",
        ),
        (
            profiles("plugins: {filter: {disabled: [{name: TaintToleration}]}}"),
            r"plugins.filter.disabled\[0\]: is not supported: TaintToleration cannot be disabled",
        ),
        (
            profiles("plugins: {multiPoint: {disabled: [{name: '*'}]}}"),
            r"plugins.multiPoint.disabled\[0\]: is not supported: SchedulingGates cannot be disabled",
        ),
        (
            profiles("plugins: {filter: {disabled: [{name: '*'}]}}"),
            r"plugins.filter.disabled\[0\]: is not supported",
        ),
        (
            profiles("plugins: {postFilter: {disabled: [{name: '*'}]}}"),
            r"plugins.postFilter.disabled\[0\]: is not supported",
        ),
        (
            arguments("NodeResourcesFit", "{ignoredResources: [x]}"),
            r"args.ignoredResources: is not supported",
        ),
        (
            arguments("NodeResourcesFit", "{scoringStrategy: {type: Best}}"),
            "args.scoringStrategy.type: Unsupported value: .Best.: supported values: .LeastAllocated",
        ),
        (
            arguments("InterPodAffinity", "{hardPodAffinityWeight: 101}"),
            r"args.hardPodAffinityWeight: Invalid value: 101: not in valid range \[0, 100\]",
        ),
        (
            arguments("VolumeBinding", "{bindTimeoutSeconds: -5}"),
            (
                "args.bindTimeoutSeconds: Invalid value: -5: invalid BindTimeoutSeconds, should not be a"
                " negative"
            ),
        ),
        (
            arguments("VolumeBinding", f"{{bindTimeoutSeconds: {'9' * 400}}}"),
            r"args.bindTimeoutSeconds: Invalid value: 9+.*: must be at most 9223372036854775807",
        ),
        (arguments("VolumeBinding", "{shape: []}"), "args.shape: Invalid value: unexpected field `shape`"),
        (
            arguments("DynamicResources", "{bindingTimeout: 999ms}"),
            "args.bindingTimeout: Invalid value: '999ms': must be at least 1 second",
        ),
        (
            arguments("DynamicResources", "{bindingTimeout: 90}"),
            "args.bindingTimeout: time: invalid duration 90; write it as 90s or 1m30s",
        ),
        (arguments("DynamicResources", "{filterTimeout: 20s}"), "args.filterTimeout: is not supported"),
        (
            arguments("DefaultPreemption", "{minCandidateNodesPercentage: 101}"),
            r"minCandidateNodesPercentage: Invalid value: 101: not in valid range \[0, 100\]",
        ),
        (
            arguments("DefaultPreemption", "{minCandidateNodesAbsolute: -1}"),
            r"minCandidateNodesAbsolute: Invalid value: -1: not in valid range \[0, inf\)",
        ),
        (
            arguments("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"),
            "cannot be zero at the same time as minCandidateNodesAbsolute",
        ),
        (
            arguments("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1}]}"),
            "args.defaultingType: Invalid value: 'System': when .defaultConstraints are not empty",
        ),
        (arguments("NodeName", "{x: 1}"), "NodeName has no arguments"),
        ("parallelism: 0", "parallelism: Invalid value: 0: should be an integer value greater than zero"),
        (
            profiles("plugins: {score: {enabled: [{name: NodeName}]}}"),
            "plugin 'NodeName' does not extend ScorePlugin plugin",
        ),
        (
            arguments("NodeResourcesFit", "{scoringStrategy: {resources: [{name: cpu}]}}"),
            "args.scoringStrategy.type: Unsupported value: ''",
        ),
        (
            arguments(
                "NodeResourcesFit",
                "{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 101}]}}",
            ),
            r"resources\[0\].weight: Invalid value: 101: resource weight of cpu not in valid range",
        ),
        (
            arguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}"),
            "requestedToCapacityRatio: Required value: must be specified when type is",
        ),
        (
            arguments(
                "NodeResourcesFit",
                "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: []}}}",
            ),
            "requestedToCapacityRatio.shape: Required value: at least one point must be specified",
        ),
        (
            arguments(
                "NodeResourcesFit",
                "{scoringStrategy: {type: LeastAllocated, requestedToCapacityRatio: {shape: []}}}",
            ),
            "requestedToCapacityRatio: Forbidden: must be nil when type is not",
        ),
        (
            arguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 2}]}"),
            r"args.resources\[0\].weight: Invalid value: 2: must be 1",
        ),
        (
            arguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: cpu}]}"),
            r"args.resources\[1\].name: Duplicate value: 'cpu'",
        ),
        (
            arguments(
                "PodTopologySpread",
                "{defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: a}]}",
            ),
            r"args.defaultConstraints\[0\].maxSkew",
        ),
        (
            arguments(
                "NodeAffinity",
                "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101}]}}",
            ),
            r"args.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution\[0\].weight",
        ),
    ],
)
def test_what_is_wrong_or_cannot_be_honoured_is_refused_at_its_place(choose, text, problem):
    with pytest.raises(ConfigError, match=problem):
        choose(text)


PUBLISHED = {
    "two profiles, one without scores": """
profiles:
- schedulerName: default-scheduler
- schedulerName: no-scoring-scheduler
  plugins: {preScore: {disabled: [{name: '*'}]}, score: {disabled: [{name: '*'}]}}
""",
    "a process and no profile": """
leaderElection: {leaderElect: true, leaseDuration: 15s, resourceNamespace: kube-system, resourceName: mine}
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf, qps: 50, burst: 100}
enableProfiling: false
delayCacheUntilActive: true
""",
    "packing, on a managed cluster": """
profiles:
- schedulerName: my-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}
  plugins:
    multiPoint: {enabled: [{name: NodeResourcesFit, weight: 1}]}
    score: {enabled: [{name: NodeResourcesFit, weight: 1}], disabled: [{name: '*'}]}
""",
    "the order of the queue, named": """
profiles:
- schedulerName: a
  plugins: {queueSort: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}]}}
""",
    "plugins of earlier releases, disabled": """
profiles:
- schedulerName: a
  plugins: {score: {disabled: [{name: NodeResourcesLeastAllocated}, {name: NodeResourcesBalancedAllocation}]}}
""",
}


@pytest.mark.parametrize("text", PUBLISHED.values(), ids=PUBLISHED)
def test_files_of_the_kinds_that_documents_and_providers_publish_are_taken(choose, text):
    names = [line.split()[-1] for line in text.splitlines() if line.startswith("- schedulerName")]
    for name in names or ["default-scheduler"]:
        assert choose(text, name)[0] == name


def test_added_affinity_filters_and_scores_for_every_pod(choose):
    terms = "[{matchExpressions: [{key: pool, operator: In, values: [batch]}]}]"
    required = f"requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: {terms}}}"
    preference = "{matchExpressions: [{key: fast, operator: Exists}]}"
    preferred = f"preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 9, preference: {preference}}}]"
    args = f"{{addedAffinity: {{{required}, {preferred}}}}}"
    affinity = plugin_of(choose(arguments("NodeAffinity", args))[1], "NodeAffinity")
    catalogue = NodeCatalogue()
    catalogue.grow(2)
    catalogue.put(0, NodeSpec("a", (("pool", "batch"),)))
    catalogue.put(1, NodeSpec("b", (("fast", ""),)))
    pod, nodes = compile_demand(PodSpec(), ResourceSchema()), NodeSpecs(catalogue, np.arange(2))
    assert affinity.filter(pod, nodes).tolist() == [True, False]
    assert affinity.score(pod, nodes).tolist() == [0, 9]
    assert _reasons(affinity, pod, nodes) == {"b": "node(s) didn't match scheduler-enforced node affinity"}


def test_a_node_that_both_affinities_refuse_is_out_for_the_profiles(choose):
    # kube-scheduler looks at the profile's first, also for a pod with an affinity of its own.
    terms = "[{matchExpressions: [{key: pool, operator: In, values: [batch]}]}]"
    args = (
        "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        f"{{nodeSelectorTerms: {terms}}}}}}}"
    )
    affinity = plugin_of(choose(arguments("NodeAffinity", args))[1], "NodeAffinity")
    catalogue = NodeCatalogue()
    catalogue.grow(3)
    catalogue.put(0, NodeSpec("a", (("pool", "batch"),)))
    catalogue.put(1, NodeSpec("b", (("fast", ""),)))
    catalogue.put(2, NodeSpec("c", ()))
    pod = compile_demand(PodSpec(node_selector=(("fast", ""),)), ResourceSchema())
    nodes = NodeSpecs(catalogue, np.arange(3))
    assert affinity.filter(pod, nodes).tolist() == [False, False, False]
    assert _reasons(affinity, pod, nodes) == {
        "a": "node(s) didn't match Pod's node affinity/selector",
        "b": "node(s) didn't match scheduler-enforced node affinity",
        "c": "node(s) didn't match scheduler-enforced node affinity",
    }


def _reasons(plugin, pod, nodes):
    """Why the plugin refuses each of the nodes a, b, c; the first reason counts."""
    refusals = plugin.refusals(pod, nodes)
    reasons = {}
    for reason, mask in refusals.reasons:
        assert not (mask & ~refusals.unresolvable).any()  # no eviction changes a node's labels
        for node in np.flatnonzero(mask).tolist():
            assert reasons.setdefault("abc"[node], reason) == reason  # one reason a node
    return reasons


def test_what_other_pods_require_counts_as_much_as_the_file_says(choose, harness_of, make_ledger):
    """A pod on node 1 requires its kind; a pod of that kind, without rules, comes next."""
    kind = LabelSelector((Requirement("app", "In", ("web",)),))
    term = PodAffinityTerm(HOSTNAME, kind, namespaces=("default",))
    there = PodSpec(
        labels=(("app", "web"),),
        pod_affinity=PodAffinity(
            required=(term,), anti_preferred=(WeightedPodTerm(5, replace(term, topology_key="rack")),)
        ),
    )
    ledger = make_ledger()
    for index, rack in enumerate(("r1", "r2", "r2")):
        ledger.add(index, labels=((HOSTNAME, f"n{index}"), ("rack", rack)))
    cache = harness_of(ledger).cache
    cache.pod_index.add(group_of(there), np.array([1]))
    comes = PodSpec(labels=(("app", "web"),))
    nowhere = WeightedPodTerm(1, replace(term, topology_key="zone"))
    prefers = replace(comes, pod_affinity=PodAffinity(preferred=(nowhere,)))

    def scored(args, spec=comes):
        plugin = plugin_of(choose(arguments("InterPodAffinity", args))[1], "InterPodAffinity")
        state = plugin.score_state(spec, cache)
        if state is None:
            return None
        state.refresh()
        found = state.scores(np.ones(3, np.bool_))
        return None if found is None else found.tolist()

    # Of 0, weight - 5 and -5 points the lowest is 0 and the highest is 100.
    assert scored("{}") == [100, 20, 0]
    assert scored("{hardPodAffinityWeight: 10}") == [50, 100, 0]
    assert scored("{hardPodAffinityWeight: 0}") == [100, 0, 0]
    ignoring = "{ignorePreferredTermsOfExistingPods: true}"
    assert scored(ignoring) is None
    assert scored(ignoring, prefers) == [100, 20, 0]


def test_other_resources_than_cpu_and_memory_are_balanced(choose, harness_of, make_ledger, make_pod):
    args = "{resources: [{name: cpu}, {name: memory}, {name: example.com/widget}]}"
    profile = choose(arguments("NodeResourcesBalancedAllocation", args))[1]
    plugin = next(p for p, _ in profile.dynamic_scores if p.name == "NodeResourcesBalancedAllocation")
    ledger = make_ledger()
    ledger.schema = (*ledger.schema, "example.com/widget")
    amounts = {"cpu": 1000, "memory": 1000, "pods": 110}
    for index in (0, 1):
        ledger.add(index, allocatable={**amounts, "example.com/widget": 4})
    ledger.add(2, allocatable=amounts)
    ledger.reserve([1], [np.array([0, 0, 0, 1, 0, 0, 2])])
    cache = harness_of(ledger).cache

    def scored(**requests):
        demand = compile_demand(make_pod(**requests), cache.schema)
        found = plugin.score(demand, cache.view(None, cards=False))
        return None if found is None else found.tolist()

    # Half of cpu and memory each: node 0 goes from (0, 0, 0) to (1/2, 1/2, 1/4) with a widget, a standard
    # deviation of 0.1178; node 1 from (0, 0, 1/2), 0.2357, to (1/2, 1/2, 3/4), 0.1178; node 2 has none, and
    # its two stay equal.
    assert scored(cpu=500, memory=500, more=(("example.com/widget", 1),)) == [69.0, 81.0, 75.0]
    # A pod without widgets is balanced by cpu and memory alone.
    assert scored(cpu=500, memory=500) == [75.0, 75.0, 75.0]
    assert scored(cpu=0, memory=0) is None


def test_a_list_of_default_constraints_takes_the_place_of_the_systems(choose):
    constraint = "{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway}"
    args = f"{{defaultingType: List, defaultConstraints: [{constraint}]}}"
    spread = plugin_of(choose(arguments("PodTopologySpread", args))[1], "PodTopologySpread")
    assert [(c.topology_key, c.required) for c in spread._defaults] == [("rack", False)]
    none = plugin_of(choose(arguments("PodTopologySpread", "{defaultingType: List}"))[1], "PodTopologySpread")
    selected = PodSpec(default_spread=LabelSelector((Requirement("app", "Exists", ()),)))
    assert none.score_state(selected, NodeInfoCache()) is None
    assert spread.score_state(selected, NodeInfoCache()) is not None


def test_default_constraints_of_which_one_is_hard_are_as_if_pods_had_written_them(choose, make_pod):
    """Node a is in the rack that has a pod of the service more."""
    constraint = "{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}"
    soft = "{maxSkew: 1, topologyKey: host, whenUnsatisfiable: ScheduleAnyway}"
    args = f"{{defaultingType: List, defaultConstraints: [{constraint}, {soft}]}}"
    _, profile = choose(arguments("PodTopologySpread", args))
    assert [(c.topology_key, c.required) for c in profile.spread_by_default] == [
        ("rack", True),
        ("host", False),
    ]
    room = (("cpu", 4000), ("memory", 2**33), ("pods", 110))
    nodes = [
        NodeSpec(n, labels=(("rack", r), ("host", n)), allocatable=room) for n, r in (("a", "1"), ("b", "2"))
    ]
    of_service = LabelSelector((Requirement("app", "In", ("web",)),))
    web = make_pod(labels=(("app", "web"),), default_spread=of_service)
    cluster = Cluster(nodes, [BoundPod("there", "a", web, web.requests, 100, 2**28)])
    for spec, feasible in (
        (web, ["b"]),
        (make_pod(labels=(("app", "db"),)), ["a", "b"]),
        (replace(web, spread=(SpreadConstraint(5, "rack", None, required=False),)), ["a", "b"]),
    ):
        assert explain(spec, cluster, preemption=False, profile=profile)["feasible"] == feasible


def test_the_class_of_a_pod_has_the_hard_defaults_for_the_ledger_and_follows_its_services(choose, make_pod):
    constraint = "{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}"
    args = f"{{defaultingType: List, defaultConstraints: [{constraint}]}}"
    cache = NodeInfoCache()
    table = DemandTable(cache.schema, cache.catalogue.images, cache.pod_index)
    table.set_spread_by_default(choose(arguments("PodTopologySpread", args))[1].spread_by_default)
    web = table.compile(make_pod(labels=(("app", "web"),)))
    assert web.group.spread == ()
    table.set_services([Service("default", (("app", "web"),), "web")])
    [rule] = table.current(web).group.spread
    assert (rule.topology_key, [(r.key, r.values) for r in rule.selector.requirements]) == (
        "rack",
        [("app", ("web",))],
    )
    table.set_services([])
    assert table.current(table.current(web)).group.spread == ()


def test_the_example_has_the_default_profile_and_one_that_packs():
    example = Path(__file__).parents[3] / "examples" / "kube-scheduler-config.yaml"
    by_name = {
        name: chosen_profile(WorkerConfig(kube_scheduler_config=example, profile=name), REGISTRY)[1]
        for name in ("hoss", "hoss-gpu")
    }
    assert scores(by_name["hoss"]) == DEFAULT_WEIGHTS
    changed = {"ImageLocality": 0, "NodeResourcesBalancedAllocation": 0, "NodeResourcesFit": 5}
    packing = {name: weight for name, weight in {**DEFAULT_WEIGHTS, **changed}.items() if weight}
    assert scores(by_name["hoss-gpu"]) == packing


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (
            "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n",
            "no kind .* is registered for version",
        ),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: Pod\n",
            "no kind .Pod. is registered for version",
        ),
        ("apiVersion: kubescheduler.config.k8s.io/v1\n", "Object 'Kind' is missing"),
    ],
)
def test_another_version_or_kind_is_refused_in_kube_schedulers_words(choose, head, problem):
    with pytest.raises(ConfigError, match=problem):
        choose("", head=head)


def test_a_file_that_is_no_document_is_named_once(tmp_path):
    path = tmp_path / "empty.yaml"
    path.touch()
    with pytest.raises(ConfigError) as refused:
        chosen_profile(WorkerConfig(kube_scheduler_config=path), REGISTRY)
    assert str(refused.value) == f"{path}: is empty; write a mapping with apiVersion and kind"


def test_a_file_says_how_long_pods_wait_for_volumes_and_devices(choose):
    assert choose("")[1].bind_seconds == {}
    assert choose(arguments("VolumeBinding", "{bindTimeoutSeconds: 0}"))[1].bind_seconds == {
        "VolumeBinding": 0.0
    }
    for written, seconds in (("1m30s", 90.0), ("1.5s", 1.5), ("10m", 600.0)):
        args = f"{{bindingTimeout: {written}, filterTimeout: 10s}}"
        profile = choose(arguments("DynamicResources", args))[1]
        assert profile.bind_seconds == {"DynamicResources": seconds}


def test_how_many_nodes_the_search_for_victims_tries_at_least_has_no_effect_for_it_tries_all(choose):
    args = "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 5}"
    assert scores(choose(arguments("DefaultPreemption", args))[1]) == DEFAULT_WEIGHTS
