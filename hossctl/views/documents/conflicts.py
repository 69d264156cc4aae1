"""Conflicts between workers and the dispatcher's overlap control, as a document and for people."""

from collections.abc import Sequence

from hoss.v1 import dispatcher_pb2 as pb
from hossctl.console import Column, Document, print_rows, print_summary
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.figures import share, written_since

PAIR_COLUMNS = (
    Column("REFUSED", lambda pair: pair["loser"]),
    Column("FOR", lambda pair: pair["winner"] or "-"),
    Column("REASON", lambda pair: pair["reason"]),
    Column("PODS", lambda pair: f"{pair['pods']:,}"),
    Column("SHARE", lambda pair: f"{pair['share']:.1%}"),
)
_CHANGE_COLUMNS = (
    Column("AGO", lambda change: written_since(change["atUnixMs"])),
    Column("OVERLAP", lambda change: change["overlap"]),
    Column("WORKERS", lambda change: change["workers"] or "all"),
    Column("REASON", lambda change: change["reason"]),
)


async def fetch_conflicts(endpoints: Endpoints) -> Document:
    """The conflicts that the dispatcher has counted since its start."""
    async with dispatcher_of(endpoints) as client:
        return conflicts_document(await client.conflicts())


def conflicts_document(conflicts: pb.Conflicts) -> Document:
    """All figures. `seqsBehind` and `agesMs` are histograms: `from` is a bucket's lower bound, and each
    bucket is twice as wide as the one before."""
    refused = sum(pair.pods for pair in conflicts.pairs)
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
                "share": round(share(pair.pods, refused), 4),
            }
            for pair in conflicts.pairs
        ],
        "nodes": [{"node": node.node, "pods": node.pods} for node in conflicts.nodes],
        "seqsBehind": _histogram(conflicts.seqs_behind),
        "agesMs": _histogram(conflicts.ages_ms),
        "steering": overlap_control_document(conflicts.steering),
    }


def overlap_control_document(control: pb.Steering) -> Document:
    """The setting of the overlap control in force; `workers` 0 means all."""
    document: Document = {
        "overlap": control.overlap,
        "workers": control.workers,
        "overlapFixed": control.overlap_fixed,
        "workersFixed": control.workers_fixed,
        "sinceUnixMs": control.since_unix_ms,
        "reason": control.reason,
    }
    if control.steps:
        document["steps"] = [
            {"atUnixMs": s.at_unix_ms, "overlap": s.overlap, "workers": s.workers, "reason": s.reason}
            for s in control.steps
        ]
    return document


def written_overlap_control(control: Document) -> str:
    """`soft-partition (auto), all workers at once (fixed), for 12s: REASON`."""
    overlap = f"{control['overlap']} ({_by(fixed=control['overlapFixed'])})"
    workers = f"{control['workers'] or 'all'} workers at once ({_by(fixed=control['workersFixed'])})"
    since = control["sinceUnixMs"]
    lasting = f", for {written_since(since)}" if since else ""
    return f"{overlap}, {workers}{lasting}: {control['reason'] or 'just begun'}"


def print_conflicts(document: Document) -> None:
    """The pairs of workers first."""
    if document["pairs"]:
        print_rows(document["pairs"], PAIR_COLUMNS)
    refused, proposed = document["refused"], document["proposed"]
    lines: list[tuple[str, object]] = [
        ("refused", f"{refused:,} of {proposed:,} proposed ({document['conflictShare']:.1%})"),
        ("overlap, workers", written_overlap_control(document["steering"])),
    ]
    if document["nodes"]:
        lines += [
            (
                "worst nodes",
                ", ".join(f"{node['node']} ({node['pods']:,})" for node in document["nodes"][:8]),
            ),
            ("views were behind by", _written_histogram(document["seqsBehind"], "changes")),
            ("and answered after", _written_histogram(document["agesMs"], "ms")),
        ]
    print_summary("conflicts since the dispatcher's start", lines)
    if changes := document["steering"].get("steps"):
        print_rows(changes, _CHANGE_COLUMNS)


def _by(*, fixed: bool) -> str:
    return "fixed" if fixed else "auto"


def _histogram(pods: Sequence[int]) -> list[Document]:
    return [
        {"from": 2 ** (bucket - 1) if bucket else 0, "pods": count}
        for bucket, count in enumerate(pods)
        if count
    ]


def _written_histogram(buckets: Sequence[Document], unit: str) -> str:
    everything = sum(bucket["pods"] for bucket in buckets)
    return ", ".join(f"{b['from']}+ {unit}: {share(b['pods'], everything):.0%}" for b in buckets)
