"""What `hoss get` and its like can list, how people name it, and what they ask about it.

Apart from what lists it: help, completion and wrong usage need no more, and do not wait for what talks to a platform.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hoss.errors import InvalidInput, NotFound
from hossctl.guessing import did_you_mean

if TYPE_CHECKING:
    from hoss.v1 import dispatcher_pb2 as pb

ALL = ""  # as a namespace


class Kind(str, Enum):
    """What can be listed."""

    PODS = "pods"
    NODES = "nodes"
    WORKERS = "workers"
    JOBS = "jobs"
    TENANTS = "tenants"
    RESERVATIONS = "reservations"
    CONFLICTS = "conflicts"
    NAMESPACES = "namespaces"
    SERVICES = "services"
    BUDGETS = "poddisruptionbudgets"
    PRIORITY_CLASSES = "priorityclasses"

    @property
    def singular(self) -> str:
        """One of them."""
        return "priorityclass" if self is Kind.PRIORITY_CLASSES else self.value.removesuffix("s")


NAMESPACED = frozenset({Kind.PODS, Kind.JOBS, Kind.SERVICES, Kind.BUDGETS})
OF_RESOLVERS = frozenset({Kind.NODES, Kind.RESERVATIONS})  # the others are asked of dispatchers

# Kinds of cluster objects, and what manifests call them.
OBJECT_KINDS = {
    Kind.NAMESPACES: "Namespace",
    Kind.SERVICES: "Service",
    Kind.BUDGETS: "PodDisruptionBudget",
    Kind.PRIORITY_CLASSES: "PriorityClass",
}


# kubectl's habits: the singular and the short forms are taken too.
_SPELLINGS = {
    "pod": Kind.PODS, "po": Kind.PODS, "node": Kind.NODES, "no": Kind.NODES, "worker": Kind.WORKERS, "job": Kind.JOBS,
    "tenant": Kind.TENANTS,
    "reservation": Kind.RESERVATIONS, "namespace": Kind.NAMESPACES, "ns": Kind.NAMESPACES, "service": Kind.SERVICES,
    "svc": Kind.SERVICES, "poddisruptionbudget": Kind.BUDGETS, "pdb": Kind.BUDGETS, "pdbs": Kind.BUDGETS,
    "priorityclass": Kind.PRIORITY_CLASSES, "pc": Kind.PRIORITY_CLASSES, "wo": Kind.WORKERS, "jo": Kind.JOBS,
    "res": Kind.RESERVATIONS, "ten": Kind.TENANTS, "conflict": Kind.CONFLICTS,
}  # fmt: skip
_SHORT = 3  # characters


def titled(kind: Kind) -> str:
    """A kind with its shortest spelling, where it has a short one: `pods (po)`."""
    short = min((text for text, meant in _SPELLINGS.items() if meant is kind), key=len, default=kind.value)
    return f"{kind.value} ({short})" if len(short) <= _SHORT else kind.value


def read_kind(text: str, *allowed: Kind) -> Kind:
    """A kind as people write it. Raises InvalidInput naming those that are allowed here, and the one that may be meant."""
    kind = _SPELLINGS.get(text) or next((kind for kind in Kind if kind.value == text), None)
    if kind is None or (allowed and kind not in allowed):
        choices = allowed or tuple(Kind)
        names = ", ".join(choice.value for choice in choices)
        meant = did_you_mean(text, [choice.value for choice in choices])
        raise InvalidInput(f"{text!r} is not listed here; it is one of {names}{meant}", where="kind")
    return kind


def check_found(missing: Sequence[str], namespace: str, kind: Kind) -> None:
    """Raise NotFound naming what the dispatcher did not find of what a command named. `namespace`: where it looked, if in one."""
    if missing:
        place = f" in namespace {namespace}" if namespace else ""
        raise NotFound(f"not there{place}; `hoss get {kind.value} -A` lists all", where=", ".join(missing))


class State(str, Enum):
    """Assumed: until it is confirmed, or its lease ends. Confirmed: stands until it is released."""

    ASSUMED = "assumed"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which reservations to tell of; empty and None: all. `worker`: on whose proposal they were made."""

    node: str = ""
    worker: str = ""
    state: State | None = None


EVERY = Wanted()


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. `phases` is about pods alone, `wanted` and `pods` (names of pods are to be told, too) about reservations."""

    kind: Kind
    names: Sequence[str] = ()
    namespace: str = "default"
    selector: str = ""
    phases: "Sequence[pb.PodPhase]" = ()
    wanted: Wanted = EVERY
    pods: bool = False

    def check(self) -> None:
        """Raise InvalidInput for what a kind does not have."""
        if self.selector and self.kind not in (Kind.PODS, Kind.NODES, Kind.WORKERS, Kind.RESERVATIONS):
            raise InvalidInput(
                f"{self.kind.value} are not selected by label; pods, nodes, workers and (by their pods') reservations are",
                where="-l",
            )
        if self.selector:
            from hoss.model.label_selector import parse_label_selector  # noqa: PLC0415 - few commands select

            parse_label_selector(self.selector, where="-l")
        if self.phases and self.kind is not Kind.PODS:
            raise InvalidInput(f"is about pods, not {self.kind.value}", where="--failed and --waiting")
        if self.wanted != EVERY and self.kind is not Kind.RESERVATIONS:
            raise InvalidInput(f"are about reservations, not {self.kind.value}", where="--node, --worker and --state")
        if self.names and self.kind is Kind.CONFLICTS:
            raise InvalidInput("conflicts have no names; `hoss describe worker NAME` shows those of one", where="NAME")
        if self.names and self.selector:
            raise InvalidInput("and names were both given; choose one", where="-l")
        if self.names and self.namespace == ALL and self.kind in NAMESPACED:
            raise InvalidInput("a name belongs to one namespace; give -n instead", where="-A")
