"""The claim for a pod's extended resources: made before the pod is bound, and deleted where it cannot be."""

import asyncio
from datetime import datetime, timedelta, timezone

import orjson
import pytest
from aiohttp import web
from unit.kube.server import answering
from waiting import until

from hoss.model.devices import (
    Allocation,
    DeviceId,
    DeviceResult,
    HeldClaim,
    RequestMapping,
    extended_claim_name,
)
from hoss.model.volumes import ClaimMount, PodVolumes
from resolver.core.kubernetes.binding_review import BindResult
from resolver.kubernetes.binder import Binder, BindingRequest

UID = "11111111-2222-3333-4444-555555555555"
CLAIMS, POD = (
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    "/api/v1/namespaces/default/pods/p",
)
NAME = extended_claim_name("p", UID)
HELD = HeldClaim(
    "default",
    NAME,
    Allocation((DeviceResult("container-0-request-0", DeviceId("d", "n1", "gpu-0")),)),
    (RequestMapping("c", "example.com/gpu", "container-0-request-0", "gpu"),),
)
WISH = BindingRequest("default/p", UID, "n1", claims=(NAME,), chosen={NAME: HELD})


class Objects:
    """A few objects of an API server, and what was asked for."""

    def __init__(self, *, binding_status: int) -> None:
        self.objects = {
            POD: {"metadata": {"name": "p", "uid": UID, "resourceVersion": "1"}, "status": {}},
            "/apis/resource.k8s.io/v1/deviceclasses/gpu": {"metadata": {"name": "gpu"}, "spec": {}},
        }
        self.asked: list[str] = []
        self._binding_status = binding_status

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        path, part = request.path.removesuffix("/status"), request.path.rpartition("/")[2]
        body = orjson.loads(await request.read() or b"null")
        self.asked.append(f"{request.method} {part}")
        if part == "binding":
            return web.json_response({"message": "no"}, status=self._binding_status)
        if request.method == "POST":
            path += f"/{body['metadata']['name']}"
            if path in self.objects:
                return web.json_response({"message": "exists"}, status=409)
            self.objects[path] = body | {
                "metadata": {**body["metadata"], "uid": "c1", "resourceVersion": "1"}
            }
        if path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        if request.method == "DELETE":
            return web.json_response(self.objects.pop(path))
        for key, value in (body or {}).items() if request.method == "PATCH" else ():
            self.objects[path][key] = self.objects[path].get(key, {}) | value
        return web.json_response(self.objects[path])

    async def bind(self, wish: BindingRequest = WISH) -> BindResult:
        async with answering(self) as api:
            (bound,) = await Binder(api).bind([wish])
            return bound.result


async def test_the_claim_is_made_given_its_devices_and_told_to_the_pod_before_the_binding():
    server = Objects(binding_status=201)
    assert await server.bind() is BindResult.DONE
    claim = server.objects[f"{CLAIMS}/{NAME}"]
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": UID}]
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    made = server.objects[POD]["status"]["extendedResourceClaimStatus"]
    assert made["resourceClaimName"] == NAME
    assert server.asked[-1] == "POST binding"


async def test_what_is_there_already_is_not_made_again():
    server = Objects(binding_status=201)
    assert await server.bind() is BindResult.DONE
    assert await server.bind() is BindResult.DONE
    assert server.asked.count("PATCH status") == 2  # of the claim, of the pod
    assert f"PATCH {NAME}" not in server.asked


CONDITIONAL = DeviceResult(
    "r", DeviceId("d", "n1", "gpu-0"), binding_conditions=("Ready",), binding_failure_conditions=("Failed",)
)
WAITING = BindingRequest(
    "default/p", UID, "n1", claims=("c",), chosen={"c": HeldClaim("default", "c", Allocation((CONDITIONAL,)))}
)


