"""Histories as a platform would leave them: a small platform that plays its own clients, workers, watcher and
ledger, and writes down what it does. Its single steps check nothing, so that tests can have it break
promises; `play` takes only steps that keep them."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hossctl.history.events import Event, History

_SHARDS = 2
_PODS = 10  # of each node
MOVER = "hoss-rebalance"  # the name under which moves are made


@dataclass
class SmallPod:
    """A pod as the small platform knows it."""

    uid: str
    cpu: int
    request: str
    gang: str = ""
    state: str = "Queued"
    node: str = ""
    reserved: str = ""  # state of its reservation


@dataclass
class SmallNode:
    """A node; it lies on one shard."""

    name: str
    cpu: int
    shard: int


@dataclass
class SmallPlatform:
    """Each step appends its events to `history`."""

    now: float = 0.0
    nodes: dict[str, SmallNode] = field(default_factory=dict)
    pods: dict[str, SmallPod] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    gangs: dict[str, int] = field(default_factory=dict)  # minimum
    seqs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(_SHARDS), 0))

    def __post_init__(self) -> None:
        self.history = History(self._tick, source="small platform")
        self.history.append("watch", by="watcher")
        self.grant("w1")
        self.grant("w2")

    def _tick(self) -> float:
        self.now += 0.125
        return self.now

    @property
    def events(self) -> list[Event]:
        return self.history.events

    # -- nodes and workers

    def node(self, name: str, cpu: int = 1000, **fields: Any) -> None:
        """Added, or changed."""
        known = self.nodes.get(name)
        shard = known.shard if known else len(self.nodes) % _SHARDS
        self.nodes[name] = SmallNode(name, cpu, shard)
        amounts = {"cpu": cpu, "pods": _PODS}
        self._change("node", shard, name=name, allocatable=amounts, **fields)

    def grant(self, worker: str) -> int:
        """A new epoch on every shard."""
        self.epochs[worker] = max(self.epochs.values(), default=0) + 1
        self.history.append("granted", by="ledger", worker=worker, epoch=self.epochs[worker])
        return self.epochs[worker]

    # -- clients

    def submit(
        self,
        request: str,
        count: int = 1,
        *,
        cpu: int = 100,
        answer: str = "acknowledged",
        exists: bool | None = None,
        gang: int = 0,
        **fields: Any,
    ) -> list[str]:
        """Pods of one request. `gang`: its minimum. `exists`: of unknown ones, whether they do."""
        uids = [f"{request}-{number}" for number in range(count)]
        pods = {"uids": uids, "requests": {"cpu": cpu}, **fields}
        if gang:
            pods |= {"gang": request, "minimum": gang}
            self.gangs[request] = gang
        self.history.append("submit", by="client", request=request, pods=[pods])
        self.history.append(answer, by="client", request=request)
        if answer == "acknowledged" or (answer == "unknown" and exists):
            for uid in uids:
                self.pods[uid] = SmallPod(uid, cpu, request, request if gang else "")
            self.tell(*uids)
        return uids

    def delete(self, uid: str) -> None:
        """Acknowledged, done and told."""
        request = f"delete {uid} at {self.now}"
        self.history.append("delete", by="client", request=request, uids=[uid])
        self.history.append("acknowledged", by="client", request=request)
        if self.pods[uid].reserved:
            self.release(uid)
        self.move(uid, "Deleted")
        del self.pods[uid]

    # -- the ledger

    def reserve(self, *places: tuple[str, str], worker: str = "w1", **fields: Any) -> None:
        """Pods on nodes of one shard."""
        rows = [self._row(uid, node) for uid, node in places]
        shard = self.nodes[places[0][1]].shard
        epoch = fields.pop("epoch", self.epochs[worker])
        self._change("ledger", shard, worker=worker, epoch=epoch, reserved=rows, **fields)

    def prepare(self, *places: tuple[str, str], worker: str = "w1") -> None:
        """As `reserve`, in two steps."""
        rows = [{**self._row(uid, node), "state": "prepared"} for uid, node in places]
        shard = self.nodes[places[0][1]].shard
        self._change("ledger", shard, worker=worker, epoch=self.epochs[worker], reserved=rows)

    def commit(self, *uids: str, worker: str = "w1") -> None:
        """What was prepared."""
        for shard in range(_SHARDS):
            here = [uid for uid in uids if self.nodes[self.pods[uid].node].shard == shard]
            if here:
                epoch = self.epochs[worker]
                self._change("ledger", shard, worker=worker, epoch=epoch, committed=here)

    def confirm(self, uid: str) -> None:
        """The lease ends."""
        self._change("ledger", self.nodes[self.pods[uid].node].shard, confirmed=[uid], term=1)

    def release(self, uid: str) -> None:
        """The room is free again."""
        shard = self.nodes[self.pods[uid].node].shard
        self.pods[uid].reserved = ""
        self._change("ledger", shard, released=[uid], term=1)

    def reserve_target(self, uid: str, node: str) -> None:
        """Where the pod is to be moved, beside what it holds."""
        row = {**self._row_at(uid, node), "uid": f"target-of-{uid}", "target_of": uid}
        self._change("ledger", self.nodes[node].shard, epoch=self._movers_epoch(), reserved=[row])

    def take_target(self, uid: str, node: str, *, released: bool = True) -> None:
        """The pod is there from now on. `released`: with what it held, if that is on the same shard."""
        pod, shard = self.pods[uid], self.nodes[node].shard
        here = {"released": [uid]} if released and self.nodes[pod.node].shard == shard else {}
        pod.node = node
        self._change("ledger", shard, moved=[f"target-of-{uid}"], **here)

    def give_target(self, uid: str, heir: str, node: str) -> None:
        """A successor of the pod gets the target, and the pod keeps what it holds."""
        target, row = f"target-of-{uid}", self._row(heir, node)
        self._change("ledger", self.nodes[node].shard, released=[target], reserved=[row])

    def move_at_once(self, uid: str, node: str, *, worker: str = MOVER, gives_up: bool = True) -> None:
        """The pod gives up what it holds and gets this, confirmed, in one step of their shard."""
        pod, shard = self.pods[uid], self.nodes[node].shard
        pod.node = node
        row = self._row_at(uid, node)
        epoch = self._movers_epoch() if worker == MOVER else self.epochs[worker]
        released = {"released": [uid]} if gives_up else {}
        self._change("ledger", shard, epoch=epoch, reserved=[row], **released)
        self.history.append("ledger", by="ledger", shard=shard, seq=self.seqs[shard], confirmed=[uid])

    def _movers_epoch(self) -> int:
        if MOVER not in self.epochs:
            self.grant(MOVER)
        return self.epochs[MOVER]

    def release_on(self, shard: int, uid: str) -> None:
        """What is left there of a pod."""
        self._change("ledger", shard, released=[uid])

    def _row_at(self, uid: str, node: str) -> dict[str, Any]:
        return {"uid": uid, "node": node, "requests": {"cpu": self.pods[uid].cpu}}

    def _row(self, uid: str, node: str) -> dict[str, Any]:
        pod = self.pods[uid]
        pod.node, pod.reserved = node, "assumed"
        return self._row_at(uid, node)

    def _change(self, event: str, shard: int, **fields: Any) -> None:
        self.seqs[shard] += 1
        self.history.append(event, by="ledger", shard=shard, seq=self.seqs[shard], **fields)

    # -- what the dispatcher does

    def bind(self, uid: str, node: str, worker: str = "w1") -> None:
        """Reserve, tell, confirm."""
        self.reserve((uid, node), worker=worker)
        self.move(uid, "Bound")
        self.confirm(uid)

    def bind_gang(self, places: list[tuple[str, str]]) -> None:
        """Prepare on each shard, then commit, tell and confirm all."""
        for shard in range(_SHARDS):
            here = [(uid, node) for uid, node in places if self.nodes[node].shard == shard]
            if here:
                self.prepare(*here)
        self.commit(*(uid for uid, _ in places))
        for uid, _ in places:
            self.pods[uid].state = "Bound"
        self.tell(*(uid for uid, _ in places))
        for uid, _ in places:
            self.confirm(uid)

    def evict(self, uid: str) -> None:
        """Back in the queue."""
        self.release(uid)
        self.move(uid, "Queued")

    def terminate(self, uid: str, *, cpu: int) -> None:
        """Evicted, and still on its node, where it holds so much."""
        shared = [{"uid": uid, "requests": {"cpu": cpu, "pods": 1}}]
        self._change("ledger", self.nodes[self.pods[uid].node].shard, terminating=[uid], shared=shared)

    def move(self, uid: str, state: str) -> None:
        """The pod has another state, and the watcher is told."""
        self.pods[uid].state = state
        self.tell(uid)

    def tell(self, *uids: str) -> None:
        """The watcher is told how it is."""
        self.history.append("told", by="watcher", pods=[self._state(self.pods[uid]) for uid in uids])

    def _state(self, pod: SmallPod) -> Event:
        row = {"uid": pod.uid, "state": pod.state}
        if pod.state == "Bound":
            row["node"] = pod.node
        if pod.state in ("Unschedulable", "Failed"):
            row["reason"] = "no node has room"
        return row

    def end(self) -> list[Event]:
        """Quiet, and the final states of everybody."""
        append = self.history.append
        append("quiet", by="small platform")
        append("table", by="dispatcher", pods=[self._state(pod) for pod in self.pods.values()], final=True)
        append("journal", by="journal", uids=list(self.pods), final=True)
        rows = [
            {**self._row_at_end(pod), "shard": self.nodes[pod.node].shard}
            for pod in self.pods.values()
            if pod.reserved
        ]
        seqs = {str(shard): seq for shard, seq in self.seqs.items()}
        append("reservations", by="ledger", rows=rows, seqs=seqs, final=True)
        append("workers", by="dispatcher", ready=list(self.epochs), final=True)
        for shard, seq in self.seqs.items():
            digest = f"{seq:016x}"
            append("digest", by="ledger", shard=shard, seq=seq, digest=digest, final=True)
            for worker in self.epochs:
                append("cache", by=worker, shard=shard, seq=seq, digest=digest, idle=True, final=True)
        return self.events

    def _row_at_end(self, pod: SmallPod) -> Event:
        return {"uid": pod.uid, "node": pod.node, "requests": {"cpu": pod.cpu}, "state": "confirmed"}

    # -- room, as the small platform has it

    def room_for(self, cpu: int, taken: dict[str, int] | None = None) -> str:
        """A node with room, besides what is `taken` of each already; empty: there is none."""
        for node in self.nodes.values():
            on_it = [pod.cpu for pod in self.pods.values() if pod.reserved and pod.node == node.name]
            more = (taken or {}).get(node.name, 0)
            if sum(on_it) + (more + 1) * cpu <= node.cpu and len(on_it) + more < _PODS:
                return node.name
        return ""


def play(seed: int, steps: int = 40) -> list[Event]:
    """A history of random steps that keep every promise."""
    rng, platform = Random(seed), SmallPlatform()
    for number in range(rng.randint(1, 4)):
        platform.node(f"n{number}", rng.choice([500, 1000, 2000]))
    for number in range(steps):
        _step(platform, rng, number)
    for uid in [uid for uid, pod in platform.pods.items() if pod.state != "Bound"]:
        _place(platform, uid, rng)
    for pod in [pod for pod in platform.pods.values() if pod.state != "Bound"]:
        platform.move(pod.uid, "Unschedulable")
    return platform.end()


def _step(platform: SmallPlatform, rng: Random, number: int) -> None:
    bound = [pod.uid for pod in platform.pods.values() if pod.state == "Bound"]
    waiting = [pod.uid for pod in platform.pods.values() if pod.state != "Bound"]
    choice = rng.random()
    if choice < 0.3:
        answer = rng.choice(["acknowledged"] * 6 + ["refused", "unknown"])
        gang = rng.choice([0, 0, 2, 3])
        count = gang or rng.randint(1, 3)
        exists = rng.random() < 0.5
        platform.submit(
            f"r{number}", count, cpu=rng.choice([100, 300]), answer=answer, exists=exists, gang=gang
        )
    elif choice < 0.75 and waiting:
        _place(platform, rng.choice(waiting), rng)
    elif choice < 0.85 and bound:
        alone = [uid for uid in bound if not platform.pods[uid].gang]
        if alone:
            platform.evict(rng.choice(alone))
    elif choice < 0.9 and platform.pods:
        platform.delete(rng.choice(list(platform.pods)))
    elif choice < 0.95:
        platform.grant(rng.choice(["w1", "w2"]))
    elif platform.nodes:
        name = rng.choice(list(platform.nodes))
        platform.node(name, rng.choice([500, 1000, 2000]))


def _place(platform: SmallPlatform, uid: str, rng: Random) -> None:
    """A pod, or its whole gang, where it has room."""
    pod = platform.pods[uid]
    if not pod.gang:
        if pod.state != "Bound" and (node := platform.room_for(pod.cpu)):
            platform.bind(uid, node, rng.choice(["w1", "w2"]))
        return
    members = [each for each in platform.pods.values() if each.gang == pod.gang and each.state != "Bound"]
    taken: dict[str, int] = {}
    places = []
    for member in members:
        if node := platform.room_for(member.cpu, taken):
            taken[node] = taken.get(node, 0) + 1
            places.append((member.uid, node))
    if places and len(places) == len(members):
        platform.bind_gang(places)
