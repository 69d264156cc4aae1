"""The service's audit call: reads the whole ledger and reports what resolver.core.consistency.audit finds."""

import asyncio
from collections.abc import Mapping

import numpy as np

from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import CARDS, U32, account_dtype, digest
from hoss.wire.uids import uid_text
from resolver.api.nodes import decoded, slices, wrong_labels
from resolver.core.consistency.audit import LedgerFinding, ShardAccounts, audit, too_near
from resolver.core.values import ShardState
from resolver.ledger.port import Ledger
from resolver.messages.proposals import group_of

_STEPS_AT_ONCE = 200  # groups or rules: some milliseconds


async def audit_ledger(ledger: Ledger) -> pb.AuditReply:
    """Audit the ledger. Each shard is read at one moment, one shard after the other."""
    reply = pb.AuditReply()
    schema = await ledger.schema()
    names: dict[int, str] = {}
    shards, states = [], []
    for shard in range(ledger.shards):
        state = await ledger.state(shard)
        states.append(state)
        specs = {i: spec async for i, spec in decoded(state.snapshot.specs)}
        names.update((i, spec.name) for i, spec in specs.items())
        labels, versions = await wrong_labels(state.labels, specs), await ledger.damaged_versions(shard)
        accounts = _shard_accounts(shard, state, labels, versions)
        shards.append(accounts)
        reply.nodes += len(state.snapshot.specs)
        reply.reservations += len(accounts.uids)
        value = digest(accounts.indexes, accounts.accounts, accounts.card_indexes, accounts.cards)
        reply.digests.add(shard=shard, seq=state.snapshot.seq, digest=value)
    found: list[LedgerFinding] = []
    for findings in audit(shards, schema, names):
        found += findings
        await asyncio.sleep(0)  # others get their turn
    found += await _together(ledger, states)
    async for part in slices(found):
        for finding in part:
            if finding.invariant:
                node = "" if finding.node is None else names.get(finding.node, "")
                reply.violations.add(
                    invariant=finding.invariant, node=node, pod_uid=finding.uid, text=finding.text
                )
            else:
                reply.reports.append(finding.text)
    return reply


async def _together(ledger: Ledger, states: list[ShardState]) -> list[LedgerFinding]:
    """Pods that are together in a domain against required anti-affinity."""
    # Prepared pods are not validated yet, and may be aborted. A target is beside the pod's own reservation,
    # and who was evicted may stay beside the preemptor until it has ended.
    committed = [
        ~np.isin(s.reservations.records["seq"], np.array(s.snapshot.prepared, np.uint64))
        & ~s.reservations.targets
        & ~s.reservations.terminating
        for s in states
    ]
    uids = np.concatenate([s.reservations.uids[at] for s, at in zip(states, committed, strict=True)])
    nodes, keys, seqs = (
        np.concatenate([s.reservations.records[name][at] for s, at in zip(states, committed, strict=True)])
        for name in ("node", "group", "seq")
    )
    groups = {
        key: group_of(definition)
        for s in states
        async for part in slices(list(s.groups.items()))
        for key, (definition, _) in part
    }
    labels = {
        index: {label.key: label.value for label in spec.labels}
        for s in states
        async for index, spec in decoded(s.snapshot.specs)
    }
    findings: list[LedgerFinding] = []
    for step, pairs in enumerate(too_near(nodes, keys, groups, labels)):
        if step % _STEPS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
        for pair in pairs:
            rows = [pair.bearer, pair.other]
            # The shards are read one after the other: one pod may have left before the other came, unless
            # both are there now.
            now = [await ledger.lookup(int(nodes[row]) % ledger.shards, uids[row : row + 1]) for row in rows]
            if all(int(found["seq"][0]) == int(seqs[row]) for row, found in zip(rows, now, strict=True)):
                bearer, other = (uid_text(uids[row].tobytes()) for row in rows)
                where = f"{pair.rule.topology_key}={pair.domain}"
                text = (
                    f"pods {bearer} and {other} are both in {where}, and the first's required "
                    "anti-affinity forbids that"
                )
                findings.append(LedgerFinding(1, int(nodes[pair.bearer]), bearer, text))
    return findings


def _shard_accounts(
    shard: int,
    state: ShardState,
    wrong_labels: Mapping[bytes, bytes],
    damaged_versions: Mapping[bytes, bytes],
) -> ShardAccounts:
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
        commit_faults=state.commit_faults,
        moved=state.moved,
        damaged=state.damaged,
        damaged_accounts=state.damaged_accounts,
        damaged_cards=state.damaged_cards,
        wrong_labels=wrong_labels,
        damaged_versions=damaged_versions,
        damaged_records=state.damaged_records,
    )