class ConditionalDevice(Objects):
    """A claim that gets a device with conditions."""

    def __init__(self) -> None:
        super().__init__(binding_status=201)
        self.claim = self.objects[f"{CLAIMS}/c"] = {
            "metadata": {"namespace": "default", "name": "c", "uid": "c1", "resourceVersion": "1"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        }

    def describe(self, condition: str) -> None:
        """The device's driver says this of it."""
        device = {"driver": "d", "pool": "n1", "device": "gpu-0"}
        told = {"type": condition, "status": "True", "reason": "Told", "message": "by the driver"}
        self.claim["status"]["devices"] = [{**device, "conditions": [told]}]


async def test_a_pod_is_bound_when_its_device_is_ready_and_not_before():
    server = ConditionalDevice()
    for _ in range(2):
        async with answering(server) as api:
            (bound,) = await Binder(api).bind([WAITING])
        text = "waiting for binding conditions for device on node n1"
        assert (bound.result, bound.text) == (BindResult.WAITS, text)
    assert server.claim["status"]["allocation"]["devices"]["results"][0]["bindingConditions"] == ["Ready"]
    assert "POST binding" not in server.asked
    server.describe("Ready")
    assert await server.bind(WAITING) is BindResult.DONE
    assert server.asked.count("PATCH status") == 1


async def test_while_a_pod_waits_for_its_device_the_claim_is_read_and_nothing_else_until_it_changes():
    server = ConditionalDevice()
    async with answering(server) as api:
        binder = Binder(api)
        (bound,) = await binder.bind([WAITING])
        assert bound.result is BindResult.WAITS
        server.asked.clear()
        for _ in range(3):
            (bound,) = await binder.bind([WAITING])
            assert bound.result is BindResult.WAITS
        assert server.asked == ["GET c"] * 3
        assert binder.table_sizes() == {"claims_made_ready": 1}
        server.describe("Ready")
        server.claim["metadata"]["resourceVersion"] = "2"
        (bound,) = await binder.bind([WAITING])
        assert bound.result is BindResult.DONE
        assert binder.table_sizes() == {"claims_made_ready": 0}


@pytest.mark.parametrize("change", ["the claim is gone", "the ledger is another"])
async def test_a_claim_that_cannot_be_as_it_was_left_is_asked_for_anew(change):
    server = ConditionalDevice()
    async with answering(server) as api:
        binder = Binder(api)
        await binder.bind([WAITING])
        server.asked.clear()
        if change == "the claim is gone":
            del server.objects[f"{CLAIMS}/c"]
            (bound,) = await binder.bind([WAITING])
            assert bound.result is BindResult.REFUSED
        else:
            del server.claim["status"]  # who rebuilt the ledger took the devices back
            (bound,) = await binder.bind([WAITING._replace(is_current=lambda: False)])
            assert bound.result is BindResult.UNKNOWN
        assert "PATCH c" in server.asked
        assert binder.table_sizes() == {"claims_made_ready": 0}


async def test_a_pod_whose_device_fails_is_refused_and_does_not_use_the_claim_any_more():
    server = ConditionalDevice()
    assert await server.bind(WAITING) is BindResult.WAITS
    server.describe("Failed")
    assert await server.bind(WAITING) is BindResult.REFUSED
    assert server.claim["status"]["reservedFor"] is None
    assert "POST binding" not in server.asked


@pytest.mark.parametrize(("wish", "limit"), [(WAITING, 600), (WAITING._replace(ready_seconds=90.0), 90)])
async def test_a_device_that_is_not_ready_in_time_is_taken_back(wish, limit):
    server, now = ConditionalDevice(), datetime(2026, 11, 24, 12, tzinfo=timezone.utc)
    for seconds, result in (
        (0, BindResult.WAITS),
        (limit, BindResult.WAITS),
        (limit + 1, BindResult.REFUSED),
    ):
        async with answering(server) as api:
            binder = Binder(api, utc_now=lambda: now + timedelta(seconds=seconds))  # noqa: B023 - at once
            (bound,) = await binder.bind([wish])
        assert bound.result is result
    assert bound.text.endswith("device binding timeout: claim=c")
    assert server.claim["status"]["allocation"] is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"volumes": PodVolumes(), "undo": True}, id="it is withdrawn"),
        pytest.param({"volumes": PodVolumes((ClaimMount("data", provisioned=True),))}, id="its PVC is gone"),
    ],
)
async def test_a_pod_that_is_given_up_while_it_waits_for_its_device_does_not_use_the_claim_any_more(change):
    server = ConditionalDevice()
    assert await server.bind(WAITING) is BindResult.WAITS
    assert await server.bind(WAITING._replace(**change)) is BindResult.REFUSED
    assert server.claim["status"]["reservedFor"] is None
    assert server.claim["status"]["allocation"] is None


