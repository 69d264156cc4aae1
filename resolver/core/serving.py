"""How one shard decides one proposal, pod by pod: a node accepts the pod or refuses it with a reason.

Includes the conflict criteria beyond fit: see docs/adr/0022-conflicts.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hoss.model.conflicts import Criteria
from hoss.model.fit import insufficient, pick_cards
from hoss.wire.columns import FLAG_GONE, FLAG_SHRUNK, FLAGS_CLOSED, NONE_U32
from resolver.core.accounts import Account, emptiest_cards
from resolver.core.rules import RuleQuery
from resolver.core.shard import Ordered, Reservation, Shard, ShardChange
from resolver.core.values import Eviction, Group, Proposal, Verdict, clash, port_number

HISTORY = 64  # feed entries to check; beyond that, every change of a node counts


def unaccepted_change(
    proposal: Proposal, node: int, changed: tuple[int, int], history: Sequence[ShardChange], at: int
) -> int:
    """The seq of a change since the proposal's snapshot that its criteria do not accept; 0: there is none.

    `changed`: the seqs at which the node and its spec last changed. `history`: the feed entries after the
    proposal's snapshot, up to `at`, the seq of the shard, as far as the feed has them."""
    seq, described = changed
    if proposal.criteria is Criteria.STRICT:
        return described if described > proposal.snapshot_seq else 0
    if proposal.criteria is Criteria.FIT or seq <= proposal.snapshot_seq:
        return 0
    behind = at - proposal.snapshot_seq
    if behind > HISTORY or len(history) < behind:
        return seq
    return max(
        (entry.seq for entry in history if entry.epoch != proposal.epoch and node in entry.nodes), default=0
    )


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why a node refuses a pod. See CONFLICT for the evidence."""

    verdict: Verdict
    resource: int = 0
    asked: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Ruling:
    """The outcome for one pod. Of a duplicate, `seq` is that of the existing commit."""

    verdict: Verdict
    node: int
    seq: int = 0
    refusal: NodeRefusal | None = None
    query: RuleQuery | None = None  # to be validated before it counts, if there are several shards


@dataclass(slots=True)
class _Evicted:
    """The pods evicted in one batch, and for whom. `held`: what those held that are gone at once."""

    evictions: list[Eviction] = field(default_factory=list)
    held: list[Reservation] = field(default_factory=list)


class Serving:
    """Decides one proposal. Reservations and accounts of placed pods are written at once."""

    def __init__(self, shard: Shard, proposal: Proposal) -> None:
        self._shard = shard
        self._proposal = proposal
        self._seq = shard.seq + 1  # of this commit
        self.refusing = Ordered()  # nodes that refused a pod
        self.evicted = _Evicted()
        self.resized: dict[bytes, Reservation] = {}  # the former reservations of resized pods

    def place(self, position: int) -> Ruling:
        """Reserve on the first candidate that accepts the pod. If all refuse, the first candidate's refusal
        counts."""
        slot = int(self._proposal.slots[position])
        first: NodeRefusal | None = None
        group = self._proposal.groups[slot] if self._proposal.groups else None
        guarded = bool(self._shard.constraints.book.constraints(group))
        victims = self._proposal.victims.get(position, ())
        # The worker counts on the node it chose: a pod that rules concern gets no alternate.
        for node in self._proposal.nodes[position, : 1 if guarded or victims else None].tolist():
            if node == NONE_U32:
                break
            refusal, cards = self._try_or_evict(position, node)
            if refusal is None:
                self._reserve(position, node, cards)
                if victims:
                    self._shard.fit_again(self._shard.accounts[node])
                return self._placed(position, node)
            first = first or refusal
            if node in self._shard.accounts or self._shard.is_damaged(node):
                self.refusing.add(node)
        if first is None:
            raise ValueError(f"pod {position} has no candidate")
        query = self._shard.constraints.query(self._proposal, position)
        if query:
            self._shard.constraints.record_refused(query)
        return Ruling(first.verdict, int(self._proposal.nodes[position, 0]), refusal=first, query=query)

    def resize(self, position: int) -> Ruling | None:
        """Replace the reservation of an existing pod in one step, so that nobody else can take the additional
        room. None: the pod holds what it asks for, or is on another node."""
        uid, node = self._proposal.uids[position].tobytes(), int(self._proposal.nodes[position, 0])
        held, slot = self._shard.reservations[uid], int(self._proposal.slots[position])
        if (
            not self._proposal.existing
            or held.node != node
            or node not in self._shard.accounts
            or held.seq == self._seq
            or self._shard.prepared.open(held.seq)
            or held.is_terminating
        ):
            return None
        if self._as_reserved(held, slot):
            return None
        cards = self._try_without({uid: held}, slot, node)
        if cards is None:
            return None
        self.resized[uid] = held
        self._shard.fit_again(self._shard.accounts[node])
        self._reserve(position, node, cards)
        return self._placed(position, node)

    def _placed(self, position: int, node: int) -> Ruling:
        query = self._shard.constraints.query(self._proposal, position, node, self._seq)
        # Else shard 0 validates the pod once all shards have prepared.
        if query and self._shard.shards == 1:
            self._shard.constraints.record_placed(query, self._proposal.epoch)
        return Ruling(Verdict.COMMITTED, node, self._seq, query=query)

    def _as_reserved(self, held: Reservation, slot: int) -> bool:
        request, width = (
            self._proposal.requests[slot],
            max(len(held.requests), self._proposal.requests.shape[1]),
        )
        amounts = [np.pad(listed, (0, width - len(listed))) for listed in (held.requests, request)]
        count, milli = (0, 0) if self._proposal.devices is None else self._proposal.devices[slot].tolist()
        cards = held.card_mask.bit_count() == count and (not count or held.card_milli == milli)
        group = self._proposal.groups[slot] if self._proposal.groups else None
        return cards and group == held.group and bool((amounts[0] == amounts[1]).all())

    def _try_or_evict(self, position: int, node: int) -> tuple[NodeRefusal | None, tuple[int, ...]]:
        """Why the node refuses, or the cards that the pod gets. Victims are evicted if the pod needs that."""
        refusal, cards = self._try(int(self._proposal.slots[position]), node)
        in_the_way = position in self._proposal.victims and self._proposal.victims_must_go
        if refusal is None and not in_the_way:
            return None, cards
        made = self._evict(position, node)
        if made is not None:
            return None, made
        return refusal or NodeRefusal(Verdict.CONFLICT_TOPOLOGY, 0, self._shard.seq), ()

    def _evict(self, position: int, node: int) -> tuple[int, ...] | None:
        """Evict the pod's victims if the pod fits then. Returns its cards; None: nothing has changed.

        A prepared commit may be aborted, so prepared pods neither evict nor are evicted. Who terminates
        already is no victim again. Neither is who waits for victims: their room is not free yet."""
        if self._shard.must_prepare(self._proposal):
            return None
        victims, slot = self._proposal.victims.get(position, ()), int(self._proposal.slots[position])
        if any(uid in self._shard.nominated for uid in victims):
            return None
        self._shard.set_aside(victims)
        held = [self._shard.reservations[uid] for uid in victims if uid in self._shard.reservations]
        priority = int(self._proposal.priorities[slot])
        evictable = [
            h
            for h in held
            if h.node == node
            and h.priority < priority
            and h.seq < self._seq
            and not self._shard.prepared.open(h.seq)
            and not h.is_terminating
            if not self._proposal.victims_assumed or h.seq in self._shard.pending
        ]
        if not victims or len(evictable) < len(victims) or node not in self._shard.accounts:
            return None
        before, reserved = self._shard.accounts[node].copy(), dict(zip(victims, held, strict=True))
        cards = self._try_without(reserved, slot, node)
        if cards is None:
            return None
        preemptor = self._proposal.uids[position].tobytes()
        if self._proposal.victims_terminate:
            self._shard.accounts[node] = before
            self._shard.keep_victims(preemptor, reserved, self._proposal.requests[slot])
        else:
            for uid in victims:
                del self._shard.reservations[uid]
            self.evicted.held += held
        self.evicted.evictions.append(Eviction(preemptor, node, b"".join(victims)))
        return cards

    def _try_without(
        self, holders: Mapping[bytes, Reservation], slot: int, node: int
    ) -> tuple[int, ...] | None:
        """Release what these pods hold on the node if the new pod fits then. Returns its cards; None: nothing
        has changed."""
        before = self._shard.accounts[node].copy()
        for uid, reservation in holders.items():
            self._shard.return_resources(uid, reservation)
        refusal, cards = self._try(slot, node)
        if refusal is not None:
            self._shard.accounts[node] = before
            return None
        return cards

    def _try(self, slot: int, node: int) -> tuple[NodeRefusal | None, tuple[int, ...]]:
        """Why the node refuses, or the cards that the pod gets."""
        account = self._shard.accounts.get(node)
        if account is None or account.born > self._proposal.snapshot_seq or account.has(FLAG_GONE):
            return NodeRefusal(Verdict.NODE_GONE), ()
        request = self._proposal.requests[slot]
        account.widen(len(request))
        group = self._proposal.groups[slot] if self._proposal.groups else None
        if not self._proposal.unchecked:
            closed = self._closed(slot, node, group)
            if closed is not None:
                return closed, ()
            width = len(request)
            allocatable, requested = account.allocatable[:width], account.requested[:width]
            short = np.flatnonzero(insufficient(allocatable[:, None], requested[:, None], request))
            if len(short):
                r = int(short[0])
                free = int(allocatable[r] - requested[r])
                return NodeRefusal(Verdict.CONFLICT_RESOURCE, r, int(request[r]), free), ()
            for claim in group.ports if group else ():
                if any(clash(claim, held) for _, held in account.ports):
                    return NodeRefusal(Verdict.CONFLICT_PORT, 0, port_number(claim)), ()
            unknown = self._shard.constraints.unknown_to(self._proposal, slot, node, self._shard.seq + 1)
            if unknown:
                return NodeRefusal(Verdict.CONFLICT_TOPOLOGY, 0, unknown), ()
        return self._try_cards(slot, account)

    def _closed(self, slot: int, node: int, group: Group | None) -> NodeRefusal | None:
        """Why the node accepts no pod of the proposal now, whatever room it has."""
        account = self._shard.accounts[node]
        if account.has(FLAGS_CLOSED) and not (group and group.tolerates_cordon):
            return NodeRefusal(Verdict.NODE_UNSCHEDULABLE)
        if self._shard.constraints.hides_domain(self._proposal, slot, node):
            return NodeRefusal(Verdict.NODE_UNSCHEDULABLE)
        if self._proposal.criteria is Criteria.FIT:
            return None
        history = self._shard.changes_after(self._proposal.snapshot_seq)
        at = account.seq, account.described
        changed = unaccepted_change(self._proposal, node, at, history, self._shard.seq)
        return NodeRefusal(Verdict.CONFLICT_VERSION, 0, changed) if changed else None

    def _try_cards(self, slot: int, account: Account) -> tuple[NodeRefusal | None, tuple[int, ...]]:
        count, milli = (0, 0) if self._proposal.devices is None else self._proposal.devices[slot].tolist()
        if not count:
            return None, ()
        pick = emptiest_cards if self._proposal.unchecked else pick_cards
        cards = pick(account.cards, count, milli)
        if cards is None:
            fitting = next(n for n in range(count - 1, -1, -1) if pick(account.cards, n, milli) is not None)
            return NodeRefusal(Verdict.CONFLICT_DEVICE, 0, count, fitting), ()
        return None, cards

    def _reserve(self, position: int, node: int, cards: tuple[int, ...]) -> None:
        account, slot = self._shard.accounts[node], int(self._proposal.slots[position])
        request = self._proposal.requests[slot]
        account.requested[: len(request)] += request
        milli = 0 if self._proposal.devices is None or not cards else int(self._proposal.devices[slot, 1])
        for card in cards:
            account.cards[card] += milli
        if self._proposal.unchecked:
            # Without validation, overcommitment is not the node's doing. Only for existing pods it counts
            # as if the node had shrunk.
            exceeds = account.overcommitted() or account.has(FLAG_SHRUNK)
            account.set_flag(FLAG_SHRUNK, self._proposal.existing and exceeds)
        account.seq = self._seq
        uid = self._proposal.uids[position].tobytes()
        group = self._proposal.groups[slot] if self._proposal.groups else None
        account.ports += [(uid, claim) for claim in (group.ports if group else ())]
        self._shard.reservations[uid] = Reservation(
            node,
            sum(1 << card for card in cards),
            milli,
            self._seq,
            self._proposal.epoch,
            int(self._proposal.priorities[slot]),
            int(self._proposal.attempts[slot]),
            request,
            group,
            is_target=self._proposal.moves,
            pre_binds=self._proposal.pre_binds,
        )
