"""Pods, nodes, workers, tenants and jobs as documents, which `-o json` prints, and the columns of their
tables. Times are Unix milliseconds; 0 where there is none."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from hoss.model.resources import written_amount
from hoss.v1 import common_pb2, dispatcher_pb2, resolver_pb2
from hoss.wire.uids import uid_text
from hossctl.console import Column, Document
from hossctl.figures import share, written_duration, written_since


def pod_document(pod: dispatcher_pb2.PodInfo) -> Document:
    """One pod."""
    document = {
        "kind": "Pod",
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": uid_text(pod.uid),
        "job": pod.job,
        "phase": phase_name(pod.phase),
        "node": pod.node,
        "worker": pod.worker,
        "rule": pod.rule,
        "attempts": pod.attempts,
        "reason": pod.reason,
        "nominatedNode": pod.nominated_node,
        "eviction": pod.eviction,
        "submittedUnixMs": pod.submitted_unix_ms,
        "phaseSinceUnixMs": pod.phase_since_unix_ms,
    }
    if pod.faults:
        document["faults"] = [
            {"atUnixMs": f.at_unix_ms, "worker": f.worker, "text": f.text, "final": f.final}
            for f in pod.faults
        ]
    if pod.HasField("template"):
        document["template"] = template_document(pod.template)
    return document


def decision_document(decision: common_pb2.Decision) -> Document:
    """One proposal of a pod and its verdict."""
    choice, *alternates = decision.candidate_names or [""]
    return {
        "atUnixMs": decision.at_unix_ms,
        "worker": decision.worker,
        "snapshotSeq": decision.snapshot_seq,
        "shard": decision.shard,
        "choice": choice,
        "alternates": alternates,
        "verdict": decision.verdict,
        "node": decision.node_name,
        "seq": decision.seq,
        "traceparent": decision.traceparent,
    }


def pod_transition_document(transition: dispatcher_pb2.PodStep) -> Document:
    """One transition of a pod."""
    return {
        "atUnixMs": transition.at_unix_ms,
        "phase": phase_name(transition.phase),
        "event": transition.event,
        "worker": transition.worker,
        "node": transition.node,
        "reason": transition.reason,
    }


def job_transition_document(transition: dispatcher_pb2.JobStep) -> Document:
    """One kind of transition of a job's pods, with how many made it."""
    return {
        "phase": phase_name(transition.phase),
        "event": transition.event,
        "pods": transition.pods,
        "firstUnixMs": transition.first_unix_ms,
        "lastUnixMs": transition.last_unix_ms,
    }


def worker_transition_document(transition: dispatcher_pb2.WorkerStep) -> Document:
    """One transition of a worker."""
    return {
        "atUnixMs": transition.at_unix_ms,
        "state": transition.state,
        "epoch": transition.epoch,
        "text": transition.text,
    }


def queue_document(queue: dispatcher_pb2.QueueStanding) -> Document:
    """The queue that a pod waits in."""
    return {
        "name": queue.name,
        "sinceUnixMs": queue.since_unix_ms,
        "notBeforeUnixMs": queue.not_before_unix_ms,
        "atLatestUnixMs": queue.at_latest_unix_ms,
        "refusedBy": list(queue.refused_by),
    }


def job_document(job: dispatcher_pb2.JobInfo) -> Document:
    """One job, with the number of its pods in each phase."""
    return {
        "kind": job.kind or "Job",
        "namespace": job.namespace,
        "name": job.name,
        "replicas": job.replicas,
        "minAvailable": job.min_available,
        "gang": job.gang,
        "bound": job.bound,
        "queued": job.queued,
        "unschedulable": job.unschedulable,
        "failed": job.failed,
        "deleted": job.deleted,
        "submittedUnixMs": job.submitted_unix_ms,
    }


