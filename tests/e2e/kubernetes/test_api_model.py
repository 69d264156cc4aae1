"""One contract for the API server of the simulation and for a real one: what HOSS relies on, case by case."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from e2e.kubernetes.api import Api
from e2e.kubernetes.pod_groups import COSCHEDULING, Groups

from hoss.kube.access import load_access
from hoss.kube.api import MERGE_PATCH, STRATEGIC_PATCH, KubeApi, Reply
from hossctl.local.control_plane import ControlPlane
from tools.simulation.api_connection import SimulatedApiServer
from tools.simulation.api_model import ApiModel
from tools.simulation.loop import SimulationLoop

PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
DEVICE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SILENCE_SECONDS = 60.0

Case = Callable[[KubeApi], Awaitable[None]]


@pytest.fixture(params=["model", "kube-apiserver"])
def hold(request: pytest.FixtureRequest) -> Callable[[Case], None]:
    """Carries a case out against one of the two, which has neither pods nor nodes before."""
    if request.param == "kube-apiserver":
        plane: ControlPlane = request.getfixturevalue("control_plane")
        administrator: Api = request.getfixturevalue("api")
        administrator.request("DELETE", f"{LEASES}/contract")
        if "pod_group" in request.node.name:
            Groups(administrator, COSCHEDULING).install()
        return lambda case: asyncio.run(_with_real(plane, case))
    return _with_model


async def _with_real(plane: ControlPlane, case: Case) -> None:
    api = KubeApi(load_access(plane.kubeconfig))
    try:
        await case(api)
    finally:
        await api.close()


def _with_model(case: Case) -> None:
    loop = SimulationLoop(random.Random(1))
    try:
        model = ApiModel(random.Random(2))
        server = SimulatedApiServer(loop, random.Random(3), model)
        model.compact()  # as one that has been there for a while
        process = loop.process("test")
        api = server.client(process, loop.time, random.Random(4))
        loop.run_until_complete(loop.spawn(process, case(api)))
    finally:
        loop.close()


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": "nobody", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def create(api: KubeApi, name: str, **spec: Any) -> dict[str, Any]:
    reply = await api.send("POST", PODS, pod(name, **spec))
    assert reply.status == 201, reply.body
    made: dict[str, Any] = reply.json()
    return made


async def create_node(api: KubeApi) -> dict[str, str]:
    """A node n1. Returns what it has."""
    amounts = {"cpu": "2", "memory": "1Gi", "pods": "10"}
    status = {"allocatable": amounts, "capacity": amounts}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": status}
    assert (await api.send("POST", "/api/v1/nodes", node)).status == 201
    return amounts


async def bind(api: KubeApi, made: dict[str, Any], node: str, uid: str = "") -> Reply:
    metadata = {
        "name": made["metadata"]["name"],
        "namespace": "default",
        "uid": uid or made["metadata"]["uid"],
    }
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    return await api.send("POST", f"{PODS}/{metadata['name']}/binding", binding)


async def delete(api: KubeApi, name: str, **options: Any) -> Reply:
    return await api.send(
        "DELETE", f"{PODS}/{name}", {"apiVersion": "v1", "kind": "DeleteOptions", **options}
    )


async def patch(api: KubeApi, path: str, body: dict[str, Any]) -> Reply:
    return await api.send("PATCH", path, body, content_type=STRATEGIC_PATCH)


def condition_of(item: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(condition for condition in item["status"]["conditions"] if condition["type"] == kind)


def test_a_name_is_taken_once_and_a_new_pod_is_pending_with_a_version(hold):
    async def case(api: KubeApi) -> None:
        made = await create(api, "one")
        assert made["status"]["phase"] == "Pending"
        assert made["metadata"]["uid"]
        assert int(made["metadata"]["resourceVersion"]) > 0
        again = await api.send("POST", PODS, pod("one"))
        assert (again.status, again.reason) == (409, "AlreadyExists")
        missing = await api.send("GET", f"{PODS}/other")
        assert (missing.status, missing.reason) == (404, "NotFound")
        assert (await api.send("GET", "/api/v1/nonsense")).status == 404

    hold(case)


def test_a_pod_is_bound_once_and_only_by_its_uid(hold):
    async def case(api: KubeApi) -> None:
        made = await create(api, "one")
        other = await bind(api, made, "n1", uid="00000000-0000-4000-8000-000000000000")
        assert (other.status, other.reason) == (409, "Conflict")
        assert (await bind(api, made, "n1")).status == 201
        found = (await api.send("GET", f"{PODS}/one")).json()
        assert found["spec"]["nodeName"] == "n1"
        assert condition_of(found, "PodScheduled")["status"] == "True"
        for node in ("n1", "n2"):
            again = await bind(api, made, node)
            assert (again.status, again.reason) == (409, "Conflict")
        ghost = {"metadata": {"name": "ghost", "uid": made["metadata"]["uid"]}}
        assert (await bind(api, ghost, "n1")).status == 404

    hold(case)


def test_a_gated_pod_says_so_and_is_bound_once_its_gates_are_gone(hold):
    async def case(api: KubeApi) -> None:
        made = await create(api, "gated", schedulingGates=[{"name": "example.com/hold"}])
        assert condition_of(made, "PodScheduled")["reason"] == "SchedulingGated"
        early = await bind(api, made, "n1")
        assert (early.status, early.reason) == (409, "Conflict")
        freed = await patch(api, f"{PODS}/gated", {"spec": {"schedulingGates": None}})
        assert freed.done, freed.body
        assert (await bind(api, made, "n1")).status == 201

    hold(case)


def test_a_waiting_pod_goes_at_once_and_one_on_a_node_when_its_kubelet_says_so(hold):
    async def case(api: KubeApi) -> None:
        await create(api, "waiting")
        wrong = await delete(api, "waiting", preconditions={"uid": "00000000-0000-4000-8000-000000000000"})
        assert (wrong.status, wrong.reason) == (409, "Conflict")
        assert (await delete(api, "waiting")).done
        assert (await api.send("GET", f"{PODS}/waiting")).status == 404
        made = await create(api, "bound")
        assert (await bind(api, made, "n1")).status == 201
        assert (await delete(api, "bound")).done
        leaving = (await api.send("GET", f"{PODS}/bound")).json()
        assert leaving["metadata"]["deletionTimestamp"]
        assert (await bind(api, made, "n1")).status == 409
        assert (await delete(api, "bound", gracePeriodSeconds=0)).done
        assert (await api.send("GET", f"{PODS}/bound")).status == 404
        assert (await delete(api, "bound")).status == 404

    hold(case)


def test_an_eviction_deletes(hold):
    async def case(api: KubeApi) -> None:
        made = await create(api, "evicted")
        await bind(api, made, "n1")
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}}
        assert (await api.send("POST", f"{PODS}/evicted/eviction", body)).status == 201
        assert (await api.send("GET", f"{PODS}/evicted")).json()["metadata"]["deletionTimestamp"]

    hold(case)


def test_a_running_pod_is_evicted_only_if_its_budget_allows_that_and_a_pending_one_always(hold):
    async def case(api: KubeApi) -> None:
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        for name in ("one", "other", "pending"):
            labelled = pod(name)
            labelled["metadata"]["labels"] = {"app": "web"}
            made = (await api.send("POST", PODS, labelled)).json()
            if name != "pending":
                assert (await bind(api, made, "n1")).status == 201
                assert (await patch(api, f"{PODS}/{name}/status", {"status": running})).done
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
        assert (await api.send("POST", budgets, {**budget, "spec": spec})).status == 201
        allowed = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
        done = await patch(api, f"{budgets}/web/status", {"status": {**allowed, "observedGeneration": 1}})
        assert done.done, done.body
        answers = {}
        for name in ("one", "other", "pending"):
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            answers[name] = (await api.send("POST", f"{PODS}/{name}/eviction", body)).status
        assert answers == {"one": 201, "other": 429, "pending": 201}
        left = (await api.send("GET", f"{budgets}/web")).json()["status"]
        assert left["disruptionsAllowed"] == 0
        assert (await api.send("DELETE", f"{budgets}/web")).done

    hold(case)


def test_a_patched_status_merges_conditions_by_type_and_names_the_pod_by_its_uid(hold):
    async def case(api: KubeApi) -> None:
        made = await create(api, "one")
        uid, path = made["metadata"]["uid"], f"{PODS}/one/status"
        for kind in ("PodScheduled", "Extra"):
            condition = {"type": kind, "status": "False", "reason": "Unschedulable", "message": "no room"}
            body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
            done = await patch(api, path, body)
            assert done.done, done.body
        found = done.json()
        assert condition_of(found, "PodScheduled")["message"] == "no room"
        assert condition_of(found, "Extra")["message"] == "no room"
        same = await patch(api, path, body)
        assert same.json()["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
        other = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}, "status": {}}
        assert (await patch(api, path, other)).status == 422

    hold(case)


def test_a_resize_changes_what_a_bound_pod_asks_for(hold):
    async def case(api: KubeApi) -> None:
        await create_node(api)
        made = await create(api, "one")
        await bind(api, made, "n1")
        container = {"name": "c", "resources": {"requests": {"cpu": "300m"}}}
        done = await patch(api, f"{PODS}/one/resize", {"spec": {"containers": [container]}})
        assert done.done, done.body
        found = (await api.send("GET", f"{PODS}/one")).json()["spec"]["containers"]
        assert [(c["image"], c["resources"]["requests"]["cpu"]) for c in found] == [("none", "300m")]

    hold(case)


def test_whoever_writes_by_an_old_version_is_refused(hold):
    async def case(api: KubeApi) -> None:
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "contract"}}
        made = (await api.send("POST", LEASES, {**lease, "spec": {"holderIdentity": "one"}})).json()
        path = f"{LEASES}/contract"
        taken = await api.send("PUT", path, {**made, "spec": {"holderIdentity": "other"}})
        assert taken.status == 200, taken.body
        late = await api.send("PUT", path, {**made, "spec": {"holderIdentity": "one"}})
        assert (late.status, late.reason) == (409, "Conflict")
        assert (await api.send("GET", path)).json()["spec"]["holderIdentity"] == "other"

    hold(case)


def test_a_node_has_its_room_in_its_status_and_goes_when_it_is_deleted(hold):
    async def case(api: KubeApi) -> None:
        amounts = await create_node(api)
        await patch(api, "/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
        await patch(api, "/api/v1/nodes/n1/status", {"status": {"allocatable": {"cpu": "1"}}})
        found = (await api.send("GET", "/api/v1/nodes/n1")).json()
        assert found["spec"]["unschedulable"]
        assert found["status"]["allocatable"] == {**amounts, "cpu": "1"}
        opened = await patch(api, "/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
        assert not opened.json()["spec"].get("unschedulable")
        assert (await api.send("DELETE", "/api/v1/nodes/n1")).done
        assert (await api.send("GET", "/api/v1/nodes/n1")).status == 404

    hold(case)


def test_an_event_is_taken(hold):
    async def case(api: KubeApi) -> None:
        made = await create(api, "one")
        of = {"kind": "Pod", "namespace": "default", "name": "one", "uid": made["metadata"]["uid"]}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"one.{of['uid']}"}}
        body = {**event, "involvedObject": of, "reason": "Scheduled", "message": "it is", "type": "Normal"}
        assert (await api.send("POST", "/api/v1/namespaces/default/events", body)).status == 201

    hold(case)


def test_a_list_comes_in_pages_of_one_version(hold):
    async def case(api: KubeApi) -> None:
        for number in range(5):
            await create(api, f"p{number}")
        found, params, versions = [], {"limit": "2"}, set()
        while True:
            page = (await api.send("GET", "/api/v1/pods", params=params)).json()
            found += [item["metadata"]["name"] for item in page["items"]]
            versions.add(page["metadata"]["resourceVersion"])
            if len(found) == 2:
                await create(api, "later")  # after the version of this list
            if not (token := page["metadata"].get("continue", "")):
                break
            params = {"limit": "2", "continue": token}
        assert (sorted(found), len(versions)) == ([f"p{number}" for number in range(5)], 1)
        nonsense = {"limit": "2", "continue": "nonsense"}
        assert (await api.send("GET", "/api/v1/pods", params=nonsense)).status in (400, 410)

    hold(case)


def test_a_selection_by_fields_has_what_they_say(hold):
    async def case(api: KubeApi) -> None:
        await create(api, "ours", schedulerName="hoss")
        await create(api, "other")
        await bind(api, await create(api, "bound"), "n1")
        for selector, names in (
            ("spec.nodeName=n1", ["bound"]),
            ("spec.nodeName=,spec.schedulerName!=hoss", ["other"]),
            ("status.phase!=Pending", []),
        ):
            listed = (await api.send("GET", "/api/v1/pods", params={"fieldSelector": selector})).json()
            assert [item["metadata"]["name"] for item in listed["items"]] == names, selector

    hold(case)


async def merge(api: KubeApi, path: str, body: dict[str, Any]) -> Reply:
    return await api.send("PATCH", path, body, content_type=MERGE_PATCH)


async def create_group(api: KubeApi, name: str, minimum: int) -> dict[str, Any]:
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
    reply = await api.send("POST", GROUPS, {**group, "spec": {"minMember": minimum}})
    assert reply.status == 201, reply.body
    made: dict[str, Any] = reply.json()
    return made


def test_a_pod_group_is_there_once_and_goes_when_it_is_deleted(hold):
    async def case(api: KubeApi) -> None:
        made = await create_group(api, "train", 3)
        assert made["metadata"]["uid"]
        found = (await api.send("GET", f"{GROUPS}/train")).json()
        assert (found["spec"], found["metadata"]["uid"]) == ({"minMember": 3}, made["metadata"]["uid"])
        again = await api.send("POST", GROUPS, {**made, "metadata": {"name": "train"}})
        assert (again.status, again.reason) == (409, "AlreadyExists")
        listed = (await api.send("GET", "/apis/scheduling.x-k8s.io/v1alpha1/podgroups")).json()
        assert [item["metadata"]["name"] for item in listed["items"]] == ["train"]
        assert (await api.send("DELETE", f"{GROUPS}/train")).done
        gone = await api.send("GET", f"{GROUPS}/train")
        assert (gone.status, gone.reason) == (404, "NotFound")
        another = await create_group(api, "train", 2)
        assert another["metadata"]["uid"] != made["metadata"]["uid"]

    hold(case)


def test_the_status_of_a_pod_group_is_patched_apart_and_its_lists_are_replaced(hold):
    async def case(api: KubeApi) -> None:
        made = await create_group(api, "train", 3)
        path, uid = f"{GROUPS}/train", made["metadata"]["uid"]
        for kind in ("One", "Other"):
            condition = {"type": kind, "status": "True"}
            body = {"metadata": {"uid": uid}, "spec": {"minMember": 9}, "status": {"conditions": [condition]}}
            done = await merge(api, f"{path}/status", body)
            assert done.done, done.body
        found = (await api.send("GET", path)).json()
        assert (found["spec"], found["status"]) == ({"minMember": 3}, {"conditions": [condition]})
        done = await merge(api, path, {"spec": {"minMember": 2}, "status": {"phase": "Running"}})
        assert (done.json()["spec"], done.json()["status"]) == ({"minMember": 2}, found["status"])
        old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"minMember": 1}}
        assert (await merge(api, path, old)).status == 409
        assert (await merge(api, f"{path}/status", {**old, "status": {}})).status == 409
        # Of a custom resource the UID in a patch of the status is no condition. So HOSS names the version.
        other = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}, "status": {"phase": "Pending"}}
        assert (await merge(api, f"{path}/status", other)).status == 200
        assert (await merge(api, path, {**other, "spec": {"minMember": 1}})).status in (409, 422)

    hold(case)


def test_a_watch_of_pod_groups_tells_what_becomes_of_them(hold):
    async def case(api: KubeApi) -> None:
        path = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
        version = (await api.send("GET", path)).json()["metadata"]["resourceVersion"]
        await create_group(api, "train", 3)
        await merge(api, f"{GROUPS}/train", {"spec": {"minMember": 2}})
        await api.send("DELETE", f"{GROUPS}/train")
        found = await watched(api, {"resourceVersion": version}, 3, path=path)
        assert [kind for kind, _, _ in found] == ["ADDED", "MODIFIED", "DELETED"]

    hold(case)


def test_a_claim_with_a_finalizer_goes_when_that_is_gone_and_is_patched_in_one_state_alone(hold):
    async def case(api: KubeApi) -> None:
        exactly = {"deviceClassName": "gpu"}
        spec = {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine"}}
        made = (await api.send("POST", DEVICE_CLAIMS, {**claim, "spec": spec})).json()
        path, same = f"{DEVICE_CLAIMS}/mine", {"resourceVersion": made["metadata"]["resourceVersion"]}
        kept = {"metadata": {**same, "finalizers": ["resource.kubernetes.io/delete-protection"]}}
        assert (await merge(api, path, kept)).done
        result = {"request": "one", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
        given = {"allocation": {"devices": {"results": [result]}}}
        late = await merge(api, f"{path}/status", {"metadata": same, "status": given})
        assert (late.status, late.reason) == (409, "Conflict")
        done = await merge(api, f"{path}/status", {"status": given})
        assert done.done, done.body
        freed = await merge(api, f"{path}/status", {"status": {"allocation": None}})
        assert not freed.json().get("status", {}).get("allocation")
        assert (await api.send("DELETE", path)).done
        leaving = (await api.send("GET", path)).json()
        assert leaving["metadata"]["deletionTimestamp"]
        assert (await merge(api, path, {"metadata": {"finalizers": None}})).done
        assert (await api.send("GET", path)).status == 404

    hold(case)


def test_a_strategic_patch_adds_a_finalizer_unless_the_object_is_being_deleted(hold):
    async def case(api: KubeApi) -> None:
        exactly = {"deviceClassName": "gpu"}
        spec = {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}
        metadata = {"name": "kept", "finalizers": ["example.com/own"]}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        assert (await api.send("POST", DEVICE_CLAIMS, {**claim, "spec": spec})).done
        path, finalizer = f"{DEVICE_CLAIMS}/kept", "resource.kubernetes.io/delete-protection"
        for _ in range(2):
            added = await patch(api, path, {"metadata": {"finalizers": [finalizer]}})
            assert sorted(added.json()["metadata"]["finalizers"]) == ["example.com/own", finalizer]
        assert (await api.send("DELETE", path)).done
        assert (await patch(api, path, {"metadata": {"finalizers": [finalizer]}})).done
        late = await patch(api, path, {"metadata": {"finalizers": ["example.com/late"]}})
        assert late.status == 422
        assert (await merge(api, path, {"metadata": {"finalizers": None}})).done

    hold(case)


async def watched(
    api: KubeApi, params: dict[str, str], events: int, path: str = "/api/v1/pods"
) -> list[tuple[str, str, int]]:
    """The first events but bookmarks: kind, name, version."""
    params = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "60", **params}
    found: list[tuple[str, str, int]] = []
    async with api.stream(path, params, silence_seconds=SILENCE_SECONDS) as lines:
        async for line in lines:
            event = orjson.loads(line)
            if event["type"] != "BOOKMARK":
                metadata = event["object"]["metadata"]
                found.append((event["type"], metadata["name"], int(metadata["resourceVersion"])))
            if len(found) == events:
                break
    return found


def test_a_watch_from_a_lists_version_has_every_later_change_in_order(hold):
    async def case(api: KubeApi) -> None:
        await create(api, "before")
        version = (await api.send("GET", "/api/v1/pods")).json()["metadata"]["resourceVersion"]
        made = await create(api, "one")
        await bind(api, made, "n1")
        await delete(api, "one", gracePeriodSeconds=0)
        await create(api, "two")
        await delete(api, "two")
        found = await watched(api, {"resourceVersion": version}, 7)
        of_pods = (
            [kind for kind, name, _ in found if name == "one"],
            [kind for kind, name, _ in found if name == "two"],
        )
        # That it is being deleted is a change of its own, also where nobody waits for it.
        assert of_pods == (["ADDED", "MODIFIED", "MODIFIED", "DELETED"], ["ADDED", "MODIFIED", "DELETED"])
        versions = [event[2] for event in found]
        assert versions == sorted(set(versions))
        assert versions[0] > int(version)

    hold(case)


def test_a_pod_that_leaves_a_selection_is_told_as_deleted_at_that_version(hold):
    async def case(api: KubeApi) -> None:
        version = (await api.send("GET", "/api/v1/pods")).json()["metadata"]["resourceVersion"]
        made = await create(api, "one")
        await bind(api, made, "n1")
        bound = (await api.send("GET", f"{PODS}/one")).json()["metadata"]["resourceVersion"]
        params = {"resourceVersion": version, "fieldSelector": "spec.nodeName="}
        assert await watched(api, params, 2) == [
            ("ADDED", "one", int(made["metadata"]["resourceVersion"])),
            ("DELETED", "one", int(bound)),
        ]

    hold(case)


def test_a_short_watch_says_by_a_bookmark_that_it_has_shown_all_up_to_the_version_of_a_list(hold):
    """Reflector.catch_up relies on it: otherwise nobody learns for a minute that nothing is missing."""

    async def case(api: KubeApi) -> None:
        seen = (await api.send("GET", "/api/v1/pods")).json()["metadata"]["resourceVersion"]
        await create(api, "late")
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "contract"}}
        assert (await api.send("POST", LEASES, lease)).status == 201  # another kind has versions as well
        listed = await api.send("GET", "/api/v1/pods", params={"limit": "1"})
        latest = int(listed.json()["metadata"]["resourceVersion"])
        params = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "3"}
        shown: list[str] = []
        for _ in range(10):  # a bookmark is as of the server's cache
            asked = {**params, "resourceVersion": seen}
            async with api.stream("/api/v1/pods", asked, silence_seconds=SILENCE_SECONDS) as lines:
                async for line in lines:
                    event = orjson.loads(line)
                    seen = event["object"]["metadata"]["resourceVersion"]
                    shown += [] if event["type"] == "BOOKMARK" else [event["object"]["metadata"]["name"]]
                    if int(seen) >= latest:
                        break
            if int(seen) >= latest:
                break
        assert int(seen) >= latest
        assert shown == ["late"]

    hold(case)
