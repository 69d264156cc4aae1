"""What was submitted, and how its pods are found by name and by UID.

A submission is one accepted message: jobs, and at most one list of pods with names of their own. Each is a pod set with
its own range of rows and its own 12-byte UID prefix. Names are unique in their namespace, across jobs' pods and listed pods.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Rows
from dispatcher.core.templates import Kind
from hoss.errors import InvalidInput
from hoss.wire.columns import NONE_U32, UID_PREFIX_BYTES, Uids, uid_text

REQUEST_KEY_BYTES = 12

_REMEDY = "delete it first, or submit under another name"


class AlreadyExists(InvalidInput):
    """A name or UID belongs to another pod or job."""


def request_key(request_id: str) -> bytes:
    """What the journal files a submission under."""
    return hashlib.blake2b(request_id.encode(), digest_size=REQUEST_KEY_BYTES).digest()


def uid_prefix(request_id: str, number: int) -> bytes:
    """UID prefix of a submission's set `number`: the same for a resend, different for everything else."""
    text = f"{number}/{request_id}"
    return hashlib.blake2b(text.encode(), digest_size=UID_PREFIX_BYTES, person=b"hoss pod set").digest()


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A template of an order: its class as bytes, and the rest."""

    spec: bytes
    kind: Kind
    priority: int
    minds_pods: bool = False  # whether which other pods are where decides where it fits


@dataclass(frozen=True, slots=True)
class NewJob:
    """`replicas` pods of one template; `gang` is their gang's position in the order."""

    name: str
    template: int
    replicas: int
    gang: int | None = None


@dataclass(frozen=True, slots=True)
class NewPods:
    """Pods with names of their own. `templates` is (n,); `uids` (n, 16) if the client gave them; `gangs` (n,), 1 + the
    gang's position in the order, 0 for none, or None where there are none."""

    names: tuple[str, ...]
    templates: NDArray[np.uint32]
    uids: Uids | None
    gangs: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class NewGang:
    """At least `minimum` of the pods that refer to it are bound, or none. Those of one `key` are one gang whatever order they come in."""

    namespace: str
    name: str
    minimum: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """One checked message. Its templates are numbered by position."""

    request_id: str
    templates: tuple[NewTemplate, ...]
    jobs: tuple[NewJob, ...]
    pods: NewPods | None
    gangs: tuple[NewGang, ...] = ()
    record_bytes: int = 0  # of the message

    @property
    def pod_count(self) -> int:
        """How many pods it asks for."""
        return sum(job.replicas for job in self.jobs) + (len(self.pods.names) if self.pods is not None else 0)


@dataclass(slots=True)
class PodSet:
    """A job, or (job name "") a list of pods."""

    index: int
    submission: "Submission" = field(repr=False)
    namespace: str  # "" where a list spans several
    name: str
    kind: str
    uid_prefix: bytes
    first: int
    count: int
    names: tuple[str, ...] | None = None
    given_uids: bool = False
    ungated: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # gate -> pods from which it was removed
    refused: NDArray[np.bool_] | None = None  # of a list its pods, of a job itself: whether the ledger ever refused it

    @property
    def rows(self) -> slice:
        """Its range of the pod table."""
        return slice(self.first, self.first + self.count)

    def pod_name(self, row: int) -> str:
        """The name of the pod in a row."""
        ordinal = row - self.first
        return self.names[ordinal] if self.names is not None else f"{self.name}-{ordinal}"


@dataclass(slots=True)
class Submission:
    """One accepted message. Not `durable`: its names are taken, but its pods do not exist yet."""

    request_id: str
    key: bytes
    submitted_ms: int
    sets: list[PodSet] = field(default_factory=list)
    live: int = 0  # pods not deleted
    record_bytes: int = 0  # of the message it came as
    durable: bool = False
    first_step: int = 0  # after this one of core.journeys come its pods'


