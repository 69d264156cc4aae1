"""Moves: how a pod that holds room on one node, its *source*, comes to hold room on another, its *target*.

The target is reserved while the source stands, by an ordinary commit with all of a commit's rules. Its row is
the pod's UID with every bit turned over, marked MOVE_TARGET, so that nobody takes it for the pod's
reservation. Like any assumed reservation it ends by its lease. A move ends in one of three ways: it is
*confirmed* (the target becomes the pod's reservation and the source is released, in one step), *undone* (the
target is aborted), or timed out. If the source is on another shard, the step that confirms also notes the
source in `moved`, and whoever finds the note releases it. So the pod has one reservation that counts at every
moment: the source until the confirmation, and the target from then on (docs/adr/0071-moves.md).

In Kubernetes mode a pod cannot change its node: it is evicted, and its controller makes a *successor* with a
UID of its own. There the confirmation gives the target to the successor, and the source is left to the pod
(docs/adr/0081-moves-in-kubernetes-mode.md).

A pod that stays on its shard needs no row of a target, no lease and no confirmation: it gets the target as
its reservation, confirmed, and gives the source up in one step, or nothing changes
(docs/adr/0097-moves-in-one-step.md). All rules of a commit hold there as well: the target must fit while the
source stands, and pods that are judged later may take the room that earlier ones left. `lua/move.lua` does
the same in Redis."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import Criteria
from hoss.wire.columns import NONE_U32, Uids
from hoss.wire.uids import UID_BYTES
from resolver.core.serving import Ruling, Serving
from resolver.core.shard import Ordered, Reservation, Shard, ShardChange, Uid, group_runs
from resolver.core.values import Group, Proposal, Reservations, Verdict, Writer


class MoveResult(IntEnum):
    """What became of a move that was to be confirmed. Numbered as hoss.v1.MoveResult."""

    MOVED = 1  # now or before
    TARGET_GONE = 2  # its lease is over, it was undone, or its node is gone: the pod stays
    SOURCE_CHANGED = 3  # the pod does not hold what it held when its target was reserved: the target ends
    FENCED = 4  # who asks may not write any more: nothing was changed


def target_uids(uids: Uids) -> Uids:
    """(n, 16): the UIDs of the pods' targets, and the pods of targets."""
    return ~uids


class MoveRow(NamedTuple):
    """One pod's move. `source`, `node` and `seq` name the reservations that are meant, by node and commit."""

    uid: bytes  # of the pod that gets the target
    target: bytes  # UID of the target
    node: int
    seq: int
    source: tuple[int, int] | None  # None: a successor gets the target, and the source stays
    source_here: bool  # on the target's shard


@dataclass(frozen=True, slots=True)
class Moves:
    """Moves of n pods, no pod twice, with all targets on one shard."""

    uids: Uids  # (n, 16), of the pods
    nodes: NDArray[np.uint32]  # (n,): targets
    seqs: NDArray[np.uint64]  # (n,): the commits that reserved the targets
    sources: NDArray[np.uint32]  # (n,): nodes
    source_seqs: NDArray[np.uint64]  # (n,): the commits of the pods' reservations there
    # (n, 16): the pods that get the targets, of which none holds anything, and the sources stay; None: the
    # pods themselves get them.
    successors: Uids | None = None

    def __len__(self) -> int:
        return len(self.uids)

    def of(self, rows: "NDArray[np.intp] | NDArray[np.bool_] | slice") -> "Moves":
        """A subset."""
        return Moves(
            self.uids[rows],
            self.nodes[rows],
            self.seqs[rows],
            self.sources[rows],
            self.source_seqs[rows],
            None if self.successors is None else self.successors[rows],
        )

    def rows(self, shards: int, shard: int) -> Iterator[MoveRow]:
        """The moves one by one; `shard`: that of their targets."""
        getting = self.uids if self.successors is None else self.successors
        columns = (self.nodes, self.seqs, self.sources, self.source_seqs)
        rows = zip(getting, target_uids(self.uids), *(column.tolist() for column in columns), strict=True)
        for uid, target, node, seq, source, source_seq in rows:
            left = (source, source_seq) if self.successors is None else None
            here = left is not None and source % shards == shard
            yield MoveRow(uid.tobytes(), target.tobytes(), node, seq, left, here)


def sources_by_shard(
    sources: Mapping[bytes, tuple[int, int]], shards: int
) -> dict[int, tuple[Uids, NDArray[np.uint64]]]:
    """The UIDs and commits of sources (node and commit by UID), by the shard of the node."""
    found: dict[int, tuple[list[bytes], list[int]]] = {}
    for uid, (node, seq) in sources.items():
        uids, seqs = found.setdefault(node % shards, ([], []))
        uids.append(uid)
        seqs.append(seq)
    return {
        shard: (np.frombuffer(b"".join(uids), np.uint8).reshape(-1, UID_BYTES), np.array(seqs, np.uint64))
        for shard, (uids, seqs) in found.items()
    }