def worker_document(worker: dispatcher_pb2.WorkerInfo) -> Document:
    """One scheduler worker."""
    return {
        "kind": "Worker",
        "name": worker.name,
        "labels": _labels(worker.labels),
        "profile": worker.profile or None,
        "state": worker.state,
        "epoch": worker.epoch,
        "outstanding": worker.outstanding,
        "window": worker.window,
        "bound": worker.bound,
        "conflicts": worker.conflicts,
        "unschedulable": worker.unschedulable,
        "busySeconds": round(worker.busy_seconds, 3),
        "microsPerPod": round(worker.micros_per_pod, 2),
        "lastSeenMsAgo": worker.last_seen_ms_ago,
        "estimatedWorkMs": round(worker.estimated_micros / 1000, 1),
        "waitingWorkMs": round(worker.waiting_micros / 1000, 1),
        "proposed": worker.proposed,
        "conflictShare": round(share(worker.conflicts, worker.proposed), 4),
        "podsPerSecond": round(worker.pods_per_second, 1),
        "busyShare": round(worker.busy_share, 3),
        "returned": worker.returned,
        "incarnation": f"{worker.incarnation:016x}",
        "stateSinceUnixMs": worker.state_since_unix_ms,
        "distrustedUntilUnixMs": worker.distrusted_until_unix_ms or None,
        "failing": worker.failing or None,
        "synchronisation": worker.synchronisation,
        "fillMs": round(worker.fill_seconds * 1000, 1),
        "behind": [
            {"shard": lag.shard, "seqs": lag.seqs, "seconds": round(lag.seconds, 3)} for lag in worker.lags
        ],
    }


def tenant_document(tenant: dispatcher_pb2.TenantInfo) -> Document:
    """One tenant. `share`: its part of what all nodes offer of `resource`."""
    return {
        "kind": "Tenant",
        "name": tenant.name,
        "weight": tenant.weight,
        "share": round(tenant.share, 6),
        "resource": tenant.resource,
        "queued": tenant.queued,
        "scheduling": tenant.scheduling,
        "bound": tenant.bound,
        "unschedulable": tenant.unschedulable,
    }


def node_document(node: resolver_pb2.NodeInfo) -> Document:
    """One node. Amounts are in schema units."""
    spec = node.spec
    return {
        "kind": "Node",
        "name": spec.name,
        "index": node.index,
        "labels": _labels(spec.labels),
        "taints": list(map(_taint, spec.taints)),
        "unschedulable": spec.unschedulable,
        "quarantine": _quarantine(node),
        "allocatable": {amount.resource: amount.amount for amount in spec.allocatable},
        "requested": {amount.resource: amount.amount for amount in node.requested},
        "cardsUsedMilli": list(node.cards_used_milli[: spec.cards]),
    }


def _quarantine(node: resolver_pb2.NodeInfo) -> Document | None:
    if not node.HasField("quarantine"):
        return None
    found = node.quarantine
    return {"reason": found.reason, "sinceUnixMs": found.since_unix_ms, "untilUnixMs": found.until_unix_ms}


def phase_name(phase: int) -> str:
    """`Queued` for QUEUED."""
    return dispatcher_pb2.PodPhase.Name(phase).replace("POD_PHASE_", "").capitalize()


def template_document(template: dispatcher_pb2.PodTemplate) -> Document:
    """A pod's template. Amounts are in schema units."""
    spec = template.spec
    document: Document = {
        "labels": _labels(spec.labels),
        "priority": spec.priority,
        "priorityClassName": template.priority_class_name,
        "schedulerName": template.scheduler_name,
        "qosClass": template.qos_class,
        "ownerKind": template.owner_kind,
        "requests": {amount.resource: amount.amount for amount in spec.requests},
        "limits": {amount.resource: amount.amount for amount in template.limits},
        "nodeSelector": _labels(spec.node_selector),
        "tolerations": list(map(_toleration, spec.tolerations)),
    }
    if spec.HasField("devices"):
        document["devices"] = {"count": spec.devices.count, "milli": spec.devices.milli}
    if spec.node_name:
        document["nodeName"] = spec.node_name
    if template.required_during_execution:
        document["requiredDuringExecution"] = template.required_during_execution
    if template.movable:
        document["movable"] = template.movable
    return document


def _taint(taint: common_pb2.Taint) -> Document:
    document = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    return {**document, "addedUnixMs": taint.time_added_unix_ms} if taint.time_added_unix_ms else document


def _toleration(t: common_pb2.Toleration) -> Document:
    document = {"key": t.key, "operator": t.operator or "Equal", "value": t.value, "effect": t.effect}
    return (
        {**document, "tolerationSeconds": t.toleration_seconds}
        if t.HasField("toleration_seconds")
        else document
    )


def _labels(labels: Iterable[common_pb2.Label]) -> dict[str, str]:
    return {label.key: label.value for label in labels}


def _age(document: Document) -> str:
    submitted = document["submittedUnixMs"]
    return written_since(submitted) if submitted else ""


def written_worker_state(worker: Document) -> str:
    notes = {"distrusted": worker["distrustedUntilUnixMs"], "failing": worker["failing"]}
    return ", ".join([str(worker["state"]), *(note for note, holds in notes.items() if holds)])


def _since(document: Document) -> str:
    since = document["stateSinceUnixMs"]
    return written_since(since) if since else ""


