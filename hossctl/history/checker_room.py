"""What pods ask for, what nodes offer, and whether a pod has room on a node: as Kubernetes defines it,
written anew for the checker. Only what the history tells in plain fields is modelled. Pods with other rules
(affinity, spreading, policies) name them in `rules`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

CARD_MILLI = 1000  # a whole card
PREPARED, ASSUMED, CONFIRMED, TERMINATING = "prepared", "assumed", "confirmed", "terminating"  # reservations
_ANY_ADDRESS = ("", "0.0.0.0")  # noqa: S104 - no socket is bound here

Port = tuple[str, int, str]  # protocol, number, address


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of a pod from its submission."""

    uid: str
    line: int
    name: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    gang: str = ""
    minimum: int = 0
    ports: tuple[Port, ...] = ()
    cards: tuple[int, int] = (0, 0)  # count, thousandths of each
    selector: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    tolerations: tuple[Mapping[str, str], ...] = ()
    gates: frozenset[str] = frozenset()
    rules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"pod {self.name} ({self.uid})" if self.name else f"pod {self.uid}"

    def equivalent(self, other: "PodFacts") -> bool:
        """Whether the other pod fits wherever this one does."""
        return replace(self, uid="", line=0, name="") == replace(other, uid="", line=0, name="")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node."""

    name: str
    line: int
    allocatable: Mapping[str, int]
    cards: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    closed: bool = False


@dataclass(slots=True)
class HeldPod:
    """A reservation."""

    uid: str
    node: str
    shard: int
    state: str
    line: int
    requests: Mapping[str, int]
    ports: tuple[Port, ...] = ()
    cards: Mapping[int, int] = field(default_factory=dict)  # thousandths by card
    seq: int | None = None  # of its commit, where the history says it
    brought_back: bool = False  # by a loss, which took its release
    target_of: str = ""  # of a move: the pod, whose own reservation stands meanwhile
    sources: "tuple[HeldPod, ...]" = ()  # of a target: what the pod held when it was reserved
    left: bool = False  # the pod was moved to another shard: nobody counts it, and it is released soon
    evicted: int = 0  # the line in which it began to terminate


@dataclass(slots=True)
class NodeLoad:
    """What pods hold of one node."""

    pods: dict[tuple[str, int], HeldPod] = field(default_factory=dict)  # by UID and shard
    requested: Counter[str] = field(default_factory=Counter)
    cards: Counter[int] = field(default_factory=Counter)

    def add(self, pod: HeldPod) -> None:
        """The pod takes room."""
        self.pods[pod.uid, pod.shard] = pod
        self.requested.update(pod.requests)
        self.cards.update(pod.cards)

    def remove(self, pod: HeldPod) -> None:
        """The pod gives its room back."""
        del self.pods[pod.uid, pod.shard]
        self.requested.subtract(pod.requests)
        self.cards.subtract(pod.cards)

    def without(self, pods: Iterable[HeldPod]) -> "NodeLoad":
        """The load as if these were gone."""
        left = NodeLoad(dict(self.pods), Counter(self.requested), Counter(self.cards))
        for pod in pods:
            left.remove(pod)
        return left

    def others_on_ports(self, ports: Iterable[Port], uid: str) -> list[tuple[Port, HeldPod]]:
        """Which of these ports other pods hold, and who."""
        wanted = list(ports)
        return [
            (port, pod)
            for pod in self.pods.values()
            if wanted and pod.ports and pod.uid != uid
            for held in pod.ports
            for port in wanted
            if _collide(port, held)
        ]


def pod_facts(event: Mapping[str, Any], uid: str, line: int, name: str) -> PodFacts:
    """The facts of one pod of a set of pods in an event."""
    cards = event.get("cards", {})
    return PodFacts(
        uid=uid,
        line=line,
        name=name,
        requests=whole_requests(event["requests"]),
        priority=event.get("priority", 0),
        gang=event.get("gang", ""),
        minimum=event.get("minimum", 0),
        ports=ports_of(event.get("ports", ())),
        cards=(cards.get("count", 0), cards.get("milli", 0)),
        selector=event.get("selector", {}),
        node=event.get("node", ""),
        tolerations=tuple(event.get("tolerations", ())),
        gates=frozenset(event.get("gates", ())),
        rules=tuple(event.get("rules", ())),
    )


def node_facts(event: Mapping[str, Any], line: int) -> NodeFacts:
    """The facts of an event of a node."""
    return NodeFacts(
        name=event["name"],
        line=line,
        allocatable=event["allocatable"],
        cards=event.get("cards", 0),
        labels=event.get("labels", {}),
        taints=tuple(event.get("taints", ())),
        closed=event.get("closed", False),
    )


def ports_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Port, ...]:
    """The ports of an event."""
    return tuple((row.get("protocol", "TCP"), row["port"], row.get("ip", "")) for row in rows)


def whole_requests(requests: Mapping[str, int]) -> Mapping[str, int]:
    """With the piece of `pods` that every pod takes, and without zeros."""
    return {"pods": 1, **{name: amount for name, amount in requests.items() if amount}}


def offered(node: NodeFacts, resource: str) -> int | None:
    """What a node has of a resource for pods. None: the history does not say (of `pods` alone)."""
    return node.allocatable.get(resource, None if resource == "pods" else 0)


def shortages(
    node: NodeFacts, load: NodeLoad, resources: Iterable[str], cards: Iterable[int]
) -> Iterator[str]:
    """Sentences for those of the resources and cards of which more is held than the node has."""
    for resource in sorted(set(resources)):
        has = offered(node, resource)
        if has is not None and load.requested[resource] > has:
            yield f"{load.requested[resource]} of {resource} are held and {has} are allocatable"
    for card in sorted(set(cards)):
        has = CARD_MILLI if card < node.cards else 0
        if load.cards[card] > has:
            yield f"{load.cards[card]} thousandths of card {card} are held and there are {has}"


def why_not(pod: PodFacts, node: NodeFacts, load: NodeLoad) -> str:
    """Why a pod cannot be placed on a node; empty: it can, as far as it is modelled."""
    return next(chain(_unsuited(pod, node), _missing(pod, node, load)), "")


def _unsuited(pod: PodFacts, node: NodeFacts) -> Iterator[str]:
    if node.closed:
        yield "it takes no new pods"
    if pod.node not in ("", node.name):
        yield f"the pod is for node {pod.node}"
    for key, value in pod.selector.items():
        if node.labels.get(key) != value:
            yield f"its label {key} differs"
    for taint in node.taints:
        if not _tolerated(taint, pod.tolerations):
            yield f"its taint {taint['key']} is not tolerated"


def _missing(pod: PodFacts, node: NodeFacts, load: NodeLoad) -> Iterator[str]:
    for resource, amount in pod.requests.items():
        has = offered(node, resource)
        if has is not None and load.requested[resource] + amount > has:
            yield f"{resource}: {has - load.requested[resource]} are free and {amount} are asked for"
    if load.others_on_ports(pod.ports, pod.uid):
        yield "a port is taken"
    count, milli = pod.cards
    if count > sum(load.cards[card] + milli <= CARD_MILLI for card in range(node.cards)):
        yield "too few cards are free"


def held_for(pod: PodFacts, node: NodeFacts, load: NodeLoad) -> HeldPod:
    """The reservation of a pod that has room on a node; it takes the first cards that are free."""
    count, milli = pod.cards
    free = [card for card in range(node.cards) if load.cards[card] + milli <= CARD_MILLI]
    cards = dict.fromkeys(free[:count], milli)
    return HeldPod(pod.uid, node.name, 0, ASSUMED, pod.line, pod.requests, pod.ports, cards)


def _tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, str]]) -> bool:
    if taint["effect"] == "PreferNoSchedule":
        return True
    return any(
        each.get("effect", "") in ("", taint["effect"])
        and each.get("key", "") in ("", taint["key"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )


def _collide(one: Port, other: Port) -> bool:
    """As kubelets see it: an address that means all addresses collides with every other."""
    any_address = one[2] in _ANY_ADDRESS or other[2] in _ANY_ADDRESS
    return one[:2] == other[:2] and (any_address or one[2] == other[2])


def nonzero(amounts: Mapping[str, int]) -> dict[str, int]:
    """The amounts that are not 0."""
    return {key: amount for key, amount in amounts.items() if amount}


def amounts_text(amounts: Mapping[str, int]) -> str:
    """The amounts in words."""
    return ", ".join(f"{key}={amount}" for key, amount in sorted(amounts.items()) if amount) or "nothing"
