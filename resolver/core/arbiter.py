"""One shard of the ledger as plain Python: the rules that the scripts follow, written for reading and not for speed.

The contract tests hold it and the scripts to the same verdicts and the same state; where they differ, this one is right.
Sequence numbers: every operation that changes anything takes the next one, and what it changed is one feed entry.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from hoss.wire.account import FLAG_GONE, FLAG_SHRUNK, FLAG_UNSCHEDULABLE
from hoss.wire.columns import NONE_U32, Uids
from resolver.core.accounts import Account, resized_cards
from resolver.core.rules import Rule
from resolver.core.serving import Ruling, Serving
from resolver.core.shard import Change, Ordered, Shard, Uid, group_runs
from resolver.core.values import NodeChange, Proposal, Verdict


class Arbiter(Shard):
    """The operations on one shard."""

    # -- pods ---------------------------------------------------------------------------------------------------------

    def register(self, rules: Mapping[int, Rule], *, again: bool) -> None:
        """From here on every placement is noted that these rules, by key, see. `again`: those that are registered count as new,
        so that whoever is about to forget them does not."""
        new = {key: rule for key, rule in rules.items() if again or key not in self.guards.book.rules}
        if new:
            self.guards.book.register(new, self.seq + 1)
            self.publish(Change(self.seq + 1, ()))

    def forget_rules(self, unused: Sequence[int]) -> None:
        """From here on placements that only these rules see are noted no more."""
        self.guards.book.forget(unused, self.seq + 1)
        self.publish(Change(self.seq + 1, ()))

    def commit(self, proposal: Proposal, *, deadline_ms: int) -> tuple[list[Ruling], list[int]]:
        """Rulings in the proposal's order, and the nodes that refused any pod."""
        if self.workers.get(proposal.worker) != proposal.epoch:
            return [Ruling(Verdict.STALE_EPOCH, int(node)) for node in proposal.nodes[:, 0]], []
        seq, changed = self.seq + 1, Ordered()
        rulings: dict[int, Ruling] = {}
        reserved: list[Uid] = []
        serving = Serving(self, proposal)
        self.guards.begin()
        before, stamps = (deepcopy(self.accounts), self.guards.copied_stamps()) if proposal.gang_minimum else ({}, {})
        held = self.holds_back(proposal)
        order = proposal.serving_order()
        for position in range(len(proposal)) if order is None else order.tolist():
            uid = proposal.uids[position].tobytes()
            standing = self.reservations.get(uid)
            anew = None if standing is None else serving.restate(position)
            if anew is not None:
                rulings[position] = anew
                reserved.append(uid)
                changed.add(anew.node)
                continue
            if standing is not None:
                question = self.guards.question(proposal, position, standing.node, standing.seq)
                asked = question if self.holds.open(standing.seq) else None
                rulings[position] = Ruling(Verdict.DUPLICATE, standing.node, standing.seq, question=asked)
                continue
            ruling = serving.place(position)
            rulings[position] = ruling
            if ruling.verdict is Verdict.COMMITTED:
                reserved.append(uid)
                changed.add(ruling.node)
        fitting = sum(ruling.verdict in (Verdict.COMMITTED, Verdict.DUPLICATE) for ruling in rulings.values())
        if fitting < proposal.gang_minimum:
            self.accounts, self.guards.stamps = before, stamps
            self._abort(proposal, rulings, reserved)
            self.reservations |= serving.restated
            reserved = []
        if reserved:
            self.pending[seq] = (deadline_ms, reserved)
            if held:
                self.holds.begin(seq, len(reserved))
            runs = () if held else group_runs((self.reservations[uid] for uid in reserved), gone=False)
            left = [*serving.evicted.held, *serving.restated.values()]
            runs += group_runs(left, gone=True)
            evictions = tuple(serving.evicted.evictions)
            self.publish(
                Change(
                    seq,
                    tuple(changed),
                    released=len(left),
                    runs=runs,
                    evictions=evictions,
                    hold=held,
                    epoch=proposal.epoch,
                )
            )
        return [rulings[position] for position in range(len(proposal))], list(serving.refusing)

    def _abort(self, proposal: Proposal, rulings: dict[int, Ruling], reserved: list[Uid]) -> None:
        """The gang falls short: these pods are not reserved after all."""
        for uid in reserved:
            del self.reservations[uid]
        for position, ruling in rulings.items():
            if ruling.verdict is Verdict.COMMITTED:
                rulings[position] = Ruling(Verdict.GANG_ABORTED, int(proposal.nodes[position, 0]))

    def release(self, uids: Iterable[Uid], seqs: Sequence[int] | None = None) -> list[Uid]:
        """Give back what pods hold; with `seqs`, only what that very commit reserved. Returns whose it was."""
        seq, changed, released, held_before = self.seq + 1, Ordered(), [], []
        for i, uid in enumerate(uids):
            held = self.reservations.get(uid)
            if held is None or (seqs is not None and held.seq != seqs[i]):
                continue
            del self.reservations[uid]
            released.append(uid)
            held_before.append(held)
            changed.add(held.node)
            self.give_back(uid, held)
            self.accounts[held.node].seq = seq
        for node in changed:
            self.fit_again(self.accounts[node])
        if released:
            runs = group_runs((held for held in held_before if not self.holds.open(held.seq)), gone=True)
            ended = self.holds.end(held.seq for held in held_before)
            self.publish(Change(seq, tuple(changed), released=len(released), runs=runs, ended=ended))
        return released

    def confirm(self, seqs: Iterable[int]) -> int:
        """End leases. Returns how many there were."""
        return sum(self.pending.pop(seq, None) is not None for seq in seqs)

    def keep(self, uids: Sequence[Uid], seqs: Sequence[int], *, deadline_ms: int) -> list[int]:
        """Of each pod the commit that it stands by now; 0 where it no longer holds what the one beside it reserved.

        What was held becomes a commit of now; what was kept before gets until `deadline_ms`, unless it is confirmed."""
        seq, now, kept = self.seq + 1, [], {}
        for uid, commit in zip(uids, seqs, strict=True):
            held = self.reservations.get(uid)
            standing = held is not None and held.seq == commit
            if held is not None and standing and self.holds.open(commit):
                kept[uid] = replace(held, seq=seq)
            elif standing and commit in self.pending:
                self.pending[commit] = (deadline_ms, self.pending[commit][1])
            now.append(0 if not standing else seq if uid in kept else commit)
        if kept:
            ended = self.holds.end(self.reservations[uid].seq for uid in kept)
            self.reservations.update(kept)
            for commit in ended:
                self.pending.pop(commit, None)
            self.pending[seq] = (deadline_ms, list(kept))
            self.publish(Change(seq, (), runs=group_runs(kept.values(), gone=False), ended=ended))
        return now

    def reap(self, now_ms: int) -> int:
        """Release what every commit still holds whose lease is over, oldest commit first."""
        reaped = 0
        for seq in sorted(self.pending):
            deadline_ms, uids = self.pending[seq]
            if deadline_ms <= now_ms:
                del self.pending[seq]
                reaped += len(self.release(uids, [seq] * len(uids)))
        return reaped

    def grant(self, worker: str, epoch: int) -> int:
        """A worker's epoch only grows. Returns the one that holds."""
        self.workers[worker] = max(epoch, self.workers.get(worker, 0))
        return self.workers[worker]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def upsert(self, changes: Sequence[NodeChange], expected: bytes = b"") -> tuple[list[int], list[int]] | None:
        """Indexes, and positions of nodes that have less than what is requested; None where `expected` is not the spec."""
        if expected and self.specs.get(self.names.get(changes[0].name, NONE_U32)) != expected:
            return None
        seq, touched, over = self.seq + 1, [], []
        for position, change in enumerate(changes):
            node = self.names.setdefault(change.name, len(self.names) * self.shards + self.shard)
            if self.specs.get(node) != change.spec:
                self._change(node, change, seq)
                touched.append(node)
            if self.accounts[node].has(FLAG_SHRUNK) or self.accounts[node].exceeded():
                over.append(position)
        if touched:
            self.publish(Change(seq, tuple(touched), specs=tuple((node, self.specs[node]) for node in touched)))
        return [self.names[change.name] for change in changes], over

    def _change(self, node: int, change: NodeChange, seq: int) -> None:
        account = self.accounts.setdefault(node, Account(born=seq))
        if account.has(FLAG_GONE):
            account.born = seq
        account.widen(len(change.allocatable))
        exceeded_before = account.overcommitted()
        account.allocatable[:] = 0
        account.allocatable[: len(change.allocatable)] = change.allocatable
        if account.cards or change.cards:
            account.cards = resized_cards(account.cards, change.cards)
        # What was exceeded before the node changed, unless by an earlier change, is overcommitment and stays to be found.
        shrunk = account.exceeded() and (account.has(FLAG_SHRUNK) or not exceeded_before)
        account.mark(FLAG_GONE, False)
        account.mark(FLAG_SHRUNK, shrunk)
        account.mark(FLAG_UNSCHEDULABLE, change.unschedulable)
        account.seq = account.described = seq
        self.specs[node] = change.spec
        self.guards.labels[node] = dict(change.labels)

    def remove(self, names: Sequence[str]) -> tuple[list[Uid], list[int]]:
        """Pods whose reservations went, and positions of names that are not there."""
        seq, missing, gone = self.seq + 1, [], []
        for position, name in enumerate(names):
            node = self.names.get(name)
            if node is None or self.accounts[node].has(FLAG_GONE):
                missing.append(position)
                continue
            account = self.accounts[node]
            account.mark(FLAG_GONE, True)
            account.mark(FLAG_SHRUNK, False)
            account.seq = seq
            del self.specs[node]
            self.guards.labels.pop(node, None)
            gone.append(node)
        if gone:
            self.publish(Change(seq, tuple(gone), removed=tuple(gone)))
        return self.release([uid for uid, held in self.reservations.items() if held.node in gone]), missing


def uid_bytes(uids: Uids) -> list[Uid]:
    """Each row as a key."""
    return [row.tobytes() for row in uids]
