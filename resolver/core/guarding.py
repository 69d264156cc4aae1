"""What the ledger's model knows of rules about other pods: who placed what they look at, when, in which domain.

Kept on the ledger's shard 0 for all shards: a domain's nodes may lie on any of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from resolver.core.rules import Guard, Question, RuleBook, unborn
from resolver.core.values import Proposal

Position = tuple[int, int]  # shard, seq
StampField = tuple[int, str, str]  # rule, role, domain


@dataclass(frozen=True, slots=True)
class Stamp:
    """When the last pod came, on one shard, that is something to a rule in a domain, of the worker epoch that placed one last,
    and of any other. Pods that are held are not judged in the order of their seqs, so either may be the younger one."""

    seq: int = 0
    epoch: int = 0
    others_seq: int = 0

    def newest_of_others(self, epoch: int) -> int:
        """The last one that a worker of this epoch did not commit itself."""
        return self.others_seq if self.epoch == epoch else self.newest

    @property
    def newest(self) -> int:
        """The last one of all."""
        return max(self.seq, self.others_seq)

    def after(self, seq: int, epoch: int) -> "Stamp":
        """The stamp once another came."""
        if epoch == self.epoch:
            return Stamp(max(seq, self.seq), epoch, self.others_seq)
        return Stamp(seq, epoch, self.newest)


@dataclass(slots=True)
class DomainGuards:
    """The rules of one shard, the labels of its nodes, and on shard 0 the stamps of all."""

    shard: int = 0
    shards: int = 1
    book: RuleBook = field(default_factory=RuleBook)
    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    stamps: dict[StampField, dict[int, Stamp]] = field(default_factory=dict)  # by shard
    floors: tuple[int, ...] = field(init=False)  # what is older on each shard was forgotten
    _missed: set[int] = field(default_factory=set)  # rules that refused pods of this batch match

    def __post_init__(self) -> None:
        self.floors = (0,) * self.shards

    def question(self, proposal: Proposal, position: int, node: int | None = None, seq: int = 0) -> Question | None:
        """A pod, there by that commit, as rules see it; None where none does."""
        slot = int(proposal.slots[position])
        group = proposal.groups[slot] if proposal.groups else None
        guards = self.book.guards(group, first=proposal.first(slot))
        if not guards:
            return None
        return Question(guards, () if node is None else self.domains(guards, node), self.shard, seq)

    def unknown_to(self, proposal: Proposal, slot: int, node: int, seq: int) -> int:
        """The seq of what the worker did not know when it placed a pod of the slot there, as far as one shard can tell; 0:
        nothing. `seq` is this commit's."""
        group = proposal.groups[slot] if proposal.groups else None
        seen = proposal.seen_of(self.shards)
        behind = [floor for floor, known in zip(self.floors, seen, strict=True) if floor > known]
        if group is not None and behind:
            return behind[0]
        guards = self.book.guards(group, first=proposal.first(slot))
        if not guards or self.shards > 1:
            return 0
        question = Question(guards, self.domains(guards, node), self.shard, seq)
        unknown = unborn(question, [self.book], seen) or self.unknown(question, proposal.epoch, seen)
        return unknown[1] if unknown else 0

    def domains(self, guards: Sequence[Guard], node: int) -> tuple[str | None, ...]:
        """Of each guard, the node's."""
        labels = self.labels.get(node, {})
        return tuple(guard.domain_among(labels) for guard in guards)

    def judge(
        self, questions: Sequence[Question], *, epoch: int, seen: Sequence[int], spare: int
    ) -> list[Position | None]:
        """Of each pod what its worker did not know when it placed it; None: nothing, and its placement is noted. Where more
        than `spare` are refused, none is noted. `seen`: the seq up to which the worker knew each shard."""
        self.begin()
        before = self.copied_stamps()
        answers: list[Position | None] = []
        for question in questions:
            unknown = self.unknown(question, epoch, seen) if question.placed else None
            answers.append(unknown)
            if unknown or not question.placed:
                self.refused(question)
            else:
                self.placed(question, epoch)
        if sum(answer is not None for answer in answers) > spare:
            self.stamps = before
        return answers

    def begin(self) -> None:
        """Another batch."""
        self._missed.clear()

    def copied_stamps(self) -> dict[StampField, dict[int, Stamp]]:
        """All stamps as they are now."""
        return {at: dict(of_shards) for at, of_shards in self.stamps.items()}

    def unknown(self, question: Question, epoch: int, seen: Sequence[int]) -> Position | None:
        """What the worker did not know when it placed a pod."""
        for guard, domain in zip(question.guards, question.domains, strict=True):
            if domain is None:
                continue
            if guard.counts_on_matches and guard.key in self._missed:
                return question.shard, question.seq  # it counted on pods of this batch that were refused
            for role in guard.relies_on:
                for shard, stamp in self.stamps.get((guard.key, role, domain), {}).items():
                    if stamp.newest_of_others(epoch) > seen[shard]:
                        return shard, stamp.newest_of_others(epoch)
        return None

    def placed(self, question: Question, epoch: int) -> None:
        """A pod has its place."""
        for guard, domain in zip(question.guards, question.domains, strict=True):
            if domain is None:
                continue
            for role in guard.notes:
                of_shards = self.stamps.setdefault((guard.key, role, "" if role == "u" else domain), {})
                of_shards[question.shard] = of_shards.get(question.shard, Stamp()).after(question.seq, epoch)

    def refused(self, question: Question) -> None:
        """A pod was placed nowhere."""
        self._missed.update(guard.key for guard in question.guards if guard.matches)

    def forget_stamps(self, floors: Sequence[int]) -> None:
        """Whoever proposes has seen every shard up to its floor: what is older says nothing any more."""
        self.stamps = {
            at: of_shards
            for at, of_shards in self.stamps.items()
            if any(stamp.newest > floors[shard] for shard, stamp in of_shards.items())
        }

    def forget_rules(self, unused: Sequence[int], seq: int) -> None:
        """Known no more from `seq` on."""
        self.book.forget(unused, seq)

    def unused_rules(self, floors: Sequence[int]) -> list[int]:
        """Rules that no pod placed or registered since the floors bears."""
        return [
            key
            for key, known in self.book.rules.items()
            if known.born <= floors[0] and (key, "u", "") not in self.stamps
        ]
