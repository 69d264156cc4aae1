"""What is in a simulated cluster beside HOSS: its users, its kubelets, and another scheduler.

Users make, change and delete objects at the moments of the plan. Kubelets end pods that are deleted, and the
garbage collector those of nodes that are gone. Nothing ever fails of these. The other scheduler binds pods of
its own through the API server, with all the server's faults, and knows nothing of what HOSS has in hand."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

from hoss.errors import TransportError
from hossctl.history.events import Event, History
from tools.simulation import plan as p
from tools.simulation.api_connection import SimulatedApiServer
from tools.simulation.api_model import (
    BUDGET,
    CLAIM,
    DEVICE_CLAIM,
    GRACE_SECONDS,
    NODE,
    POD,
    POD_GROUP,
    SLICE,
    VOLUME,
    Change,
    Object,
    selects,
)
from tools.simulation.clients import GATE, MEMORY_BYTES, NODE_PODS, SimulatedClients
from tools.simulation.cluster_judge import (
    GROUP_LABEL,
    MINIMUM_ANNOTATION,
    ClusterJudge,
    cpu_of,
    gang_of,
    is_over,
    minimum_of,
    ports_of,
)
from tools.simulation.plan import Act
from tools.simulation.storage import Storage
from tools.simulation.storage_judge import StorageJudge, StoredObjects
from tools.simulation.world import World

NAMESPACE = "default"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
GROUPS_PATH = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/podgroups"
BUDGETS_PATH = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
CONTROLLERS_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
OURS, OTHER = "hoss", "other"
_USER, _KUBELET, _CONTROLLER = "user", "kubelet", "controller"
_RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

# What happened to requests and bindings, as `Cluster.reached` counts it.
OUTCOMES = (
    *("request refused", "answer lost", "carried out late", "server not reached"),
    *("webhook not reached", "webhook answered late", "bound late", "binding abandoned", "binding unjudged"),
    *("bound, checked", "bound past the webhook"),
    *(f"another's binding {answer}" for answer in (201, 403, 404, 409, 429, 500, "unanswered")),
)

_LOOK_SECONDS = 0.25
_TERMINATION_SECONDS = (0.1, 2.0)
_ORPHANED_SECONDS = 3.0  # until the garbage collector deletes pods of a node that is gone
_SHARE_AT_ONCE = 0.3  # of deletions that do not wait for the kubelet


class ClusterClients(SimulatedClients):
    """The users of a cluster, and its kubelets."""

    def __init__(self, world: World, history: History) -> None:
        super().__init__(world, history, named_nodes=True)
        self.api: SimulatedApiServer = world.required_api()
        self._rng: random.Random = self._host.rng
        self._storage: Storage | None = None
        if world.cluster is not None and world.cluster.storage:
            self._storage = Storage(self.api.model, self._rng, self._do)
        self._ending: dict[str, float] = {}  # when a pod ends, by UID
        self._orphaned: dict[str, float] = {}
        self._controllers: dict[str, tuple[Object, Iterator[int]]] = {}  # options of a job, names to come

    # -- nodes

    async def register(self, nodes: int) -> None:
        if self._storage is not None:
            self._storage.create_classes()
        for number in range(nodes):
            self._add_node(f"n{number}")

    async def change_node(self, act: Act) -> None:
        name, path = act.target, f"/api/v1/nodes/{act.target}"
        match act.what:
            case p.ADD_NODE:
                self._add_node(name)
            case p.SHRINK_NODE:
                self._do("PATCH", f"{path}/status", {"status": {"allocatable": _amounts(p.NODE_CPU // 4)}})
            case p.REMOVE_NODE:
                self._do("DELETE", path)
                if self._storage is not None:
                    self._storage.node_went(name)
            case p.CORDON:
                self._do("PATCH", path, {"spec": {"unschedulable": True}})
            case p.UNCORDON:
                self._do("PATCH", path, {"spec": {"unschedulable": None}})

    def _add_node(self, name: str) -> None:
        """A new one, or one that has all its room again."""
        status = {"allocatable": _amounts(p.NODE_CPU), "conditions": [{"type": "Ready", "status": "True"}]}
        if self.api.model.find(NODE, "", name) is None:
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            self._do("POST", "/api/v1/nodes", {"metadata": metadata, "spec": {}, "status": status})
        else:
            self._do("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        if self._storage is not None:
            self._storage.node_came(name)

    # -- pods

    async def ask(self, act: Act) -> None:
        if act.what == p.SUBMIT:
            is_made = act.target in self._controllers
            self._create_objects_of(act.target, act.options)
            if is_made:  # its controller, which makes its pods, was there already
                return
            for number in range(act.options["replicas"]):
                self._create(act.target, f"{act.target}-{number}", act.options)
        elif act.what == p.DELETE_GROUP:
            self._do("DELETE", f"{GROUPS_PATH}/{act.target}")
        else:
            if act.what == p.DELETE and act.target in self._controllers:
                del self._controllers[act.target]
                self._do("DELETE", f"{CONTROLLERS_PATH}/{act.target}")
            self._change_pods(act)

    def _change_pods(self, act: Act) -> None:
        for pod in self._pods_of(act.target):
            path = f"{PODS_PATH}/{pod['metadata']['name']}"
            match act.what:
                case p.DELETE:
                    self._do("DELETE", path, self._deletion())
                case p.EVICT:
                    self._do("POST", f"{path}/eviction", {"metadata": {"name": pod["metadata"]["name"]}})
                case p.UNGATE:
                    self._do("PATCH", path, {"spec": {"schedulingGates": None}})
                case p.RESIZE:
                    container = _container(act.options["cpu"])
                    self._do("PATCH", f"{path}/resize", {"spec": {"containers": [container]}})
                case p.END_PODS if pod["spec"].get("nodeName"):
                    self._do("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}})

    def _deletion(self) -> Object:
        at_once = self._rng.random() < _SHARE_AT_ONCE
        return {"gracePeriodSeconds": 0} if at_once else {}

    def _create_objects_of(self, job: str, options: dict[str, Any]) -> None:
        """The PodGroup of a job, its disruption budget, and what makes its pods anew."""
        if options.get("controlled"):
            spec = {"replicas": options["replicas"], "selector": {"matchLabels": {"app": job}}}
            self._do("POST", CONTROLLERS_PATH, {"metadata": {"name": job}, "spec": spec})
            self._controllers[job] = options, count(options["replicas"])
        if "group" in options:
            self._do(
                "POST", GROUPS_PATH, {"metadata": {"name": job}, "spec": {"minMember": options["group"]}}
            )
        if "budget" in options:
            spec = {"maxUnavailable": options["budget"], "selector": {"matchLabels": {"app": job}}}
            self._do("POST", BUDGETS_PATH, {"metadata": {"name": job}, "spec": spec})

    def _create(self, job: str, name: str, options: dict[str, Any]) -> None:
        metadata: Object = {"name": name, "labels": {"app": job}}
        container = _container(options["cpu"])
        spec: Object = {"schedulerName": options.get("scheduler", OURS), "containers": [container]}
        if self._storage is not None:
            spec |= self._storage.claims_of(job, name, options)
        if "port" in options:
            container["ports"] = [{"containerPort": options["port"], "hostPort": options["port"]}]
        if "gate" in options:
            spec["schedulingGates"] = [{"name": options["gate"]}]
        if "priority" in options:
            spec["priority"] = options["priority"]
        if "leaves" in options:  # how long its kubelet needs to end it
            spec["terminationGracePeriodSeconds"] = options["leaves"]
        if "node" in options:  # as a static pod
            spec["nodeName"] = options["node"]
        if "group" in options:
            metadata["labels"][GROUP_LABEL] = job
        if "gang" in options or options.get("controlled"):
            # Of a controller, whose UID stays when it makes its pods again.
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": job, "controller": True}
            metadata["ownerReferences"] = [{**owner, "uid": f"controller-of-{job}"}]
        if "gang" in options:
            metadata["annotations"] = {MINIMUM_ANNOTATION: str(options["gang"])}
        self._do("POST", PODS_PATH, {"metadata": metadata, "spec": spec})

    def _pods_of(self, job: str) -> list[Object]:
        prefix = f"{job}-"
        pods = self.api.model.objects(POD)
        return [pod for pod in pods if pod["metadata"]["name"].rpartition("-")[0] + "-" == prefix]

    def _do(self, method: str, path: str, body: Object | None = None) -> None:
        reply = self.api.carry_out_now(_USER, method, path, body)
        self.answers["acknowledged" if reply.done else "refused"] += 1

    # -- kubelets, the garbage collector, and the controllers

    async def run_kubelets(self) -> None:
        """Run and end pods until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look_after_budgets()
            self._look_after_controllers()
            if self._storage is not None:
                self._storage.look()
            nodes = {node["metadata"]["name"] for node in self.api.model.objects(NODE)}
            for pod in self.api.model.objects(POD):
                if self._is_due(pod, nodes):
                    metadata = pod["metadata"]
                    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                    self.api.carry_out_now(_KUBELET, "DELETE", f"{PODS_PATH}/{metadata['name']}", options)

    def _look_after_controllers(self) -> None:
        """Pods that leave are made anew, under names that nobody had."""
        for job, (options, names) in self._controllers.items():
            staying = [pod for pod in self._pods_of(job) if not _is_leaving(pod) and not is_over(pod)]
            for _ in range(options["replicas"] - len(staying)):
                self._create(job, f"{job}-{next(names)}", options)

    def _look_after_budgets(self) -> None:
        """Pods of budgets run once they are bound, and the budgets say how many of them may be evicted."""
        for budget in self.api.model.objects(BUDGET):
            pods = [pod for pod in self.api.model.objects(POD) if selects(budget, pod) and not is_over(pod)]
            for pod in pods:
                if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                    path = f"{PODS_PATH}/{pod['metadata']['name']}/status"
                    self.api.carry_out_now(_KUBELET, "PATCH", path, {"status": _RUNNING})
            healthy = [pod for pod in pods if pod["spec"].get("nodeName") and not _is_leaving(pod)]
            desired = max(0, len(pods) - budget["spec"]["maxUnavailable"])
            status = {
                "currentHealthy": len(healthy),
                "desiredHealthy": desired,
                "disruptionsAllowed": max(0, len(healthy) - desired),
                "expectedPods": len(pods),
            }
            path = f"{BUDGETS_PATH}/{budget['metadata']['name']}/status"
            self.api.carry_out_now(_KUBELET, "PATCH", path, {"status": status})

    def _is_due(self, pod: Object, nodes: set[str]) -> bool:
        uid, now = pod["metadata"]["uid"], self._world.loop.time()
        node = pod["spec"].get("nodeName")
        if not node:
            return False
        if node not in nodes:
            return now >= self._orphaned.setdefault(uid, now + _ORPHANED_SECONDS)
        self._orphaned.pop(uid, None)
        if _is_leaving(pod):
            grace = pod["spec"]["terminationGracePeriodSeconds"]
            seconds = self._rng.uniform(*_TERMINATION_SECONDS) if grace == GRACE_SECONDS else grace
            return now >= self._ending.setdefault(uid, now + seconds)
        return False

    # -- the history

    def tell(self, change: Change) -> None:
        """Write into the history what a pod's owner knows: it exists, was changed, is gone."""
        if change.kind != POD:
            return
        before, after = change.before, change.after
        uid = change.object["metadata"]["uid"]
        if change.object["spec"]["schedulerName"] != OURS:
            if before is None:
                self._history.append("foreign", by=_USER, uids=[uid])
            elif after is None or is_over(after):
                self._history.append("foreign", by=_USER, uids=[uid], gone=True)
            return
        if after is None or is_over(after):
            if before is not None and not is_over(before):
                self._acknowledge("delete", f"end of {uid}", uids=[uid])
        elif before is None:
            self._acknowledge("submit", f"pod {uid}", pods=[self._facts(after)])
        else:
            if _gates(before) and not _gates(after):
                self._acknowledge("ungate", f"ungate {uid}", uids=[uid], gates=[GATE])
            if cpu_of(before) != cpu_of(after):
                request = f"resize {uid} {change.version}"
                self._acknowledge("resize", request, uids=[uid], requests={"cpu": cpu_of(after)})

    def _facts(self, pod: Object) -> Event:
        """A new pod as a history has it."""
        found: Event = {"uids": [pod["metadata"]["uid"]], "name": pod["metadata"]["name"]}
        found["requests"] = {"cpu": cpu_of(pod)}
        if ports_of(pod):
            found["ports"] = [{"port": port} for port in ports_of(pod)]
        if _gates(pod):
            found["gates"] = [GATE]
        if "priority" in pod["spec"]:
            found["priority"] = pod["spec"]["priority"]
        if pod["spec"].get("volumes") or pod["spec"].get("resourceClaims"):
            found["rules"] = ["storage"]  # whether it may wait is for the judge of objects
        if gang := gang_of(pod):
            group = self.api.model.find(POD_GROUP, NAMESPACE, gang)
            minimum = minimum_of(pod) or (group["spec"]["minMember"] if group else 1)
            # Whether it may wait is for the judge of objects: a PodGroup comes and goes.
            found |= {"gang": gang, "minimum": minimum, "rules": ["gang"]}
        return found

    def _acknowledge(self, event: str, request: str, **fields: Any) -> None:
        self._history.append(event, by=_USER, request=request, **fields)
        self._history.append("acknowledged", by=_USER, request=request)


