"""What a client that is limited to a tenant sees: that tenant's pods and jobs, and nothing of others.

To that client the pods and jobs of other tenants do not exist: lists and watches leave them out, and a call
that names one is told that there is none. The policy decides which tenant a pod belongs to
(dispatcher/core/queue/tenants.py)."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.machine import Machine
from dispatcher.core.messages import PREEMPTED_BY
from dispatcher.core.pods.history import PodEvents
from dispatcher.core.pods.sets import PodSet
from dispatcher.core.pods.table import Phase, Rows
from hoss.errors import AccessDenied
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.columns import NONE_U32

_PREFIX_BYTES = 12  # of a UID: those of a job's pods differ in the last four
_SEEN_PREFIXES = 256  # of a watch, before it looks which of them have ended
_NOBODY = -1  # the number of a tenant without pods


class TenantView:
    """The pods that one call may see. `tenant`: of the caller; "": every pod."""

    def __init__(self, machine: Machine, tenant: str) -> None:
        self.tenant = tenant
        self._machine = machine
        self._registry = machine.registry
        self._seen_at_most = _SEEN_PREFIXES

    def of_rows(self, rows: Rows) -> Rows:
        """Those of the rows that are visible."""
        return rows if not self.tenant else rows[self.mask(rows)]

    def has_row(self, row: int) -> bool:
        return not self.tenant or bool(self.mask(np.array([row], np.uint32))[0])

    def has_job(self, job: PodSet) -> bool:
        return not self.tenant or (job.count > 0 and self.has_row(job.first))

    def has_tenant(self, name: str) -> bool:
        return self.tenant in ("", name)

    def count_by_phase(self) -> dict[str, int]:
        """How many visible pods are in each phase."""
        pods = self._registry.pods
        if self.tenant:
            present = np.flatnonzero(pods.phase[: pods.size] != Phase.ABSENT)
            counts = np.bincount(pods.phase[present[self.mask(present)]], minlength=len(Phase))
        else:
            counts = pods.count_by_phase()
        return {phase.name: int(counts[phase]) for phase in Phase if phase is not Phase.ABSENT}

    def text(self, text: str) -> str:
        """A reason without the names of pods that are not visible."""
        return PREEMPTED_BY.sub(self._preemptor, text) if self.tenant and text else text

    def _preemptor(self, named: re.Match[str]) -> str:
        row = None
        if named["namespace"]:
            row = self._registry.directory.row_of_name(named["namespace"], named["name"])
        return named[0] if row is not None and self.has_row(row) else "preempted by another pod on node "

    def redact(self, info: pb.PodInfo) -> None:
        """Take out what a visible pod's texts say of pods that are not visible."""
        if not self.tenant:
            return
        info.reason, info.eviction = self.text(info.reason), self.text(info.eviction)
        for step in info.steps:
            step.reason = self.text(step.reason)
        for fault in info.faults:
            fault.text = self.text(fault.text)
        if info.queue.behind.startswith("tenant "):  # it names another one, and what that holds
            info.queue.behind = "another tenant, which holds less of the cluster for its weight"

    def check_submission(self, request: pb.SubmitRequest) -> None:
        """Raises AccessDenied where a template's pods would be another tenant's."""
        if not self.tenant:
            return
        label = self._machine.tenants.sharing.label
        for number, template in enumerate(request.templates):
            owner = template.spec.namespace
            if label:
                owner = next((pair.value for pair in template.spec.labels if pair.key == label), "")
            if owner != self.tenant:
                way = f"by its label {label}" if label else "by its namespace"
                raise AccessDenied(
                    f"templates[{number}]: its pods would belong to tenant {owner[:100]!r} ({way}), and the "
                    f"caller is limited to {self.tenant!r}"
                )

    def of_events(self, batches: Sequence[PodEvents], seen: set[bytes]) -> list[PodEvents]:
        """The events of visible pods. `seen`: beginnings of UIDs that this watch has shown; for pods that are
        deleted meanwhile, and so have no row that tells whose they were."""
        shown = [kept for batch in batches if (kept := self._of_batch(batch, seen)) is not None]
        if len(seen) > self._seen_at_most and batches[-1].revision == self._machine.log.revision:
            # No event of a set that was forgotten is left to be read.
            seen.intersection_update([*filter(self._registry.directory.has_prefix, seen)])
            self._seen_at_most = max(_SEEN_PREFIXES, 2 * len(seen))
        return shown

    def _of_batch(self, batch: PodEvents, seen: set[bytes]) -> PodEvents | None:
        rows = self._registry.directory.rows_of_uids(batch.uids)
        known = rows != NONE_U32
        visible = np.zeros(len(rows), np.bool_)
        visible[known] = self.mask(rows[known])
        prefixes = [uid[:_PREFIX_BYTES].tobytes() for uid in batch.uids]
        seen.update(prefix for prefix, shown in zip(prefixes, visible.tolist(), strict=True) if shown)
        for i in np.flatnonzero(~known).tolist():
            visible[i] = prefixes[i] in seen
        if not visible.any():
            return None
        reasons: NDArray[np.uint16] | None = None
        texts: tuple[str, ...] = ()
        if batch.reasons is not None:
            # Texts of others' events are left out, too.
            given = batch.reasons[visible]
            used = np.unique(given[given < len(batch.texts)])
            texts = tuple(self.text(batch.texts[i]) for i in used.tolist())
            numbers = np.full(np.iinfo(np.uint16).max + 1, np.iinfo(np.uint16).max, np.uint16)
            numbers[used] = np.arange(len(used), dtype=np.uint16)
            reasons = numbers[given]
        return PodEvents(
            batch.revision, batch.uids[visible], batch.phases[visible], batch.nodes[visible], reasons, texts
        )

    def mask(self, rows: "NDArray[np.integer[Any]]") -> "NDArray[np.bool_]":
        """Which of the rows are the tenant's; there is one."""
        number = self._machine.tenants.number(self.tenant)
        owners = self._registry.templates.tenant[self._registry.pods.template[rows]]
        return np.asarray(owners == (_NOBODY if number is None else number))
