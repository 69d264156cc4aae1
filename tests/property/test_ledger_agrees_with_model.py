"""Random histories give the same answers and leave the same state in the scripts as in the model; and the
ledger keeps its invariants."""

import asyncio
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from contract.conftest import epochs_from_one
from hypothesis import given
from hypothesis import strategies as st
from property.profiles import examples
from redis_topologies import SENTINEL_AND_CLUSTER, servers

from hoss.model.conflicts import Criteria
from hoss.model.pod import HostPort
from hoss.model.selectors import LabelSelector, Requirement
from hoss.wire.columns import CARDS, FLAG_GONE, NONE_U32, account_dtype, digest, numbered_uids
from resolver.core.consistency.audit import ShardAccounts, audit
from resolver.core.moves import Moves, target_proposal
from resolver.core.rules import PlacementRule
from resolver.core.values import ANYBODY, Group, Leases, Proposal, Verdict, Writer, claim_of
from resolver.ledger.memory import MemoryLedger
from resolver.ledger.store import RedisLedger

NAMES = ["a", "b", "c", "d", "e"]
RACK = (("rack", "r0"),)
INDEXES = [0, 1, 2, 3, 9]
PODS = 10
_prefixes = count()

upserts = st.tuples(
    st.just("upsert"),
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(NAMES),
                "cpu": st.integers(0, 6),
                "pods": st.integers(0, 4),
                "cards": st.integers(0, 3),
                "unschedulable": st.booleans(),
                "labels": st.sampled_from([(), (("rack", "r0"),), (("rack", "r1"),)]),
            }
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda node: node["name"],
    ),
)


def rule_with(key, selector, namespaces, every_namespace, kind):
    return PlacementRule(key, selector, namespaces, every_namespace, *kind)


rules = st.builds(
    rule_with,
    st.just("rack"),
    st.sampled_from("ab").map(lambda app: LabelSelector((Requirement("app", "In", (app,)),))),
    st.sampled_from([("default",), ("other",)]),
    st.booleans(),
    st.sampled_from([(True, False), (False, False), (False, True)]),
)


@st.composite
def commits(draw, unchecked):
    pods = draw(st.lists(st.integers(0, PODS - 1), min_size=1, max_size=6))
    slots = draw(st.integers(1, 3))
    candidates = draw(st.integers(1, 3))
    rows = st.lists(st.sampled_from(INDEXES), min_size=1, max_size=candidates)
    port = st.sampled_from(
        [HostPort(80), HostPort(80, host_ip="10.0.0.1"), HostPort(80, "UDP"), HostPort(80, host_ip="::")]
    )
    group = st.none() | st.tuples(
        st.sampled_from("ab"),
        st.lists(port, max_size=2, unique=True),
        st.lists(rules, max_size=2, unique=True),
    )
    device = st.sampled_from([(0, 0), (1, 300), (1, 500), (1, 1000), (2, 1000)])
    return (
        "commit",
        {
            "pods": pods,
            "nodes": [draw(rows) + [NONE_U32] * candidates for _ in pods],
            "candidates": candidates,
            "slots": [draw(st.integers(0, slots - 1)) for _ in pods],
            "cpu": draw(st.lists(st.integers(0, 4), min_size=slots, max_size=slots)),
            "extra": draw(st.booleans()),  # a seventh resource, which no node here offers
            "priorities": draw(st.lists(st.integers(-1, 1), min_size=slots, max_size=slots)),
            "devices": draw(st.none() | st.lists(device, min_size=slots, max_size=slots)),
            "worker": draw(st.sampled_from(["w1", "w2"])),
            "fenced": draw(st.integers(0, 9)) == 0,
            "behind": draw(st.sampled_from([-1, -1, 0, 1, 2])),
            "unchecked": unchecked and draw(st.booleans()),
            "existing": draw(st.booleans()),
            "groups": draw(st.just([]) | st.lists(group, min_size=slots, max_size=slots)),
            "lease_over": draw(st.booleans()),
            "gang_minimum": draw(st.just(0) | st.integers(1, len(pods))),
            "prepared": draw(st.sampled_from([False, False, False, True])),
            "firsts": draw(st.lists(st.booleans(), min_size=slots, max_size=slots)),
            # Dealt out to the pods of a batch that is no gang.
            "victims": draw(st.just([]) | st.lists(st.integers(0, PODS - 1), max_size=6, unique=True)),
            "must_go": draw(st.booleans()),
            "pre_binds": draw(st.booleans()),
            "assumed_only": draw(st.booleans()),
            "terminate": draw(st.booleans()),
            "criteria": draw(st.sampled_from([Criteria.FIT, Criteria.FIT, *Criteria])),
        },
    )


