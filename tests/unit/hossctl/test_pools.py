"""Platform documents: what they mean, how bad ones are named, and what differs from the workers that run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hoss.errors import ConfigError, InvalidInput
from hossctl.local.platform_state import PlatformState, WorkerOptions
from hossctl.local.pools import Action, changes, check_worker, read_platform
from hossctl.local.process import record_of

HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: Platform\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "platform.yaml"
    path.write_text(HEAD + text)
    return path


def test_a_pool_becomes_workers_with_numbered_names_and_its_settings(tmp_path):
    path = written(
        tmp_path,
        "pools: [{name: gpu, count: 2, labels: {tier: gpu, a: b}, node_labels: {zone: z1}, profile:"
        " binpack}]",
    )
    labels, flags = (("a", "b"), ("tier", "gpu")), ("--node-label", "zone=z1", "--profile", "binpack")
    assert read_platform(path).workers == (
        WorkerOptions("gpu-1", labels, flags, "gpu"),
        WorkerOptions("gpu-2", labels, flags, "gpu"),
    )


def test_a_pool_takes_the_profile_of_a_file_of_kube_scheduler_beside_the_document(tmp_path):
    kind = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    (tmp_path / "scheduler.yaml").write_text(kind + "profiles: [{schedulerName: a}, {schedulerName: b}]")
    pool = "pools: [{name: a, kube_scheduler_config: scheduler.yaml, profile: %s}]"
    (worker,) = read_platform(written(tmp_path, pool % "b")).workers
    assert worker.flags == ("--profile", "b", "--kube-scheduler-config", str(tmp_path / "scheduler.yaml"))
    with pytest.raises(ConfigError, match=r"pools\[0\].profile: 'c' is none of a, b"):
        read_platform(written(tmp_path, pool % "c"))


def test_a_directory_stands_for_its_document_and_the_policy_is_beside_it(tmp_path):
    written(tmp_path, "policy: sub/policy.yaml\npools: [{name: a, count: 0}]")
    document = read_platform(tmp_path)
    assert document.policy == tmp_path / "sub" / "policy.yaml"
    assert document.workers == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pools: []", "pools: is an empty list, where a list of 1 item or more belongs"),
        ("pools: [{name: a}, {name: a}]", "pools must differ in name; given more than once: a"),
        ("pools: [{name: A}]", "pools[0].name: is 'A', where a name of at most 50"),
        ("pools: [{name: a, count: -1}]", "pools[0].count: is -1, where a whole number from 0"),
        ("pools: [{name: a, count: yes}]", "pools[0].count: is true, where a whole number from 0 to 1,000"),
        (
            "pools: [{name: a, plugins: [{name: X, weight: on}]}]",
            "pools[0].plugins[0].weight: is true, where",
        ),
        ("pools: [{name: a, workers: 3}]", "pools[0].workers: is no field here"),
        ("pools: [{name: a, labels: {'': x}}]", "pools[0].labels"),
        ("pools: [{name: a, profile: nope}]", "pools[0].profile: 'nope' is none of spread"),
        ("pools: [{name: a, profile: spread, plugins: [{name: x}]}]", "profile and plugins were both given"),
        ("pools: [{name: b}, {name: a, plugins: [{name: Nope}]}]", "pools[1].plugins"),
        ("pools: [{name: a, plugins: [{name: x}, {name: x}]}]", "given more than once: x"),
        ("pools: [{name: a}", "is no valid YAML or is cut off"),
    ],
)
def test_a_bad_document_is_refused_with_the_place(tmp_path, text, problem):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read_platform(path)
    assert str(refused.value).startswith(f"{path}")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("worker", "problem"),
    [
        (WorkerOptions("No"), "worker No: name: is 'No', where a name of lower-case"),
        (WorkerOptions("w", flags=("--profile", "nope")), "worker w.profile: 'nope' is none of"),
        (WorkerOptions("w", document="kind: WorkerConfig"), "apiVersion: is missing"),
    ],
)
def test_a_worker_that_would_not_start_is_refused_before_it_is_started(worker, problem):
    with pytest.raises(ConfigError) as refused:
        check_worker(worker, where=f"worker {worker.name}")
    assert problem in str(refused.value)


def test_changes_are_additions_then_restarts_then_removals():
    same, other, gone = (
        replace(pooled(name), seed=seed) for seed, name in enumerate(["p-1", "p-2", "q-1"], 5)
    )
    named = WorkerOptions("w1", seed=9)
    state = running(same, other, gone, named)
    labelled = pooled("p-2", labels=(("tier", "gold"),))
    planned = changes([pooled("p-1"), labelled, pooled("p-3")], state)
    assert [(change.action, change.worker.name, change.reason) for change in planned] == [
        (Action.ADD, "p-3", "pool p has no such worker yet"),
        (Action.RESTART, "p-2", "labels: none becomes tier=gold"),
        (Action.REMOVE, "q-1", "it is no longer in pool q"),
    ]
    assert planned[1].worker.seed == other.seed


def test_a_restart_names_each_setting_that_changes():
    state = running(
        replace(pooled("p-1", labels=(("tier", "gold"),)), flags=("--profile", "binpack"), seed=5)
    )
    (change,) = changes([replace(pooled("p-1"), flags=("--algorithm", "random"))], state)
    assert change.reason == (
        "labels: tier=gold becomes none; settings: --profile binpack becomes --algorithm random"
    )


def test_a_worker_whose_process_has_ended_is_restarted():
    worker = replace(pooled("p-1"), seed=1)
    (change,) = changes([pooled("p-1")], PlatformState(workers=(worker,)))
    assert (change.action, change.reason) == (Action.RESTART, "its process has ended")


def test_a_document_does_not_take_over_a_worker_of_no_pool():
    with pytest.raises(InvalidInput, match="p-1: a worker of this name runs already and is of no pool"):
        changes([pooled("p-1")], running(WorkerOptions("p-1", seed=1)))


def pooled(name: str, labels: tuple[tuple[str, str], ...] = ()) -> WorkerOptions:
    return WorkerOptions(name, labels, pool=name.partition("-")[0])


def running(*workers: WorkerOptions) -> PlatformState:
    """A state whose workers are all alive: this process stands for each."""
    processes = tuple(record_of(worker.process, os.getpid(), Path("log")) for worker in workers)
    return PlatformState(workers=workers, processes=processes)


def test_a_strategy_that_names_no_profile_is_remarked_on_and_no_error():
    remark = "label strategy=blue-green names no profile; it ranks nodes by spread"
    assert check_worker(WorkerOptions("w", (("strategy", "blue-green"),)), where="w") == remark
    assert not check_worker(WorkerOptions("w", (("strategy", "binpack"),)), where="w")


def test_a_pool_names_its_algorithm_and_one_that_is_not_there_is_refused_with_its_place(tmp_path):
    document = "apiVersion: hoss.dev/v1alpha1\nkind: Platform\npools:\n  - {name: a, algorithm: %s}\n"
    path = tmp_path / "platform.yaml"
    path.write_text(document % "best-fit")
    (worker,) = read_platform(path).workers
    assert worker.flags == ("--algorithm", "best-fit")
    path.write_text(document % "fastest")
    with pytest.raises(ConfigError, match=r"pools\[0\]\.algorithm: 'fastest' is none of best-fit"):
        read_platform(path)
