"""Placements gathered until they are proposed, one proposal a shard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.wire.columns import NONE_U32
from scheduler_worker.core.assumptions import Assumption
from scheduler_worker.core.changes import NodeIndexes
from scheduler_worker.core.classes import PodClass
from scheduler_worker.core.messages import ProposalColumns
from scheduler_worker.core.placement import Placed
from scheduler_worker.core.reliance import counts_on_others
from scheduler_worker.core.work import Run, Work


class Victims(NamedTuple):
    """Pods that go for one pod."""

    uids: tuple[bytes, ...]
    vacated: Assumption  # what their node will have back
    leaving_ms: int  # for how long the last of them may still be there
    must_go: bool  # in the way for more than their room, by rules that the ledger does not judge


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A proposal without a verdict, and what it stands for."""

    columns: ProposalColumns
    work: Work
    runs: tuple[Run, ...]  # by slot
    rows: NDArray[np.intp]  # (n,): rows of the work batch
    assumption: Assumption
    victims: Mapping[int, Victims]  # by position in the proposal


class Draft:
    """Placed runs of one work batch. A run is a slot of the proposals to be."""

    def __init__(self) -> None:
        self._placed: list[tuple[Run, Placed]] = []
        self._firsts: list[bool] = []
        self._victims: dict[int, Victims] = {}  # by place among all pods
        self.pods = 0

    @property
    def counts_on_others(self) -> bool:
        """Whether pods of it may count on others of it."""
        return any(counts_on_others(run.pod_class.spec) for run, _ in self._placed)

    def precedes(self, run: Run) -> bool:
        """Whether what it has comes before the run for the ledger too, which serves higher priorities first."""
        return not self._placed or self._placed[-1][0].pod_class.priority >= run.pod_class.priority

    @property
    def work(self) -> Work | None:
        """The work batch it belongs to; None when it is empty."""
        return self._placed[0][0].work if self._placed else None

    def add(self, run: Run, placed: Placed, victims: Sequence[Victims] = (), *, first: bool = False) -> None:
        """The first pods of `run` go where `placed` says, others for each of them if there are `victims`; `first`: as the first
        of their kind."""
        self._victims.update(enumerate(victims, self.pods))
        self._placed.append((run, placed))
        self._firsts.append(first)
        self.pods += len(placed.nodes)

    @property
    def placements(self) -> list[tuple[PodClass, NodeIndexes]]:
        """Of each run its class and the nodes chosen."""
        return [(run.pod_class, placed.nodes) for run, placed in self._placed]

    def assumed(self, resources: int) -> Assumption | None:
        """What it counts for on the nodes, as if it were one proposal; None when it is empty."""
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
        self._victims = {}
        self.pods = 0

    def close(
        self,
        first_id: int,
        seqs: dict[int, int],
        shards: int,
        resources: int,
        expires_at: float,
        *,
        seen: tuple[int, ...] = (),
    ) -> list[Proposal]:
        """The proposals, numbered from `first_id` on, one for each shard that was chosen. Empties the draft.

        `seqs` is where the cache stands per shard, `resources` the length of the schema; `seen` up to where it knows per shard
        which pods are where.
        """
        work = self.work
        if work is None:
            return []
        runs = tuple(run for run, _ in self._placed)
        sizes = [len(placed.nodes) for _, placed in self._placed]
        nodes = np.concatenate([placed.nodes for _, placed in self._placed])
        candidates = np.column_stack((nodes, np.concatenate([placed.alternates for _, placed in self._placed])))
        masks = np.concatenate([placed.card_masks for _, placed in self._placed])
        rows = np.concatenate([run.rows[:size] for run, size in zip(runs, sizes, strict=True)])
        slots = np.repeat(np.arange(len(runs)), sizes)
        groups = tuple(run.pod_class.group for run in runs)
        firsts = np.array(self._firsts) if any(self._firsts) else None
        victims_of = self._victims
        self.clear()
        shared = _shared_columns(runs, resources)
        proposals: list[Proposal] = []
        of_shard = nodes % shards
        for shard in np.unique(of_shard).tolist():
            at = slice(None) if shards == 1 else np.flatnonzero(of_shard == shard)
            wanted = candidates[at]
            victims = _by_position(victims_of, at) if victims_of else {}
            columns = ProposalColumns(
                batch_id=first_id + len(proposals),
                shard=shard,
                snapshot_seq=seqs.get(shard, 0),
                uids=work.uids[rows[at]],
                slots=slots[at].astype(np.uint16),
                candidates=np.where(wanted < 0, NONE_U32, wanted).astype(np.uint32),
                requests=shared.requests,
                priorities=shared.priorities,
                attempts=shared.attempts,
                devices=shared.devices if shared.devices.any() else None,
                groups=groups,
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
            proposals.append(Proposal(columns, work, runs, rows[at], assumption, victims))
        return proposals


def _by_position(victims: Mapping[int, Victims], at: NDArray[np.intp] | slice) -> dict[int, Victims]:
    """By place among those pods that `at` chooses."""
    places = enumerate(at.tolist()) if isinstance(at, np.ndarray) else ((place, place) for place in victims)
    return {position: victims[place] for position, place in places if place in victims and victims[place].uids}


@dataclass(frozen=True, slots=True)
class _SharedColumns:
    requests: NDArray[np.int64]  # (s, R)
    priorities: NDArray[np.int32]  # (s,)
    attempts: NDArray[np.uint16]  # (s,)
    devices: NDArray[np.uint16]  # (s, 2), zeros for none


def _shared_columns(runs: tuple[Run, ...], resources: int) -> _SharedColumns:
    requests = np.zeros((len(runs), resources), np.int64)
    devices = np.zeros((len(runs), 2), np.uint16)
    for slot, run in enumerate(runs):
        demand = run.pod_class.demand
        requests[slot, : len(demand.request)] = demand.request
        if demand.devices is not None:
            devices[slot] = demand.devices.count, demand.devices.milli
    priorities = np.array([run.pod_class.priority for run in runs], np.int32)
    return _SharedColumns(requests, priorities, np.array([run.attempt for run in runs], np.uint16), devices)