def _work(worker: Document) -> str:
    return written_duration(worker["estimatedWorkMs"] / 1000)


def _behind(worker: Document) -> str:
    """Changes that the worker has not seen, over all shards, and the age of the oldest."""
    lags = worker["behind"]
    seqs = sum(lag["seqs"] for lag in lags)
    return f"{seqs:,} for {max(lag['seconds'] for lag in lags):.3f} s" if seqs else "0"


def _in_use(resource: str) -> Any:
    def cell(node: Document) -> str:
        used, total = node["requested"].get(resource, 0), node["allocatable"].get(resource, 0)
        return f"{written_amount(resource, used)}/{written_amount(resource, total)}"

    return cell


def _cards(node: Document) -> str:
    used = node["cardsUsedMilli"]
    return f"{sum(used) / 1000:g}/{len(used)}" if used else "-"


def _node_status(node: Document) -> str:
    states = [
        name
        for name, is_so in (("Cordoned", node["unschedulable"]), ("Quarantined", node["quarantine"]))
        if is_so
    ]
    return ",".join(states) or "Ready"


def _quarantined_until(node: Document) -> str:
    found = node["quarantine"]
    return found and datetime.fromtimestamp(found["untilUnixMs"] / 1000, timezone.utc).strftime(
        "%H:%M:%S UTC"
    )


def _field(name: str) -> Any:
    return lambda document: document[name]


def _reservation_state(held: Document) -> str:
    if "assumedSinceUnixMs" not in held:
        return str(held["state"])
    return f"{held['state']} for {written_since(held['assumedSinceUnixMs'])}"


def _lease(held: Document) -> str:
    left = held.get("leaseEndsUnixMs", 0) / 1000 - time.time()
    return f"ends in {written_duration(left)}" if left > 0 else "over" if "leaseEndsUnixMs" in held else "-"


def written_labels(labels: Mapping[str, str]) -> str:
    """`a=b,c`, as kubectl writes labels."""
    return ",".join(f"{key}={value}" if value else key for key, value in labels.items())


def _written_selector(document: Document) -> str:
    requirements = document["selector"]
    if requirements is None:
        return ""
    return ",".join(map(_written, requirements)) or "<all>"


def _written(requirement: Document) -> str:
    key, values = requirement["key"], ",".join(requirement["values"])
    match requirement["operator"]:
        case "In":
            return f"{key}={values}" if len(requirement["values"]) == 1 else f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "Exists":
            return str(key)
        case _:
            return f"!{key}"


_OF_CLUSTER_OBJECTS: dict[str, Sequence[Column]] = {
    "namespaces": (
        Column("NAME", lambda document: document["name"]),
        Column("LABELS", lambda document: written_labels(document["labels"]), wide=True),
    ),
    "services": (
        Column("NAME", lambda document: document["name"]),
        Column("SELECTOR", lambda document: written_labels(document["selector"])),
    ),
    "poddisruptionbudgets": (
        Column("NAME", lambda document: document["name"]),
        Column("MIN AVAILABLE", lambda document: _or_none(document["minAvailable"])),
        Column("MAX UNAVAILABLE", lambda document: _or_none(document["maxUnavailable"])),
        Column("ALLOWED DISRUPTIONS", lambda document: document["disruptionsAllowed"]),
        Column(
            "HEALTHY", lambda document: f"{document['currentHealthy']}/{document['expectedPods']}", wide=True
        ),
        Column("DESIRED", lambda document: document["desiredHealthy"], wide=True),
        Column("SELECTOR", _written_selector, wide=True),
    ),
    "priorityclasses": (
        Column("NAME", lambda document: document["name"]),
        Column("VALUE", lambda document: document["value"]),
        Column("GLOBAL DEFAULT", lambda document: document["globalDefault"]),
        Column("PREEMPTION", lambda document: document["preemptionPolicy"], wide=True),
    ),
}


def _or_none(limit: int | str | None) -> object:
    return "N/A" if limit is None else limit


_RESERVATION_COLUMNS: Sequence[Column] = (
    Column("UID", lambda held: held["uid"]),
    Column("NODE", lambda held: held["node"]),
    Column("STATE", _reservation_state),
    Column("REQUESTS", lambda held: _requests(held["requests"])),
    Column("CARDS", lambda held: ",".join(map(str, held["cards"])) or "-"),
    Column("WORKER", lambda held: held["worker"]),
    Column("POD", lambda held: held.get("pod") or "-", wide=True),
    Column("LEASE", _lease, wide=True),
    Column("PRIORITY", lambda held: held["priority"], wide=True),
    Column("ATTEMPT", lambda held: held["attempt"], wide=True),
    Column("SHARD", lambda held: held["shard"], wide=True),
    Column("SEQ", lambda held: held["seq"], wide=True),
    Column("EPOCH", lambda held: held["workerEpoch"], wide=True),
)


