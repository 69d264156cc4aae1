"""Placement constraints in the ledger's model: which worker placed pods that a rule looks at, when, and in
which topology domain.

The ledger keeps domain versions on shard 0 for all shards, because the nodes of a domain may be on any
shard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from resolver.core.rules import PlacementConstraint, RuleBook, RuleQuery, registered_later
from resolver.core.values import Proposal

Position = tuple[int, int]  # shard, seq
VersionField = tuple[int, str, str]  # rule, role, domain


@dataclass(frozen=True, slots=True)
class DomainVersion:
    """When the last pod came to a domain, on one shard, in one role of one rule: the seq for the worker epoch
    that placed a pod last, and the seq for all other epochs. Either seq may be the larger one, because
    prepared pods are not validated in the order of their seqs."""

    seq: int = 0
    epoch: int = 0
    others_seq: int = 0

    def newest_of_others(self, epoch: int) -> int:
        """The last placement that a worker of this epoch did not commit itself."""
        return self.others_seq if self.epoch == epoch else self.newest

    @property
    def newest(self) -> int:
        """The last placement of all."""
        return max(self.seq, self.others_seq)

    def after(self, seq: int, epoch: int) -> "DomainVersion":
        """The version after one more placement."""
        if epoch == self.epoch:
            return DomainVersion(max(seq, self.seq), epoch, self.others_seq)
        return DomainVersion(seq, epoch, self.newest)


@dataclass(slots=True)
class DomainConstraints:
    """The rules of one shard, the labels of its nodes, and on shard 0 the domain versions of all shards."""

    shard: int = 0
    shards: int = 1
    book: RuleBook = field(default_factory=RuleBook)
    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    damaged_labels: dict[int, bytes] = field(default_factory=dict)  # of nodes whose domains nobody knows
    versions: dict[VersionField, dict[int, DomainVersion]] = field(default_factory=dict)  # by shard
    # By shard: versions at or below this seq may be forgotten.
    low_watermarks: tuple[int, ...] = field(init=False)
    _refused_rules: set[int] = field(default_factory=set)  # rules of which a match was refused in this batch

    def __post_init__(self) -> None:
        self.low_watermarks = (0,) * self.shards

    def query(
        self, proposal: Proposal, position: int, node: int | None = None, seq: int = 0
    ) -> RuleQuery | None:
        """The rule query for a pod placed by commit `seq`. None: no rule concerns the pod."""
        slot = int(proposal.slots[position])
        group = proposal.groups[slot] if proposal.groups else None
        constraints = self.book.constraints(group, first=proposal.first(slot))
        if not constraints:
            return None
        return RuleQuery(
            constraints, () if node is None else self.domains(constraints, node), self.shard, seq
        )

    def unknown_to(self, proposal: Proposal, slot: int, node: int, seq: int) -> int:
        """The seq of the placement, or rule, that the worker did not know when it placed a pod of the slot on
        the node; 0: it knew everything. A single shard decides this alone. `seq` is the seq of this
        commit."""
        group = proposal.groups[slot] if proposal.groups else None
        seen = proposal.seen_of(self.shards)
        below = self._below_low_watermarks(seen)
        if group is not None and below:
            return below[1]
        constraints = self.book.constraints(group, first=proposal.first(slot))
        if not constraints or self.shards > 1:
            return 0
        query = RuleQuery(constraints, self.domains(constraints, node), self.shard, seq)
        unknown = registered_later(query, [self.book], seen) or self.unknown_to_worker(
            query, proposal.epoch, seen
        )
        return unknown[1] if unknown else 0

    def _below_low_watermarks(self, seen: Sequence[int]) -> Position | None:
        """The first low watermark that the worker has not seen. What was recorded below them may be
        forgotten."""
        for shard, low_watermark in enumerate(self.low_watermarks):
            if low_watermark > seen[shard]:
                return shard, low_watermark
        return None

    def hides_domain(self, proposal: Proposal, slot: int, node: int) -> bool:
        """Whether a pod of the slot may not go to the node, because its rules ask for labels that were
        damaged."""
        group = proposal.groups[slot] if proposal.groups else None
        constraints = self.book.constraints(group, first=proposal.first(slot))
        return node in self.damaged_labels and any(one.topology_key and not one.name for one in constraints)

    def domains(self, constraints: Sequence[PlacementConstraint], node: int) -> tuple[str | None, ...]:
        """For each constraint, the node's domain."""
        labels = self.labels.get(node, {})
        return tuple(constraint.domain_among(labels) for constraint in constraints)

    def validate(
        self, queries: Sequence[RuleQuery], *, epoch: int, seen: Sequence[int], may_refuse: int
    ) -> list[Position | None]:
        """For each pod, the placement that its worker did not know. None: the worker knew everything, and the
        pod's own placement is recorded. If more than `may_refuse` pods are refused, no placement is recorded.
        `seen`: by shard, the seq up to which the worker knew the shard."""
        self.begin()
        before = self.copied_versions()
        answers: list[Position | None] = []
        # They may have been raised, and versions forgotten, since the pods were prepared.
        below = self._below_low_watermarks(seen)
        for query in queries:
            unknown = (below or self.unknown_to_worker(query, epoch, seen)) if query.placed else None
            answers.append(unknown)
            if unknown or not query.placed:
                self.record_refused(query)
            else:
                self.record_placed(query, epoch)
        if sum(answer is not None for answer in answers) > may_refuse:
            self.versions = before
        return answers

    def begin(self) -> None:
        """Start another batch."""
        self._refused_rules.clear()

    def copied_versions(self) -> dict[VersionField, dict[int, DomainVersion]]:
        return {at: dict(of_shards) for at, of_shards in self.versions.items()}

    def unknown_to_worker(self, query: RuleQuery, epoch: int, seen: Sequence[int]) -> Position | None:
        """The placement that the worker did not know when it placed a pod."""
        for constraint, domain in zip(query.constraints, query.domains, strict=True):
            if domain is None:
                continue
            if constraint.counts_on_matches and constraint.key in self._refused_rules:
                return query.shard, query.seq  # it counted on pods of this batch that were refused
            for role in constraint.relies_on:
                for shard, version in sorted(self.versions.get((constraint.key, role, domain), {}).items()):
                    if version.newest_of_others(epoch) > seen[shard]:
                        return shard, version.newest_of_others(epoch)
        return None

    def record_placed(self, query: RuleQuery, epoch: int) -> None:
        """Record the pod's placement."""
        for constraint, domain in zip(query.constraints, query.domains, strict=True):
            if domain is None:
                continue
            for role in constraint.recorded_roles:
                of_shards = self.versions.setdefault(
                    (constraint.key, role, "" if role == "u" else domain), {}
                )
                of_shards[query.shard] = of_shards.get(query.shard, DomainVersion()).after(query.seq, epoch)

    def record_refused(self, query: RuleQuery) -> None:
        """Record that the pod was not placed."""
        self._refused_rules.update(constraint.key for constraint in query.constraints if constraint.matches)

    def raise_low_watermarks(self, seqs: Sequence[int]) -> None:
        """From now on proposals below these seqs, by shard, are refused if rules might concern their pods."""
        self.low_watermarks = tuple(map(max, self.low_watermarks, seqs))

    def forget_versions(self, fields: Iterable[VersionField]) -> int:
        """Forget those of these versions that every worker has seen: proposals below the low watermarks are
        refused anyway. Returns how many."""
        low_watermarks = self.low_watermarks
        over = [
            at
            for at in fields
            if at in self.versions
            and all(v.newest <= low_watermarks[shard] for shard, v in self.versions[at].items())
        ]
        for at in over:
            del self.versions[at]
        return len(over)

    def unused_rules(self, keys: Iterable[int], low_watermark: int) -> list[int]:
        """Those of these rules that no pod has used, and nobody has registered, since the low watermark."""
        known = self.book.rules
        return [
            key
            for key in keys
            if key in known and known[key].born <= low_watermark and (key, "u", "") not in self.versions
        ]
