"""Moves of pods of a real API server: the new place is reserved before the pod is evicted, and its successor
gets it, whoever else asks. The tests play the controllers: they make the successors."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from e2e.cluster import Cluster
from e2e.kubernetes.agreement import assigned, overcommitted, requested, reserved, run_hoss
from e2e.kubernetes.api import Api, node_of, placed, told
from e2e.kubernetes.guarded import await_guard, install
from e2e.kubernetes.moves import NO_GRACE, OWNER, REPLICA_SETS, begin, create_web, run_status
from e2e.loads import BEFORE_PREEMPTION
from waiting import wait_until

from dispatcher.journal.records import unpack_progress
from dispatcher.journal.redis_store import MOVES
from hoss.v1 import resolver_pb2
from hoss.wire.columns import U32, U64, encode
from hoss.wire.uids import uid_from_text
from hossctl.endpoints import clients_of
from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports

PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., tuple[Api, Cluster]]]:
    """Starts a platform with a worker: `make_cluster(control_plane, move_timeout_seconds=2)`."""
    made: list[Cluster] = []

    def make(
        plane: ControlPlane, *, move_timeout_seconds: float = 600, **settings: Any
    ) -> tuple[Api, Cluster]:
        document = tmp_path / "dispatcher.yaml"
        document.write_text(
            "apiVersion: hoss.dev/v1alpha1\nkind: DispatcherConfig\n"
            f"kubernetes: {{kubeconfig: {plane.kubeconfig}, move_timeout_seconds: {move_timeout_seconds}}}\n"
        )
        api = Api(plane)
        settings["dispatcher_flags"] = ("--config", str(document))
        made.append(Cluster(tmp_path, kubeconfig=plane.kubeconfig, **settings))
        made[0].start_worker("w1")
        return api, made[0]

    yield make
    for cluster in made:
        cluster.stop()


def run_pod(api: Api, name: str) -> None:
    """As its kubelet would: budgets protect only pods that run and are ready."""
    merge = {"Content-Type": "application/merge-patch+json"}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}, **merge)


def web_on_n1(api: Api, cluster: Cluster, **options: Any) -> None:
    """The pod web-a on n1, and n2 with room for one pod like it."""
    api.create_node("n1", cpu="1")
    create_web(api, "web-a", **options)
    assert placed(api, "web-a") == "n1"
    run_pod(api, "web-a")
    api.create_node("n2", cpu="1")
    wait_until(lambda: "n2" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")


def set_budget(api: Api, allowed: int, *, app: str = "web") -> None:
    """A disruption budget, and what the disruption controller would say of it."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    api.request("POST", BUDGETS, {"metadata": {"name": app}, "spec": spec})  # it may be there already
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 1 + allowed,
    }
    patch = {"Content-Type": "application/merge-patch+json"}
    api("PATCH", f"{BUDGETS}/{app}/status", {"status": status}, **patch)


def move_of(cluster: Cluster) -> tuple[str, str]:
    """State and text of the first move."""
    move = run_status(cluster)["moves"][0]
    return move["state"], move["text"]


def await_state(cluster: Cluster, state: str) -> str:
    """Wait until the first move is in this state. Returns its text."""
    wait_until(lambda: move_of(cluster)[0] == state, lambda: f"{state}: {run_status(cluster)}")
    return move_of(cluster)[1]


def await_forbidden(cluster: Cluster) -> None:
    """Wait until the first move says that a budget forbids it."""
    wait_until(
        lambda: "disruption budget" in move_of(cluster)[1], lambda: f"forbidden: {run_status(cluster)}"
    )


def leaving(api: Api, name: str) -> bool:
    return "deletionTimestamp" in api.pod(name)["metadata"]


def await_agreement(api: Api, cluster: Cluster) -> None:
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    assert overcommitted(api) == {}
    assert "clean" in run_hoss(cluster, "audit")


def test_the_new_place_is_reserved_before_the_budget_lets_the_pod_go_and_its_successor_gets_it(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane)
    web_on_n1(api, cluster)
    set_budget(api, 0)
    begin(cluster, ("web-a", "n1", "n2"))
    await_forbidden(cluster)
    assert (move_of(cluster)[0], leaving(api, "web-a")) == ("Waiting", False)
    assert requested(cluster, "n2")["cpu"] == 800
    api.create_pod("greedy", scheduler="hoss", cpu="800m")
    wait_until(lambda: "Insufficient cpu" in told(api, "greedy"), "nobody else gets the reserved room")
    set_budget(api, 1)
    await_state(cluster, "Evicted")
    assert leaving(api, "web-a")
    assert requested(cluster, "n2")["cpu"] == 800
    create_web(api, "web-b")
    assert placed(api, "web-b") == "n2"
    assert await_state(cluster, "Moved") == "its successor is default/web-b"
    assert run_status(cluster)["state"] == "Done"
    assert not node_of(api, "greedy")
    await_agreement(api, cluster)
    api.delete_pod("web-a")
    assert placed(api, "greedy") == "n1"
    await_agreement(api, cluster)


