"""A worker's own view of all nodes, kept up to date by the feed, by verdicts and by the worker's placements.

A pod that the worker placed counts from `assume` until the feed shows its commit, or until it is forgotten or
expires. `requested` is always the sum of the committed and the assumed layer."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hoss.model.cluster import StorageUpdate
from hoss.model.pod import PodGroup
from hoss.model.slices import Steps, finished
from hoss.wire.columns import FLAGS_CLOSED
from scheduler_worker.core.cache.assumptions import Assumption, AssumptionTable, CardMasks
from scheduler_worker.core.cache.columns import NodeColumns, NodeState
from scheduler_worker.core.cache.devices import DeviceCatalogue
from scheduler_worker.core.cache.storage import AttachedVolumes, NodeSets, StorageCatalogue
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.messages import AccountBatch, FeedUpdate
from scheduler_worker.core.nodes import ChangeLog, NodeIndexes

# Specs or groups of a snapshot that are taken in between two yields, and what one takes.
_SLICE_ROWS = 100
_ROW_MICROS = 40.0

# With fewer pods a slot than this, a look at each pod costs less than NumPy's calls for each slot.
_FEW_PODS_A_SLOT = 16


class NodeInfoCache(NodeColumns):
    """The columns, the pods assumed on them, and where each shard's feed stands."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = 0  # 0 until the first snapshot
        self.seqs: dict[int, int] = {}  # shard -> the sequence number its nodes stand at
        self.changes = ChangeLog()  # nodes whose room, existence or spec changed
        # Those of them that may admit what they refused. Others only took pods (see FilterPlugin.filter).
        self.freed = ChangeLog()
        self.spec_changes = ChangeLog()  # nodes whose existence or spec changed
        self.storage = StorageCatalogue(self.catalogue.name)
        self.attached_volumes = AttachedVolumes(
            self.storage, self.catalogue, self.spec_changes, self.pod_index
        )
        self.pod_index.mounted.listener = self.storage.placed
        self.devices = DeviceCatalogue(self.pod_index.held_claims, self.catalogue, self.spec_changes)
        self.node_sets = NodeSets(self.catalogue, self.spec_changes)
        self._assumptions = AssumptionTable()
        self._partial: set[int] = set()  # shards of which a snapshot is being taken in
        # shard -> seqs of holds in progress, whose pods the feed has not shown
        self._holds: dict[int, set[int]] = {}

    # From the ledger

    @property
    def whole(self) -> bool:
        """False while a snapshot is being taken in: no pod may be placed now."""
        return not self._partial

    def apply_feed(self, update: FeedUpdate) -> None:
        """Take in one message of the feed. The caller makes sure that a shard's messages come without
        gaps."""
        finished(self.applying(update))

    def applying(self, update: FeedUpdate) -> Steps[None]:
        """`apply_feed` in slices. Between them verdicts may be taken in, and no pod be placed (`whole`)."""
        self.shards = update.shards or self.shards
        self._extend_schema(update.schema)
        spec_nodes = np.array([index for index, _ in update.specs], np.intp)
        indexes = np.concatenate((update.accounts.indexes, update.accounts.card_indexes, spec_nodes)).astype(
            np.intp
        )
        # Pods may still stand on nodes that are gone.
        named = np.concatenate((indexes, *(run.nodes for run in update.pods)))
        self._grow(int(named.max(initial=-1)) + 1)
        if update.snapshot:
            yield from self._replace_shard(update)
        else:
            self._apply_changes(update, indexes, spec_nodes)
        self.seqs[update.shard] = update.seq
        holds = set() if update.snapshot else self._holds.get(update.shard, set())
        self._holds[update.shard] = holds.union(update.holds).difference(update.ended_holds)
        self._partial.discard(update.shard)

    def apply_fresh(self, accounts: AccountBatch) -> None:
        """Take in accounts that came with a refusal. They may be ahead of the feed; older accounts of the
        feed are ignored then."""
        nodes = np.unique(accounts.indexes.astype(np.intp))
        if len(nodes) == 0 or int(nodes[-1]) >= self.size:
            return  # the feed has not shown the node; an account without a spec is of no use
        before = self._state(nodes)
        self.accounts.put(accounts)
        self._settle(nodes, before)

    def apply_objects(self, update: StorageUpdate) -> None:
        """Take in changes of storage objects and of nominated pods. Device objects go to `devices`."""
        self.storage.apply(update)
        self._log(self.pod_index.nominated.apply(update))

    # From this worker

    def assume(self, nodes: NodeIndexes, demand: Demand, group: PodGroup) -> CardMasks:
        """Count one pod with this demand, of this group, on each of `nodes` (repetitions allowed): Reserve.

        Returns the cards that each pod is expected to get. `track` or `forget_unanswered` must follow."""
        request = demand.request
        self.pod_index.add(group, nodes)
        if len(nodes) == 1:
            node = int(nodes[0])
            self.assumed[:, node] += request
            self.requested[:, node] += request
            self.changes.add(node)
        else:
            for row in demand.rows:
                np.add.at(self.assumed[row], nodes, request[row])
                np.add.at(self.requested[row], nodes, request[row])
            self.changes.extend(nodes)
        if demand.devices is None:
            return np.zeros(len(nodes), np.uint16)
        return self.cards.assume(nodes, demand.devices)

    def assume_each(
        self, nodes: NodeIndexes, requests: NDArray[np.int64], groups: Sequence[PodGroup]
    ) -> None:
        """Count a pod on each of `nodes`, all different, with its own request, (resources, n), and group.
        Without cards."""
        self.assumed[:, nodes] += requests
        self.requested[:, nodes] += requests
        self.changes.extend(nodes)
        of_group: dict[PodGroup, list[int]] = {}
        for row, group in enumerate(groups):
            of_group.setdefault(group, []).append(row)
        for group, rows in of_group.items():
            self.pod_index.add(group, nodes[rows])

    def track(self, assumption: Assumption) -> None:
        """Pods that `assume` counted are proposed now; a verdict will confirm or forget them."""
        self._assumptions.add(assumption)

    def vacate(self, assumption: Assumption) -> None:
        """Count victims as gone by an assumption of negative amounts, and track it. The pod index counts them
        until the feed shows their eviction."""
        if not len(assumption.nodes):
            return  # no verdict is about it, so nothing would end it
        self._add_amounts(assumption, np.arange(len(assumption.nodes)), sign=1)
        self._recombine(assumption.nodes)
        self.track(assumption)

    def confirm(self, assumption: Assumption, shard: int, seq: int) -> None:
        """The ledger committed the live rows as `seq`. They end when the shard's feed gets there."""
        if self._assumptions.confirm(assumption, shard, seq) and self.seqs.get(shard, 0) >= seq:
            self._end(self._assumptions.reached(shard, seq))

    def adopt(self) -> None:
        """Move what the ledger has committed into the committed layer at once: no feed will show it.

        A commit that an account from a refusal contains already is not added again. The pod index goes on
        counting the pods. The digest is the ledger's again after the next snapshot of every shard."""
        confirmed = self._assumptions.take_confirmed()
        if not confirmed:
            return
        nodes = np.unique(np.concatenate([assumption.nodes for assumption in confirmed]))
        before = self._state(nodes)
        for assumption in confirmed:
            rows = np.flatnonzero(assumption.live)
            self._add_amounts(assumption, rows, sign=-1)
            assumption.live[rows] = False
            self.accounts.adopt(assumption, rows)
        self._settle(nodes, before)

    def forget(self, assumption: Assumption, rows: NDArray[np.intp]) -> None:
        """Give back these rows; rows given back before are skipped."""
        rows = rows[assumption.live[rows]]
        if len(rows):
            self._give_up(assumption, rows)
            self._recombine(assumption.nodes[rows])
        if not assumption.live.any():
            self._assumptions.close(assumption)

    def expire(self, now: float) -> int:
        """Give back assumptions past their deadline; how many pods that were. Later verdicts on them change
        nothing."""
        expired = self._assumptions.take_expired(now)
        pods = sum(int(a.live.sum()) for a in expired)
        self._end(expired)
        return pods

    def forget_unanswered(self) -> None:
        """Give back everything that the ledger has not committed, tracked or not.

        Pods that are not tracked leave the pod index by `forget_group`."""
        for assumption in self._assumptions.take_open():
            self._uncount(assumption, np.flatnonzero(assumption.live))
            assumption.live[:] = False
        self.assumed[:] = 0
        self.cards.assumed[:] = 0
        for assumption in self._assumptions:
            self._add_amounts(assumption, np.flatnonzero(assumption.live), sign=1)
        self.requested = self.accounts.committed + self.assumed
        self.cards.combine(np.arange(self.size))
        self.changes.everything()
        self.freed.everything()

    def regroup(self, before: PodGroup, after: PodGroup, nodes: NodeIndexes) -> None:
        """Pods that were assumed on `nodes` as one group, and never tracked, are of another."""
        self.pod_index.remove(before, nodes)
        self.pod_index.add(after, nodes)

    def forget_group(self, group: PodGroup, nodes: NodeIndexes) -> None:
        """Pods of the group that were assumed on `nodes` and never tracked leave the pod index."""
        self.pod_index.remove(group, nodes)

    # For placing

    def seen(self, shard: int) -> int:
        """The seq up to which the pod index is complete: the pods of a hold in progress come later."""
        holds = self._holds.get(shard)
        return min(holds) - 1 if holds else self.seqs.get(shard, 0)

    @property
    def in_flight(self) -> list[Assumption]:
        """This worker's assumptions that still count."""
        return [assumption for assumption in self._assumptions if assumption.live.any()]

    @property
    def undecided(self) -> bool:
        """Whether any assumption has no answer from the ledger yet."""
        return self._assumptions.undecided

    def table_sizes(self) -> dict[str, int]:
        """The entries of each table."""
        return {
            "node_indexes": self.size,
            "assumptions": len(self._assumptions),
            **self.catalogue.table_sizes(),
            **self.pod_index.table_sizes(),
            **self.storage.table_sizes(),
            **self.devices.table_sizes(),
        }

    def digest(self, shard: int) -> int:
        """Digest of the shard's committed layer: the ledger's own at the same sequence number."""
        return self.accounts.digest(np.arange(shard, self.size, max(self.shards, 1)))

    # Within

    def _apply_changes(self, update: FeedUpdate, indexes: NodeIndexes, spec_nodes: NodeIndexes) -> None:
        """Take in an entry of the feed, about the nodes `indexes` and the specs of `spec_nodes`."""
        ended = self._assumptions.reached(update.shard, update.seq)
        nodes = np.unique(np.concatenate((indexes, *(a.nodes for a in ended))))
        before = self._state(nodes)
        if len(spec_nodes):
            self._reset_nodes(np.intersect1d(spec_nodes, update.accounts.indexes))
        self.catalogue.apply(update.specs)
        self.accounts.put(update.accounts)
        for assumption in ended:
            self._give_up(assumption, np.flatnonzero(assumption.live))
        for run in update.pods:
            (self.pod_index.remove if run.gone else self.pod_index.add)(run.group, run.nodes)
        self._settle(nodes, before)
        self._log_specs(spec_nodes)

    def _replace_shard(self, update: FeedUpdate) -> Steps[None]:
        """Take in a snapshot: specs and pods in slices, then all amounts in one step, with what ends by
        them."""
        self._partial.add(update.shard)
        of_shard = np.arange(update.shard, self.size, max(self.shards, 1))
        before = self._state(of_shard)
        self.catalogue.keep_only((index for index, _ in update.specs), of_shard)
        for start in range(0, len(update.specs), _SLICE_ROWS):
            specs = update.specs[start : start + _SLICE_ROWS]
            self.catalogue.apply(specs)
            yield len(specs) * _ROW_MICROS
        yield from self._replace_pods(update, of_shard)
        self.accounts.blank(of_shard)
        self.accounts.put(update.accounts)
        self._settle(of_shard, before)
        self._end(self._assumptions.reached(update.shard, update.seq))
        self._log_specs(of_shard)

    def _replace_pods(self, update: FeedUpdate, of_shard: NodeIndexes) -> Steps[None]:
        """Count the pods of a snapshot, and what is assumed, in place of what was counted on its nodes."""
        where = np.zeros(self.accounts.capacity, np.bool_)
        where[of_shard] = True
        shown: dict[PodGroup, list[NodeIndexes]] = {}
        for start in range(0, len(update.pods), _SLICE_ROWS):
            runs = update.pods[start : start + _SLICE_ROWS]
            for run in runs:  # the first look at a group makes its hash
                shown.setdefault(run.group, []).append(run.nodes)
            yield len(runs) * _ROW_MICROS
        for group in self.pod_index.groups:
            shown.setdefault(group, [])
        groups = list(shown)
        for start in range(0, len(groups), _SLICE_ROWS):
            assumed: dict[PodGroup, list[NodeIndexes]] = {}  # as of now: some may have ended since
            for assumption in self._assumptions:
                rows = np.flatnonzero(assumption.live & where[assumption.nodes])
                for group, nodes in _by_group(assumption, rows):
                    assumed.setdefault(group, []).append(nodes)
            of_slice = groups[start : start + _SLICE_ROWS]
            for group in of_slice:
                there = np.concatenate((of_shard[:0], *shown[group], *assumed.get(group, ())))
                self.pod_index.replace(group, where, there)
            yield len(of_slice) * _ROW_MICROS

    def _reset_nodes(self, nodes: NodeIndexes) -> None:
        """Forget nodes whose full state comes next, and count again what is assumed on them.

        This repairs both layers if either was wrong: a resolver republishes a node when it has doubts."""
        self.accounts.blank(nodes)
        self.assumed[:, nodes] = 0
        self.cards.assumed[nodes] = 0
        for assumption in self._assumptions:
            self._add_amounts(
                assumption, np.flatnonzero(assumption.live & np.isin(assumption.nodes, nodes)), sign=1
            )

    def _settle(self, nodes: NodeIndexes, before: NodeState) -> None:
        # The worker's own commit moves from one layer to the other and changes nothing for rankings.
        self._combine(nodes)
        after = self._state(nodes)
        reflagged = before.flags != after.flags
        self.changes.extend(nodes[after.unlike(before)])
        self.freed.extend(nodes[after.freed_since(before)])
        if reflagged.any():
            self.catalogue.cordoned[nodes] = (after.flags & FLAGS_CLOSED) != 0
            self._log_specs(nodes[reflagged])

    def _log(self, nodes: NodeIndexes) -> None:
        self.changes.extend(nodes)
        self.freed.extend(nodes)

    def _log_specs(self, nodes: NodeIndexes) -> None:
        self._log(nodes)
        self.spec_changes.extend(nodes)

    def _recombine(self, nodes: NodeIndexes) -> None:
        self._combine(nodes)
        self._log(nodes)

    def _end(self, assumptions: list[Assumption]) -> None:
        for assumption in assumptions:
            rows = np.flatnonzero(assumption.live)
            self._give_up(assumption, rows)
            self._recombine(assumption.nodes[rows])

    def _give_up(self, assumption: Assumption, rows: NDArray[np.intp]) -> None:
        self._add_amounts(assumption, rows, sign=-1)
        self._uncount(assumption, rows)
        assumption.live[rows] = False  # a later answer must not give it back again

    def _uncount(self, assumption: Assumption, rows: NDArray[np.intp]) -> None:
        for group, nodes in _by_group(assumption, rows):
            self.pod_index.remove(group, nodes)

    def _add_amounts(self, assumption: Assumption, rows: NDArray[np.intp], *, sign: int) -> None:
        nodes, slots = assumption.nodes[rows], assumption.slots[rows]
        for resource in np.flatnonzero(assumption.requests.any(axis=0)):
            np.add.at(self.assumed[resource], nodes, sign * assumption.requests[slots, resource])
        millis = assumption.card_millis[slots]
        self.cards.add(nodes, assumption.card_masks[rows], millis if sign > 0 else np.negative(millis))


def _by_group(assumption: Assumption, rows: NDArray[np.intp]) -> Iterator[tuple[PodGroup, NodeIndexes]]:
    """The nodes of these rows, by their pods' group; a group may come more than once."""
    groups = assumption.groups
    if not groups or not len(rows):
        return
    slots, nodes = assumption.slots[rows], assumption.nodes[rows]
    if len(groups) * _FEW_PODS_A_SLOT <= len(rows):
        for slot, group in enumerate(groups):
            yield group, nodes[slots == slot]
        return
    # Where pods of a batch are mixed, each is a slot, and many are of one group.
    of_group: dict[PodGroup, list[int]] = {}
    for slot, node in zip(slots.tolist(), nodes.tolist(), strict=True):
        of_group.setdefault(groups[slot], []).append(node)
    for group, there in of_group.items():
        yield group, np.array(there, np.intp)