class Directory:
    """Pod sets by name, UID prefix and number."""

    def __init__(self) -> None:
        self.sets: dict[int, PodSet] = {}
        self.submissions: dict[bytes, Submission] = {}
        self._next_index = 0
        self._jobs: dict[tuple[str, str], PodSet] = {}
        self._listed: dict[tuple[str, str], int] = {}  # (namespace, name) -> row
        self._ordinals: dict[tuple[str, str], set[int]] = {}  # listed pods that are named like a job's
        self._prefixes: dict[bytes, PodSet] = {}
        self._given_uids: dict[bytes, int] = {}  # UID -> row

    def check_free(self, order: Order) -> None:
        """Raise AlreadyExists, naming it, if a name or UID of the order is taken, or twice in it."""
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
                    f"pod {job.name}-{clash}, of job {job.name!r}, is there already in namespace {key[0]!r}; {_REMEDY}",
                    where="jobs.name",
                )
            new_jobs[key] = job.replicas
        if order.pods is not None:
            self._check_listed(order, order.pods, new_jobs)

    def add(self, submission: Submission, pod_set: PodSet, namespaces: list[str], uids: Uids) -> None:
        """Enter a set; `namespaces` is one for a job, and one a pod for a list. Its `index` is given here."""
        pod_set.index = self._next_index
        self._next_index += 1
        self.sets[pod_set.index] = pod_set
        self._prefixes[pod_set.uid_prefix] = pod_set
        submission.sets.append(pod_set)
        submission.live += pod_set.count
        if pod_set.names is None:
            self._jobs[pod_set.namespace, pod_set.name] = pod_set
            return
        for row, key in enumerate(zip(namespaces, pod_set.names, strict=True), start=pod_set.first):
            self._listed[key] = row
            stem, ordinal = _split(key[1])
            if ordinal is not None:
                self._ordinals.setdefault((key[0], stem), set()).add(ordinal)
        if pod_set.given_uids:
            self._given_uids.update(
                zip(map(bytes, uids), range(pod_set.first, pod_set.first + pod_set.count), strict=True)
            )

    def remove(self, pod_set: PodSet, namespaces: list[str], uids: Uids) -> None:
        """Forget a set: its names and UIDs are free again. Arguments as in `add`."""
        del self.sets[pod_set.index], self._prefixes[pod_set.uid_prefix]
        if pod_set.names is None:
            del self._jobs[pod_set.namespace, pod_set.name]
            return
        for row, key in enumerate(zip(namespaces, pod_set.names, strict=True), start=pod_set.first):
            self.vacate(row, key)
        if pod_set.given_uids:
            for uid in map(bytes, uids):
                del self._given_uids[uid]

    def vacate(self, row: int, key: tuple[str, str]) -> None:
        """The pod in this row, which is of a list, has its name, (namespace, name), no longer: another may take it."""
        if self._listed.get(key) != row:
            return  # it was vacated before, and may be another's by now
        del self._listed[key]
        stem, ordinal = _split(key[1])
        if ordinal is not None:
            self._ordinals[key[0], stem].discard(ordinal)
            if not self._ordinals[key[0], stem]:
                del self._ordinals[key[0], stem]

    def jobs(self) -> Iterator[PodSet]:
        """Every job."""
        return iter(self._jobs.values())

    def job(self, namespace: str, name: str) -> PodSet | None:
        """A job by name."""
        return self._jobs.get((namespace, name))

    def row_of_name(self, namespace: str, name: str) -> int | None:
        """The row of a pod by name, or None."""
        row = self._listed.get((namespace, name))
        if row is not None:
            return row
        stem, ordinal = _split(name)
        job = self._jobs.get((namespace, stem))
        return job.first + ordinal if job is not None and ordinal is not None and ordinal < job.count else None

    def rows_of_uids(self, uids: Uids) -> Rows:
        """The rows of pods by UID, (n,); NONE_U32 for those nobody knows."""
        rows = np.full(len(uids), NONE_U32, np.uint32)
        if not len(uids):
            return rows
        prefixes = np.ascontiguousarray(uids[:, :UID_PREFIX_BYTES]).view(f"V{UID_PREFIX_BYTES}").ravel()
        ordinals = np.ascontiguousarray(uids[:, UID_PREFIX_BYTES:]).view(">u4").ravel().astype(np.uint32)
        distinct, which = np.unique(prefixes, return_inverse=True)
        for number, prefix in enumerate(distinct):
            pod_set = self._prefixes.get(bytes(prefix))
            if pod_set is not None and not pod_set.given_uids:
                mine = np.flatnonzero((which == number) & (ordinals < pod_set.count))
                rows[mine] = pod_set.first + ordinals[mine]
        if self._given_uids:
            for i in np.flatnonzero(rows == NONE_U32).tolist():
                rows[i] = self._given_uids.get(uids[i].tobytes(), NONE_U32)
        return rows

    def _check_listed(self, order: Order, pods: NewPods, new_jobs: dict[tuple[str, str], int]) -> None:
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
        if pods.uids is not None:
            self._check_uids(pods.uids)

    def _check_uids(self, uids: Uids) -> None:
        distinct, counts = np.unique(uids, axis=0, return_counts=True)
        taken = distinct[(counts > 1) | (self.rows_of_uids(distinct) != NONE_U32)]
        if len(taken):
            raise AlreadyExists(f"UID {uid_text(taken[0].tobytes())} belongs to another pod", where="pods.uids")


def _split(name: str) -> tuple[str, int | None]:
    """A job pod's name apart: job name and ordinal; no ordinal if it is not written as a job's would be."""
    stem, dash, digits = name.rpartition("-")
    if not dash or not digits.isascii() or not digits.isdigit() or (digits[0] == "0" and digits != "0"):
        return name, None
    return stem, int(digits)
