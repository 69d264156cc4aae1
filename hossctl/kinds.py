"""The kinds of objects that `hoss get` and its like list, how people spell them, and the query for them.

Help, completion and errors of usage need only this module, so it imports nothing that talks to a platform."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hoss.errors import InvalidInput, NotFound, did_you_mean

if TYPE_CHECKING:
    from hoss.v1 import dispatcher_pb2 as pb

ALL = ""  # in place of a namespace


class Kind(str, Enum):
    """Kinds that can be listed."""

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
        """As in `pod/web-0`."""
        return "priorityclass" if self is Kind.PRIORITY_CLASSES else self.value.removesuffix("s")


NAMESPACED = frozenset({Kind.PODS, Kind.JOBS, Kind.SERVICES, Kind.BUDGETS})
OF_RESOLVERS = frozenset({Kind.NODES, Kind.RESERVATIONS})  # dispatchers list the others

# Kinds of cluster objects, and the `kind` of their manifests.
OBJECT_KINDS = {
    Kind.NAMESPACES: "Namespace",
    Kind.SERVICES: "Service",
    Kind.BUDGETS: "PodDisruptionBudget",
    Kind.PRIORITY_CLASSES: "PriorityClass",
}


# As in kubectl, the singular and short forms are understood too.
_SPELLINGS = {
    **{kind.value: kind for kind in Kind},
    **{kind.singular: kind for kind in Kind},
    "po": Kind.PODS,
    "no": Kind.NODES,
    "wo": Kind.WORKERS,
    "jo": Kind.JOBS,
    "ten": Kind.TENANTS,
    "res": Kind.RESERVATIONS,
    "ns": Kind.NAMESPACES,
    "svc": Kind.SERVICES,
    "pdb": Kind.BUDGETS,
    "pdbs": Kind.BUDGETS,
    "pc": Kind.PRIORITY_CLASSES,
}
_SHORT = 3  # characters


def titled(kind: Kind) -> str:
    """A kind with its shortest spelling, where it has a short one: `pods (po)`."""
    short = min((text for text, meant in _SPELLINGS.items() if meant is kind), key=len, default=kind.value)
    return f"{kind.value} ({short})" if len(short) <= _SHORT else kind.value


def read_kind(text: str, *allowed: Kind) -> Kind:
    """A kind as people write it. Raises InvalidInput with the kinds that are allowed, and the likeliest."""
    kind = _SPELLINGS.get(text)
    if kind is None or (allowed and kind not in allowed):
        choices = allowed or tuple(Kind)
        names = ", ".join(choice.value for choice in choices)
        meant = did_you_mean(text, [choice.value for choice in choices])
        raise InvalidInput(f"{text!r} is not listed here; it is one of {names}{meant}", where="kind")
    return kind


def not_there(kind: Kind, namespace: str = "") -> str:
    """What an error says after "is" of a name that nothing of the kind has, with where to look. `namespace`:
    the one looked in, of a kind that has them."""
    if kind not in NAMESPACED:
        return f"not there; `hoss get {kind.value}` lists all"
    place = f" in namespace {namespace}" if namespace else ""
    return f"not there{place}; `hoss get {kind.value} -A` lists all"


def check_found(missing: Sequence[str], namespace: str, kind: Kind) -> None:
    """Raise NotFound for names that the dispatcher did not find. `namespace`: where it looked, if in one."""
    if missing:
        raise NotFound(not_there(kind, namespace), where=", ".join(missing))


class State(str, Enum):
    """Of a reservation. Prepared: a part of a commit on several shards, until that is committed or its lease
    ends. Assumed: until it is confirmed or its lease ends. Pre-binding: the same, while plugins of its worker
    prepare the pod. Confirmed: until it is released. Terminating, in Kubernetes mode: evicted, and counted on
    its node until it has ended."""

    PREPARED = "prepared"
    ASSUMED = "assumed"
    PRE_BINDING = "pre-binding"
    CONFIRMED = "confirmed"
    TERMINATING = "terminating"


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Which reservations to list; empty and None: all. `worker`: the one that proposed them."""

    node: str = ""
    worker: str = ""
    state: State | None = None


EVERY = ListOptions()


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. `phases` filters pods, `reservations` filters reservations; `with_pods` asks for the
    names of the pods that hold them."""

    kind: Kind
    names: Sequence[str] = ()
    namespace: str = "default"
    selector: str = ""
    phases: "Sequence[pb.PodPhase]" = ()
    reservations: ListOptions = EVERY
    with_pods: bool = False

    def check(self) -> None:
        """Raise InvalidInput for a filter that the kind does not have."""
        if self.selector and self.kind not in (Kind.PODS, Kind.NODES, Kind.WORKERS, Kind.RESERVATIONS):
            raise InvalidInput(
                f"{self.kind.value} are not selected by label; pods, nodes, workers and (by their pods') "
                "reservations are",
                where="-l",
            )
        if self.selector:
            from hoss.manifests.fields import parse_label_selector  # noqa: PLC0415 - few commands select

            parse_label_selector(self.selector, where="-l")
        if self.phases and self.kind is not Kind.PODS:
            raise InvalidInput(f"is about pods, not {self.kind.value}", where="--failed and --waiting")
        if self.reservations != EVERY and self.kind is not Kind.RESERVATIONS:
            raise InvalidInput(
                f"are about reservations, not {self.kind.value}", where="--node, --worker and --state"
            )
        if self.names and self.kind is Kind.CONFLICTS:
            raise InvalidInput(
                "conflicts have no names; `hoss describe worker NAME` shows those of one", where="NAME"
            )
        if self.names and self.selector:
            raise InvalidInput("and names were both given; choose one", where="-l")
        if self.names and self.namespace == ALL and self.kind in NAMESPACED:
            raise InvalidInput("a name belongs to one namespace; give -n instead", where="-A")