async def test_the_claim_for_extended_resources_of_a_pod_that_is_withdrawn_is_deleted():
    server = Objects(binding_status=503)
    async with answering(server) as api:
        binder = Binder(api, patience_seconds=0.0)
        (bound,) = await binder.bind([WISH])
        assert bound.result is BindResult.UNKNOWN
        (bound,) = await binder.bind([WISH._replace(volumes=PodVolumes(), undo=True)])
    assert bound.result is BindResult.REFUSED
    assert f"{CLAIMS}/{NAME}" not in server.objects


async def test_the_claim_of_a_pod_that_cannot_be_bound_is_deleted():
    server = Objects(binding_status=403)
    assert await server.bind() is BindResult.REFUSED
    assert f"{CLAIMS}/{NAME}" not in server.objects
    assert server.asked[-1] == f"DELETE {NAME}"


@pytest.mark.parametrize("uid", ["another", UID])
async def test_a_claim_of_the_name_that_is_another_pods_is_left_alone(uid):
    server = Objects(binding_status=201)
    owner = {"uid": uid, "controller": uid != UID}
    server.objects[f"{CLAIMS}/{NAME}"] = theirs = {
        "metadata": {"namespace": "default", "name": NAME, "ownerReferences": [owner], "uid": "x"}
    }
    assert await server.bind() is BindResult.REFUSED
    assert server.objects[f"{CLAIMS}/{NAME}"] == theirs
    assert "POST binding" not in server.asked


async def test_what_an_attempt_has_made_of_which_the_ledger_knows_nothing_any_more_is_taken_back():
    server = Objects(binding_status=201)
    assert await server.bind() is BindResult.DONE
    assert await server.bind(WISH._replace(chosen={})) is BindResult.REFUSED
    assert f"{CLAIMS}/{NAME}" not in server.objects


async def test_devices_that_a_lost_ledger_had_chosen_are_not_written_and_whoever_asks_asks_again():
    """A rebuilt ledger may have given them to another pod meanwhile."""
    server = Objects(binding_status=201)
    asked = []

    def is_current():
        asked.append(list(server.asked))
        return False

    assert await server.bind(WISH._replace(is_current=is_current)) is BindResult.UNKNOWN
    assert "status" not in server.objects[f"{CLAIMS}/{NAME}"]
    assert "POST binding" not in server.asked
    assert asked == [server.asked]  # right before the devices would be written


async def test_a_pod_with_a_claim_costs_the_api_server_four_requests_and_its_class_one_a_second():
    server, now = ConditionalDevice(), [datetime(2026, 11, 28, tzinfo=timezone.utc)]
    server.objects[f"{CLAIMS}/d"] = {
        **server.claim, "metadata": {**server.claim["metadata"], "name": "d"},
    }  # fmt: skip
    allocation = Allocation((DeviceResult("r", DeviceId("d", "n1", "gpu-0")),))
    async with answering(server) as api:
        binder = Binder(api, utc_now=lambda: now[0])
        for name in "cd":
            wish = WAITING._replace(claims=(name,), chosen={name: HeldClaim("default", name, allocation)})
            assert [bound.result for bound in await binder.bind([wish])] == [BindResult.DONE]
            now[0] += timedelta(milliseconds=900)
        assert server.asked == [
            "PATCH c", "GET gpu", "GET p", "PATCH status", "POST binding",
            "PATCH d", "GET p", "PATCH status", "POST binding",
        ]  # fmt: skip
        server.objects[f"{CLAIMS}/d"]["status"] = {}
        now[0] += timedelta(milliseconds=200)
        await binder.bind([wish])
    assert server.asked[-5:] == ["PATCH d", "GET gpu", "GET p", "PATCH status", "POST binding"]