def test_kube_scheduler_gets_the_reserved_place_of_no_successor(
    own_control_plane: ControlPlane, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    (port,) = free_ports(1)
    install(Api(own_control_plane), f"https://127.0.0.1:{port}/bindings", failure_policy="Fail")
    api, cluster = make_cluster(own_control_plane, webhook_ports=(port,))
    await_guard(api)
    web_on_n1(api, cluster)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    own_control_plane.start_scheduler()
    api.create_pod("rival", cpu="800m", scheduler="default-scheduler")
    refused = "n2 has no room"
    wait_until(
        lambda: refused in json.dumps(api("GET", "/api/v1/namespaces/default/events")["items"]),
        "kube-scheduler has tried",
    )
    create_web(api, "web-b")
    assert placed(api, "web-b") == "n2"
    api.delete_pod("web-a")
    assert placed(api, "rival") == "n1"
    await_agreement(api, cluster)


def test_a_place_for_which_no_successor_comes_is_free_again(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    """And a pod of another shape, or of another controller, is no successor."""
    _, cluster = make_cluster(control_plane, move_timeout_seconds=3)
    web_on_n1(api, cluster, grace=NO_GRACE)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    create_web(api, "other-shape", cpu="700m", grace=NO_GRACE)
    assert placed(api, "other-shape") == "n1"
    api.create_pod("bare", cpu="800m", scheduler="hoss")
    assert "no successor has come within 3 s" in await_state(cluster, "Refused")
    assert placed(api, "bare") == "n2"
    await_agreement(api, cluster)


def test_a_pod_that_a_finalizer_keeps_holds_its_own_place_and_not_the_new_one_for_ever(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    """As a StatefulSet's, whose successor comes when it is gone. Meanwhile the target is cordoned."""
    _, cluster = make_cluster(control_plane, move_timeout_seconds=3)
    web_on_n1(api, cluster, grace=NO_GRACE, finalizers=["example.com/kept"])
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    assert leaving(api, "web-a")
    merge = {"Content-Type": "application/merge-patch+json"}
    api("PATCH", "/api/v1/nodes/n2", {"spec": {"unschedulable": True}}, **merge)
    why = await_state(cluster, "Refused")
    assert "no successor has come within 3 s: its place is free again; the pod has not ended" in why
    wait_until(lambda: not requested(cluster, "n2").get("cpu"), "nothing is reserved on the target")
    assert requested(cluster, "n1")["cpu"] == 800  # what the pod may still use
    await_agreement(api, cluster)
    api("PATCH", "/api/v1/namespaces/default/pods/web-a", {"metadata": {"finalizers": None}}, **merge)
    create_web(api, "web-b", grace=NO_GRACE)
    assert placed(api, "web-b") == "n1"
    await_agreement(api, cluster)


def test_the_place_is_free_at_once_when_the_pod_s_controller_is_deleted(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane, move_timeout_seconds=3600)
    web_on_n1(api, cluster)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    api("DELETE", f"{REPLICA_SETS}/web")
    assert "its ReplicaSet web was deleted: its place is free again" in await_state(cluster, "Refused")
    wait_until(lambda: not requested(cluster, "n2").get("cpu"), "nothing is reserved on the target")
    api.delete_pod("web-a")
    await_agreement(api, cluster)


def test_the_place_is_free_at_once_when_the_pod_s_controller_is_scaled_down(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    """To the pods that are left: to none."""
    _, cluster = make_cluster(control_plane, move_timeout_seconds=3600)
    web_on_n1(api, cluster)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    merge = {"Content-Type": "application/merge-patch+json"}
    api("PATCH", f"{REPLICA_SETS}/web", {"spec": {"replicas": 0}}, **merge)
    assert "its ReplicaSet web wants no more than the 0 pods that it has" in await_state(cluster, "Refused")
    wait_until(lambda: not requested(cluster, "n2").get("cpu"), "nothing is reserved on the target")
    api.delete_pod("web-a")
    await_agreement(api, cluster)


def test_a_budget_that_never_allows_it_leaves_the_pod_where_it_is(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane, move_timeout_seconds=2)
    web_on_n1(api, cluster)
    set_budget(api, 0)
    begin(cluster, ("web-a", "n1", "n2"))
    why = await_state(cluster, "Refused")
    assert "not evicted within 2 s" in why
    assert "disruption budget" in why
    assert not leaving(api, "web-a")
    await_agreement(api, cluster)


def test_pods_that_nobody_would_make_anew_are_not_evicted(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane)
    api.create_node("n1", cpu="4")
    daemon = {**OWNER, "kind": "DaemonSet", "name": "agent"}
    api.create_pod("bare", scheduler="hoss")
    api.create_pod("daemon", scheduler="hoss", metadata={"ownerReferences": [daemon]})
    create_web(api, "fixed", cpu="100m", annotations={"hoss.dev/movable": "false"})
    foreign = api.create_pod("foreign", metadata={"ownerReferences": [OWNER]})
    assert api.bind(foreign, "n1")[0] == 201
    names = ("bare", "daemon", "fixed", "foreign")
    of_gang = {"hoss.dev/min-available": "2", "hoss.dev/movable": "true"}
    for name in ("gang-a", "gang-b"):
        create_web(api, name, cpu="100m", annotations=of_gang)
    for name in (*names, "gang-a", "gang-b"):
        assert placed(api, name) == "n1"
    api.create_node("n2", cpu="4")
    wait_until(lambda: "n2" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    plan = json.loads(run_hoss(cluster, "rebalance", "plan", "--drain", "n1", "-o", "json"))
    planned = {entry["subject"].removeprefix("default/"): entry["why"] for entry in plan["impossible"]}
    begin(cluster, *((name, "n1", "n2") for name in names))
    wait_until(lambda: run_status(cluster)["refused"] == len(names), "each is refused")
    assert planned == {
        "bare on n1": "no controller would make it anew",
        "daemon on n1": "it belongs to its node (DaemonSet)",
        "fixed on n1": "its annotation hoss.dev/movable says false",
        "foreign on n1": "another scheduler places it, and would place its successor",
        "gang-a on n1": "it is one of a gang, which has to be whole",
        "gang-b on n1": "it is one of a gang, which has to be whole",
    }
    assert [move["text"] for move in run_status(cluster)["moves"]] == [
        "it has no controller that would make it anew",
        "it belongs to its node, as pods of a DaemonSet do",
        "its annotation hoss.dev/movable says false",
        "another scheduler places it, and would place its successor",
    ]
    assert not any(leaving(api, name) for name in names)
    await_agreement(api, cluster)


def test_an_undo_takes_back_what_is_not_evicted_yet_and_says_what_is(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane)
    web_on_n1(api, cluster, cpu="400m")
    create_web(api, "kept", cpu="400m", labels={"app": "kept"})
    source = placed(api, "kept")
    run_pod(api, "kept")
    set_budget(api, 0, app="kept")
    api.create_node("n3", cpu="1")
    wait_until(lambda: "n3" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    begin(cluster, ("web-a", "n1", "n2"), ("kept", source, "n3"))
    await_state(cluster, "Evicted")
    wait_until(lambda: "disruption budget" in run_status(cluster)["moves"][1]["text"], "the other one waits")
    run_hoss(cluster, "rebalance", "pause")
    wait_until(lambda: not requested(cluster, "n3").get("cpu"), "what is paused holds no second place")
    undone = run_hoss(cluster, "rebalance", "undo")
    assert "but for 1 pods that were evicted already" in undone, undone
    wait_until(lambda: run_status(cluster)["moves"][1]["state"] == "Refused", "the other one is taken back")
    assert "undone before its pod was evicted" in run_status(cluster)["moves"][1]["text"]
    create_web(api, "web-b", cpu="400m")
    assert placed(api, "web-b") == "n2"
    wait_until(lambda: run_status(cluster)["state"] == "Done", "all moves have ended")
    assert not leaving(api, "kept")
    await_agreement(api, cluster)


def test_a_dispatcher_that_dies_before_the_eviction_leaves_the_move_to_the_next_one(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane)
    web_on_n1(api, cluster)
    set_budget(api, 0)
    begin(cluster, ("web-a", "n1", "n2"))
    await_forbidden(cluster)
    assert requested(cluster, "n2")["cpu"] == 800
    cluster.kill("dispatcher")
    cluster.start_dispatcher()
    await_forbidden(cluster)
    assert not leaving(api, "web-a")
    set_budget(api, 1)
    await_state(cluster, "Evicted")
    create_web(api, "web-b")
    assert await_state(cluster, "Moved") == "its successor is default/web-b"
    assert placed(api, "web-b") == "n2"
    assert run_status(cluster)["state"] == "Done"
    await_agreement(api, cluster)


@pytest.mark.parametrize("moment", ["before its successor comes", "after its successor has come"])
def test_a_dispatcher_that_dies_after_the_eviction_does_not_cost_the_successor_its_place(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]], moment: str
) -> None:
    """A rival waits for the place all the time. Without a resolver the successor has come and not got it."""
    _, cluster = make_cluster(control_plane)
    web_on_n1(api, cluster)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    api.create_pod("rival", cpu="800m", scheduler="hoss")
    if moment == "after its successor has come":
        cluster.kill("resolver")
        create_web(api, "web-b")
        wait_until(lambda: noted(cluster, "default/web-b"), "the journal has the successor")
    cluster.kill("dispatcher")
    if moment == "after its successor has come":
        cluster.start_resolver()
    else:
        create_web(api, "web-b")
    cluster.start_dispatcher()
    assert placed(api, "web-b") == "n2"
    assert await_state(cluster, "Moved") == "its successor is default/web-b"
    assert not node_of(api, "rival")
    assert run_status(cluster)["state"] == "Done"
    await_agreement(api, cluster)


def noted(cluster: Cluster, successor: str) -> bool:
    """Whether the journal has this pod as the successor in the first move."""
    assert cluster.redis is not None
    with redis.Redis(port=cluster.redis.port) as journal:
        progress = unpack_progress(1, journal.hget(MOVES, "progress"))
    return [e.successor[1] for e in progress.evictions.values() if e.successor] == [successor]


def test_a_place_whose_reservation_ends_without_a_dispatcher_is_told_to_be_lost(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane, resolver_flags=("--reservation-lease-seconds", "2"))
    web_on_n1(api, cluster, grace=NO_GRACE)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    cluster.kill("dispatcher")
    wait_until(lambda: not requested(cluster, "n2").get("cpu"), "the lease is over")
    cluster.start_dispatcher()
    assert "a takeover took longer than the reservation" in await_state(cluster, "Refused")
    create_web(api, "web-b")
    assert placed(api, "web-b") in ("n1", "n2")
    await_agreement(api, cluster)


POLICY = """\
apiVersion: hoss.dev/v1alpha1
kind: RebalancePolicy
goals: [{goal: spread}]
passSeconds: 1
budget: {movesPerHour: 2, movesPerPass: 2, movesPerSecond: 0.1, movesPerWorkload: 2}
"""


def test_the_controller_moves_pods_of_a_cluster_through_a_takeover_and_leaves_their_successors_alone(
    control_plane: ControlPlane,
    api: Api,
    make_cluster: Callable[..., tuple[Api, Cluster]],
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    _, cluster = make_cluster(control_plane)
    api.create_node("n1", cpu="2")
    for name in "abcd":
        create_web(api, f"web-{name}", cpu="400m", grace=NO_GRACE)
        assert placed(api, f"web-{name}") == "n1"
    api.create_node("n2", cpu="2")
    wait_until(lambda: "n2" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    with rebalance_controller(cluster, policy):
        wait_until(lambda: run_status(cluster)["moves"], "the controller has begun")
        await_state(cluster, "Evicted")
        create_web(api, "web-e", cpu="400m", grace=NO_GRACE)
        await_state(cluster, "Moved")
        assert run_status(cluster)["moves"][1]["state"] == "Waiting"  # by the rate
        cluster.kill("dispatcher")
        cluster.start_dispatcher()
        wait_until(lambda: run_status(cluster)["moves"][1]["state"] == "Evicted", "the next one goes on")
        assert run_status(cluster)["byController"]
        create_web(api, "web-f", cpu="400m", grace=NO_GRACE)
        said = "the hour's 2 moves are made"
        wait_until(lambda: said in run_hoss(cluster, "rebalance", "status"), "both moves count")
    assert [placed(api, name) for name in ("web-e", "web-f")] == ["n2", "n2"]
    await_agreement(api, cluster)


def test_a_pod_of_a_cluster_is_moved_before_any_is_preempted(
    control_plane: ControlPlane,
    api: Api,
    make_cluster: Callable[..., tuple[Api, Cluster]],
    tmp_path: Path,
) -> None:
    """The urgent pod would have n1 without web-a, or n2 without the bare pod. After a pass at its start the
    controller plans only for pods that wait before they preempt; ten minutes are longer than the test may
    last."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(BEFORE_PREEMPTION)
    _, cluster = make_cluster(control_plane)
    api.request("POST", PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    api.create_node("n1", cpu="1")
    create_web(api, "web-a", cpu="800m", grace=NO_GRACE)
    assert placed(api, "web-a") == "n1"
    api.create_node("n2", cpu="2")
    api.create_pod("bare", cpu="1100m", scheduler="hoss")
    assert placed(api, "bare") == "n2"
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    with rebalance_controller(cluster, policy):
        wait_until(lambda: controller_waits(cluster) == 600, "the controller wants pods to wait")
        api.create_pod("urgent", cpu="1", scheduler="hoss", priorityClassName="high")
        wait_until(lambda: run_status(cluster).get("moves"), "the controller has begun")
        await_state(cluster, "Evicted")
        create_web(api, "web-b", cpu="800m", grace=NO_GRACE)
        await_state(cluster, "Moved")
        assert placed(api, "urgent") == "n1"
    assert [placed(api, name) for name in ("web-b", "bare")] == ["n2", "n2"]
    assert not leaving(api, "bare")
    await_agreement(api, cluster)


def controller_waits(cluster: Cluster) -> float | None:
    """For how long pods wait for moves before they preempt, as the controller has told the dispatcher."""
    waits: float | None = (run_status(cluster).get("controller") or {}).get("preemptionWaitSeconds")
    return waits


@contextlib.contextmanager
def rebalance_controller(cluster: Cluster, policy: Path) -> Iterator[None]:
    """`hoss rebalance controller` beside the platform."""
    where = ("--dispatcher", cluster.endpoints.dispatcher, "--resolver", cluster.endpoints.resolver)
    command = [sys.executable, "-m", "hossctl", "rebalance", "controller", "-f", str(policy), *where]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()


def test_a_resolver_that_dies_while_the_successor_comes_does_not_cost_it_the_place(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    _, cluster = make_cluster(control_plane)
    web_on_n1(api, cluster)
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    cluster.kill("resolver")
    create_web(api, "web-b")
    cluster.start_resolver()
    assert placed(api, "web-b") == "n2"
    assert await_state(cluster, "Moved") == "its successor is default/web-b"
    await_agreement(api, cluster)


def reserve_and_leave(cluster: Cluster, pod: Any, target: str) -> None:
    """Reserve a target for a pod, as somebody would who dies then."""

    async def ask() -> None:
        async with clients_of(cluster.endpoints) as clients:
            (node,) = await clients.resolver.list_nodes([target])
            digests = (await clients.resolver.audit()).digests
            request = resolver_pb2.MoveRequest(
                step=resolver_pb2.MOVE_RESERVE,
                worker="somebody",
                epoch=await clients.resolver.grant_epoch("somebody"),
                uids=uid_from_text(pod["metadata"]["uid"]),
                nodes=encode([node.index], U32),
                seen=encode([digest.seq for digest in digests], U64),
            )
            assert list((await clients.resolver.move(request)).verdicts) == [resolver_pb2.COMMITTED]

    asyncio.run(ask())


def test_the_place_is_kept_for_longer_than_a_lease(
    control_plane: ControlPlane, api: Api, make_cluster: Callable[..., tuple[Api, Cluster]]
) -> None:
    """The witness is a target that was reserved later, which nobody renews."""
    lease = ("--reservation-lease-seconds", "5")
    _, cluster = make_cluster(control_plane, resolver_flags=lease)
    web_on_n1(api, cluster)
    create_web(api, "other", cpu="100m")
    placed(api, "other")
    api.create_node("n3", cpu="1")
    wait_until(lambda: "n3" in run_hoss(cluster, "get", "nodes"), "HOSS knows the node")
    wait_until(lambda: reserved(cluster) == assigned(api), "the ledger says what the API server says")
    begin(cluster, ("web-a", "n1", "n2"))
    await_state(cluster, "Evicted")
    reserve_and_leave(cluster, api.pod("other"), "n3")
    wait_until(lambda: not requested(cluster, "n3").get("cpu"), "the lease of the witness is over")
    create_web(api, "web-b")
    assert placed(api, "web-b") == "n2"
    assert await_state(cluster, "Moved") == "its successor is default/web-b"
    await_agreement(api, cluster)
