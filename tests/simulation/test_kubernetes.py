"""Whole platforms in Kubernetes mode in one process: seeds keep every promise, replay exactly, and reach what
they are for. The judge and the model of the API server are tried by what they must refuse."""

import json
import random
from pathlib import Path

import orjson
import pytest
from simulation.seeded import simulate, simulate_in_a_new_interpreter

from dispatcher.core.kubernetes.assignments import ELSEWHERE
from hossctl.history.events import written
from tools.simulation import plan as p
from tools.simulation.api_connection import SimulatedApiServer
from tools.simulation.api_model import ApiModel
from tools.simulation.cluster import OUTCOMES
from tools.simulation.cluster_judge import MINIMUM_ANNOTATION, ClusterJudge
from tools.simulation.cluster_plan import draw_kubernetes, draw_kubernetes_moves
from tools.simulation.loop import SimulationLoop
from tools.simulation.plan import Act, ClusterPlan, Plan
from tools.simulation.run import run

PODS = "/api/v1/namespaces/default/pods"
PLANS = Path(__file__).with_name("plans")


def test_no_promise_is_broken_in_the_first_seeds():
    done = simulate("--kubernetes", "--seeds", 8)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_no_promise_is_broken_in_more_seeds_and_every_kind_of_fault_strikes():
    done = simulate("--kubernetes", "--first", 8, "--seeds", 40)
    assert done.returncode == 0, done.stdout + done.stderr
    reached = dict(line.split(maxsplit=1)[::-1] for line in done.stdout.splitlines()[1:])
    never = [what for what in (*p.OF_CLUSTERS, *OUTCOMES[:10]) if reached[what] == "NEVER"]
    assert never == []


def test_a_seed_replays_byte_for_byte(server):
    def once():
        result = run(draw_kubernetes(0), server, keep=True)
        assert sum(entry.kind == "kube" for entry in result.timeline) > 20
        return [*map(str, result.timeline), *map(written, result.history)]

    assert once() == once()


