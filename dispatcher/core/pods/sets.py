"""Submissions, pod sets, and the directory that finds pods by name and by UID.

A submission is one accepted message: jobs, and at most one list of named pods. Each is a pod set with its own
range of rows and its own 12-byte UID prefix. A pod name is unique in its namespace, across jobs and lists.

Rows, names and UIDs of deleted pods are forgotten before the rest of their set
(`PodRegistry.forget_deleted`), and a set before the rest of its submission. The submission remains until the
last of its sets is forgotten."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.pods.table import NO_SET, PodTable, Rows
from dispatcher.core.pods.templates import TemplateKind
from hoss.errors import InvalidInput
from hoss.model.quantity import whole_number
from hoss.model.slices import Steps
from hoss.wire.columns import NONE_U32, Uids, uid_list
from hoss.wire.uids import UID_PREFIX_BYTES, uid_text

REQUEST_KEY_BYTES = 12

_NAME_MICROS = 1.5

_REMEDY = "delete it first, or submit under another name"


class AlreadyExists(InvalidInput):
    """A name or UID belongs to another pod or job."""


def request_key(request_id: str) -> bytes:
    """The journal's key of a submission."""
    return hashlib.blake2b(request_id.encode(), digest_size=REQUEST_KEY_BYTES).digest()


