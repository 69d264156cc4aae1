"""One shard of the ledger as plain Python: the rules that the Lua scripts implement, written to be read.

An operation of the Arbiter is a call of the script of that name: after `admit`, which is what every script
begins with (lua/prelude.lua). Contract and property tests, and simulations with faults, hold this model and
the scripts to the same answers and the same state. Where the two differ, the model is right. Every operation
that changes anything takes the next sequence number, and its changes are one feed entry. `clock_ms` is the
server's clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hoss.model.conflicts import Criteria
from hoss.wire.columns import (
    FLAG_GONE,
    FLAGS_CLOSED,
    NONE_U32,
    Uids,
)
from resolver.core import values
from resolver.core.account_columns import claim_ranked
from resolver.core.accounts import Account
from resolver.core.moves import MoveResult, MoveRow, Moves, move_at_once
from resolver.core.rules import PlacementRule
from resolver.core.serving import NodeRefusal, Ruling, Serving
from resolver.core.shard import Ordered, Reservation, ShardChange, Source, Uid, group_runs
from resolver.core.shard_nodes import ShardNodes
from resolver.core.values import Proposal, ReservationState, Verdict

# In one reaping, so that no call takes Redis more than a few milliseconds.
REAPED_COMMITS, REAPED_PODS = 100, 1000


class Arbiter(ShardNodes):
    """The operations on one shard; those on its nodes are in ShardNodes."""

    def state_of(self, held: Reservation) -> ReservationState:
        """The state of a reservation: that of its commit, unless it is terminating."""
        if held.is_terminating:
            return ReservationState.TERMINATING
        if self.prepared.open(held.seq):
            return ReservationState.PREPARED
        if held.seq not in self.pending:
            return ReservationState.CONFIRMED
        return ReservationState.PRE_BINDING if held.pre_binds else ReservationState.ASSUMED

    def look_up(self, uids: Sequence[Uid]) -> list[Reservation | None]:
        """The pods' reservations. What was prepared under a fenced epoch is aborted first: nobody may commit
        it any more."""
        self.set_aside(uids)
        in_force = set(self.workers.values())
        dead = [
            uid
            for uid in uids
            if (held := self.reservations.get(uid)) is not None
            and held.epoch not in in_force
            and self.state_of(held) is ReservationState.PREPARED
        ]
        if dead:
            self.release(dead)
        return [self.reservations.get(uid) for uid in uids]

    def register(self, rules: Mapping[int, PlacementRule], *, again: bool) -> None:
        """Record every placement that concerns these rules (by key) from now on. `again`: registered rules
        count as new, so that a concurrent `forget_rules` keeps them."""
        new = {key: rule for key, rule in rules.items() if again or key not in self.constraints.book.rules}
        if new:
            self.constraints.book.register(new, self.seq + 1)
            self.publish(ShardChange(self.seq + 1, ()))

    def forget_rules(self, keys: Iterable[int], low_watermark: int) -> list[int]:
        """Stop recording placements that concern only these rules, of those that were registered up to the
        low watermark and, as far as this shard knows, are used by no pod since. Returns those."""
        unused = self.constraints.unused_rules(keys, low_watermark)
        if unused:
            self.constraints.book.forget(unused, self.seq + 1)
            self.publish(ShardChange(self.seq + 1, ()))
        return unused

    def commit(self, proposal: Proposal, *, deadline_ms: int) -> tuple[list[Ruling], list[int]]:
        """Rulings in the proposal's order, and the nodes that refused any pod."""
        if (undecided := self._admits_proposal(proposal)) is not None:
            return [Ruling(undecided, int(node)) for node in proposal.nodes[:, 0]], []
        self.set_aside(uid_bytes(proposal.uids))
        if proposal.source_seqs is not None:
            return move_at_once(self, proposal, proposal.source_seqs), []
        decide = self._commit_plain if self._is_plain(proposal) else self._commit_each
        return decide(proposal, deadline_ms)

    def _commit_each(self, proposal: Proposal, deadline_ms: int) -> tuple[list[Ruling], list[int]]:
        """`commit`, pod by pod in the serving order."""
        seq, changed = self.seq + 1, Ordered()
        rulings: dict[int, Ruling] = {}
        reserved: list[Uid] = []
        serving = Serving(self, proposal)
        self.constraints.begin()
        before, versions = (
            (self._candidates(proposal), self.constraints.copied_versions())
            if proposal.gang_minimum
            else ({}, {})
        )
        prepared = self.must_prepare(proposal)
        order = proposal.serving_order()
        for position in range(len(proposal)) if order is None else order.tolist():
            uid = proposal.uids[position].tobytes()
            existing = self.reservations.get(uid)
            resized = None if existing is None else serving.resize(position)
            if resized is not None:
                rulings[position] = resized
                reserved.append(uid)
                changed.add(resized.node)
                continue
            if existing is not None:
                query = self.constraints.query(proposal, position, existing.node, existing.seq)
                unvalidated = query if self.prepared.open(existing.seq) else None
                rulings[position] = Ruling(Verdict.DUPLICATE, existing.node, existing.seq, query=unvalidated)
                continue
            ruling = serving.place(position)
            rulings[position] = ruling
            if ruling.verdict is Verdict.COMMITTED:
                reserved.append(uid)
                changed.add(ruling.node)
        fitting = sum(ruling.verdict in (Verdict.COMMITTED, Verdict.DUPLICATE) for ruling in rulings.values())
        if fitting < proposal.gang_minimum:
            self.accounts |= before
            self.constraints.versions = versions
            self._abort(proposal, rulings, reserved)
            self.reservations |= serving.resized
            reserved = []
        if reserved:
            self.pending[seq] = (deadline_ms, reserved)
            if prepared:
                self.prepared.begin(seq, len(reserved))
            runs = () if prepared else group_runs((self.reservations[uid] for uid in reserved), gone=False)
            left = [*serving.evicted.held, *serving.resized.values()]
            runs += group_runs(left, gone=True)
            evictions = tuple(serving.evicted.evictions)
            self.publish(
                ShardChange(
                    seq,
                    tuple(changed),
                    released=len(left),
                    runs=runs,
                    evictions=evictions,
                    prepared=prepared,
                    epoch=proposal.epoch,
                )
            )
        return [rulings[position] for position in range(len(proposal))], list(serving.refusing)

    def _admits_proposal(self, proposal: Proposal) -> Verdict | None:
        """Why the proposal is not decided: its epoch is fenced, or the worker has sent a later copy of
        something. None: it is decided, and earlier copies are not from now on."""
        if self.workers.get(proposal.worker) != proposal.epoch:
            return Verdict.STALE_EPOCH
        return Verdict.OLD_COPY if self.is_old_copy(proposal.worker, proposal.sending) else None

    def _is_plain(self, proposal: Proposal) -> bool:
        """Whether the pods are new, equal, and ask for resources only, on nodes that are open to them."""
        if len(proposal.requests) > 1 or proposal.devices is not None or any(proposal.groups):
            return False
        if proposal.unchecked or proposal.victims or proposal.gang_minimum:
            return False
        uids = uid_bytes(proposal.uids)
        if proposal.criteria is not Criteria.FIT or len(set(uids)) < len(uids):
            return False
        if not self.reservations.keys().isdisjoint(uids):
            return False
        return all(self._is_open(node, proposal.snapshot_seq) for node in _named(proposal.nodes))

    def _is_open(self, node: int, snapshot_seq: int) -> bool:
        account = self.accounts.get(node)
        return (
            account is not None and account.born <= snapshot_seq and not account.has(FLAG_GONE | FLAGS_CLOSED)
        )

    def _commit_plain(self, proposal: Proposal, deadline_ms: int) -> tuple[list[Ruling], list[int]]:
        """`commit` for a plain proposal: all pods are decided at once."""
        seq, request = self.seq + 1, proposal.requests[0]
        names = _named(proposal.nodes)
        accounts = [self.accounts[node] for node in names]
        for account in accounts:
            account.widen(len(request))
        width = len(request)
        allocatable = np.stack([account.allocatable[:width] for account in accounts], axis=1)
        requested = np.stack([account.requested[:width] for account in accounts], axis=1)
        places = np.searchsorted(names, proposal.nodes)
        candidates = np.where(proposal.nodes == NONE_U32, -1, places)
        taken, chosen = claim_ranked(allocatable, requested, candidates, request)
        changed, rulings, reserved = Ordered(), [], []
        priority, attempt = int(proposal.priorities[0]), int(proposal.attempts[0])
        for position, (place, ok) in enumerate(zip(chosen.tolist(), taken.tolist(), strict=True)):
            node, uid = names[place], proposal.uids[position].tobytes()
            if not ok:
                refusal = _short_of(request, allocatable[:, place], requested[:, place])
                rulings.append(Ruling(refusal.verdict, node, refusal=refusal))
                continue
            changed.add(node)
            reserved.append(uid)
            rulings.append(Ruling(Verdict.COMMITTED, node, seq))
            self.reservations[uid] = Reservation(
                node,
                0,
                0,
                seq,
                proposal.epoch,
                priority,
                attempt,
                request,
                is_target=proposal.moves,
                pre_binds=proposal.pre_binds,
            )
        for place in np.unique(chosen[taken]).tolist():
            accounts[place].requested[:width] = requested[:, place]
            accounts[place].seq = seq
        if reserved:
            self.pending[seq] = (deadline_ms, reserved)
            if proposal.prepared:
                self.prepared.begin(seq, len(reserved))
            self.publish(ShardChange(seq, tuple(changed), prepared=proposal.prepared, epoch=proposal.epoch))
        return rulings, _refusing(names, candidates, taken, chosen)

    def _candidates(self, proposal: Proposal) -> dict[int, Account]:
        """Copies of the accounts that the proposal may change."""
        there = (node for node in np.unique(proposal.nodes).tolist() if node in self.accounts)
        return {node: self.accounts[node].copy() for node in there}

    def _abort(self, proposal: Proposal, rulings: dict[int, Ruling], reserved: list[Uid]) -> None:
        """Undo the gang's reservations: the gang did not reach its minimum."""
        for uid in reserved:
            del self.reservations[uid]
        for position, ruling in rulings.items():
            if ruling.verdict is Verdict.COMMITTED:
                rulings[position] = Ruling(Verdict.GANG_ABORTED, int(proposal.nodes[position, 0]))

    def release(
        self,
        uids: Sequence[Uid],
        seqs: Sequence[int] | None = None,
        *,
        as_of: int | None = None,
        unconfirmed: bool = False,
        over: Sequence[int] = (),
    ) -> list[Uid]:
        """Release what pods hold. With `seqs`, release only what that very commit reserved; with `as_of`,
        only what is not newer; with `unconfirmed`, nothing that is confirmed. `over`: commits that end with
        this, whatever is left of them. Returns the released pods."""
        self.set_aside(uids)
        seq, changed, released, held_before = self.seq + 1, Ordered(), [], []
        for i, uid in enumerate(uids):
            held = self.reservations.get(uid)
            if held is None or (seqs is not None and held.seq != seqs[i]):
                continue
            if as_of is not None and held.seq > as_of:
                continue
            if unconfirmed and held.seq not in self.pending:
                continue
            del self.reservations[uid]
            released.append(uid)
            held_before.append(held)
            if held.node in self.accounts:  # else it is forgotten
                changed.add(held.node)
                self.return_resources(uid, held)
                self.accounts[held.node].seq = seq
        self.settle_evictions(released)
        for node in changed:
            self.fit_again(self.accounts[node])
        if released or any(map(self.prepared.open, over)):
            runs = group_runs((held for held in held_before if not self.prepared.open(held.seq)), gone=True)
            ended = self.prepared.end((held.seq for held in held_before), over)
            self.publish(ShardChange(seq, tuple(changed), released=len(released), runs=runs, ended=ended))
        return released

    def confirm(self, seqs: Iterable[int]) -> int:
        """End leases. Prepared commits keep theirs: they were never validated. Returns how many commits were
        assumed."""
        assumed = [seq for seq in seqs if not self.prepared.open(seq)]
        confirmed = sum(self.pending.pop(seq, None) is not None for seq in assumed)
        if confirmed:
            self.publish(ShardChange(self.seq + 1, ()))
        return confirmed

    def commit_prepared(self, uids: Sequence[Uid], seqs: Sequence[int], *, deadline_ms: int) -> list[int]:
        """For each pod, the commit it belongs to now; 0 if the pod does not hold what the commit in `seqs`
        reserved.

        Prepared pods become one new commit. A commit that is not prepared, but still pending, gets a lease
        until `deadline_ms`."""
        self.set_aside(uids)
        seq, now, committed = self.seq + 1, [], {}
        for uid, commit in zip(uids, seqs, strict=True):
            held = self.reservations.get(uid)
            existing = held is not None and held.seq == commit
            if held is not None and existing and self.prepared.open(commit):
                committed[uid] = replace(held, seq=seq)
            elif existing and commit in self.pending:
                self.pending[commit] = (deadline_ms, self.pending[commit][1])
            now.append(0 if not existing else seq if uid in committed else commit)
        if committed:
            ended = self.prepared.end(self.reservations[uid].seq for uid in committed)
            self.reservations.update(committed)
            for commit in ended:
                self.pending.pop(commit, None)
            self.pending[seq] = (deadline_ms, list(committed))
            self.publish(ShardChange(seq, (), runs=group_runs(committed.values(), gone=False), ended=ended))
        return now

    def renew(self, uids: Sequence[Uid], seqs: Sequence[int], *, deadline_ms: int) -> list[bool]:
        """Prolong leases to `deadline_ms`; longer ones, and those of prepared commits, stay as they are.
        Returns whether each pod holds what the commit in `seqs` reserved and is more than prepared."""
        self.set_aside(uids)
        held = []
        for uid, commit in zip(uids, seqs, strict=True):
            record = self.reservations.get(uid)
            held.append(record is not None and record.seq == commit and not self.prepared.open(commit))
            if held[-1] and commit in self.pending:
                ends_ms, pods = self.pending[commit]
                self.pending[commit] = (max(ends_ms, deadline_ms), pods)
        return held

    def confirm_moves(self, moves: Moves) -> list[MoveResult]:
        """End moves: the target becomes the pod's reservation, confirmed, and the source is released in the
        same step if it is on this shard. Otherwise the pod is in `moved` until `finish_moves`. A target that
        a successor gets becomes the successor's reservation, and the source stays."""
        results, targets = [], {}
        for move in moves.rows(self.shards, self.shard):
            self.set_aside((move.uid, move.target))
            own, target = self.reservations.get(move.uid), self.reservations.get(move.target)
            results.append(self._judge_move(move, own, target))
            if target is None or results[-1] is not MoveResult.MOVED or not self._is_target(move, target):
                continue
            targets[move.uid] = move.target
            if move.source is not None and not move.source_here:
                self.moved[move.uid] = move.source
        if targets:
            self._take_targets(targets)
        return results

    def _is_target(self, move: MoveRow, target: Reservation) -> bool:
        """Whether this is what was reserved for the move, and is not only prepared."""
        same = (target.node, target.seq) == (move.node, move.seq)
        return same and target.is_target and not self.prepared.open(target.seq)

    def _judge_move(self, move: MoveRow, own: Reservation | None, target: Reservation | None) -> MoveResult:
        settled = own is not None and not self.prepared.open(own.seq)
        if target is None or not self._is_target(move, target):
            done = own is not None and settled and own.node == move.node
            return MoveResult.MOVED if done else MoveResult.TARGET_GONE
        if not move.source_here:
            return MoveResult.MOVED if own is None else MoveResult.SOURCE_CHANGED
        settled = settled and own is not None and not own.is_terminating
        as_known = own is not None and settled and (own.node, own.seq) == move.source
        return MoveResult.MOVED if as_known else MoveResult.SOURCE_CHANGED

    def _take_targets(self, targets: Mapping[Uid, Uid]) -> None:
        """These targets, by the pod that gets them, become the reservations of the pods."""
        seq = self.seq + 1
        if not self.release([uid for uid in targets if uid in self.reservations]):
            self.publish(ShardChange(seq, ()))
        taken = {former: self.reservations.pop(former) for former in targets.values()}
        for uid, former in targets.items():
            target = taken[former]
            self.reservations[uid] = replace(target, seq=seq, is_target=False)
            account = self.accounts.get(target.node, Account(born=0))
            account.ports = [(uid if holder == former else holder, claim) for holder, claim in account.ports]
        for commit in {target.seq for target in taken.values()}:
            listed = self.pending[commit][1] if commit in self.pending else []
            if listed and not any(uid in self.reservations for uid in listed):
                del self.pending[commit]

    def forget_moved(self, sources: Mapping[Uid, Source]) -> None:
        """The sources of these moves are released."""
        for uid, source in sources.items():
            if self.moved.get(uid) == source:
                del self.moved[uid]

    def reap(self, clock_ms: int) -> tuple[int, bool]:
        """Lease time goes on. Release what expired commits still hold, in the order of their deadlines, up to
        a bounded number. Returns the number of pods, and whether more commits may be expired."""
        now_ms = self.leases.go_on(clock_ms, idle=not self.pending)
        by_deadline = sorted((deadline_ms, str(seq), seq) for seq, (deadline_ms, _) in self.pending.items())
        expired = [seq for deadline_ms, _, seq in by_deadline if deadline_ms <= now_ms][:REAPED_COMMITS]
        held: list[tuple[Uid, int]] = []
        ended = 0
        while ended < len(expired) and len(held) < REAPED_PODS:
            held += [(uid, expired[ended]) for uid in self.pending.pop(expired[ended])[1]]
            ended += 1
        released = self.release([uid for uid, _ in held], [seq for _, seq in held], over=expired[:ended])
        if released:
            self.leases_ended = self.seq
        return len(released), ended < len(expired) or len(expired) == REAPED_COMMITS

    def grant(self, worker: str, epoch: int) -> int:
        """Set the worker's epoch, which never decreases. Returns the epoch in force. Where there are too many
        names, the oldest are forgotten."""
        if epoch > self.workers.get(worker, 0):
            self.workers[worker] = epoch
            self.sendings.pop(worker, None)
        have = self.workers[worker]
        if len(self.workers) > values.MOST_WORKERS:
            names = sorted(self.workers, key=self.workers.__getitem__)
            for name in names[: len(names) - (values.MOST_WORKERS - values.MOST_WORKERS // 10)]:
                del self.workers[name]
                self.sendings.pop(name, None)
        return have


def _short_of(
    request: NDArray[np.int64], allocatable: NDArray[np.int64], requested: NDArray[np.int64]
) -> NodeRefusal:
    """Why a node refused one of equal pods. It takes none of them afterwards, so its room stays as it was."""
    short = int(np.flatnonzero(request > allocatable - requested)[0])
    free = int(allocatable[short] - requested[short])
    return NodeRefusal(Verdict.CONFLICT_RESOURCE, short, int(request[short]), free)


def _refusing(
    names: Sequence[int],
    candidates: NDArray[np.intp],
    taken: NDArray[np.bool_],
    chosen: NDArray[np.intp],
) -> list[int]:
    """The nodes that refused a pod before it was taken, if it was, in the order of their refusals."""
    refusing = Ordered()
    if not taken.all() or (chosen != candidates[:, 0]).any():
        for place, ranked, ok in zip(chosen.tolist(), candidates.tolist(), taken.tolist(), strict=True):
            for refused in ranked[: ranked.index(place)] if ok else ranked:
                if refused >= 0:
                    refusing.add(names[refused])
    return list(refusing)


def _named(nodes: NDArray[np.uint32]) -> list[int]:
    """The nodes in an array of candidates, ascending, each once."""
    found: list[int] = np.unique(nodes[nodes != NONE_U32]).tolist()
    return found


def uid_bytes(uids: Uids) -> list[Uid]:
    return [row.tobytes() for row in uids]