def test_two_processes_replay_a_seed_alike(tmp_path):
    for name, process in (("one", simulate), ("other", simulate_in_a_new_interpreter)):
        done = process("--kubernetes", "--seed", 4, "--as-drawn", "--out", tmp_path / name)
        assert done.returncode == 0, done.stdout
    for file in ("timeline.txt", "history.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_a_plan_of_kubernetes_mode_that_was_written_down_is_the_same_plan():
    plan = draw_kubernetes(3)
    assert Plan.from_json(orjson.loads(orjson.dumps(plan.as_json()))) == plan


def test_plans_have_every_kind_of_fault_of_clusters():
    acts = [act for seed in range(200) for act in draw_kubernetes(seed).acts]
    drawn = {act.what for act in acts}
    assert {*p.OF_CLUSTERS, *p.LOSSES} <= drawn
    assert {p.RESIZE, p.EVICT, p.END_PODS, p.DELETE_GROUP} <= drawn
    options = {option for act in acts for option in act.options}
    assert {"priority", "gang", "group", "budget", "volume", "devices", "shared"} <= options


def run_plan(name, server):
    """A run of a plan that an earlier search has left."""
    return run(Plan.from_json(json.loads((PLANS / f"{name}.json").read_text())), server)


def test_a_watch_names_the_node_of_a_static_pod_whose_node_has_come_back(server):
    result = run_plan("static-pod-on-a-node-that-comes-back", server)
    assert result.problems() == []
    assert result.reached[p.WATCHES_LAG] == result.reached[p.WEBHOOK_LATE] == 1


def test_room_of_a_victim_is_given_to_nobody_before_the_victim_has_left(server):
    result = run_plan("room-of-a-terminating-victim", server)
    assert result.problems() == []
    assert any("terminating" in event for event in result.history)


@pytest.mark.parametrize(
    "name", ["room-of-a-victim-in-a-rebuilt-ledger", "preemptor-of-a-ledger-and-dispatcher-that-are-lost"]
)
def test_a_rebuilt_ledger_gives_the_room_of_a_victim_to_nobody_before_the_victim_has_left(server, name):
    result = run_plan(name, server)
    assert result.problems() == []
    assert result.reached[p.REDIS_EMPTIED] == 1


def test_the_end_of_a_lease_that_nobody_knows_any_more_wakes_who_waits_for_its_port(server):
    result = run_plan("port-of-a-pod-that-nobody-knows-any-more", server)
    assert result.problems() == []
    assert result.reached[p.REDIS_REFUSED] == 1


def test_a_watcher_that_resumes_after_redis_was_emptied_without_a_dispatcher_is_told_what_differs(server):
    result = run_plan("revision-of-a-lost-life", server)
    assert result.problems() == []
    assert result.reached[p.REDIS_EMPTIED] == result.reached[p.KILL] == 1


def test_a_ledger_that_is_made_anew_grants_epochs_above_those_of_the_lost_one(server):
    result = run_plan("epochs-of-a-ledger-made-anew", server)
    assert result.problems() == []
    assert result.reached[p.REDIS_EMPTIED] == result.reached[p.STOP] == 1


def test_the_webhook_counts_pods_that_the_servers_cache_does_not_show_yet_after_a_loss(server):
    result = run_plan("pods-that-the-servers-cache-does-not-show", server)
    assert result.problems() == []
    assert (result.reached[p.REDIS_EMPTIED], result.reached[p.WATCHES_LAG]) == (1, 1)


def test_a_ledger_is_rebuilt_with_pods_that_the_dispatchers_watches_do_not_show_yet(server):
    result = run_plan("pods-that-the-watches-do-not-show", server)
    assert result.problems() == []
    assert (result.reached[p.REDIS_EMPTIED], result.reached[p.WATCHES_LAG]) == (1, 1)


def test_two_bindings_of_one_pod_on_two_shards_are_not_both_reserved(server):
    result = run_plan("two-bindings-of-one-pod-on-two-shards", server)
    assert result.problems() == []
    assert result.reached[p.FREEZE_AT_STEP] == 1


def test_a_watcher_is_told_that_a_placement_ended_before_the_late_binding_of_a_lost_leader(server):
    result = run_plan("binding-of-a-lost-leader-that-comes-late", server)
    assert result.problems() == []
    assert result.reached["bound late"] > 1
    told = [pod for event in result.history if event["event"] == "told" for pod in event["pods"]]
    assert ELSEWHERE in [pod.get("reason") for pod in told]


def test_pods_on_a_node_that_went_between_two_terms_are_counted_when_it_comes_back(server):
    result = run_plan("pods-on-a-node-that-went-between-two-terms", server)
    assert result.problems() == []
    assert result.reached[p.KILL_AT_STEP] == result.reached[p.WATCHES_LAG] == 1


def test_a_ledger_is_rebuilt_although_a_pod_has_the_name_of_one_that_went_meanwhile(server):
    result = run_plan("name-of-a-pod-that-went-before-a-rebuild", server)
    assert result.problems() == []
    assert (result.reached[p.REDIS_ROLLS_BACK], result.reached[p.API_LOSES_ANSWERS]) == (1, 1)


@pytest.mark.thorough
def test_a_binding_that_comes_late_has_its_room_although_the_resolver_that_allowed_it_was_killed(server):
    result = run_plan("binding-that-comes-after-its-resolver-died", server)
    assert result.problems() == []
    assert (result.reached[p.BINDINGS_LATE], result.reached[p.KILL_AMID_MOVE]) == (1, 1)


@pytest.mark.thorough
def test_a_pod_that_was_evicted_while_its_move_is_due_gets_no_target_with_a_part_of_what_it_held(server):
    result = run_plan("move-of-a-pod-that-was-evicted", server)
    assert result.problems() == []
    assert (result.reached[p.BINDINGS_LATE], result.reached[p.KILL]) == (1, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "struck"),
    [
        ("node-without-an-object-at-a-takeover", p.FREEZE_AMID_MOVE),
        ("given-up-while-its-binding-was-late", p.KILL_AMID_MOVE),
        ("name-of-a-pod-whose-end-waits-for-the-ledger", p.REDIS_EMPTIED),
        ("target-of-a-move-in-a-rebuilt-ledger", p.REDIS_ROLLS_BACK),
        ("epochs-that-were-lost-alone", p.REDIS_ROLLS_BACK),
        ("resolver-that-starts-beside-an-emptied-redis", p.REDIS_EMPTIED),
    ],
)
def test_takeovers_and_losses_amid_moves_break_no_promise(server, name, struck):
    result = run_plan(name, server)
    assert result.problems() == []
    assert result.reached[struck] == 1


@pytest.mark.thorough
def test_a_pod_that_was_placed_anew_after_a_loss_is_deleted_when_it_is_evicted_later(server):
    result = run_plan("victims-that-terminate-for-ever-after-a-loss", server)
    assert result.problems() == []
    assert result.reached[p.REDIS_ROLLS_BACK] == 2