def histories(unchecked):
    operations = st.one_of(
        upserts,
        commits(unchecked),
        commits(unchecked),
        commits(unchecked),
        st.tuples(st.just("release"), st.lists(st.integers(0, PODS - 1), min_size=1, max_size=4)),
        st.tuples(st.just("confirm"), st.lists(st.integers(1, 20), min_size=1, max_size=3)),
        st.tuples(
            st.just("remove"),
            st.lists(st.sampled_from([*NAMES, "nobody"]), min_size=1, max_size=2, unique=True),
        ),
        st.tuples(st.just("grant"), st.sampled_from(["w1", "w2"])),
        st.tuples(st.just("reap"), st.none()),
        st.tuples(st.just("keep"), st.lists(st.integers(0, PODS - 1), min_size=1, max_size=6, unique=True)),
        st.tuples(st.just("judge"), st.tuples(st.integers(0, 3), st.integers(0, 2))),
        st.tuples(st.just("forget"), st.integers(0, 3)),
        st.tuples(
            st.just("move"), st.tuples(st.integers(0, PODS - 1), st.sampled_from(INDEXES), st.booleans())
        ),
        st.tuples(
            st.just("move_at_once"),
            st.tuples(
                st.lists(st.integers(0, PODS - 1), min_size=1, max_size=6, unique=True),
                st.lists(st.sampled_from(INDEXES), min_size=6, max_size=6),
                st.integers(0, 4),
                st.integers(0, 2),
            ),
        ),
        st.tuples(
            st.just("end_moves"),
            st.tuples(
                st.lists(st.integers(0, PODS - 1), min_size=1, max_size=6, unique=True),
                st.sampled_from((0, 0, 1, 7)),
            ),
        ),
    )
    return st.lists(operations, min_size=4, max_size=25)