async def test_a_claim_that_others_brought_devices_to_is_only_read_before_the_pod_joins():
    server = ConditionalDevice()
    server.claim["status"] = {"allocation": {"devices": {}}}
    assert await server.bind(WAITING._replace(chosen={})) is BindResult.DONE
    assert server.asked == ["GET c", "GET p", "PATCH status", "POST binding"]


async def test_a_claim_for_extended_resources_is_protected_as_it_is_made():
    server = Objects(binding_status=201)
    assert await server.bind() is BindResult.DONE
    assert server.asked == [
        "POST resourceclaims", "GET gpu", "GET p", "PATCH status", "PATCH status", "POST binding",
    ]  # fmt: skip


class Unprotected(ConditionalDevice):
    """Refuses that the claim gets a finalizer."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self._status = status

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH" and request.path.endswith("/c"):
            self.asked.append("PATCH c")
            return web.json_response({"message": "no new finalizers"}, status=self._status)
        return await super().__call__(request)


@pytest.mark.parametrize(
    ("deleting", "reason"),
    [
        ("2026-11-28T12:00:00Z", "claim default/c got deleted in the meantime"),
        (None, "add finalizer to claim default/c: no new finalizers"),
    ],
)
@pytest.mark.parametrize("status", [403, 422])
async def test_a_claim_that_cannot_be_protected_gets_no_devices(status, deleting, reason):
    server = Unprotected(status)
    server.claim["metadata"]["deletionTimestamp"] = deleting
    async with answering(server) as api:
        (bound,) = await Binder(api).bind([WAITING])
    assert bound.result is BindResult.REFUSED
    assert bound.text == f'running PreBind plugin "DynamicResources": {reason}'
    assert "PATCH status" not in server.asked


class SlowClass(ConditionalDevice):
    """The first answers about the class come when they are let go, with these statuses."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)
        self.go_on = asyncio.Event()

    def claims(self, *names: str) -> list[BindingRequest]:
        """A pod for each, with a claim of the one class."""
        allocation = Allocation((DeviceResult("r", DeviceId("d", "n1", "gpu-0")),))
        for name in names:
            metadata = {**self.claim["metadata"], "name": name}
            self.objects[f"{CLAIMS}/{name}"] = {**self.claim, "metadata": metadata}
        return [
            WAITING._replace(claims=(name,), chosen={name: HeldClaim("default", name, allocation)})
            for name in names
        ]

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/deviceclasses/gpu") and self.statuses:
            status = self.statuses.pop(0)
            self.asked.append("GET gpu")
            await self.go_on.wait()
            if status != 200:
                return web.json_response({"message": "no"}, status=status)
            return web.json_response(self.objects[request.path])
        return await super().__call__(request)


async def test_pods_of_the_same_moment_ask_for_their_class_once():
    server = SlowClass(200)
    wishes = server.claims("c", "d")
    async with answering(server) as api:
        binding = asyncio.ensure_future(Binder(api).bind(wishes))
        await until(lambda: {"PATCH c", "PATCH d", "GET gpu"} <= set(server.asked))
        server.go_on.set()
        assert [bound.result for bound in await binding] == [BindResult.DONE] * 2
    assert server.asked.count("GET gpu") == 1


async def test_an_answer_that_comes_late_is_none_of_the_next_second():
    server, now = SlowClass(200), [datetime(2026, 11, 28, tzinfo=timezone.utc)]
    late, other, second = server.claims("c", "d", "e")
    server.objects["/apis/resource.k8s.io/v1/deviceclasses/other"] = {"metadata": {"name": "other"}}
    request = {"name": "r", "exactly": {"deviceClassName": "other"}}
    server.objects[f"{CLAIMS}/d"]["spec"] = {"devices": {"requests": [request]}}
    async with answering(server) as api:
        binder = Binder(api, utc_now=lambda: now[0])
        binding = asyncio.ensure_future(binder.bind([late]))
        await until(lambda: "GET gpu" in server.asked)
        now[0] += timedelta(seconds=2)
        await binder.bind([other])  # begins the next second, while the first answer is still under way
        server.go_on.set()
        await binding
        await binder.bind([second])
    assert server.asked.count("GET gpu") == 2