@pytest.mark.parametrize(
    ("name", "struck"),
    [
        ("devices-of-a-lost-ledger", p.REDIS_EMPTIED),
        ("preemption-for-pods-with-devices", p.WATCHES_CUT),
        ("devices-of-a-pod-deleted-while-it-is-bound", p.API_REFUSED),
        ("devices-written-after-their-pod-was-evicted", p.API_LATE),
        ("devices-of-a-pod-whose-node-is-closed-after-a-loss", p.REDIS_EMPTIED),
    ],
)
def test_devices_are_given_once_and_pods_that_ask_for_them_say_why_they_wait(server, name, struck):
    result = run_plan(name, server)
    assert result.problems() == []
    assert result.reached[struck] == 1


@pytest.mark.thorough
def test_a_gang_of_two_kinds_does_not_wait_for_the_kind_that_no_change_helps(server):
    result = run_plan("gang-of-two-kinds-woken-in-part", server)
    assert result.problems() == []
    assert result.reached[p.BINDINGS_LATE] == 1


# -- moves through takeovers


def killed_amid_a_move(steps):
    """The dispatcher is killed so many of its steps after the first place was reserved, and started again.
    Then controllers make the successors of pods that it has evicted."""
    acts = (
        Act(0.1, p.SUBMIT, "web", options={"replicas": 4, "cpu": 700, "controlled": True}),
        Act(3.0, p.MOVE, number=1, options={"rate": 5}),
        Act(3.0, p.KILL_AMID_MOVE, p.LEADER, seconds=1.0, number=steps),
    )
    return Plan(
        1,
        shards=2,
        dispatchers=1,
        resolvers=1,
        workers=1,
        nodes=4,
        acts=acts,
        named_nodes=True,
        cluster=ClusterPlan(),
    )


# Killed with pods evicted, and when successors have got their places.
@pytest.mark.parametrize(
    "steps", [60, 260, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(0, 420, 7))]
)
def test_no_place_of_an_evicted_pod_is_lost_and_no_move_is_told_wrongly_through_a_takeover(server, steps):
    result = run(killed_amid_a_move(steps), server)
    assert result.problems() == []
    assert result.reached[p.KILL_AMID_MOVE] == 1
    assert [move.state for move in result.moves] == ["Moved"] * 4


@pytest.mark.thorough
def test_no_promise_is_broken_while_pods_of_a_cluster_are_moved_and_services_fail_amid_that():
    done = simulate("--kubernetes", "--moves", "--seeds", 30)
    assert done.returncode == 0, done.stdout + done.stderr
    reached = dict(line.split(maxsplit=1)[::-1] for line in done.stdout.splitlines()[1:])
    told = (
        *("kill amid a move", "freeze amid a move"),
        *("told Moved", "told Refused", "moved by the controller"),
    )
    assert [what for what in told if reached[what] == "NEVER"] == []


def test_plans_of_clusters_with_moves_have_the_acts_of_their_seed_and_moves_besides():
    plan, moves = draw_kubernetes(5), draw_kubernetes_moves(5)
    assert all(act in moves.acts for act in plan.acts)
    assert {act.what for act in moves.acts if act not in plan.acts} >= {p.MOVE, p.SUBMIT}


def test_a_rebalance_controller_takes_part_in_two_fifths_of_the_plans_with_moves():
    plans = [draw_kubernetes_moves(seed) for seed in range(200)]
    assert 60 < sum(any(act.what == p.CONTROL for act in plan.acts) for plan in plans) < 100


def test_a_rebalance_controller_moves_pods_of_a_cluster_and_the_judge_knows_their_successors(server):
    results = (run(draw_kubernetes_moves(seed), server) for seed in (0, 4, *range(30)))
    result = next(result for result in results if result.reached["moved by the controller"])
    assert result.problems() == []


# -- the judge


