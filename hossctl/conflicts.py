"""Conflicts between workers and what the dispatcher does about them, as a document and for people."""

import time
from collections.abc import Sequence

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.console import Column, Document, print_rows, print_summary
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.figures import share, written_duration

_NOBODY = "-"

PAIR_COLUMNS = (
    Column("REFUSED", lambda pair: pair["loser"]),
    Column("FOR", lambda pair: pair["winner"] or _NOBODY),
    Column("REASON", lambda pair: pair["reason"]),
    Column("PODS", lambda pair: f"{pair['pods']:,}"),
    Column("SHARE", lambda pair: f"{pair['share']:.1%}"),
)
_STEPS = (
    Column("AGO", lambda step: written_duration(max(0.0, time.time() - step["atUnixMs"] / 1000))),
    Column("OVERLAP", lambda step: step["overlap"]),
    Column("WORKERS", lambda step: step["workers"] or "all"),
    Column("REASON", lambda step: step["reason"]),
)


async def fetch_conflicts(endpoints: Endpoints) -> Document:
    """As the dispatcher knows them."""
    async with dispatcher_of(endpoints) as client:
        return conflicts_document(await client.conflicts())


def conflicts_document(conflicts: pb.Conflicts) -> Document:
    """All figures. `seqsBehind` and `agesMs` stand beside `from`: the least of each step; steps double."""
    judged = sum(pair.pods for pair in conflicts.pairs)
    return {
        "kind": "Conflicts",
        "proposed": conflicts.proposed,
        "refused": conflicts.refused,
        "conflictShare": round(share(conflicts.refused, conflicts.proposed), 4),
        "pairs": [
            {
                "loser": pair.loser,
                "winner": pair.winner,
                "reason": pair.reason,
                "pods": pair.pods,
                "share": round(share(pair.pods, judged), 4),
            }
            for pair in conflicts.pairs
        ],
        "nodes": [{"node": node.node, "pods": node.pods} for node in conflicts.nodes],
        "seqsBehind": _steps(conflicts.seqs_behind),
        "agesMs": _steps(conflicts.ages_ms),
        "steering": steering_document(conflicts.steering),
    }


def steering_document(steering: pb.Steering) -> Document:
    """What is in force; workers 0: all."""
    document: Document = {
        "overlap": steering.overlap,
        "workers": steering.workers,
        "overlapFixed": steering.overlap_fixed,
        "workersFixed": steering.workers_fixed,
        "sinceUnixMs": steering.since_unix_ms,
        "reason": steering.reason,
    }
    if steering.steps:
        document["steps"] = [
            {"atUnixMs": s.at_unix_ms, "overlap": s.overlap, "workers": s.workers, "reason": s.reason}
            for s in steering.steps
        ]
    return document


def written_steering(steering: Document) -> str:
    """soft-partition (auto), all workers at once (fixed), for 12s: why."""
    overlap = f"{steering['overlap']} ({_by(fixed=steering['overlapFixed'])})"
    workers = f"{steering['workers'] or 'all'} workers at once ({_by(fixed=steering['workersFixed'])})"
    since = steering["sinceUnixMs"]
    for_long = f", for {written_duration(max(0.0, time.time() - since / 1000))}" if since else ""
    return f"{overlap}, {workers}{for_long}: {steering['reason'] or 'just begun'}"


def print_conflicts(document: Document) -> None:
    """The pairs, and below them everything else."""
    if document["pairs"]:
        print_rows(document["pairs"], PAIR_COLUMNS, wide=False)
    refused, proposed = document["refused"], document["proposed"]
    lines: list[tuple[str, object]] = [
        ("refused", f"{refused:,} of {proposed:,} proposed ({document['conflictShare']:.1%})"),
        ("overlap, workers", written_steering(document["steering"])),
    ]
    if document["nodes"]:
        lines += [
            ("worst nodes", ", ".join(f"{node['node']} ({node['pods']:,})" for node in document["nodes"][:8])),
            ("views were behind by", _written_steps(document["seqsBehind"], "changes")),
            ("and answered after", _written_steps(document["agesMs"], "ms")),
        ]
    print_summary("conflicts since the dispatcher's start", lines)
    if steps := document["steering"].get("steps"):
        print_rows(steps, _STEPS, wide=False)


def _by(*, fixed: bool) -> str:
    return "fixed" if fixed else "auto"


def _steps(pods: Sequence[int]) -> list[Document]:
    return [{"from": 2 ** (step - 1) if step else 0, "pods": count} for step, count in enumerate(pods) if count]


def _written_steps(steps: Sequence[Document], unit: str) -> str:
    everything = sum(step["pods"] for step in steps)
    return ", ".join(f"{step['from']}+ {unit}: {share(step['pods'], everything):.0%}" for step in steps)