@dataclass
class History:
    """One ledger and the epochs it granted."""

    ledger: Any
    make_node: Any
    epochs: dict[str, int] = field(default_factory=dict)
    queries: list[Any] = field(default_factory=list)  # of prepared pods, also former ones
    groups: dict[bytes, Group] = field(default_factory=dict)  # by definition
    moves: dict[int, Moves] = field(default_factory=dict)  # the last one of each pod

    async def begin(self):
        await self.ledger.schema(["seventh"])
        for worker in ("w1", "w2"):
            self.epochs[worker] = await self.ledger.grant(worker)
        await self.ledger.upsert_nodes(
            0, [self.make_node(name, cpu=4, pods=3, cards=2, labels=RACK) for name in NAMES[:3]]
        )

    async def do(self, kind, what):
        """Run one operation; its answer in a form that compares."""
        return await getattr(self, f"_{kind}")(what)

    async def _upsert(self, nodes):
        upserted = await self.ledger.upsert_nodes(0, [self.make_node(**node) for node in nodes])
        return upserted.seq, upserted.indexes.tolist(), upserted.overcommitted

    async def _release(self, pods):
        return await self.ledger.release(0, uids(pods))

    async def _confirm(self, seqs):
        return await self.ledger.confirm(0, np.array(seqs, np.uint64))

    async def _remove(self, names):
        removed = await self.ledger.remove_nodes(0, names)
        return sorted(uid.tobytes() for uid in removed.uids), removed.missing

    async def _grant(self, worker):
        self.epochs[worker] = await self.ledger.grant(worker)
        return self.epochs[worker]

    async def _reap(self, _):
        return await self.ledger.reap(0)

    async def _keep(self, pods):
        found = await self.ledger.lookup(0, uids(pods))
        committed = await self.ledger.commit_prepared(0, uids(pods), found["seq"], ANYBODY)
        held = await self.ledger.renew(0, uids(pods), found["seq"], ANYBODY, lease_ms=60_000)
        return committed.tolist(), held.tolist()

    async def _judge(self, what):
        behind, may_refuse = what
        seen = await self._seqs(behind)
        return await self.ledger.validate(
            self.queries, epoch=self.epochs["w1"], seen=seen, may_refuse=may_refuse
        )

    async def _forget(self, behind):
        return await self.ledger.forget_rules(await self._seqs(behind))

    async def _move(self, what):
        """Reserve a target for the pod's reservation, if it has one."""
        pod, node, lease_over = what
        held = await self.ledger.reservations_of(0, uids([pod]))
        if not len(held.uids):
            return None
        [definition] = await self.ledger.definitions(0, held.uids)
        self.ledger._leases = Leases(commit_ms=0 if lease_over else 3_600_000)
        [target] = self._indexes([node])
        proposal = target_proposal(
            held,
            [self.groups[definition] if definition else None],
            np.array([target], np.uint32),
            writer=Writer(worker="w1", epoch=self.epochs["w1"]),
            seen=tuple(await self._seqs(0)),
        )
        [decision] = await self.ledger.commit(0, [proposal])
        seqs = np.append(decision.duplicate_seqs, [decision.seq])[:1].astype(np.uint64)
        at = np.array([target], np.uint32)
        self.moves[pod] = Moves(uids([pod]), at, seqs, held.records["node"], held.records["seq"])
        return shown(decision)

    async def _move_at_once(self, what):
        """Those of these pods that hold anything get these nodes; every fifth time the step is meant for what
        they held earlier."""
        pods, targets, stale, behind = what
        held = await self.ledger.reservations_of(0, uids(pods))
        held = held.of(np.argsort([uid.tobytes() for uid in held.uids]))
        if self.ledger.shards > 1:  # pods that rules can look at are moved in two steps
            held = held.of(held.records["group"] == 0)
        if not len(held.uids):
            return None
        definitions = await self.ledger.definitions(0, held.uids)
        proposal = target_proposal(
            held,
            [self.groups[text] if text else None for text in definitions],
            np.array(self._indexes(targets[: len(held.uids)]), np.uint32),
            writer=Writer(worker="w1", epoch=self.epochs["w1"]),
            seen=tuple(await self._seqs(behind)),
            at_once=True,
        )
        if stale == 0:
            proposal = replace(proposal, source_seqs=proposal.source_seqs - np.uint64(1))
        [decision] = await self.ledger.commit(0, [proposal])
        return shown(decision)

    async def _end_moves(self, what):
        """Each pod gets its target, or the pod so many numbers on does."""
        pods, successor = what
        pods = [pod for pod in pods if pod in self.moves]
        known = [self.moves[pod] for pod in pods]
        if not known:
            return None
        columns = ("uids", "nodes", "seqs", "sources", "source_seqs")
        moves = Moves(*(np.concatenate([getattr(move, name) for move in known]) for name in columns))
        if successor:
            moves = replace(moves, successors=uids([(pod + successor) % PODS for pod in pods]))
        return (await self.ledger.confirm_moves(0, moves, ANYBODY)).tolist()

    async def _seqs(self, behind):
        return [max(0, await self.ledger.seq(shard) - behind) for shard in range(self.ledger.shards)]

    async def _commit(self, what):
        requests = np.zeros((len(what["cpu"]), 7 if what["extra"] else 6), np.int64)
        requests[:, 0] = what["cpu"]
        requests[:, 3] = 1
        self.ledger._leases = Leases(commit_ms=0 if what["lease_over"] else 3_600_000)
        groups = tuple(None if group is None else group_with(*group) for group in what["groups"])
        self.groups |= {group.definition: group for group in groups if group is not None}
        proposal = Proposal(
            worker=what["worker"],
            epoch=self.epochs[what["worker"]] - what["fenced"],
            snapshot_seq=max(0, await self.ledger.seq(0) - what["behind"]),
            uids=uids(what["pods"]),
            slots=np.array(what["slots"], np.uint16),
            nodes=np.array([self._indexes(row[: what["candidates"]]) for row in what["nodes"]], np.uint32),
            requests=requests,
            priorities=np.array(what["priorities"], np.int32),
            attempts=np.arange(len(what["cpu"]), dtype=np.uint16),
            devices=None if what["devices"] is None else np.array(what["devices"], np.uint16),
            unchecked=what["unchecked"],
            existing=what["unchecked"] and what["existing"],
            groups=groups,
            gang_minimum=what["gang_minimum"],
            criteria=what["criteria"],
            prepared=what["prepared"]
            and not (what["unchecked"] and what["existing"]),  # existing pods are reserved at once
            firsts=tuple(what["firsts"]),
            seen=tuple(await self._seqs(what["behind"])),
            victims_must_go=what["must_go"],
            pre_binds=what["pre_binds"],
            victims_assumed=what["assumed_only"],
            victims_terminate=what["terminate"],
            victims={} if what["gang_minimum"] else dealt(what["victims"], len(what["pods"])),
        )
        decisions = await self.ledger.commit(0, [proposal])
        fitting = np.isin(decisions[0].verdicts, (Verdict.COMMITTED, Verdict.DUPLICATE)).sum()
        assert decisions[0].seq == 0 or fitting >= what["gang_minimum"]
        self.queries += [query for query in decisions[0].queries if query is not None]
        return [shown(decision) for decision in decisions]

    def _indexes(self, row):
        """Of nodes on shard 0."""
        return [node if node == NONE_U32 else node * self.ledger.shards for node in row]