class Story:
    """Objects of a model of the API server, and the judge that sees them change."""

    def __init__(self):
        self.judge = ClusterJudge()
        self.model = ApiModel(random.Random(1))
        self.is_checked = True
        self.model.on_change = lambda change: self.judge.see(change, binds_checked=self.is_checked)

    def node(self, name, cpu):
        allocatable = {"cpu": cpu, "memory": "1Gi", "pods": "3"}
        body = {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": allocatable}}
        assert self.model.answer("POST", "/api/v1/nodes", body, {}).done

    def pod(self, name, cpu, node="", scheduler="hoss", **container):
        spec = {"schedulerName": scheduler, **({"nodeName": node} if node else {})}
        requests = {"name": "c", "resources": {"requests": {"cpu": cpu}}, **container}
        body = {"metadata": {"name": name}, "spec": {**spec, "containers": [requests]}}
        made = self.model.answer("POST", PODS, body, {}).json()
        return made["metadata"]["uid"]

    def bind(self, name, node):
        binding = {"metadata": {"name": name}, "target": {"name": node}}
        assert self.model.answer("POST", f"{PODS}/{name}/binding", binding, {}).done

    def patch(self, path, body):
        assert self.model.answer("PATCH", path, body, {}).done

    def at_rest(self, **reserved):
        rows = [{"uid": uid, "node": node} for uid, node in reserved.items()]
        return self.judge.at_rest(self.model.objects("Pod"), self.model.objects("Node"), rows)


@pytest.fixture
def story():
    made = Story()
    made.node("n1", "1")
    return made


def test_pods_that_fit_break_no_promise(story):
    for name in ("one", "other"):
        story.pod(name, "500m")
        story.bind(name, "n1")
    assert story.judge.problems == []


def test_a_binding_beyond_what_a_node_ever_had_is_found(story):
    for name in ("one", "other"):
        story.pod(name, "600m")
        story.bind(name, "n1")
    assert [problem.partition(":")[0] for problem in story.judge.problems] == [
        "overcommitted at the API server"
    ]


def test_two_pods_with_one_host_port_on_a_node_are_found(story):
    for name in ("one", "other"):
        story.pod(name, "100m", ports=[{"hostPort": 80}])
        story.bind(name, "n1")
    assert "port 80 of n1" in story.judge.problems[0]


def test_a_pod_that_came_past_the_webhook_is_nobodys_fault(story):
    story.pod("static", "900m", node="n1")
    story.pod("one", "600m")
    story.bind("one", "n1")
    story.is_checked = False
    story.pod("past", "600m", scheduler="other")
    story.bind("past", "n1")
    assert story.judge.problems == []


def test_a_node_that_shrinks_and_a_pod_that_grows_are_nobodys_fault(story):
    for name in ("one", "other"):
        story.pod(name, "400m")
        story.bind(name, "n1")
    story.patch(f"{PODS}/one/resize", {"spec": {"containers": [_grown()]}})
    story.patch("/api/v1/nodes/n1/status", {"status": {"allocatable": {"cpu": "500m"}}})
    assert story.judge.problems == []


def _grown():
    return {"name": "c", "resources": {"requests": {"cpu": "900m"}}}


def test_a_pod_on_a_node_without_a_reservation_and_a_reservation_without_a_pod_are_found(story):
    uid = story.pod("one", "100m")
    story.bind("one", "n1")
    assert story.at_rest(**{uid: "n1"}) == []
    assert "is on n1 and reserved nowhere" in story.at_rest()[0]
    assert "is on n1 and reserved n2" in story.at_rest(**{uid: "n2"})[0]
    assert any("which is on no node" in found for found in story.at_rest(**{uid: "n1", "another": "n1"}))


def test_a_pod_waits_only_with_a_reason_that_is_true(story):
    story.pod("large", "2")
    assert story.at_rest() == ["pod large waits and says no reason, but ''"]
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
    }
    told = {"status": {"conditions": [condition]}}
    story.patch(f"{PODS}/large/status", told)
    assert story.at_rest() == []
    story.pod("small", "1")
    story.patch(f"{PODS}/small/status", told)
    assert story.at_rest() == ["pod small waits while n1 has room for it"]
    story.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    assert story.at_rest() == []


def _gang(story, pods, minimum, *, names="gang", scheduler="hoss"):
    """Pods of a gang by annotation, which say why they wait."""
    for number in range(pods):
        name = f"{names}-{number}"
        owner = {"kind": "ReplicaSet", "name": "gang", "uid": "1", "controller": True}
        metadata = {
            "name": name,
            "ownerReferences": [owner],
            "annotations": {MINIMUM_ANNOTATION: str(minimum)},
        }
        container = {"name": "c", "resources": {"requests": {"cpu": "400m"}}}
        spec = {"schedulerName": scheduler, "containers": [container]}
        assert story.model.answer("POST", PODS, {"metadata": metadata, "spec": spec}, {}).done
        condition = {"type": "PodScheduled", "status": "False", "message": "waits for its gang"}
        story.patch(f"{PODS}/{name}/status", {"status": {"conditions": [condition]}})