class Cluster:
    """Everybody in the cluster beside HOSS, and the judge of what becomes of their pods."""

    def __init__(self, world: World, history: History) -> None:
        self.clients = ClusterClients(world, history)
        self.judge = ClusterJudge()
        self._storage_judge = StorageJudge(self.judge.problems)
        self._world = world
        self._other = OtherScheduler(world, self.clients)
        self._binding: asyncio.Task[None] | None = None
        self.clients.api.on_change = self._changed

    def start(self) -> "list[asyncio.Task[None]]":
        """Kubelets and the other scheduler begin."""
        loop = self._world.loop
        self._binding = loop.spawn(self._other.process, self._other.run())
        return [loop.spawn(self.clients.process, self.clients.run_kubelets()), self._binding]

    def calm_down(self) -> None:
        """The other scheduler begins with no more bindings: it would ask for room for ever."""
        if self._binding is not None:
            self._binding.cancel()

    def unsettled(self, rows: list[Event]) -> list[str]:
        """What is not yet as it must be. `rows`: the ledger's reservations."""
        model = self.clients.api.model
        pods = model.objects(POD)
        stored = StoredObjects(*map(model.objects, (CLAIM, VOLUME, DEVICE_CLAIM, SLICE)))
        living = [pod for pod in pods if not is_over(pod)]
        return [
            # The dispatcher hears of a pod's end a moment later than its owner.
            *(f"pod {pod['metadata']['name']} is leaving" for pod in living if _is_leaving(pod)),
            *self.judge.at_rest(pods, model.objects(NODE), rows, model.objects(POD_GROUP), stored.takes),
            *self._storage_judge.at_rest(living, stored),
        ]

    @property
    def reached(self) -> "Counter[str]":
        """What happened to requests, and how bindings ended, how often."""
        return self.clients.api.faults.reached + self.judge.reached + self._other.answers

    def _changed(self, change: Change, _client: str, asked: bool) -> None:
        self.judge.see(change, binds_checked=asked)
        self._storage_judge.see(change)
        self.clients.tell(change)


