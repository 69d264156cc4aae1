"""The guard against a real API server, with the manifest and the rights of
deploy/kustomize/components/guard."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from e2e.kubernetes.api import Api
from e2e.kubernetes.guarded import GI, Guarded
from waiting import DEADLINE_SECONDS, wait_until

from hoss.model.node import NodeSpec, Taint
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.uids import uid_from_text


def test_what_fits_is_reserved_before_it_is_bound_and_what_would_overcommit_is_denied_with_the_numbers(
    guarded: Guarded, api: Api
) -> None:
    first, second = (api.create_pod(name, cpu="800m") for name in ("first", "second"))
    assert api.bind(first, "n1")[0] == 201
    assert api.pod("first")["spec"]["nodeName"] == "n1"
    status, answer = api.bind(second, "n1")
    assert status == 403
    assert (
        answer["message"]
        == 'admission webhook "bindings.hoss.dev" denied the request: node n1 has no room for pod'
        " default/second: it asks for 800m of cpu, and 200m is free"
    )
    assert guarded.holds(first, second) == [True, False]
    assert "nodeName" not in api.pod("second")["spec"]
    assert guarded.requested_cpu("n1") == 800


def test_the_older_way_to_bind_is_guarded_as_well(guarded: Guarded, api: Api) -> None:
    pod = api.create_pod("greedy", cpu="2")
    metadata = {name: pod["metadata"][name] for name in ("name", "namespace")}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"kind": "Node", "name": "n1"},
    }
    status, answer = api.request("POST", "/api/v1/namespaces/default/bindings", binding)
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert "asks for 2 of cpu, and 1 is free" in answer["message"]


def test_a_dry_run_is_judged_and_reserves_nothing(guarded: Guarded, api: Api) -> None:
    fitting, greedy = api.create_pod("fitting", cpu="800m"), api.create_pod("greedy", cpu="1200m")
    assert api.bind(fitting, "n1", dry_run=True)[0] == 201
    assert api.bind(greedy, "n1", dry_run=True)[0] == 403
    assert guarded.holds(fitting, greedy) == [False, False]
    assert guarded.requested_cpu("n1") == 0


def test_a_question_that_is_asked_again_gets_the_same_answer_and_reserves_once(
    guarded: Guarded, api: Api
) -> None:
    pod = api.create_pod("p", cpu="600m")
    assert api.bind(pod, "n1", dry_run=True)[0] == 201
    assert api.bind(pod, "n1")[0] == 201
    # Bound by now: the guard allows it by its reservation, and the API server itself says what is wrong.
    status, answer = api.bind(pod, "n1")
    assert (status, answer["reason"]) == (409, "Conflict")
    assert "already assigned" in answer["message"]
    assert guarded.requested_cpu("n1") == 600


def test_a_binding_of_our_own_passes_by_its_reservation_where_it_is_and_nowhere_else(
    guarded: Guarded, api: Api
) -> None:
    guarded.add_node("n2")
    pod = api.create_pod("ours", cpu="900m", scheduler="hoss")
    _reserve(guarded, pod, "n1", cpu=900)
    status, answer = api.bind(pod, "n2")
    assert status == 409
    assert "room is reserved for pod default/ours on node n1" in answer["message"]
    assert api.bind(pod, "n1")[0] == 201
    assert guarded.requested_cpu("n1") == 900


def test_pods_that_cannot_be_bound_anyway_reserve_nothing(guarded: Guarded, api: Api) -> None:
    gone = api.create_pod("gone")
    api.delete_pod("gone")
    assert api.bind(gone, "n1")[0] == 404
    another = api.create_pod("gone")
    status, answer = api.bind(gone, "n1")
    assert status == 409
    assert "is another pod now" in answer["message"]
    assert guarded.holds(gone, another) == [False, False]


def test_namespaces_that_the_selector_exempts_are_not_judged(guarded: Guarded, api: Api) -> None:
    api.request(
        "POST",
        "/api/v1/namespaces",
        {"metadata": {"name": "free", "labels": {"hoss.dev/binding-guard": "off"}}},
    )
    for namespace in ("kube-system", "free"):
        pod = api.create_pod("greedy", cpu="2", namespace=namespace)
        wait_until(lambda pod=pod: api.bind(pod, "n1")[0] == 201, f"a pod of {namespace} is bound")
        assert guarded.holds(pod) == [False]


def test_a_node_that_is_cordoned_or_not_ready_is_judged_by_its_room_alone(guarded: Guarded, api: Api) -> None:
    """kube-scheduler binds pods of DaemonSets to such nodes, as they tolerate it; what tolerates it not is
    its own to know."""
    amounts = (("cpu", 1000), ("memory", 8 * GI), ("pods", 110))
    not_ready = Taint("node.kubernetes.io/not-ready", "", "NoExecute")
    for name, spec in (
        ("cordoned", NodeSpec("cordoned", unschedulable=True, allocatable=amounts)),
        ("not-ready", NodeSpec("not-ready", taints=(not_ready,), allocatable=amounts)),
    ):
        api.create_node(name, cpu="1", unschedulable=spec.unschedulable)
        guarded.ask(lambda resolver, spec=spec: resolver.upsert_nodes([spec]))
        agent, greedy = (
            api.create_pod(f"agent-{name}", cpu="700m"),
            api.create_pod(f"greedy-{name}", cpu="700m"),
        )
        assert api.bind(agent, name)[0] == 201
        assert api.bind(greedy, name)[0] == 403
        assert guarded.requested_cpu(name) == 700


def test_a_node_that_nobody_knows_is_denied_until_it_is_known(guarded: Guarded, api: Api) -> None:
    pod = api.create_pod("p")
    status, answer = api.bind(pod, "n2")
    assert status == 403
    assert "node n2 is not among the nodes that HOSS knows" in answer["message"]
    guarded.add_node("n2")
    assert api.bind(pod, "n2")[0] == 201


def test_without_a_resolver_ignore_lets_bindings_pass_and_fail_holds_them_up(
    make_guarded: Callable[..., Guarded], api: Api
) -> None:
    guarded = make_guarded(failure_policy="Fail")
    guarded.add_node("n1")
    system, held_up = api.create_pod("system", namespace="kube-system"), api.create_pod("held-up")
    guarded.kill_resolver()
    assert api.bind(system, "n1")[0] == 201  # kube-system never waits
    status, answer = api.bind(held_up, "n1")
    assert status == 500
    assert "bindings.hoss.dev" in answer["message"]
    _set_failure_policy(api, "Ignore")
    wait_until(lambda: api.bind(held_up, "n1")[0] == 201, "Ignore lets it pass")


def test_what_was_bound_while_no_resolver_answered_is_counted_before_its_node_is_judged_again(
    guarded: Guarded, api: Api
) -> None:
    """By failurePolicy Ignore, and without a dispatcher."""
    guarded.kill_resolver()
    unseen = api.create_pod("unseen", cpu="800m")
    wait_until(lambda: api.bind(unseen, "n1")[0] == 201, "Ignore lets it pass")
    guarded.start_resolver()
    status, answer = api.bind(api.create_pod("second", cpu="800m"), "n1")
    assert status == 403
    assert "it asks for 800m of cpu, and 200m is free" in answer["message"]
    assert guarded.holds(unseen) == [True]


def test_while_the_ledger_is_away_the_failure_policy_decides(
    make_guarded: Callable[..., Guarded], api: Api
) -> None:
    guarded = make_guarded(failure_policy="Fail")
    guarded.add_node("n1")
    pod = api.create_pod("p")
    guarded.redis.kill()
    status, answer = api.bind(pod, "n1")
    assert status == 500
    assert "bindings.hoss.dev" in answer["message"]
    _set_failure_policy(api, "Ignore")
    wait_until(lambda: api.bind(pod, "n1")[0] == 201, "Ignore lets it pass")


def test_a_resolver_that_was_restarted_judges_on_by_the_same_certificate(guarded: Guarded, api: Api) -> None:
    trusted = guarded.authority()
    guarded.kill_resolver()
    guarded.start_resolver()
    assert guarded.authority() == trusted
    assert api.bind(api.create_pod("greedy", cpu="2"), "n1")[0] == 403


def _set_failure_policy(api: Api, policy: str) -> None:
    patch = {"webhooks": [{"name": "bindings.hoss.dev", "failurePolicy": policy}]}
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/hoss-binding-guard"
    api("PATCH", path, patch, **{"Content-Type": "application/strategic-merge-patch+json"})


def _reserve(guarded: Guarded, pod: Any, node: str, *, cpu: int) -> None:
    """As a worker of HOSS does."""

    async def propose(resolver: Any) -> pb.VerdictBatch:
        (info,) = await resolver.list_nodes([node])
        call = resolver.stub.Propose()
        await call.write(
            pb.ProposalBatch(
                worker="w1",
                epoch=await resolver.grant_epoch("w1"),
                batch_id=1,
                snapshot_seq=2**40,
                resources=6,
                uids=uid_from_text(pod["metadata"]["uid"]),
                slots=bytes(2),
                candidates=1,
                nodes=np.array([info.index], "<u4").tobytes(),
                requests=np.array([cpu, 0, 0, 1, 0, 0], "<i8").tobytes(),
                priorities=bytes(4),
                attempts=bytes(2),
            )
        )
        return await call.read()

    assert guarded.ask(propose).seq


def test_pods_with_rules_of_their_own_are_judged_on_a_ledger_of_several_shards(
    make_guarded: Callable[..., Guarded], api: Api
) -> None:
    """By room alone: whether they may be together, their own scheduler knows."""
    guarded = make_guarded(flags=["--shards", "3"])
    for name in ("n1", "n2", "n3"):
        guarded.add_node(name, cpu=1000)
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pods = [api.create_pod(f"p{number}", cpu="400m", affinity=affinity) for number in range(3)]
    assert [api.bind(pod, "n1")[0] for pod in pods] == [201, 201, 403]
    assert guarded.requested_cpu("n1") == 800


def test_resolvers_are_not_asked_about_what_they_bind_themselves(guarded: Guarded, api: Api) -> None:
    """They look the reservation up before they bind; here is none, and nobody but the resolver's own look
    would say so."""
    pod = api.create_pod("greedy", cpu="2")
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "hoss-binding-guard"},
        "rules": [{"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/hoss-binding-guard?fieldManager=binder&force=true"
    api("PATCH", path, role, **{"Content-Type": "application/apply-patch+yaml"})
    as_resolver = {"Impersonate-User": "system:serviceaccount:hoss-system:hoss-resolver"}
    wait_until(lambda: api.bind(pod, "n1", **as_resolver)[0] == 201, "it is bound")
    assert guarded.holds(pod) == [False]


def test_a_stranger_in_the_cluster_is_not_answered_and_reserves_nothing(guarded: Guarded, api: Api) -> None:
    """With the very question of the API server, at the path of the manifest and at a guessed one."""
    pod = api.create_pod("p", cpu="600m")
    request = {
        "uid": "1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "binding",
        "name": "p",
        "namespace": "default",
        "object": {
            "kind": "Binding",
            "metadata": {"name": "p", "uid": pod["metadata"]["uid"]},
            "target": {"kind": "Node", "name": "n1"},
        },
    }
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    trust = ssl.create_default_context(cadata=guarded.authority().decode())
    for url in (guarded.webhook_url, f"{guarded.webhook_url}/{'0' * 48}"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(
                urllib.request.Request(url, body.encode()), context=trust, timeout=DEADLINE_SECONDS
            )
        caught.value.close()
        assert caught.value.code == 403
    assert guarded.holds(pod) == [False]
    assert api.bind(pod, "n1")[0] == 201
