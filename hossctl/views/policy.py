"""The policy in force and dry runs of policies, as documents and for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.console import Column, Document, print_lines, print_rows
from hossctl.figures import written_since
from hossctl.local.platform_state import WorkerOptions

# Dry runs need the dispatcher's core, and import it themselves: `hoss status` would wait for it.
if TYPE_CHECKING:
    from hoss.model.pod import Workload

_RULES = (
    Column("  RULE", lambda row: f"  {row['rule']}"),
    Column("MATCHES", lambda row: row["matches"]),
    Column("WHY", lambda row: row["reason"] or "it decides"),
)
_WORKERS = (
    Column("  WORKER", lambda row: f"  {row['worker']}"),
    Column("FITS", lambda row: row["eligible"]),
    Column("OUTSTANDING", lambda row: row["outstanding"]),
    Column("WORK MS", lambda row: row["workMs"]),
    Column("WHY NOT", lambda row: row["reason"]),
)


def policy_document(policy: pb.Policy) -> Document:
    """The policy in force, for programs. Times are Unix milliseconds; 0 for the built-in policy."""
    document: Document = {
        "name": policy.name,
        "version": policy.version,
        "source": policy.source,
        "sinceUnixMs": policy.since_unix_ms,
        "warnings": list(policy.warnings),
        "refusal": None,
    }
    if policy.HasField("refusal"):
        refusal = policy.refusal
        document["refusal"] = {
            "source": refusal.source,
            "atUnixMs": refusal.at_unix_ms,
            "reason": refusal.reason,
        }
    return document


def written_policy(policy: pb.Policy) -> str:
    """`nightly, version 3, by command, for 2m5s; refused 10s ago from file /etc/policy.yaml: ...`"""
    source = policy.source if policy.source.startswith("file ") else f"by {policy.source}"
    text = f"{policy.name}, version {policy.version}, {source}, for {written_since(policy.since_unix_ms)}"
    if policy.HasField("refusal"):
        refusal = policy.refusal
        text += f"; refused {written_since(refusal.at_unix_ms)} ago from {refusal.source}: {refusal.reason}"
    return text


def dry_run_offline(
    yaml: str, workloads: "Sequence[Workload]", workers: Sequence[WorkerOptions]
) -> tuple[list[pb.PolicyTrial], list[str]]:
    """A dry run without a dispatcher, as if these workers existed and were idle; and warnings about the
    policy. Raises ConfigError."""
    from dispatcher.core.policy.checks import document_warnings  # noqa: PLC0415 - as said above
    from dispatcher.core.workers.membership import Worker, WorkerState  # noqa: PLC0415 - as said above
    from dispatcher.core.workers.reports import Heartbeat  # noqa: PLC0415 - as said above
    from dispatcher.policy.documents import parse_policy  # noqa: PLC0415 - as said above
    from dispatcher.policy.dry_run import dry_run  # noqa: PLC0415 - as said above

    policy = parse_policy(yaml)
    idle = [
        Worker(
            worker.name,
            number,
            labels=dict(worker.labels),
            window=1,
            state=WorkerState.READY,
            heartbeat=Heartbeat(ready=True),
        )
        for number, worker in enumerate(workers)
    ]
    return dry_run(policy, [workload.template for workload in workloads], idle), document_warnings(policy)


def dry_run_document(workload: "Workload", trial: pb.PolicyTrial) -> Document:
    """The dry run of one workload."""
    from hoss.wire.convert import conflict_rule_from_proto, scope_from_proto  # noqa: PLC0415 - as said above

    document: Document = {
        "kind": workload.template.owner_kind or "Pod",
        "namespace": workload.template.spec.namespace,
        "name": workload.name,
        "replicas": workload.replicas,
        "rule": trial.rule,
        "worker": trial.worker,
        "reason": trial.reason,
        "nodes": None,
        "conflicts": None,
        "rules": [{"rule": r.rule, "matches": r.matches, "reason": r.reason} for r in trial.rules],
        "workers": [
            {
                "worker": w.worker,
                "eligible": w.eligible,
                "outstanding": w.outstanding,
                "workMs": w.work_ms,
                "reason": w.reason,
            }
            for w in trial.workers
        ],
    }
    if trial.HasField("scope"):
        scope = scope_from_proto(trial.scope)
        document["nodes"] = {"selector": str(scope), "partition": "Hard" if scope.required else "Soft"}
    if trial.HasField("conflicts"):
        rule = conflict_rule_from_proto(trial.conflicts)
        document["conflicts"] = {
            "criteria": rule.criteria.name.capitalize(),
            "commit": "AllOrNothing" if rule.all_or_nothing else "Incremental",
            "displace": {"minPriorityGap": rule.displace_gap} if rule.displace_gap else None,
        }
    return document


def print_dry_run(document: Document) -> None:
    """The dry run of one workload, for people."""
    replicas = f" ({document['replicas']:,} pods)" if document["replicas"] > 1 else ""
    rule = f"rule {document['rule']}" if document["rule"] else "no rule"
    goes = (
        f"worker {document['worker']}: {document['reason']}"
        if document["worker"]
        else f"waits: {document['reason']}"
    )
    lines = [
        f"{document['kind'].lower()} {document['namespace']}/{document['name']}{replicas}: {rule}, {goes}"
    ]
    if document["nodes"]:
        how = "only on" if document["nodes"]["partition"] == "Hard" else "rather on"
        lines.append(f"  to be placed {how} nodes with {document['nodes']['selector']}")
    if document["conflicts"]:
        lines.append(f"  conflicts: {_written_conflicts(document['conflicts'])}")
    print_lines(lines)
    print_rows(document["rules"], _RULES)
    print_rows(document["workers"], _WORKERS)


def _written_conflicts(conflicts: Document) -> str:
    """The conflict rule with the words of the policy document."""
    if conflicts["displace"] is None:
        displaces = "displaces nobody"
    else:
        gap = conflicts["displace"]["minPriorityGap"]
        displaces = f"displaces unconfirmed pods whose priority is lower by {gap:,} or more"
    return f"criteria {conflicts['criteria']}, commit {conflicts['commit']}, {displaces}"
