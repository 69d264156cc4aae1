"""`hoss rebalance run|status|pause|resume|undo`: a run of moves in the dispatcher, as a document and as a
table.

The document (camel case):

    kind                  "RebalanceRun"
    state                 Running, Paused, Done; "" if there were no moves yet
    reason                why it is paused, or what an undo could not take back
    purpose
    moved, refused, waiting, evicted   moves
    moves[]               pod, from, to, state (Waiting, Evicted, Moved, Refused), text (why it was refused,
                          or what it waits for; in Kubernetes mode also which pod is the successor of a
                          moved one)
    impossible[]          subject, why: what the plan found no moves for; [] where no plan was made
    byController          whether the rebalance controller began it
    controller            null, or text (what it does or waits for), paused, goals, movesLastHour,
                          movesPerHour, movesLastDay, ended, silentSeconds (since its last report),
                          preemptionWaitSeconds (how long pods wait for its moves before they preempt; 0: not)
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hoss.client.dispatcher import DispatcherClient
from hoss.errors import InvalidInput, NotFound, TransportError
from hoss.manifests import guarded
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.cli import run_async
from hossctl.console import Column, Document
from hossctl.endpoints import Endpoints, dispatcher_of

PLANS = 3  # a goal is planned this often: refused moves are planned again
_POLL_SECONDS = 0.2
# A run has up to 10,000 moves, of some 400 bytes each. The pods that wait may be as many.
_MOST_PLAN_BYTES = 16 * 1024 * 1024


def read_plan(file: Path) -> Document:
    """A plan that `hoss rebalance plan -o json` printed. Raises InvalidInput for anything else."""
    document = guarded.read_json(file, most_bytes=_MOST_PLAN_BYTES)
    if not isinstance(document, dict) or document.get("kind") != "RebalancePlan":
        raise InvalidInput("is no plan; write one with `hoss rebalance plan -o json`", where=str(file))
    if document.get("newNodes"):
        raise InvalidInput("relies on nodes that are not there; add them, and plan again", where=str(file))
    try:
        _start(document, 1.0)
        for entry in document.get("impossible", []):
            "".join((entry["subject"], entry["why"]))  # both are texts: they are printed after the moves
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidInput(f"lacks what a plan has: {exc!r}", where=str(file)) from exc
    return document


def carry_out(
    endpoints: Endpoints,
    plan: Document,
    rate: float,
    timeout_seconds: float,
    show: Callable[[int, str], None],
) -> Document:
    """Start the plan's moves, and follow them until they are done or paused, or the time is over, also with
    the next dispatcher. `show` gets how many are made or refused so far, and a remark. Raises NotFound where
    the next dispatcher knows nothing of them, and where another run has taken their place: what became of
    them is not known, and whoever began it does not want them planned again."""

    async def follow() -> Document:
        async with dispatcher_of(endpoints) as client:
            start = _start(plan, rate)
            status = await client.rebalance(start)
            deadline = time.monotonic() + timeout_seconds
            # No longer than the run is this one: another one may go on for hours.
            while status.state == "Running" and _what(status) == _what(start) and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
                seen = await _status(client)
                status = seen or status
                show(status.moved + status.refused, "" if seen else "no dispatcher answers; waiting for one")
            if not status.state:
                raise NotFound(
                    "another dispatcher leads by now, and its journal has lost the moves: each pod is on its"
                    " old node or on its new one; plan again"
                )
            if _what(status) != _what(start):
                # It may have ended since it was last seen, and somebody has begun another one.
                ended = await client.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_STATUS, previous=True))
                if ended.state == "Done" and _what(ended) == _what(start):
                    return run_document(ended, plan)
                raise NotFound(
                    f"another run has taken the place of this one: {status.purpose or 'a plan'};"
                    " `hoss rebalance status` shows it"
                )
            return run_document(status, plan)

    return run_async(follow())


def _what(run: pb.RebalanceStatus | pb.RebalanceRequest) -> tuple[str, list[str]]:
    return run.purpose, [move.pod for move in run.moves]


async def _status(client: DispatcherClient) -> pb.RebalanceStatus | None:
    try:
        return await client.rebalance(pb.RebalanceRequest(action=pb.REBALANCE_STATUS))
    except TransportError:
        return None  # it may be back, or another one leads


def nothing_to_do(plan: Document) -> Document:
    """The document of a plan without moves. The dispatcher is not asked: what it moved last can be undone
    still."""
    return run_document(pb.RebalanceStatus(state="Done", purpose=plan["goal"]), plan)


def asked(endpoints: Endpoints, action: str) -> Document:
    """What the dispatcher answers to STATUS, PAUSE, RESUME or UNDO."""

    async def ask() -> Document:
        async with dispatcher_of(endpoints) as client:
            request = pb.RebalanceRequest(action=f"REBALANCE_{action}")
            return run_document(await client.rebalance(request))

    return run_async(ask())


def _start(plan: Document, rate: float) -> pb.RebalanceRequest:
    moves = [
        pb.RebalanceMove(pod=move["pod"], source=move["from"], target=move["to"]) for move in plan["moves"]
    ]
    seen = {int(shard): seq for shard, seq in plan["seen"].items()}
    return pb.RebalanceRequest(
        action=pb.REBALANCE_START, moves=moves, seen=seen, moves_per_second=rate, purpose=plan["goal"]
    )


def run_document(status: pb.RebalanceStatus, plan: Document | None = None) -> Document:
    """The run as the module's docstring says."""
    return {
        "kind": "RebalanceRun",
        "state": status.state,
        "reason": status.reason,
        "purpose": status.purpose,
        "moved": status.moved,
        "refused": status.refused,
        "waiting": status.waiting,
        "evicted": status.evicted,
        "moves": [
            {
                "pod": move.pod,
                "from": move.source,
                "to": move.target,
                "state": move.state,
                "text": move.text,
            }
            for move in status.moves
        ],
        "impossible": [] if plan is None else plan.get("impossible", []),
        "byController": bool(status.begun_by),
        "controller": _controller_document(status.controller, time.time())
        if status.HasField("controller")
        else None,
    }