async def test_a_class_that_could_not_be_read_is_asked_for_again():
    server, now = SlowClass(404), datetime(2026, 11, 28, tzinfo=timezone.utc)
    (wish,) = server.claims("c")
    server.go_on.set()
    async with answering(server) as api:
        binder = Binder(api, utc_now=lambda: now)
        assert [bound.result for bound in await binder.bind([wish])] == [BindResult.REFUSED]
        assert [bound.result for bound in await binder.bind([wish])] == [BindResult.DONE]


async def test_a_claim_that_has_changed_since_it_was_protected_is_read_again():
    class Changes(ConditionalDevice):
        """Refuses the first patch of the status: somebody else has changed the claim."""

        async def __call__(self, request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/status") and "PATCH status" not in self.asked:
                self.asked.append("PATCH status")
                self.claim["status"] = {"reservedFor": [{"resource": "pods", "name": "q", "uid": "q1"}]}
                return web.json_response({"message": "the object has been modified"}, status=409)
            return await super().__call__(request)

    server = Changes()
    async with answering(server) as api:
        await Binder(api).bind([WAITING])
    assert [user["name"] for user in server.claim["status"]["reservedFor"]] == ["q", "p"]
    assert server.asked[-4:] == ["PATCH status", "GET c", "GET p", "PATCH status"]


# -- pods that are over


PLAIN = Allocation((DeviceResult("r", DeviceId("d", "n1", "gpu-0")),))
DEVICE = BindingRequest("default/p", UID, "n1", claims=("c",), chosen={"c": HeldClaim("default", "c", PLAIN)})


class Versioned(ConditionalDevice):
    """Refuses patches of another version of the claim. What `meanwhile` does happens right before the first
    patch of its status."""

    def __init__(self, meanwhile=None) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method != "PATCH" or "resourceclaims" not in request.path:
            return await super().__call__(request)
        if request.path.endswith("/status") and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile(self)
        body = orjson.loads(await request.read())
        metadata = self.claim["metadata"]
        if (
            body["metadata"].get("resourceVersion", metadata["resourceVersion"])
            != metadata["resourceVersion"]
        ):
            return web.json_response({"message": "modified"}, status=409)
        await super().__call__(request)
        self.claim["metadata"] |= {"resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
        return web.json_response(self.claim)

    async def end(self, uid: str = UID, *held: HeldClaim) -> set[str]:
        async with answering(self) as api:
            return await Binder(api).end_claims({uid: held or (DEVICE.chosen["c"],)})

    def devices(self):
        return (self.claim.get("status") or {}).get("allocation")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"metadata": {"uid": "another"}}, id="another of its name"),
        pytest.param({"metadata": {"uid": UID, "deletionTimestamp": "now"}}, id="being deleted"),
        pytest.param({"metadata": {"uid": UID}, "spec": {"nodeName": "n2"}}, id="on another node"),
        None,
    ],
)
async def test_a_claim_gets_no_devices_for_a_pod_that_is_gone_or_elsewhere(change):
    server = ConditionalDevice()
    if change is None:
        del server.objects[POD]
    else:
        server.objects[POD] = change
    assert await server.bind(DEVICE) is BindResult.ELSEWHERE
    assert "status" not in server.claim
    assert "POST binding" not in server.asked


async def test_devices_of_a_pod_that_is_deleted_while_they_are_written_are_not_written_after_its_end():
    """The ledger has given them to another pod by then."""

    async def deleted(server: Versioned) -> None:
        del server.objects[POD]
        assert await server.end() == set()

    server = Versioned(deleted)
    assert await server.bind(DEVICE) is BindResult.UNKNOWN
    assert server.devices() is None
    assert await server.bind(DEVICE) is BindResult.ELSEWHERE
    assert server.devices() is None
    assert not server.claim.get("status", {}).get("reservedFor")


async def test_devices_that_were_written_for_a_pod_that_is_gone_are_taken_back():
    server = Versioned()
    assert await server.bind(DEVICE) is BindResult.DONE
    del server.objects[POD]
    assert await server.end() == set()
    assert server.devices() is None
    assert server.claim["status"]["reservedFor"] is None
    assert server.claim["metadata"]["finalizers"] is None