def uid_prefix(request_id: str, number: int) -> bytes:
    """UID prefix of a submission's set `number`: the same for a resent message, and different from all
    others."""
    text = f"{number}/{request_id}"
    return hashlib.blake2b(text.encode(), digest_size=UID_PREFIX_BYTES, person=b"hoss pod set").digest()


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A template of an order: the bytes of its class, and the rest."""

    spec: bytes
    kind: TemplateKind
    priority: int
    has_pod_rules: bool = False  # whether its placement depends on other pods


@dataclass(frozen=True, slots=True)
class NewJob:
    """`replicas` pods of one template; `gang` is the position of their gang in the order."""

    name: str
    template: int
    replicas: int
    gang: int | None = None


@dataclass(frozen=True, slots=True)
class NewPods:
    """Named pods. `templates` is (n,); `uids` (n, 16) if the client gave them; `gangs` (n,), 1 + the gang's
    position in the order and 0 for none, or None without gangs."""

    names: tuple[str, ...]
    templates: NDArray[np.uint32]
    uids: Uids | None
    gangs: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class GangRule:
    """What the object says that a gang's pods name, such as a PodGroup. `missing`: why it says nothing, and
    the pods cannot be placed; "": it does."""

    minimum: int = 0
    missing: str = ""


NO_RULE = GangRule()  # of gangs whose pods name no object


@dataclass(frozen=True, slots=True)
class NewGang:
    """At least `minimum` of its pods are bound, or none. Pods with the same `key` are one gang, whatever
    order they are in.

    `minimum` is what the pods themselves declare; 0: only their `rule` says it. The larger one counts."""

    namespace: str
    name: str
    minimum: int
    key: str = ""
    rule: GangRule = NO_RULE


@dataclass(frozen=True, slots=True)
class Order:
    """One checked message. Templates are referred to by position."""

    request_id: str
    templates: tuple[NewTemplate, ...]
    jobs: tuple[NewJob, ...]
    pods: NewPods | None
    gangs: tuple[NewGang, ...] = ()
    record_bytes: int = 0  # size of the message
    submitted_by: str = ""  # who has the request id; "": anybody

    @property
    def pod_count(self) -> int:
        return sum(job.replicas for job in self.jobs) + (len(self.pods.names) if self.pods is not None else 0)


@dataclass(slots=True)
class PodSet:
    """A job, or (name "") a list of pods. Its pod with ordinal i is in row `first + i`, until that row is
    freed."""

    index: int
    submission: "Submission" = field(repr=False)
    namespace: str  # "" where a list spans several
    name: str
    kind: str
    uid_prefix: bytes
    first: int
    count: int
    names: Sequence[str] | Mapping[int, str] | None = None  # by ordinal, of a list
    given_uids: bool = False
    live: int = 0  # pods not deleted
    held: int = 0  # rows not freed
    admitted: int = 0  # its pods with lower ordinals exist
    to_forget: int = 0  # deleted pods that `forget_deleted` has not looked at, or found in use
    looked_at: int = 0  # ordinals below were looked at, where it is half through
    ungated: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # gate -> pods that lost it
    # Whether the ledger ever refused it: per pod of a list, one value for a job.
    refused: NDArray[np.bool_] | None = None

    @property
    def range(self) -> slice:
        """Its rows, and those of other pods where its own were freed."""
        return slice(self.first, self.first + self.count)

    def listed_names(self) -> Sequence[str]:
        """The names of a list's pods that are not forgotten; none of a job's."""
        names = self.names or ()
        return tuple(names.values()) if isinstance(names, Mapping) else names

    def pod_name(self, row: int) -> str:
        """The name of the pod in a row of this set."""
        ordinal = row - self.first
        return self.names[ordinal] if self.names is not None else f"{self.name}-{ordinal}"


@dataclass(slots=True)
class Submission:
    """One accepted message. Until it is `durable` its names are taken, but its pods do not exist."""

    request_id: str
    key: bytes
    submitted_ms: int
    sets: list[PodSet] = field(default_factory=list)
    live: int = 0  # pods not deleted
    record_bytes: int = 0  # size of its message
    durable: bool = False
    order: int = 0  # of its record in the journal
    first_transition: int = 0  # its pods' transitions follow this entry of the pod history
    submitted_by: str = ""  # who has the request id, as CALLER@TENANT; "": anybody

    @property
    def tenant(self) -> str:
        """To which its client was limited; "": to none."""
        return self.submitted_by.rpartition("@")[2]


class Directory:
    """Pod sets by name, UID prefix and index."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self.sets: dict[int, PodSet] = {}
        self.submissions: dict[bytes, Submission] = {}
        self._next_index = NO_SET + 1
        self._jobs: dict[tuple[str, str], PodSet] = {}
        self._listed: dict[tuple[str, str], int] = {}  # (namespace, name) -> row
        self._ordinals: dict[tuple[str, str], set[int]] = {}  # listed pods named like pods of a job
        self._prefixes: dict[bytes, PodSet] = {}
        self._given_uids: dict[bytes, int] = {}  # UID -> row
        self._given_sets = 0  # whose pods have UIDs that were given

    def has_prefix(self, uid_prefix: bytes) -> bool:
        """Whether there is a set whose pods' UIDs begin so."""
        return uid_prefix in self._prefixes

    @property
    def newest(self) -> int:
        """The index of the set that was added last. Later sets have higher ones."""
        return self._next_index - 1

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "submissions": len(self.submissions),
            "pod_sets": len(self.sets),
            "pod_names": len(self._jobs) + len(self._listed),
            "given_uids": len(self._given_uids),
        }

    def checking_free(self, order: Order) -> Steps[None]:
        """Raise AlreadyExists if a name or UID of the order is taken, or occurs twice in it."""
        new_jobs: dict[tuple[str, str], int] = {}
        for job in order.jobs:
            key = (order.templates[job.template].kind.namespace, job.name)
            if key in new_jobs or key in self._jobs:
                raise AlreadyExists(
                    f"job {key[1]!r} is there already in namespace {key[0]!r}; {_REMEDY}", where="jobs.name"
                )
            clash = next((i for i in self._ordinals.get(key, ()) if i < job.replicas), None)
            if clash is not None:
                raise AlreadyExists(
                    f"pod {job.name}-{clash}, of job {job.name!r}, is there already "
                    f"in namespace {key[0]!r}; {_REMEDY}",
                    where="jobs.name",
                )
            new_jobs[key] = job.replicas
        if order.pods is not None:
            yield from self._check_listed(order, order.pods, new_jobs)

    def add(self, submission: Submission, pod_set: PodSet) -> None:
        """Enter a set and set its `index`. The pods of a list are entered by `add_listed`."""
        pod_set.index = self._next_index
        self._next_index += 1
        self.sets[pod_set.index] = pod_set
        self._given_sets += pod_set.given_uids
        self._prefixes[pod_set.uid_prefix] = pod_set
        submission.sets.append(pod_set)
        pod_set.live = pod_set.held = pod_set.count
        submission.live += pod_set.count
        if pod_set.names is None:
            self._jobs[pod_set.namespace, pod_set.name] = pod_set

    def add_listed(self, pod_set: PodSet, start: int, namespaces: list[str], uids: Uids) -> None:
        """Enter the pods of a list from ordinal `start` on: their namespaces and UIDs."""
        if pod_set.names is None:
            return
        first = pod_set.first + start
        names = [pod_set.names[ordinal] for ordinal in range(start, start + len(namespaces))]
        for row, key in enumerate(zip(namespaces, names, strict=True), start=first):
            self._listed[key] = row
            stem, ordinal = _split(key[1])
            if ordinal is not None:
                self._ordinals.setdefault((key[0], stem), set()).add(ordinal)
        if pod_set.given_uids:
            self._given_uids.update(zip(uid_list(uids), range(first, first + len(uids)), strict=True))

    def remove(self, pod_set: PodSet) -> None:
        """Remove a set; those of a list are removed already, by `remove_listed`. A job's name is free
        again."""
        del self.sets[pod_set.index], self._prefixes[pod_set.uid_prefix]
        self._given_sets -= pod_set.given_uids
        self.release_job(pod_set)

    def remove_listed(self, pod_set: PodSet, rows: Rows, namespaces: list[str]) -> None:
        """Remove the pods of a list in these rows: their names and UIDs are free again."""
        if pod_set.names is None:
            return
        for row, namespace in zip(rows.tolist(), namespaces, strict=True):
            self.release_name(row, (namespace, pod_set.pod_name(row)))
        if pod_set.given_uids:
            for row, uid in zip(rows.tolist(), uid_list(self._pods.uid[rows]), strict=True):
                self._release_uid(row, uid)

    def release_job(self, pod_set: PodSet) -> None:
        """Free the name of a job without live pods."""
        key = (pod_set.namespace, pod_set.name)
        if self._jobs.get(key) is pod_set:
            del self._jobs[key]

    def release_given_uids(self, rows: Rows) -> None:
        """Let others have the UIDs of these deleted pods of lists. `find_by_uid` undoes it."""
        for row, uid in zip(rows.tolist(), uid_list(self._pods.uid[rows]), strict=True):
            self._release_uid(row, uid)

    def find_by_uid(self, rows: Rows) -> None:
        """Find these deleted pods of lists by their given UIDs again, where nobody else has them."""
        for row, uid in zip(rows.tolist(), uid_list(self._pods.uid[rows]), strict=True):
            self._given_uids.setdefault(uid, row)

    def _release_uid(self, row: int, uid: bytes) -> None:
        if self._given_uids.get(uid) == row:
            del self._given_uids[uid]

    def release_name(self, row: int, key: tuple[str, str]) -> None:
        """Free the name, `key` = (namespace, name), of the listed pod in this row."""
        if self._listed.get(key) != row:
            return  # the name was freed before and may belong to another pod
        del self._listed[key]
        stem, ordinal = _split(key[1])
        if ordinal is not None:
            self._ordinals[key[0], stem].discard(ordinal)
            if not self._ordinals[key[0], stem]:
                del self._ordinals[key[0], stem]

    def jobs(self) -> Iterator[PodSet]:
        """All jobs, in order of submission."""
        return iter(self._jobs.values())

    def job(self, namespace: str, name: str) -> PodSet | None:
        """The job of this name; None: there is none."""
        return self._jobs.get((namespace, name))

    def row_of_name(self, namespace: str, name: str) -> int | None:
        """The row of a pod by name, or None."""
        row = self._listed.get((namespace, name))
        if row is not None:
            return row
        stem, ordinal = _split(name)
        job = self._jobs.get((namespace, stem))
        if job is None or ordinal is None or ordinal >= job.count:
            return None
        row = job.first + ordinal
        return row if self._pods.pod_set[row] == job.index else None

    def rows_of_uids(self, uids: Uids) -> Rows:
        """The rows of pods by UID, (n,); NONE_U32 for unknown UIDs."""
        rows = np.full(len(uids), NONE_U32, np.uint32)
        if self._given_uids:
            row_of = self._given_uids.get
            rows[:] = [row_of(uid, NONE_U32) for uid in uid_list(uids)]
        unknown = np.flatnonzero(rows == NONE_U32)
        if len(unknown) and len(self.sets) > self._given_sets:
            rows[unknown] = self._rows_of_numbered_uids(uids[unknown])
        return rows

    def _rows_of_numbered_uids(self, uids: Uids) -> Rows:
        """As `rows_of_uids`, of the pods whose UIDs are made of their set's prefix and a number."""
        rows = np.full(len(uids), NONE_U32, np.uint32)
        prefixes = np.ascontiguousarray(uids[:, :UID_PREFIX_BYTES]).view(f"V{UID_PREFIX_BYTES}").ravel()
        ordinals = np.ascontiguousarray(uids[:, UID_PREFIX_BYTES:]).view(">u4").ravel().astype(np.uint32)
        distinct, which = np.unique(prefixes, return_inverse=True)
        sets = [self._prefixes.get(bytes(prefix)) for prefix in distinct]  # of bare pods as many as UIDs
        found = [(0, 0, 0) if s is None or s.given_uids else (s.first, s.count, s.index) for s in sets]
        first, count, index = np.array(found, np.int64).reshape(-1, 3)[which].T
        mine = np.flatnonzero(ordinals < count)
        at = (first + ordinals)[mine]
        rows[mine] = np.where(self._pods.pod_set[at] == index[mine], at, NONE_U32)
        return rows

    def _check_listed(self, order: Order, pods: NewPods, new_jobs: dict[tuple[str, str], int]) -> Steps[None]:
        seen: set[tuple[str, str]] = set()
        namespaces = [template.kind.namespace for template in order.templates]
        for name, template in zip(pods.names, pods.templates.tolist(), strict=True):
            key = (namespaces[template], name)
            stem, ordinal = _split(name)
            taken = key in self._listed or key in seen
            if not taken and ordinal is not None:
                job = self._jobs.get((key[0], stem))
                taken = ordinal < max(job.count if job else 0, new_jobs.get((key[0], stem), 0))
            if taken:
                raise AlreadyExists(
                    f"pod {name!r} is there already in namespace {key[0]!r}; {_REMEDY}", where="pods.names"
                )
            seen.add(key)
            yield _NAME_MICROS
        if pods.uids is not None:
            self._check_uids(pods.uids)

    def _check_uids(self, uids: Uids) -> None:
        rows = self.rows_of_uids(uids).tolist()
        seen: set[bytes] = set()
        for uid, row in zip(uid_list(uids), rows, strict=True):
            if row != NONE_U32 or uid in seen:
                raise AlreadyExists(f"UID {uid_text(uid)} belongs to another pod", where="pods.uids")
            seen.add(uid)


def _split(name: str) -> tuple[str, int | None]:
    """Split the name of a job's pod into job name and ordinal; the ordinal is None for any other name."""
    stem, dash, digits = name.rpartition("-")
    ordinal = whole_number(digits)
    if not dash or ordinal is None or (digits[0] == "0" and digits != "0"):
        return name, None
    return stem, ordinal
