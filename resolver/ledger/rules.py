"""Rules about pods, as every shard of a ledger in Redis knows them, and the domain versions on shard 0.

Invariant: a rule that shard 0 knows is known on all shards. So a rule is registered on shard 0 last, and
forgotten there first.

Many rules are registered or forgotten in parts, and each part that changes something is a new version of the
rules. Other scripts run between the parts, and they know by the version alone whether a proposal was made
with the rules of this moment. With one version for the whole change, taken with its last part, a proposal
made before would record nothing for the rules of the earlier parts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hoss.errors import LedgerUnavailable
from resolver.core.rules import PlacementRule, RuleBook, RuleQuery, registered_later
from resolver.core.values import Group, Position, Proposal
from resolver.ledger import packing

RULE_READS = 10  # per call, because other resolvers changed the rules meanwhile
RULES_STEP = 1000  # in a step of Redis or of the event loop: to decode a rule takes 10 us
_RULES, _DOMAIN_VERSIONS = 13, 14  # positions in SHARD_KEYS
RowT = TypeVar("RowT")


class SharedRules:
    """`run` runs a script on a shard, `scan` reads a hash of a shard in slices; see RedisLedger."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        scan: Callable[..., AsyncIterator[tuple[Position, dict[bytes, bytes], list[Any]]]],
    ) -> None:
        self.books: list[RuleBook] = []  # by shard, as last read
        # Those of the books, as they are stored (packing.read_rules).
        self._decoded: dict[bytes, PlacementRule] = {}
        # Keys of damaged rules for which the low watermarks were raised.
        self._refused_below: set[bytes] = set()
        self._run = run
        self._scan = scan
        self._keys: Sequence[Sequence[str]] = ()

    def open(self, keys: Sequence[Sequence[str]]) -> None:
        """Start with an opened ledger that has these keys by shard."""
        self._keys = keys
        self.distrust()

    def distrust(self) -> None:
        """Forget what was read: the ledger may come back without its last second, and the last rules."""
        self.books = [RuleBook() for _ in self._keys]
        self._refused_below = set()

    def table_sizes(self) -> dict[str, int]:
        """What is remembered of them here."""
        return {
            "rules": sum(len(book.rules) for book in self.books),
            "decoded_rules": len(self._decoded),
            "constraints": sum(book.cached for book in self.books),
        }

    def missing(self, shard: int, proposals: Sequence[Proposal]) -> dict[int, PlacementRule]:
        """Rules of these pods that are not registered on the shard, or not on shard 0."""
        books = [self.books[shard], self.books[0]][: 2 if shard else 1]
        groups = {id(group): group for proposal in proposals for group in proposal.groups}.values()
        return {key: rule for book in books for key, rule in book.missing(groups).items()}

    async def register_rules(self, groups: Sequence[Group]) -> list[int]:
        missing = {key: rule for book in self.books for key, rule in book.missing(groups).items()}
        if missing:
            await self.register(missing)
        return [book.newest(groups) for book in self.books]

    async def register(self, rules: dict[int, PlacementRule]) -> None:
        """Record every placement that concerns these rules from now on."""
        for shard in (*range(1, len(self.books)), 0):
            for part in _parts(list(rules.items())):
                arguments = packing.rule_arguments(dict(part))
                await self._run("register_rules", shard, rules=arguments, again=shard > 0)
        await self.read()

    async def read(self) -> None:
        """Read shard 0 first, so that the other shards are read no older."""
        books: list[RuleBook] = []
        damaged = set[bytes]()
        for shard, keys in enumerate(self._keys):
            book: RuleBook | None = None
            async for at, part, (version,) in self._scan(
                shard, _RULES, ("hget", keys[0], "rules"), step=RULES_STEP
            ):
                # The version of the first slice. If the rules change before the last one, the book is that of
                # no moment, but nothing is decided by it: the scripts ask for the version of their moment.
                book = RuleBook(int(version or 0)) if book is None else book
                known, unreadable = packing.read_rules(part, at.seq, self._decoded)
                for key, rule in known.items():
                    book.add(key, rule)
                damaged |= unreadable.keys()
            books.append(book or RuleBook())
        if damaged - self._refused_below:
            # A rule that cannot be read counts as forgotten: see `forget`. Who bears it registers it anew.
            # Resolvers that know it may have placed pods by it until they have to read the rules, which is
            # after the read above.
            await self.raise_low_watermarks(
                [int(await self._run("reread_rules", shard)) for shard in range(len(self._keys))]
            )
        self._refused_below = damaged  # one that is repaired may be damaged again
        self.books = books
        self._decoded = {
            stored: rule
            for stored, rule in self._decoded.items()
            if any(rule.key in book.rules for book in books)
        }

    async def validate(
        self, queries: Sequence[RuleQuery], epoch: int, seen: Sequence[int], may_refuse: int
    ) -> list[tuple[int, int] | None]:
        for _ in range(RULE_READS):
            unknown = {g.key: g.registered.rule for q in queries for g in q.constraints if g.relies_on}
            missing = {
                k: rule for k, rule in unknown.items() if any(k not in book.rules for book in self.books)
            }
            if missing:
                await self.register(missing)
            early = [registered_later(query, self.books, seen) for query in queries]
            asked = [replace(q, domains=()) if at else q for q, at in zip(queries, early, strict=True)]
            left = may_refuse - sum(at is not None for at in early)
            reply = await self._run(
                "validate",
                0,
                of_epoch=epoch,
                seen=packing.seqs(seen),
                rules=str(self.books[0].version),
                may_refuse=left,
                pods=packing.query_arguments(asked),
            )
            if reply is not None:
                return [
                    at or validated
                    for at, validated in zip(early, packing.read_validation(reply), strict=True)
                ]
            await self.read()
        raise LedgerUnavailable("rules about pods change faster than proposals are decided; try again")

    async def raise_low_watermarks(self, seqs: Sequence[int]) -> None:
        """From now on refuse pods that rules might concern if their worker has not seen these seqs, by
        shard."""
        for shard in range(len(self._keys)):
            await self._run("raise_low_watermarks", shard, seqs=packing.seqs(seqs))

    async def forget(self, low_watermarks: Sequence[int]) -> int:
        # First of all, refuse proposals that rely on what is about to be forgotten.
        await self.raise_low_watermarks(low_watermarks)
        async for _, versions, _ in self._scan(0, _DOMAIN_VERSIONS):
            for part in _parts(list(versions)):
                await self._run("forget_versions", 0, fields=part)
        forgotten: list[bytes] = []
        async for _, known, _ in self._scan(0, _RULES):
            forgotten += await self._forget_on(0, list(known), low_watermarks[0])
        for shard, low_watermark in enumerate(low_watermarks[1:], 1):  # after shard 0: see the module
            await self._forget_on(shard, forgotten, low_watermark)
        if forgotten:
            await self.read()
        return len(forgotten)

    async def _forget_on(self, shard: int, keys: list[bytes], low_watermark: int) -> list[bytes]:
        """Those of these rules that the shard has forgotten."""
        forgotten: list[bytes] = []
        for part in _parts(keys):
            reply = await self._run("forget_rules", shard, keys=part, low_watermark=low_watermark)
            forgotten += [reply[at : at + 8] for at in range(0, len(reply), 8)]
        return forgotten


def _parts(rows: list[RowT]) -> Iterator[list[RowT]]:
    """Parts of these that Redis takes in one step."""
    for start in range(0, len(rows), RULES_STEP):
        yield rows[start : start + RULES_STEP]
