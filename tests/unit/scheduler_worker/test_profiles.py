"""Profiles: presets, those of a document, and which of them a worker takes."""

import pytest

from hoss.config import parse_document
from hoss.errors import ConfigError
from hoss.model.cluster import Cluster
from hoss.model.node import NodeSpec
from hoss.model.pod import PodSpec
from scheduler_worker.config import KIND, WorkerConfig, chosen_profile, ineffective_strategy
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.plugins import DEFAULT_PLUGINS, REGISTRY
from scheduler_worker.core.plugins.profiles import PRESETS

HEAD = f"apiVersion: hoss.dev/v1alpha1\nkind: {KIND}\n"


def config(text="", **fields):
    document = parse_document(HEAD + text, KIND, WorkerConfig, where="worker.yaml")
    return document.model_copy(update=fields)


def names(scores):
    return {plugin.name: weight for plugin, weight in scores}


def test_spread_has_kube_schedulers_weights():
    profile = PRESETS["spread"].profile(REGISTRY)
    scored = names((*profile.static_scores, *profile.dynamic_scores, *profile.pod_scores))
    assert scored == {plugin.name: plugin.weight for plugin in DEFAULT_PLUGINS if plugin.weight}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_filters_by_all_default_plugins(preset):
    filters = {plugin.name for plugin in PRESETS[preset].profile(REGISTRY).filters}
    assert filters == {plugin.name for plugin in PRESETS["spread"].profile(REGISTRY).filters}


def test_random_scores_nothing_but_what_the_policy_wants_and_draws():
    profile = PRESETS["random"].profile(REGISTRY)
    assert [plugin.name for plugin, _ in profile.static_scores] == ["PolicyNodes"]
    assert not (profile.dynamic_scores)
    assert not profile.pod_scores
    assert profile.by_chance
    assert profile.mixes


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "spread"),
        ({"labels": {"strategy": "binpack"}}, "binpack"),
        ({"labels": {"strategy": "binpack"}, "profile": "fgd"}, "fgd"),
        ({"labels": {"strategy": "blue-green"}}, "spread"),
    ],
)
def test_a_worker_takes_what_is_configured_then_what_its_label_names_then_spread(fields, expected):
    assert chosen_profile(config(**fields), REGISTRY)[0] == expected


@pytest.mark.parametrize(
    ("fields", "ineffective"),
    [
        ({}, ""),
        ({"labels": {"strategy": "binpack"}}, ""),
        ({"labels": {"strategy": "blue-green"}}, "blue-green"),
        ({"labels": {"strategy": "blue-green"}, "profile": "fgd"}, ""),
        ({"labels": {"strategy": "mine"}, "algorithm": "best-fit"}, ""),
    ],
)
def test_a_strategy_without_effect_is_told_unless_something_else_says_how_to_place(fields, ineffective):
    made = config(**fields)
    assert ineffective_strategy(made, chosen_profile(made, REGISTRY)[0]) == ineffective


def test_a_label_may_name_a_profile_of_the_document():
    text = "profiles: [{name: mine, ties: Drawn, plugins: [{name: NodeResourcesFit, weight: 4}]}]"
    name, profile = chosen_profile(config(text, labels={"strategy": "mine"}), REGISTRY)
    assert name == "mine"
    assert profile.by_chance
    assert names(profile.dynamic_scores) == {"NodeResourcesFit": 4}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profile: tight", "profile: 'tight' is none of spread, binpack"),
        ("profiles: [{name: spread, plugins: []}]", r"profiles\[0\].name: 'spread' is a profile already"),
        ("profiles: [{name: a, plugins: [{name: Fit}]}]", r"profiles\[0\].plugins: 'Fit' is none of"),
        (
            (
                "profiles: [{name: a, plugins: []}, "
                "{name: b, plugins: [{name: NodeResourcesFit, args: {strategy: x}}]}]"
            ),
            r"profiles\[1\].plugins.NodeResourcesFit.strategy: is 'x'",
        ),
        (
            "profiles: [{name: a, plugins: [{name: GpuBestFit, args: {disk: 1}}]}]",
            r"profiles\[0\].plugins.GpuBestFit: .*'disk'",
        ),
        (
            "profiles: [{name: a, plugins: [{name: GpuBestFit, weight: -1}]}]",
            r"profiles\[0\].plugins\[0\].weight: .*-1",
        ),
        (
            "profiles: [{name: a, plugins: [{name: X}, {name: X}]}]",
            r"profiles\[0\].plugins: .*more than once: X",
        ),
        ("profiles: [{name: a, ties: Any, plugins: []}]", r"profiles\[0\].ties: .*'Any'"),
    ],
)
def test_a_wrong_profile_is_refused_at_its_field(text, problem):
    with pytest.raises(ConfigError, match=problem):
        chosen_profile(config(text), REGISTRY)


def test_quiet_nodes_prefers_nodes_without_the_label_and_is_in_no_preset():
    text = "profile: calm\nprofiles: [{name: calm, plugins: [{name: QuietNodes, weight: 2}]}]"
    profile = chosen_profile(config(text), REGISTRY)[1]
    nodes = [
        NodeSpec(name, labels, allocatable=(("cpu", 1000), ("pods", 10)))
        for name, labels in (
            ("loud", (("hoss.dev/noisy", "true"),)),
            ("quiet", ()),
            ("was-loud", (("hoss.dev/noisy", "false"),)),
        )
    ]
    snapshot = ClusterSnapshot(Cluster(nodes, []))
    explained = explain_placement(examine(PodSpec(), snapshot, profile), snapshot, profile)
    scores = {node: of_node["QuietNodes"] for node, of_node in explained.scores.items()}
    assert scores == {"loud": 0, "quiet": 200, "was-loud": 200}
    for preset in PRESETS.values():
        assert "QuietNodes" not in names(preset.profile(REGISTRY).static_scores)