@pytest.mark.parametrize(
    ("spec", "status", "kept"),
    [
        ({"nodeName": "n1"}, {"phase": "Running"}, True),
        ({"nodeName": "n1"}, {"phase": "Failed"}, False),
        ({}, {}, True),
    ],
)
async def test_devices_stay_with_a_pod_that_is_not_over(spec, status, kept):
    server = Versioned()
    assert await server.bind(DEVICE) is BindResult.DONE
    server.objects[POD] |= {"spec": spec, "status": status}
    assert await server.end() == set()
    assert (server.devices() is not None) == kept


async def test_devices_that_another_pod_uses_as_well_stay():
    server = Versioned()
    assert await server.bind(DEVICE) is BindResult.DONE
    server.claim["status"]["reservedFor"].append({"resource": "pods", "name": "q", "uid": "q1"})
    del server.objects[POD]
    assert await server.end() == set()
    assert server.devices() is not None
    assert [user["name"] for user in server.claim["status"]["reservedFor"]] == ["q"]


async def test_the_claim_for_extended_resources_of_a_pod_that_is_gone_is_deleted():
    server = Versioned()
    assert await server.bind() is BindResult.DONE
    server.claim = server.objects[f"{CLAIMS}/{NAME}"]
    del server.objects[POD]
    assert await server.end(UID, HELD) == set()
    assert f"{CLAIMS}/{NAME}" not in server.objects


async def test_a_claim_that_is_gone_keeps_nobody_waiting_and_one_of_a_silent_server_does():
    server = Versioned()
    del server.objects[f"{CLAIMS}/c"]
    assert await server.end() == set()

    async def silent(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "not now"}, status=503)

    async with answering(silent) as api:
        assert await Binder(api).end_claims({UID: (DEVICE.chosen["c"],)}) == {UID}


async def test_a_claim_that_was_unprotected_in_between_gets_its_devices_when_it_is_protected_again():
    async def unprotected(server: Versioned) -> None:
        server.claim["metadata"] |= {"finalizers": [], "resourceVersion": "9"}

    server = Versioned(unprotected)
    assert await server.bind(DEVICE) is BindResult.UNKNOWN
    assert await server.bind(DEVICE) is BindResult.DONE
    assert server.claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]


VOLUME_CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/data"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


class VolumeClaim(Objects):
    """A claim whose volume is to be provisioned, at version 7. Patches of another version are refused."""

    def __init__(self, **annotations: str) -> None:
        super().__init__(binding_status=201)
        metadata = {"name": "data", "uid": "v1", "resourceVersion": "7", "annotations": annotations}
        self.objects[VOLUME_CLAIM] = {"metadata": metadata, "spec": {}}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            body = orjson.loads(await request.read())
            if body["metadata"]["resourceVersion"] != "7":
                self.asked.append("PATCH of another version")
                return web.json_response({"message": "the object has been modified"}, status=409)
        return await super().__call__(request)

    async def select(self, **versions: str) -> BindResult:
        mounts = PodVolumes((ClaimMount("data", provisioned=True),))
        return await self.bind(BindingRequest("default/p", UID, "n1", mounts, versions=versions))

    @property
    def selected(self) -> str:
        return self.objects[VOLUME_CLAIM]["metadata"]["annotations"][SELECTED_NODE]


@pytest.mark.parametrize(
    ("versions", "asked"),
    [
        pytest.param({"data": "7"}, ["PATCH data"], id="its version is known"),
        pytest.param({}, ["GET data", "PATCH data"], id="it is not"),
        pytest.param(
            {"data": "6"}, ["PATCH of another version", "GET data", "PATCH data"], id="it has changed since"
        ),
    ],
)
async def test_a_claim_whose_volume_is_to_be_provisioned_is_read_only_if_its_version_is_not_known(
    versions, asked
):
    server = VolumeClaim()
    assert await server.select(**versions) is BindResult.WAITS
    assert server.asked == asked
    assert server.selected == "n1"


async def test_a_claim_that_was_given_to_another_node_since_its_version_is_not_taken():
    server = VolumeClaim(**{SELECTED_NODE: "n2"})
    assert await server.select(data="6") is BindResult.REFUSED
    assert server.selected == "n2"
