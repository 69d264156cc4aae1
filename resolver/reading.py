"""What the resolver tells of the whole ledger: its nodes with what is requested on them, and its audit."""

from collections.abc import Collection

import numpy as np

from hoss.model.label_selector import parse_label_selector
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.account import CARD_CLOSED, CARDS, NO_CARD, account_dtype, digest
from hoss.wire.columns import U32, uid_text
from resolver.core.audit import Finding, ShardAccounts, audit
from resolver.core.audit_rules import too_near
from resolver.core.values import AccountRows, ShardState
from resolver.ledger.port import Ledger
from resolver.proposals import group_of


async def list_nodes(ledger: Ledger, names: Collection[str], label_selector: str) -> pb.ListNodesReply:
    """Nodes by name, all when no names are given, that match the selector. Raises InvalidInput for a bad selector."""
    requirements = parse_label_selector(label_selector, where="label_selector")
    wanted = set(names)
    schema = await ledger.schema()
    found: list[pb.NodeInfo] = []
    for shard in range(ledger.shards):
        snapshot = await ledger.snapshot(shard)
        requested = _by_index(snapshot.accounts)
        for index, spec in snapshot.specs.items():
            node = common_pb2.NodeSpec.FromString(spec)
            labels = {label.key: label.value for label in node.labels}
            if (not wanted or node.name in wanted) and all(r.matches(labels) for r in requirements):
                amounts, cards = requested[index]
                found.append(
                    pb.NodeInfo(
                        index=index,
                        spec=node,
                        requested=[
                            common_pb2.Amount(resource=schema[i], amount=amount)
                            for i, amount in enumerate(amounts)
                            if amount
                        ],
                        cards_used_milli=cards,
                    )
                )
    found.sort(key=_node_name)
    return pb.ListNodesReply(nodes=found)


def _node_name(info: pb.NodeInfo) -> str:
    return info.spec.name


def _by_index(rows: AccountRows) -> dict[int, tuple[list[int], list[int]]]:
    """By node: amounts requested, and thousandths used of each card."""
    accounts = np.frombuffer(rows.records, account_dtype(rows.resources))
    cards = np.frombuffer(rows.cards, CARDS.base).reshape(-1, *CARDS.shape)
    used = {
        index: [milli & (CARD_CLOSED - 1) for milli in slots if milli != NO_CARD]
        for index, slots in zip(np.frombuffer(rows.card_indexes, U32).tolist(), cards.tolist(), strict=True)
    }
    return {
        index: (requested, used.get(index, []))
        for index, requested in zip(
            np.frombuffer(rows.indexes, U32).tolist(), accounts["amounts"][:, :, 1].tolist(), strict=True
        )
    }


async def audit_ledger(ledger: Ledger) -> pb.AuditReply:
    """Checks what the ledger alone can show. Each shard is read at one moment, the shards one after the other."""
    reply = pb.AuditReply()
    schema = await ledger.schema()
    names: dict[int, str] = {}
    shards, states = [], []
    for shard in range(ledger.shards):
        state = await ledger.state(shard)
        states.append(state)
        names.update((i, common_pb2.NodeSpec.FromString(s).name) for i, s in state.snapshot.specs.items())
        accounts = _shard_accounts(shard, state)
        shards.append(accounts)
        reply.nodes += len(state.snapshot.specs)
        reply.reservations += len(accounts.uids)
        value = digest(accounts.indexes, accounts.accounts, accounts.card_indexes, accounts.cards)
        reply.digests.add(shard=shard, seq=state.snapshot.seq, digest=value)
    for finding in [*audit(shards, schema, names), *await _together(ledger, states)]:
        if finding.invariant:
            node = "" if finding.node is None else names.get(finding.node, "")
            reply.violations.add(invariant=finding.invariant, node=node, pod_uid=finding.uid, text=finding.text)
        else:
            reply.reports.append(finding.text)
    return reply


async def _together(ledger: Ledger, states: list[ShardState]) -> list[Finding]:
    """Pods that are where required anti-affinity keeps them apart."""
    # What is only held has not been judged yet, and may come to nothing.
    standing = [~np.isin(s.reservations.records["seq"], np.array(s.snapshot.holds, np.uint64)) for s in states]
    uids = np.concatenate([s.reservations.uids[at] for s, at in zip(states, standing, strict=True)])
    nodes, keys, seqs = (
        np.concatenate([s.reservations.records[name][at] for s, at in zip(states, standing, strict=True)])
        for name in ("node", "group", "seq")
    )
    groups = {key: group_of(definition) for s in states for key, (definition, _) in s.groups.items()}
    labels = {
        index: {label.key: label.value for label in common_pb2.NodeSpec.FromString(spec).labels}
        for s in states
        for index, spec in s.snapshot.specs.items()
    }
    findings = []
    for pair in too_near(nodes, keys, groups, labels):
        rows = [pair.bearer, pair.other]
        # Shards are read one after the other: one pod may have left before the other came, unless both are there now.
        now = [await ledger.lookup(int(nodes[row]) % ledger.shards, uids[row : row + 1]) for row in rows]
        if all(int(found["seq"][0]) == int(seqs[row]) for row, found in zip(rows, now, strict=True)):
            bearer, other = (uid_text(uids[row].tobytes()) for row in rows)
            where = f"{pair.rule.topology_key}={pair.domain}"
            text = f"pods {bearer} and {other} are both in {where}, and the first's required anti-affinity forbids that"
            findings.append(Finding(1, int(nodes[pair.bearer]), bearer, text))
    return findings


def _shard_accounts(shard: int, state: ShardState) -> ShardAccounts:
    rows = state.snapshot.accounts
    return ShardAccounts(
        shard=shard,
        indexes=np.frombuffer(rows.indexes, U32),
        accounts=np.frombuffer(rows.records, account_dtype(rows.resources)),
        card_indexes=np.frombuffer(rows.card_indexes, U32),
        cards=np.frombuffer(rows.cards, CARDS.base).reshape(-1, *CARDS.shape),
        uids=state.reservations.uids,
        records=state.reservations.records,
        ports=state.ports,
        group_pods={key: pods for key, (_, pods) in state.groups.items()},
    )