def _requests(requests: Mapping[str, int]) -> str:
    """`cpu=500m,memory=1Gi`."""
    return ",".join(
        f"{name}={written_amount(name, amount)}" for name, amount in requests.items() if name != "pods"
    )


COLUMNS: dict[str, Sequence[Column]] = {
    "pods": (
        Column("NAME", _field("name")),
        Column("PHASE", _field("phase")),
        Column("NODE", _field("node")),
        Column("ATTEMPTS", _field("attempts")),
        Column("AGE", _age),
        Column("REASON", _field("reason")),
        Column("WORKER", _field("worker"), wide=True),
        Column("RULE", _field("rule"), wide=True),
        Column("JOB", _field("job"), wide=True),
        Column("UID", _field("uid"), wide=True),
    ),
    "nodes": (
        Column("NAME", _field("name")),
        Column("STATUS", _node_status),
        Column("CPU", _in_use("cpu")),
        Column("MEMORY", _in_use("memory")),
        Column("PODS", _in_use("pods")),
        Column("CARDS", _cards),
        Column("QUARANTINED UNTIL", _quarantined_until, wide=True),
        Column("INDEX", _field("index"), wide=True),
        Column(
            "TAINTS",
            lambda node: ",".join(f"{t['key']}={t['value']}:{t['effect']}" for t in node["taints"]),
            wide=True,
        ),
        Column("LABELS", lambda node: written_labels(node["labels"]), wide=True),
    ),
    "workers": (
        Column("NAME", _field("name")),
        Column("STATE", written_worker_state),
        Column("OUTSTANDING", lambda worker: f"{worker['outstanding']}/{worker['window']}"),
        Column("BOUND", _field("bound")),
        Column("CONFLICTS", _field("conflicts")),
        Column("LABELS", lambda worker: written_labels(worker["labels"])),
        Column("PROFILE", lambda worker: worker["profile"] or "-", wide=True),
        Column("WORK", _work, wide=True),
        Column("CONFLICT SHARE", lambda worker: f"{worker['conflictShare']:.1%}", wide=True),
        Column("PODS/S", _field("podsPerSecond"), wide=True),
        Column("BUSY", lambda worker: f"{worker['busyShare']:.0%}", wide=True),
        Column("US/POD", _field("microsPerPod"), wide=True),
        Column("UNSCHEDULABLE", _field("unschedulable"), wide=True),
        Column("RETURNED", _field("returned"), wide=True),
        Column("EPOCH", _field("epoch"), wide=True),
        Column("INCARNATION", lambda worker: worker["incarnation"][:8], wide=True),
        Column("CPU", lambda worker: written_duration(worker["busySeconds"]), wide=True),
        Column("SINCE", _since, wide=True),
        Column("SEEN", lambda worker: written_duration(worker["lastSeenMsAgo"] / 1000), wide=True),
        Column("SYNC", lambda worker: worker["synchronisation"] or "-", wide=True),
        Column("BEHIND", _behind, wide=True),
    ),
    "jobs": (
        Column("NAME", _field("name")),
        Column("KIND", _field("kind")),
        Column("BOUND", lambda job: f"{job['bound']}/{job['replicas']}"),
        Column("QUEUED", _field("queued")),
        Column("UNSCHEDULABLE", _field("unschedulable")),
        Column("AGE", _age),
        Column("MIN AVAILABLE", lambda job: job["minAvailable"] or "-", wide=True),
        Column("GANG", lambda job: job["gang"] or "-", wide=True),
        Column("FAILED", _field("failed"), wide=True),
        Column("DELETED", _field("deleted"), wide=True),
    ),
    "tenants": (
        Column("NAME", _field("name")),
        Column("WEIGHT", lambda tenant: f"{tenant['weight']:g}"),
        Column("SHARE", lambda tenant: f"{tenant['share']:.1%}"),
        Column("OF", _field("resource")),
        Column("QUEUED", _field("queued")),
        Column("SCHEDULING", _field("scheduling")),
        Column("BOUND", _field("bound")),
        Column("UNSCHEDULABLE", _field("unschedulable")),
    ),
    **_OF_CLUSTER_OBJECTS,
    "reservations": _RESERVATION_COLUMNS,
}