def _controller_document(controller: pb.RebalanceController, now: float) -> Document:
    return {
        "text": controller.text,
        "paused": controller.paused,
        "goals": list(controller.goals),
        "movesLastHour": controller.moves_last_hour,
        "movesPerHour": controller.moves_per_hour,
        "movesLastDay": controller.moves_last_day,
        "ended": controller.leaving,
        "preemptionWaitSeconds": controller.preemption_wait_seconds,
        "silentSeconds": max(0, round(now - controller.heard_unix_ms / 1000)),
    }


MOVE_COLUMNS: Sequence[Column] = (
    Column("POD", lambda row: row["pod"]),
    Column("FROM", lambda row: row["from"]),
    Column("TO", lambda row: row["to"]),
    Column("STATE", lambda row: row["state"]),
    Column("WHY", lambda row: row["text"] or "-"),
)


def run_lines(document: Document) -> list[tuple[str, object]]:
    """A run in short."""
    counts = f"{document['moved']} made, {document['refused']} refused, {document['waiting']} to come"
    if document["evicted"]:
        counts += f", {document['evicted']} evicted whose successors are awaited"
    lines: list[tuple[str, object]] = [("state", document["state"]), ("moves", counts)]
    lines += [("impossible", f"{entry['subject']}: {entry['why']}") for entry in document["impossible"]]
    if not document["reason"]:
        return lines
    return [*lines, ("why" if document["state"] == "Done" else "paused", document["reason"])]


_SILENT_SECONDS = 10  # a controller reports every second


def controller_lines(controller: Document) -> list[tuple[str, object]]:
    """A controller in short."""
    budget = f"{controller['movesLastHour']} of {controller['movesPerHour']} moves of the hour"
    lines: list[tuple[str, object]] = [
        ("state", "ended" if controller["ended"] else "paused" if controller["paused"] else "at work"),
        ("now", controller["text"]),
        ("goals", ", ".join(controller["goals"]) or "none: it measures"),
        ("moves", f"{budget}; {controller['movesLastDay']} in 24 hours"),
    ]
    if controller["preemptionWaitSeconds"]:
        wait = f"pods wait up to {controller['preemptionWaitSeconds']:g} s for moves"
        lines.append(("before preemption", wait))
    if not controller["ended"] and controller["silentSeconds"] > _SILENT_SECONDS:
        lines.append(("silent", f"for {controller['silentSeconds']} seconds; is its process there?"))
    return lines
