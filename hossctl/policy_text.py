"""The policy in force and its trials, as documents and for people."""

import sys
import time
from collections.abc import Sequence

from dispatcher.core.membership import Vitals, Worker, WorkerState
from dispatcher.core.policy_checks import doubts
from dispatcher.policy_document import parse_policy
from dispatcher.policy_trials import trials
from hoss.model.pod import Workload
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import conflict_rule_from_proto, scope_from_proto
from hossctl.console import Column, Document, print_rows
from hossctl.figures import written_duration
from hossctl.platform import WorkerOptions

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
    """The policy in force, for programs; times are Unix milliseconds, 0 where the dispatcher has it from nowhere."""
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
        document["refusal"] = {"source": refusal.source, "atUnixMs": refusal.at_unix_ms, "reason": refusal.reason}
    return document


def written_policy(policy: pb.Policy) -> str:
    """`nightly, version 3, by command, for 2m5s; refused 10s ago from file /etc/policy.yaml: ...`"""
    source = policy.source if policy.source.startswith("file ") else f"by {policy.source}"
    text = f"{policy.name}, version {policy.version}, {source}, for {_since(policy.since_unix_ms)}"
    if policy.HasField("refusal"):
        refusal = policy.refusal
        text += f"; refused {_since(refusal.at_unix_ms)} ago from {refusal.source}: {refusal.reason}"
    return text


def offline_trials(
    yaml: str, workloads: Sequence[Workload], workers: Sequence[WorkerOptions]
) -> tuple[list[pb.PolicyTrial], list[str]]:
    """What a policy would do with pods if these workers were there, idle; and doubts about it. Raises ConfigError."""
    policy = parse_policy(yaml)
    idle = [
        Worker(
            worker.name,
            number,
            labels=dict(worker.labels),
            window=1,
            state=WorkerState.READY,
            vitals=Vitals(ready=True),
        )
        for number, worker in enumerate(workers)
    ]
    return trials(policy, [workload.template for workload in workloads], idle), doubts(policy)


def trial_document(workload: Workload, trial: pb.PolicyTrial) -> Document:
    """One workload's trial."""
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


def print_trial(document: Document) -> None:
    """A trial for people."""
    replicas = f" ({document['replicas']:,} pods)" if document["replicas"] > 1 else ""
    rule = f"rule {document['rule']}" if document["rule"] else "no rule"
    goes = (
        f"worker {document['worker']}: {document['reason']}" if document["worker"] else f"waits: {document['reason']}"
    )
    sys.stdout.write(
        f"{document['kind'].lower()} {document['namespace']}/{document['name']}{replicas}: {rule}, {goes}\n"
    )
    if document["nodes"]:
        how = "only on" if document["nodes"]["partition"] == "Hard" else "rather on"
        sys.stdout.write(f"  to be placed {how} nodes with {document['nodes']['selector']}\n")
    if document["conflicts"]:
        sys.stdout.write(f"  conflicts: {_written_conflicts(document['conflicts'])}\n")
    print_rows(document["rules"], _RULES, wide=False)
    print_rows(document["workers"], _WORKERS, wide=False)


def _written_conflicts(conflicts: Document) -> str:
    """In the words of the policy's document, and what they mean for pods that are not confirmed."""
    if conflicts["displace"] is None:
        displaces = "displaces nobody"
    else:
        gap = conflicts["displace"]["minPriorityGap"]
        displaces = f"displaces unconfirmed pods whose priority is lower by {gap:,} or more"
    return f"criteria {conflicts['criteria']}, commit {conflicts['commit']}, {displaces}"


def _since(unix_ms: int) -> str:
    return written_duration(max(0.0, time.time() - unix_ms / 1000))
