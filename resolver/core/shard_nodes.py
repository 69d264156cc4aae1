"""The nodes of one shard in the ledger's model: added, changed, removed, forgotten, taken into quarantine.

An operation is a call of the script of that name, as in resolver.core.arbiter. A change of the spec that
makes a node smaller than what it holds is told by FLAG_SHRUNK, and is no overcommitment."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hoss.wire.columns import (
    FLAG_GONE,
    FLAG_QUARANTINED,
    FLAG_SHRUNK,
    FLAG_UNSCHEDULABLE,
    NONE_U32,
)
from resolver.core.accounts import Account, resized_cards
from resolver.core.quarantine import QuarantineRecord, QuarantineRequest
from resolver.core.shard import Shard, ShardChange
from resolver.core.values import LedgerNodeChange


class RemovedNodes(NamedTuple):
    """`nodes`: those that are closed now. `missing`: positions of names that no node has. `before`: nodes
    that were removed earlier and are not forgotten: what they hold may not be released yet."""

    nodes: tuple[int, ...]
    missing: list[int]
    before: list[int]


class ShardNodes(Shard):
    """The operations on the nodes of one shard."""

    def upsert(
        self, changes: Sequence[LedgerNodeChange], expected: bytes = b""
    ) -> tuple[list[int], list[int]] | None:
        """Indexes, and positions of overcommitted nodes. None: the only node does not have the spec
        `expected`."""
        if expected and self.specs.get(self.names.get(changes[0].name, NONE_U32)) != expected:
            return None
        seq, touched, over = self.seq + 1, [], []
        for position, change in enumerate(changes):
            node = self.index_of(change.name)
            known = self.resource_versions.get(node, 0)
            newest = max(known, change.resource_version)
            is_old = 0 < change.resource_version < known and node in self.specs
            if newest:
                self.resource_versions[node] = newest
            if node in self.damaged_accounts:
                if not is_old:
                    self._describe(node, change)
                    self.removed.pop(node, None)
                continue
            if not is_old and self.specs.get(node) != change.spec:
                self._change(node, change, seq)
                touched.append(node)
            if self.accounts[node].has(FLAG_SHRUNK) or self.accounts[node].exceeded():
                over.append(position)
        if touched:
            self.publish(
                ShardChange(seq, tuple(touched), specs=tuple((node, self.specs[node]) for node in touched))
            )
        return [self.names[change.name] for change in changes], over

    def _change(self, node: int, change: LedgerNodeChange, seq: int) -> None:
        account = self.accounts.setdefault(node, Account(born=seq))
        if account.has(FLAG_GONE):  # it comes back before it was forgotten
            account.born = seq
            account.set_flag(FLAG_GONE, False)
            account.set_flag(FLAG_QUARANTINED, node in self.quarantine)
            self.removed.pop(node, None)
        account.widen(len(change.allocatable))
        exceeded_before = account.overcommitted()
        account.allocatable[:] = 0
        account.allocatable[: len(change.allocatable)] = change.allocatable
        if account.cards or change.cards:
            account.cards = resized_cards(account.cards, change.cards)
        # Only a change of the node sets FLAG_SHRUNK. Pods that exceeded the node before are overcommitment,
        # which an audit has to find.
        shrunk = account.exceeded() and (account.has(FLAG_SHRUNK) or not exceeded_before)
        account.set_flag(FLAG_SHRUNK, shrunk)
        account.set_flag(FLAG_UNSCHEDULABLE, change.unschedulable)
        account.seq = account.described = seq
        self._describe(node, change)

    def _describe(self, node: int, change: LedgerNodeChange) -> None:
        self.specs[node] = change.spec
        self.constraints.labels[node] = dict(change.labels)
        self.constraints.damaged_labels.pop(node, None)

    def remove(self, names: Sequence[str]) -> RemovedNodes:
        """Close the nodes: from now on they get nothing. What they hold is released afterwards; then
        `forget_nodes` forgets them."""
        seq, missing, gone, before = self.seq + 1, [], [], []
        for position, name in enumerate(names):
            node = self.names.get(name)
            if node is None or node in self.removed:
                missing.append(position)
                before += [] if node is None else [node]
                continue
            account = self.accounts.setdefault(node, Account(born=0))
            account.set_flag(FLAG_GONE, True)
            account.seq = seq
            del self.specs[node]
            self.constraints.labels.pop(node, None)
            self.constraints.damaged_labels.pop(node, None)
            self.removed[node] = name
            gone.append(node)
        if gone:
            self.publish(ShardChange(seq, tuple(gone), removed=tuple(gone)))
        for node in self.damaged_accounts.keys() & set(gone):
            del self.accounts[node]  # it was there for the feed alone
        return RemovedNodes(tuple(gone), missing, before)

    def forget_nodes(self, nodes: Iterable[int]) -> int:
        """Forget removed nodes on which nothing is reserved any more: their indexes are free. Returns how
        many."""
        over = [node for node in nodes if node in self.removed and self._is_empty(node)]
        for node in over:
            self.forget(self.removed[node])
        return len(over)

    def _is_empty(self, node: int) -> bool:
        account = self.accounts.get(node)
        if account is None:  # damaged: it does not say what is reserved
            return not any(held.node == node for held in self.reservations.values())
        return account.holds_nothing

    def republish(self, node: int) -> bool:
        """Publish a node as if all of it were new. False: it was removed."""
        if self._living(node) is None:
            return False
        self._publish_nodes([node], specs=((node, self.specs[node]),))
        return True

    def quarantine_node(self, node: int, request: QuarantineRequest, clock_ms: int) -> str:
        """Take the node out of scheduling for a time. Returns 'taken', or why not: 'gone', 'changed',
        'already' or 'limit'."""
        account = self._living(node)
        if account is None:
            return "gone"
        if request.unchanged_since > 0 and account.seq != request.unchanged_since:
            return "changed"
        if account.has(FLAG_QUARANTINED):
            return "already"
        if len(self.quarantine) >= max(1, len(self.specs) * request.most_per_mille // 1000):
            return "limit"
        account.set_flag(FLAG_QUARANTINED, True)
        self.quarantine[node] = QuarantineRecord(request.reason, clock_ms, clock_ms + request.milliseconds)
        self._publish_nodes([node])
        return "taken"

    def end_quarantine(self, node: int | None, clock_ms: int) -> list[int]:
        """End the quarantine of one node, or of all whose time is over. Returns those nodes."""
        ended = [
            there
            for there, record in sorted(self.quarantine.items())
            if there == node or (node is None and record.until_ms <= clock_ms)
        ]
        for there in ended:
            del self.quarantine[there]
        back = [there for there in ended if self._living(there) is not None]
        for there in back:
            self.accounts[there].set_flag(FLAG_QUARANTINED, False)
        if back:
            self._publish_nodes(back, released=len(back))  # for waiting pods this is like released room
        return ended

    def _living(self, node: int) -> Account | None:
        account = self.accounts.get(node)
        return None if account is None or account.has(FLAG_GONE) else account

    def _publish_nodes(
        self, nodes: Sequence[int], *, released: int = 0, specs: tuple[tuple[int, bytes], ...] = ()
    ) -> None:
        for node in nodes:
            self.accounts[node].seq = self.seq + 1
        self.publish(ShardChange(self.seq + 1, tuple(nodes), released=released, specs=specs))