def target_proposal(
    held: Reservations,
    groups: Sequence[Group | None],
    nodes: NDArray[np.uint32],
    *,
    writer: Writer,
    seen: tuple[int, ...],
    at_once: bool = False,
) -> Proposal:
    """The proposal that reserves the targets of pods: what each holds (row by row of `held`, with its group),
    on another node of one shard. `seen`: by shard, the seq up to which whoever chose the nodes knew it. The
    nodes are refused if their specs changed since then, and so are pods if rules concern them that did not
    hold then. `at_once`: the pods hold this on the same shard, and are moved in one step."""
    records = held.records
    masks = np.ascontiguousarray(records["card_mask"]).view(np.uint8).reshape(len(records), -1)
    counts = np.unpackbits(masks, axis=1).sum(axis=1)
    numbers: dict[Group | None, int] = {}
    alike = np.column_stack(
        (
            records["requests"],
            records["priority"],
            records["attempt"],
            counts,
            records["card_milli"],
            np.array([numbers.setdefault(group, len(numbers)) for group in groups], np.int64),
        )
    ).astype(np.int64)
    # Rows as bytes: pods that are alike share a slot.
    rows = alike.view(np.dtype((np.void, alike.itemsize * alike.shape[1]))).reshape(-1)
    _, first, slots = np.unique(rows, return_index=True, return_inverse=True)
    devices = np.stack([counts[first], records["card_milli"][first]], axis=1).astype(np.uint16)
    of_slots = tuple(groups[row] for row in first.tolist())
    return Proposal(
        worker=writer.worker,
        epoch=writer.epoch or 0,
        snapshot_seq=seen[int(nodes[0]) % len(seen)],
        uids=held.uids if at_once else target_uids(held.uids),
        slots=slots.reshape(-1).astype(np.uint16),
        nodes=nodes.reshape(-1, 1),
        requests=np.ascontiguousarray(records["requests"][first]),
        priorities=records["priority"][first].astype(np.int32),
        attempts=records["attempt"][first].astype(np.uint16),
        devices=devices if devices[:, 0].any() else None,
        groups=of_slots if any(group is not None for group in of_slots) else (),
        criteria=Criteria.STRICT,
        seen=seen,
        moves=not at_once,
        source_seqs=records["seq"].astype(np.uint64) if at_once else None,
    )


def move_at_once(shard: Shard, proposal: Proposal, source_seqs: NDArray[np.uint64]) -> list[Ruling]:
    """Move pods in one step. Rulings in the proposal's order. COMMITTED: the pod is on the target. DUPLICATE:
    it does not hold its source as it was, and nothing was changed; the node and commit are those of what it
    holds, and NONE_U32 and 0 if that is nothing, or only prepared."""
    seq, changed = shard.seq + 1, Ordered()
    serving = Serving(shard, proposal)
    shard.constraints.begin()
    rulings: dict[int, Ruling] = {}
    sources: dict[Uid, Reservation] = {}  # of moved pods
    order = proposal.serving_order()
    for position in range(len(proposal)) if order is None else order.tolist():
        uid = proposal.uids[position].tobytes()
        held = shard.reservations.get(uid)
        if held is None or shard.prepared.open(held.seq):
            rulings[position] = Ruling(Verdict.DUPLICATE, NONE_U32)
        elif held.seq != source_seqs[position] or held.is_terminating:
            rulings[position] = Ruling(Verdict.DUPLICATE, held.node, held.seq)
        else:
            rulings[position] = serving.place(position)
            if rulings[position].verdict is Verdict.COMMITTED:
                sources[uid] = held
                changed.add(rulings[position].node)
                _leave(shard, uid, held, seq, changed)
                # At once: the next pod must not get what this one's victims hold again.
                shard.settle_evictions((uid,))
    if sources:
        for node in changed:
            shard.fit_again(shard.accounts[node])
        came = group_runs((shard.reservations[uid] for uid in sources), gone=False)
        left = group_runs(sources.values(), gone=True)
        shard.publish(
            ShardChange(seq, tuple(changed), released=len(sources), runs=came + left, epoch=proposal.epoch)
        )
    return [rulings[position] for position in range(len(proposal))]


def _leave(shard: Shard, uid: Uid, held: Reservation, seq: int, changed: Ordered) -> None:
    if held.node in shard.accounts:  # else it is forgotten, or its account is damaged
        shard.return_resources(uid, held)
        shard.accounts[held.node].seq = seq
        changed.add(held.node)