@pytest.mark.parametrize(("pods", "minimum", "waits_truly"), [(3, 3, True), (3, 2, False), (2, 3, True)])
def test_a_gang_waits_truly_while_it_is_not_complete_or_has_no_room_as_a_whole(
    story, pods, minimum, waits_truly
):
    _gang(story, pods, minimum)
    assert (story.at_rest() == []) == waits_truly


def test_a_gang_whose_minimum_is_placed_waits_only_where_nothing_has_room_for_one_more(story):
    _gang(story, 3, 2)
    story.node("n2", "1")
    for name in ("gang-0", "gang-1"):
        story.bind(name, "n1")
    bound = {
        pod["metadata"]["uid"]: "n1" for pod in story.model.objects("Pod") if pod["spec"].get("nodeName")
    }
    assert story.at_rest(**bound) == ["pod gang-2 waits while n2 has room for it"]


def test_a_gang_waits_truly_whatever_pods_of_its_group_another_scheduler_has_placed(story):
    """They do not count: the gang needs room for its whole minimum."""
    _gang(story, 2, 2, names="other", scheduler="other")
    _gang(story, 3, 3)
    for name in ("other-0", "other-1"):
        story.bind(name, "n1")
    bound = {
        pod["metadata"]["uid"]: "n1" for pod in story.model.objects("Pod") if pod["spec"].get("nodeName")
    }
    story.node("n2", "1")
    assert story.at_rest(**bound) == []


# -- the server


@pytest.fixture
def simulated():
    loop = SimulationLoop(random.Random(1))
    made = SimulatedApiServer(loop, random.Random(2), ApiModel(random.Random(3)))
    process = loop.process("test")
    api = made.client(process, loop.time, random.Random(4))
    yield made, api, lambda case: loop.run_until_complete(loop.spawn(process, case))
    loop.close()


def _watch(version):
    return {"watch": "1", "resourceVersion": str(version), "timeoutSeconds": "60"}


def test_a_watch_from_a_forgotten_version_is_refused_as_gone(simulated):
    server, api, carry_out = simulated

    async def case():
        await api.send("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
        server.model.compact()
        with pytest.raises(Exception, match="410 Expired"):
            async with api.stream("/api/v1/nodes", _watch(1), silence_seconds=10.0):
                pass

    carry_out(case())


def test_a_cache_that_lags_answers_by_the_state_before_and_a_plain_read_by_that_of_now(simulated):
    server, api, carry_out = simulated

    async def case():
        server.faults.begin({"cache_seconds": 1000.0})
        await api.send("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
        old = await api.send("GET", "/api/v1/nodes/n1", params={"resourceVersion": "0"})
        new = await api.send("GET", "/api/v1/nodes/n1")
        assert (old.status, new.status) == (404, 200)

    carry_out(case())


def test_an_answer_that_is_lost_was_carried_out(simulated):
    server, api, carry_out = simulated

    async def case():
        server.faults.begin({"lost_answers": 1.0})
        with pytest.raises(Exception, match="connection reset"):
            await api.send("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
        assert [node["metadata"]["name"] for node in server.model.objects("Node")] == ["n1"]
        assert server.faults.reached["answer lost"] == 1
        server.faults.end()
        assert (await api.send("GET", "/api/v1/nodes/n1")).status == 200

    carry_out(case())


@pytest.mark.parametrize(("ignores", "status"), [(False, 500), (True, 201)])
def test_a_webhook_that_does_not_answer_in_time_is_judged_by_the_failure_policy(ignores, status):
    loop = SimulationLoop(random.Random(1))
    server = SimulatedApiServer(loop, random.Random(2), ApiModel(random.Random(3)), ignores_failures=ignores)
    process, judged = loop.process("resolver-1"), []
    api = server.client(loop.process("another-scheduler"), loop.time, random.Random(4))
    server.on_change = lambda change, _client, by_ledger: judged.append((change.kind, by_ledger))

    async def silent(_body):
        await loop.create_future()

    async def case():
        spec = {"containers": [{"name": "c"}]}
        await api.send("POST", PODS, {"metadata": {"name": "one"}, "spec": spec})
        async with server.reviewed_by(process, silent):
            binding = {"metadata": {"name": "one"}, "target": {"name": "n1"}}
            assert (await api.send("POST", f"{PODS}/one/binding", binding)).status == status
        assert judged[1:] == ([("Pod", False)] if ignores else [])

    loop.run_until_complete(loop.spawn(process, case()))
    loop.close()
