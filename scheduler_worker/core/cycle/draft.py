"""The draft: placements gathered until they are proposed, one proposal a shard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodGroup, PodSpec
from hoss.model.resources import DEVICE_RESOURCE
from hoss.wire.columns import NONE_U32
from scheduler_worker.core.cache.assumptions import Assumption
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import PlacedBatch
from scheduler_worker.core.messages import ProposalColumns
from scheduler_worker.core.nodes import Mask, NodeIndexes
from scheduler_worker.core.placement.run_placer import Placed
from scheduler_worker.core.preemption.evaluator import Victims
from scheduler_worker.core.work import Positions, Run, Work


def depends_on_pods(spec: PodSpec) -> bool:
    """Whether a node may admit the pod because of other pods: by spreading those elsewhere, by affinity those
    near. Such a pod must not outlive the pods that it was placed by."""
    return bool(spec.pod_affinity and spec.pod_affinity.required) or any(c.required for c in spec.spread)


def takes_by_name(spec: PodSpec) -> bool:
    """Whether the pod takes something by a name that depends on its node: volumes or devices."""
    return spec.volumes is not None or spec.claims is not None


@dataclass(frozen=True, slots=True, eq=False)
class PendingProposal:
    """A proposal without a verdict, and the pods that it stands for."""

    columns: ProposalColumns
    work: Work
    runs: tuple[Run, ...]  # by slot
    rows: NDArray[np.intp]  # (n,): rows of the work batch
    assumption: Assumption
    victims: Mapping[int, Victims]  # by position in the proposal
    proposed_at: float


class Draft:
    """Placed runs of one work batch. A run is a slot of the future proposals."""

    def __init__(self) -> None:
        self._placed: list[tuple[Run, Placed]] = []
        self._firsts: list[bool] = []
        self._reserved_names: list[tuple[str, ...]] = []
        self._victims: dict[int, Victims] = {}  # by place among all pods
        self.pods = 0

    @property
    def work(self) -> Work | None:
        """The work batch it belongs to; None while it is empty."""
        return self._placed[0][0].work if self._placed else None

    @property
    def depends_on_pods(self) -> bool:
        """Whether pods of it may depend on others of it."""
        return any(depends_on_pods(run.pod_class.spec) for run, _ in self._placed)

    @property
    def placements(self) -> list[tuple[PodGroup, NodeIndexes]]:
        """The group and the chosen nodes of each run."""
        return [(run.pod_class.group, placed.nodes) for run, placed in self._placed]

    @property
    def rows(self) -> Positions:
        """Its pods, as rows of the work batch, in order."""
        return np.concatenate([run.rows[: len(placed.nodes)] for run, placed in self._placed])

    def placed_pods(self, cache: NodeInfoCache) -> PlacedBatch:
        """Its pods for permit plugins."""
        return PlacedBatch(
            specs=tuple(run.pod_class.spec for run, _ in self._placed),
            classes=np.repeat(
                np.arange(len(self._placed)), [len(placed.nodes) for _, placed in self._placed]
            ),
            nodes=cache.specs(np.concatenate([placed.nodes for _, placed in self._placed])),
        )

    def split(self, taken: Mask) -> "Draft":
        """Take these of its pods, (pods,), into a draft of their own. Only of a draft without victims."""
        own, other = Draft(), Draft()
        start = 0
        for (run, placed), first, names in zip(self._placed, self._firsts, self._reserved_names, strict=True):
            count = len(placed.nodes)
            mask = taken[start : start + count]
            start += count
            for draft, at in ((other, np.flatnonzero(mask)), (own, np.flatnonzero(~mask))):
                if len(at):
                    part = Placed(placed.nodes[at], placed.alternates[at], placed.card_masks[at])
                    draft.add(replace(run, rows=run.rows[at]), part, first=first, reserved_names=names)
        self._placed, self._firsts, self._reserved_names = own._placed, own._firsts, own._reserved_names
        self.pods = own.pods
        return other

    def runs_without(self, rows: Positions) -> tuple[Run, ...]:
        """Its runs as they were before they were placed, without these rows of the work batch."""
        left = (
            replace(run, pod_class=run.pod_class.undecided(), rows=run.rows[~np.isin(run.rows, rows)])
            for run, _ in self._placed
        )
        return tuple(run for run in left if len(run.rows))

    def precedes(self, run: Run) -> bool:
        """Whether the ledger serves the draft's pods before the run's: it serves higher priorities first."""
        return not self._placed or self._placed[-1][0].pod_class.priority >= run.pod_class.priority

    def add(
        self,
        run: Run,
        placed: Placed,
        victims: Sequence[Victims] = (),
        *,
        first: bool = False,
        reserved_names: tuple[str, ...] = (),
    ) -> None:
        """The first pods of `run` go where `placed` says. `victims`: those of each pod, if any. `first`:
        placed as the first of their kind. `reserved_names`: of what each takes there."""
        self._victims.update(enumerate(victims, self.pods))
        self._placed.append((run, placed))
        self._firsts.append(first)
        self._reserved_names.append(reserved_names)
        self.pods += len(placed.nodes)

    def assumed(self, resources: int) -> Assumption | None:
        """Its pods as one assumption; None while it is empty."""
        if not self._placed:
            return None
        shared = _shared_columns(tuple(run for run, _ in self._placed), resources)
        return Assumption(
            np.concatenate([placed.nodes for _, placed in self._placed]),
            np.repeat(np.arange(len(self._placed)), [len(placed.nodes) for _, placed in self._placed]),
            shared.requests,
            np.concatenate([placed.card_masks for _, placed in self._placed]),
            shared.devices[:, 1],
            expires_at=0.0,
        )

    def clear(self) -> None:
        """Nothing of it is proposed."""
        self._placed.clear()
        self._firsts.clear()
        self._reserved_names = []
        self._victims = {}
        self.pods = 0

    def close(
        self, cache: NodeInfoCache, first_id: int, *, proposed_at: float, expires_at: float
    ) -> list[PendingProposal]:
        """The proposals, numbered from `first_id` on, one for each shard that was chosen. Empties the
        draft."""
        work = self.work
        if work is None:
            return []
        runs = tuple(run for run, _ in self._placed)
        sizes = [len(placed.nodes) for _, placed in self._placed]
        nodes = np.concatenate([placed.nodes for _, placed in self._placed])
        candidates = np.column_stack((nodes, _joined([placed.alternates for _, placed in self._placed])))
        masks = np.concatenate([placed.card_masks for _, placed in self._placed])
        rows = np.concatenate([run.rows[:size] for run, size in zip(runs, sizes, strict=True)])
        slots = np.repeat(np.arange(len(runs)), sizes)
        groups = tuple(run.pod_class.group for run in runs)
        firsts = np.array(self._firsts) if any(self._firsts) else None
        victims_of, names = self._victims, tuple(self._reserved_names)
        self.clear()
        shared = _shared_columns(runs, len(cache.schema))
        shards = max(cache.shards, 1)
        seen = tuple(map(cache.seen, range(shards))) if shards > 1 else ()
        proposals: list[PendingProposal] = []
        of_shard = nodes % shards
        for shard in np.unique(of_shard).tolist():
            at = slice(None) if shards == 1 else np.flatnonzero(of_shard == shard)
            chosen = candidates[at]
            victims = _by_position(victims_of, at) if victims_of else {}
            columns = ProposalColumns(
                batch_id=first_id + len(proposals),
                shard=shard,
                snapshot_seq=cache.seqs.get(shard, 0),
                uids=work.uids[rows[at]],
                slots=slots[at].astype(np.uint16),
                candidates=np.where(chosen < 0, NONE_U32, chosen).astype(np.uint32),
                requests=shared.requests,
                priorities=shared.priorities,
                attempts=shared.attempts,
                devices=shared.devices if shared.devices.any() else None,
                groups=groups,
                reserved_names=names if any(names) else (),
                conflicts=work.conflicts,
                victims={position: found.uids for position, found in victims.items()},
                victims_must_go=any(found.must_go for found in victims.values()),
                seen=seen,
                firsts=firsts,
                places=None if shards == 1 else np.arange(len(nodes), dtype=np.uint16)[at],
            )
            assumption = Assumption(
                nodes[at],
                slots[at],
                shared.requests,
                masks[at],
                shared.devices[:, 1],
                expires_at=expires_at,
                groups=groups,
            )
            proposals.append(PendingProposal(columns, work, runs, rows[at], assumption, victims, proposed_at))
        return proposals


def _joined(alternates: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """The rows of all; where some have fewer alternates than others, -1 ends the row."""
    widest = max(rows.shape[1] for rows in alternates)
    return np.concatenate(
        [
            rows
            if rows.shape[1] == widest
            else np.pad(rows, ((0, 0), (0, widest - rows.shape[1])), constant_values=-1)
            for rows in alternates
        ]
    )


def _by_position(victims: Mapping[int, Victims], at: NDArray[np.intp] | slice) -> dict[int, Victims]:
    """The victims by position among the pods that `at` selects."""
    places = enumerate(at.tolist()) if isinstance(at, np.ndarray) else ((place, place) for place in victims)
    return {
        position: victims[place] for position, place in places if place in victims and victims[place].uids
    }


@dataclass(frozen=True, slots=True)
class _SharedColumns:
    requests: NDArray[np.int64]  # (s, R)
    priorities: NDArray[np.int32]  # (s,)
    attempts: NDArray[np.uint16]  # (s,)
    devices: NDArray[np.uint16]  # (s, 2), zeros for none


def _shared_columns(runs: tuple[Run, ...], resources: int) -> _SharedColumns:
    # Where pods of a batch are mixed, each is a run, and few of them are of different classes.
    numbers: dict[int, int] = {}
    of_run = [numbers.setdefault(id(run.pod_class), len(numbers)) for run in runs]
    classes = {id(run.pod_class): run.pod_class for run in runs}.values()
    requests = np.zeros((len(classes), resources), np.int64)
    devices = np.zeros((len(classes), 2), np.uint16)
    for row, pod_class in enumerate(classes):
        demand = pod_class.demand
        requests[row, : len(demand.request)] = demand.request
        # The node has devices for these resources, and none of the resources itself.
        by_devices = {m.resource for held in pod_class.group.held_claims for m in held.mappings}
        for resource, name in zip(demand.rows.tolist(), demand.names, strict=True) if by_devices else ():
            requests[row, resource] *= name not in by_devices
        if demand.devices is not None and DEVICE_RESOURCE not in by_devices:
            devices[row] = demand.devices.count, demand.devices.milli
    priorities = np.array([pod_class.priority for pod_class in classes], np.int32)
    attempts = np.array([run.attempt for run in runs], np.uint16)
    return _SharedColumns(requests[of_run], priorities[of_run], attempts, devices[of_run])
