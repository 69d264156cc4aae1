"""What the ledger's model knows of rules about other pods: who placed what they look at, when, in which domain."""

from dataclasses import dataclass, field

from resolver.core.rules import Guard, RuleBook
from resolver.core.values import Group, Proposal


@dataclass(frozen=True, slots=True)
class Stamp:
    """When the last pod came that is something to a rule in a domain, of which worker epoch, and the last of any other."""

    seq: int = 0
    epoch: int = 0
    others_seq: int = 0

    def newest_of_others(self, epoch: int) -> int:
        """The last one that a worker of this epoch did not commit itself."""
        return self.others_seq if self.epoch == epoch else self.seq

    def after(self, seq: int, epoch: int) -> "Stamp":
        """The stamp once another came."""
        return Stamp(seq, epoch, self.others_seq if epoch == self.epoch else self.seq)


@dataclass(slots=True)
class DomainGuards:
    """Rules, stamps by rule, role and domain, and the labels of nodes that say which domains they lie in."""

    book: RuleBook = field(default_factory=RuleBook)
    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    _stamps: dict[tuple[int, str, str], Stamp] = field(default_factory=dict)
    _missed: set[int] = field(default_factory=set)  # rules that refused pods of this batch match

    def begin(self) -> None:
        """Another batch."""
        self._missed.clear()

    def stamps(self) -> dict[tuple[int, str, str], Stamp]:
        """All stamps, for `restore`."""
        return dict(self._stamps)

    def restore(self, stamps: dict[tuple[int, str, str], Stamp]) -> None:
        """What was placed since they were taken was not placed after all."""
        self._stamps = stamps

    def unknown(self, proposal: Proposal, group: Group | None, node: int, seq: int) -> int:
        """The seq of what the worker did not know when it placed a pod there; 0: nothing. `seq` is this commit's."""
        for guard in self.book.guards(group):
            domain = self._domain(guard, node)
            if domain is None:
                continue
            if guard.bears and guard.registered.born > proposal.snapshot_seq:
                return guard.registered.born
            if guard.bears and not guard.registered.rule.keeps_apart and guard.key in self._missed:
                return seq  # it counted on pods of this batch that were refused
            for role in guard.relies_on:
                newest = self._stamps.get((guard.key, role, domain), Stamp()).newest_of_others(proposal.epoch)
                if newest > proposal.snapshot_seq:
                    return newest
        return 0

    def placed(self, group: Group | None, node: int, epoch: int, seq: int) -> None:
        """A pod of the group was placed there."""
        for guard in self.book.guards(group):
            domain = self._domain(guard, node)
            if domain is not None:
                for role in guard.notes:
                    at = (guard.key, role, domain)
                    self._stamps[at] = self._stamps.get(at, Stamp()).after(seq, epoch)

    def refused(self, group: Group | None) -> None:
        """A pod of the group was placed nowhere."""
        self._missed.update(guard.key for guard in self.book.guards(group) if guard.matches)

    def _domain(self, guard: Guard, node: int) -> str | None:
        return self.labels.get(node, {}).get(guard.registered.rule.topology_key)
