"""How one shard serves one proposal, pod by pod: a node takes it, or says why not."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from hoss.model.fit import insufficient, pick_cards
from hoss.wire.account import FLAG_GONE, FLAG_SHRUNK, FLAGS_CLOSED
from hoss.wire.columns import NONE_U32
from resolver.core.accounts import Account, emptiest_cards
from resolver.core.criteria import unaccepted_change
from resolver.core.ports import clash, port_number
from resolver.core.rules import Question
from resolver.core.shard import Ordered, Reservation, Shard
from resolver.core.values import Eviction, Group, Proposal, Verdict


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node does not take a pod. See CONFLICT for the evidence."""

    verdict: Verdict
    resource: int = 0
    asked: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of one pod; of a duplicate, `seq` is that of the commit that stands."""

    verdict: Verdict
    node: int
    seq: int = 0
    refusal: Refusal | None = None
    question: Question | None = None  # to be judged before it counts, where there are several shards


@dataclass(slots=True)
class _Evicted:
    """Who had to go in one batch, and for whom."""

    evictions: list[Eviction] = field(default_factory=list)
    held: list[Reservation] = field(default_factory=list)


class Serving:
    """One proposal. Reservations of the pods that are placed are written at once, to the accounts too."""

    def __init__(self, shard: Shard, proposal: Proposal) -> None:
        self._shard = shard
        self._proposal = proposal
        self._seq = shard.seq + 1  # of this commit
        self.refusing = Ordered()  # nodes that refused any pod
        self.evicted = _Evicted()
        self.restated: dict[bytes, Reservation] = {}  # what pods held that are counted anew

    def place(self, position: int) -> Ruling:
        """Reserve on the first candidate that takes the pod. Of several refusals the first candidate's counts."""
        slot = int(self._proposal.slots[position])
        first: Refusal | None = None
        group = self._proposal.groups[slot] if self._proposal.groups else None
        guarded = bool(self._shard.guards.book.guards(group))
        victims = self._proposal.victims.get(position, ())
        # The worker reckons with a pod where it placed it: one that rules look at goes nowhere else.
        for node in self._proposal.nodes[position, : 1 if guarded or victims else None].tolist():
            if node == NONE_U32:
                break
            refusal, cards = self._try_with_victims(position, node)
            if refusal is None:
                self._reserve(position, node, cards)
                if victims:
                    self._shard.fit_again(self._shard.accounts[node])
                return self._placed(position, node)
            first = first or refusal
            if node in self._shard.accounts:
                self.refusing.add(node)
        if first is None:
            raise ValueError(f"pod {position} has no candidate")
        question = self._shard.guards.question(self._proposal, position)
        if question:
            self._shard.guards.refused(question)
        return Ruling(first.verdict, int(self._proposal.nodes[position, 0]), refusal=first, question=question)

    def restate(self, position: int) -> Ruling | None:
        """Count a pod that stands where it has a reservation anew, in one step, so that nobody else can have what it takes more. None:
        it has what it asks for, or stands elsewhere."""
        uid, node = self._proposal.uids[position].tobytes(), int(self._proposal.nodes[position, 0])
        held, slot = self._shard.reservations[uid], int(self._proposal.slots[position])
        if not self._proposal.stands or held.node != node or held.seq == self._seq or self._shard.holds.open(held.seq):
            return None
        if self._as_reserved(held, slot):
            return None
        cards = self._try_without({uid: held}, slot, node)
        if cards is None:
            return None
        self.restated[uid] = held
        self._shard.fit_again(self._shard.accounts[node])
        self._reserve(position, node, cards)
        return self._placed(position, node)

    def _placed(self, position: int, node: int) -> Ruling:
        question = self._shard.guards.question(self._proposal, position, node, self._seq)
        if question and self._shard.shards == 1:  # else all shards are asked, when they hold what is proposed
            self._shard.guards.placed(question, self._proposal.epoch)
        return Ruling(Verdict.COMMITTED, node, self._seq, question=question)

    def _as_reserved(self, held: Reservation, slot: int) -> bool:
        request, width = self._proposal.requests[slot], max(len(held.requests), self._proposal.requests.shape[1])
        amounts = [np.pad(listed, (0, width - len(listed))) for listed in (held.requests, request)]
        count, milli = (0, 0) if self._proposal.devices is None else self._proposal.devices[slot].tolist()
        cards = held.card_mask.bit_count() == count and (not count or held.card_milli == milli)
        group = self._proposal.groups[slot] if self._proposal.groups else None
        return cards and group == held.group and bool((amounts[0] == amounts[1]).all())

    def _try_with_victims(self, position: int, node: int) -> tuple[Refusal | None, tuple[int, ...]]:
        """Why the node refuses, or the cards the pod gets; its victims are gone where it needs that."""
        refusal, cards = self._try(int(self._proposal.slots[position]), node)
        in_the_way = position in self._proposal.victims and self._proposal.victims_must_go
        if refusal is None and not in_the_way:
            return None, cards
        made = self._make_room(position, node)
        if made is not None:
            return None, made
        return refusal or Refusal(Verdict.CONFLICT_TOPOLOGY, 0, self._shard.seq), ()

    def _make_room(self, position: int, node: int) -> tuple[int, ...] | None:
        """Take the pod's victims away if it fits then: the cards it gets. Else None, and nothing has changed.

        What is held may be withdrawn, so nobody goes for it, nor does who is only held."""
        if self._shard.holds_back(self._proposal):
            return None
        victims, slot = self._proposal.victims.get(position, ()), int(self._proposal.slots[position])
        held = [self._shard.reservations[uid] for uid in victims if uid in self._shard.reservations]
        priority = int(self._proposal.priorities[slot])
        standing = [
            h
            for h in held
            if h.node == node and h.priority < priority and h.seq < self._seq and not self._shard.holds.open(h.seq)
            if not self._proposal.victims_assumed or h.seq in self._shard.pending
        ]
        if not victims or len(standing) < len(victims) or node not in self._shard.accounts:
            return None
        cards = self._try_without(dict(zip(victims, held, strict=True)), slot, node)
        if cards is None:
            return None
        for uid in victims:
            del self._shard.reservations[uid]
        self.evicted.held += held
        self.evicted.evictions.append(Eviction(self._proposal.uids[position].tobytes(), node, b"".join(victims)))
        return cards

    def _try_without(self, holders: Mapping[bytes, Reservation], slot: int, node: int) -> tuple[int, ...] | None:
        """Give the node what these pods hold if the pod fits then: the cards it gets. Else None, and nothing has changed."""
        before = deepcopy(self._shard.accounts[node])
        for uid, reservation in holders.items():
            self._shard.give_back(uid, reservation)
        refusal, cards = self._try(slot, node)
        if refusal is not None:
            self._shard.accounts[node] = before
            return None
        return cards

    def _try(self, slot: int, node: int) -> tuple[Refusal | None, tuple[int, ...]]:
        """Why the node refuses, or the cards the pod gets."""
        account = self._shard.accounts.get(node)
        if account is None or account.born > self._proposal.snapshot_seq or account.has(FLAG_GONE):
            return Refusal(Verdict.NODE_GONE), ()
        request = self._proposal.requests[slot]
        account.widen(len(request))
        group = self._proposal.groups[slot] if self._proposal.groups else None
        if not self._proposal.unchecked:
            closed = self._closed(node, group)
            if closed is not None:
                return closed, ()
            width = len(request)
            allocatable, requested = account.allocatable[:width], account.requested[:width]
            short = np.flatnonzero(insufficient(allocatable[:, None], requested[:, None], request))
            if len(short):
                r = int(short[0])
                free = int(allocatable[r] - requested[r])
                return Refusal(Verdict.CONFLICT_RESOURCE, r, int(request[r]), free), ()
            for claim in group.ports if group else ():
                if any(clash(claim, held) for _, held in account.ports):
                    return Refusal(Verdict.CONFLICT_PORT, 0, port_number(claim)), ()
            unknown = self._shard.guards.unknown_to(self._proposal, slot, node, self._shard.seq + 1)
            if unknown:
                return Refusal(Verdict.CONFLICT_TOPOLOGY, 0, unknown), ()
        return self._try_cards(slot, account)

    def _closed(self, node: int, group: Group | None) -> Refusal | None:
        """Why the node takes nothing of the proposal now, whatever room it has."""
        account = self._shard.accounts[node]
        if account.has(FLAGS_CLOSED) and not (group and group.tolerates_cordon):
            return Refusal(Verdict.NODE_UNSCHEDULABLE)
        changed = unaccepted_change(self._proposal, node, (account.seq, account.described), self._shard.feed)
        return Refusal(Verdict.CONFLICT_VERSION, 0, changed) if changed else None

    def _try_cards(self, slot: int, account: Account) -> tuple[Refusal | None, tuple[int, ...]]:
        count, milli = (0, 0) if self._proposal.devices is None else self._proposal.devices[slot].tolist()
        if not count:
            return None, ()
        pick = emptiest_cards if self._proposal.unchecked else pick_cards
        cards = pick(account.cards, count, milli)
        if cards is None:
            fitting = next(n for n in range(count - 1, -1, -1) if pick(account.cards, n, milli) is not None)
            return Refusal(Verdict.CONFLICT_DEVICE, 0, count, fitting), ()
        return None, cards

    def _reserve(self, position: int, node: int, cards: tuple[int, ...]) -> None:
        account, slot = self._shard.accounts[node], int(self._proposal.slots[position])
        request = self._proposal.requests[slot]
        account.requested[: len(request)] += request
        milli = 0 if self._proposal.devices is None or not cards else int(self._proposal.devices[slot, 1])
        for card in cards:
            account.cards[card] += milli
        if self._proposal.unchecked:
            # What exceeds from now on was not the node's doing, and only of pods that stand there already it is told as if it were.
            exceeds = account.overcommitted() or account.has(FLAG_SHRUNK)
            account.mark(FLAG_SHRUNK, self._proposal.stands and exceeds)
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
        )