class OtherScheduler:
    """Binds its pods to nodes drawn at random, whatever is there. What it is refused it tries again."""

    def __init__(self, world: World, clients: ClusterClients) -> None:
        self._api_server = clients.api
        self.process, host = world.new_host("other-scheduler")
        self._rng = host.rng
        self._api = clients.api.client(self.process, host.monotonic, host.rng)
        self._busy: set[str] = set()
        self.answers: Counter[str] = Counter()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.05, 0.4))
            nodes = [node["metadata"]["name"] for node in self._api_server.model.objects(NODE)]
            for pod in self._api_server.model.objects(POD):
                uid = pod["metadata"]["uid"]
                if nodes and uid not in self._busy and _waits_for_other(pod):
                    self._busy.add(uid)
                    task = asyncio.ensure_future(self._bind(pod, self._rng.choice(nodes)))
                    task.add_done_callback(partial(self._over, uid))

    def _over(self, uid: str, _task: "asyncio.Task[None]") -> None:
        self._busy.discard(uid)

    async def _bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        binding = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
            "target": {"kind": "Node", "name": node},
        }
        try:
            reply = await self._api.send("POST", f"{PODS_PATH}/{metadata['name']}/binding", binding)
            self.answers[f"another's binding {reply.status}"] += 1
        except TransportError:
            self.answers["another's binding unanswered"] += 1
        await asyncio.sleep(self._rng.uniform(0.1, 1.0))


def _container(cpu: int) -> Object:
    return {"name": "c", "image": "none", "resources": {"requests": {"cpu": f"{cpu}m"}}}


def _amounts(cpu: int) -> dict[str, str]:
    return {"cpu": f"{cpu}m", "memory": str(MEMORY_BYTES), "pods": str(NODE_PODS)}


def _gates(pod: Object) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def _is_leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _waits_for_other(pod: Object) -> bool:
    bound_or_gone = pod["spec"].get("nodeName") or _is_leaving(pod)
    return pod["spec"]["schedulerName"] == OTHER and not bound_or_gone