def dealt(victims, hands):
    """UIDs of the victims by the position of who takes their place."""
    by_position = {}
    for number, pod in enumerate(victims):
        by_position.setdefault(number % hands, []).append(uids([pod])[0].tobytes())
    return {position: tuple(found) for position, found in by_position.items()}


def group_with(name, ports, borne):
    definition = f"{name} {ports} {borne}".encode()
    claims = tuple(map(claim_of, ports))
    return Group(
        zlib.crc32(definition) + 1, definition, claims, "default", (("app", name),), tuple(borne), name == "b"
    )


def uids(pods):
    return np.concatenate([numbered_uids(b"twelve bytes", pod, 1) for pod in pods])


def shown_accounts(rows):
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    cards = np.frombuffer(rows.cards, CARDS.base).reshape(-1, 16)
    return (
        {
            index: (
                int(a["seq"]),
                int(a["born"]),
                int(a["flags"]),
                int(a["described"]),
                np.trim_zeros(a["amounts"].reshape(-1), "b").tolist(),
            )
            for index, a in zip(np.frombuffer(rows.indexes, "<u4").tolist(), accounts, strict=True)
        },
        dict(zip(np.frombuffer(rows.card_indexes, "<u4").tolist(), cards.tolist(), strict=True)),
    )


def shown(decision):
    return (
        decision.seq,
        decision.verdicts.tolist(),
        decision.nodes.tolist(),
        decision.conflicts.tolist(),
        decision.duplicate_seqs.tolist(),
        shown_accounts(decision.fresh),
        decision.as_of,
        [query and (query.domains, query.shard, query.seq) for query in decision.queries],
    )


def shown_reservations(held):
    return {
        uid.tobytes(): (
            *(int(record[name]) for name in RESERVED),
            np.trim_zeros(record["requests"], "b").tolist(),
            bool(assumed),
        )
        for uid, record, assumed in zip(held.uids, held.records, held.assumed, strict=True)
    }


def shard_accounts(state):
    rows = state.snapshot.accounts
    return ShardAccounts(
        0,
        np.frombuffer(rows.indexes, "<u4"),
        np.frombuffer(rows.records, account_dtype(rows.resources)),
        np.frombuffer(rows.card_indexes, "<u4"),
        np.frombuffer(rows.cards, CARDS.base).reshape(-1, 16),
        state.reservations.uids,
        state.reservations.records,
        state.ports,
        {key: pods for key, (_, pods) in state.groups.items()},
    )


