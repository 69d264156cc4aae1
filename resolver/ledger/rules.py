"""Rules about pods as every shard of a ledger in Redis knows them, and the stamps on shard 0.

Registered on shard 0 last and forgotten there first: what stands there is known on all.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from hoss.errors import LedgerUnavailable
from resolver.core.rules import Question, Rule, RuleBook, unborn
from resolver.core.values import Group, Proposal
from resolver.ledger import packing

RULE_READS = 10  # by one call, because others changed them meanwhile
_STEP = 1000
_RULES, _STAMPS = 13, 14  # among a shard's keys


class SharedRules:
    """`run` runs a script on a shard, `read` commands at one moment; see RedisLedger."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        read: Callable[..., Awaitable[tuple[int, list[Any]]]],
        feed_window: int,
    ) -> None:
        self.books: list[RuleBook] = []  # by shard, as last read
        self._run = run
        self._read = read
        self._feed_window = feed_window
        self._keys: Sequence[Sequence[str]] = ()

    def open(self, keys: Sequence[Sequence[str]]) -> None:
        """The ledger is there; `keys` are those of each shard."""
        self._keys = keys
        self.distrust()

    def distrust(self) -> None:
        """The ledger may come back without its last second, and the last rules."""
        self.books = [RuleBook() for _ in self._keys]

    def missing(self, shard: int, proposals: Sequence[Proposal]) -> dict[int, Rule]:
        """Rules of these pods that are not registered, there or on shard 0."""
        books = [self.books[shard], self.books[0]][: 2 if shard else 1]
        groups = {id(group): group for proposal in proposals for group in proposal.groups}.values()
        return {key: rule for book in books for key, rule in book.missing(groups).items()}

    async def announce(self, groups: Sequence[Group]) -> list[int]:
        """See resolver.ledger.port.Ledger."""
        missing = {key: rule for book in self.books for key, rule in book.missing(groups).items()}
        if missing:
            await self.register(missing)
        return [book.newest(groups) for book in self.books]

    async def register(self, rules: dict[int, Rule]) -> None:
        """From here on every placement that they see is noted."""
        for shard in (*range(1, len(self.books)), 0):
            arguments = self._feed_window, packing.rule_arguments(rules), "1" if shard else "0"
            await self._run("register_rules", shard, *arguments)
        await self.read()

    async def read(self) -> None:
        """Those of shard 0 first, so that the others are known as of then at least."""
        books: list[RuleBook] = []
        for keys in self._keys:
            _, (version, records) = await self._read(len(books), ("hget", keys[0], "rules"), ("hgetall", keys[_RULES]))
            books.append(packing.read_rules(records, int(version or 0)))
        self.books = books

    async def judge(
        self, questions: Sequence[Question], epoch: int, seen: Sequence[int], spare: int
    ) -> list[tuple[int, int] | None]:
        """See resolver.ledger.port.Ledger."""
        for _ in range(RULE_READS):
            unknown = {g.key: g.registered.rule for q in questions for g in q.guards if g.relies_on}
            missing = {k: rule for k, rule in unknown.items() if any(k not in book.rules for book in self.books)}
            if missing:
                await self.register(missing)
            early = [unborn(question, self.books, seen) for question in questions]
            asked = [replace(q, domains=()) if at else q for q, at in zip(questions, early, strict=True)]
            left = spare - sum(at is not None for at in early)
            arguments = packing.seqs(seen), self.books[0].version, left, packing.question_arguments(asked)
            reply = await self._run("judge", 0, epoch, *arguments)
            if reply is not None:
                return [at or told for at, told in zip(early, packing.read_judgement(reply), strict=True)]
            await self.read()
        raise LedgerUnavailable("rules about pods change faster than proposals are decided; try again")

    async def forget(self, floors: Sequence[int]) -> int:
        """See resolver.ledger.port.Ledger."""
        for shard in range(len(self.books)):  # first of all nobody may rely on what is going to be forgotten
            await self._run("set_floors", shard, packing.seqs(floors))
        keys, cursor = self._keys[0], 0
        while True:
            _, ((cursor, stamps),) = await self._read(0, ("hscan", keys[_STAMPS], cursor, None, _STEP))
            for start in range(0, len(stamps), _STEP):
                fields = msgpack.packb(list(stamps)[start : start + _STEP], use_bin_type=False)
                await self._run("forget_stamps", 0, fields)
            if cursor == 0:
                break
        _, (known,) = await self._read(0, ("hkeys", keys[_RULES]))
        forgotten = list(known)
        for shard in range(len(self.books)):  # shard 0 first: see register
            packed = msgpack.packb(forgotten, use_bin_type=False)
            reply = await self._run("forget_rules", shard, self._feed_window, packed, floors[shard])
            forgotten = [reply[at : at + 8] for at in range(0, len(reply), 8)] if shard == 0 else forgotten
        if forgotten:
            await self.read()
        return len(forgotten)