async def replay(ledger):
    """The shard's state as a subscriber builds it from the feed alone: live nodes' accounts, cards and specs;
    groups' pods."""
    accounts, cards, specs = {}, {}, {}
    pods, holds = Counter(), set()
    for entry in await ledger.feed(0, 0, 1):
        changed, changed_cards = shown_accounts(entry.accounts)
        accounts |= changed
        cards |= changed_cards
        specs |= dict(entry.specs)
        for index in entry.removed:
            del specs[index]
            cards.pop(index, None)
        holds |= {entry.seq} if entry.prepared else set()
        assert holds >= set(entry.ended)
        holds -= set(entry.ended)
        for run in entry.runs:
            for node in np.frombuffer(run.nodes, "<u4").tolist():
                pods[run.definition, node] += -1 if run.gone else 1
    live = {index: account for index, account in accounts.items() if not account[2] & FLAG_GONE}
    return (
        live,
        {index: used for index, used in cards.items() if index in live},
        specs,
        +pods,
        tuple(sorted(holds)),
    )


async def evictions(ledger):
    return [
        (entry.seq, entry.released, entry.evictions)
        for entry in await ledger.feed(0, 0, 1)
        if entry.evictions
    ]


async def compare(url, make_node, history, shards):
    real = RedisLedger(url, prefix=f"case-{next(_prefixes)}")
    await real.open(shards)
    await epochs_from_one(real)
    model = History(MemoryLedger(shards, lambda: 0), make_node)
    scripts = History(real, make_node)
    for side in (model, scripts):
        await side.begin()
    for operation in history:
        assert await scripts.do(*operation) == await model.do(*operation), operation
    expected, state = await model.ledger.state(0), await real.state(0)
    assert state.snapshot.seq == expected.snapshot.seq
    assert state.snapshot.specs == expected.snapshot.specs
    assert shown_accounts(state.snapshot.accounts) == shown_accounts(expected.snapshot.accounts)
    assert shown_reservations(state.reservations) == shown_reservations(expected.reservations)
    seen = shard_accounts(state)
    wanted = shard_accounts(expected)
    assert digest(*(getattr(seen, f) for f in DIGESTED)) == digest(*(getattr(wanted, f) for f in DIGESTED))
    assert sorted_ports(state) == sorted_ports(expected)
    assert state.groups == expected.groups
    snapshot = await real.snapshot(0, groups=True)
    pods = Counter(
        (run.definition, node) for run in snapshot.runs for node in np.frombuffer(run.nodes, "<u4").tolist()
    )
    assert await evictions(real) == await evictions(model.ledger)
    assert await replay(real) == (*shown_accounts(snapshot.accounts), snapshot.specs, pods, snapshot.prepared)
    await real.erase()
    await real.close()
    return [finding for step in audit([seen], await model.ledger.schema(), {}) for finding in step]


def sorted_ports(state):
    return {node: sorted(holds) for node, holds in state.ports.items()}


RESERVED = ("node", "card_mask", "card_milli", "seq", "epoch", "priority", "attempt", "flags", "group")
DIGESTED = ("indexes", "accounts", "card_indexes", "cards")


@pytest.fixture(
    scope="module",
    params=[*servers(), *(pytest.param(name, marks=pytest.mark.thorough) for name in SENTINEL_AND_CLUSTER)],
)
def url(request, running_redis):
    return running_redis[request.param].url


@examples(80)
@given(history=histories(unchecked=False), shards=st.integers(1, 2))
def test_invariants_1_and_6_hold_and_the_scripts_agree_with_the_model_on_any_history(
    url, make_node, history, shards
):
    findings = asyncio.run(compare(url, make_node, history, shards))
    assert [finding for finding in findings if finding.invariant] == []


@examples(40)
@given(history=histories(unchecked=True), shards=st.integers(1, 2))
def test_unchecked_commits_break_no_invariant_but_the_first(url, make_node, history, shards):
    findings = asyncio.run(compare(url, make_node, history, shards))
    assert [finding for finding in findings if finding.invariant > 1] == []
