"""The history of a pod, a job or a worker as `hoss describe` prints it: one line for each transition, with
its time, the time since the first line, and a sentence.

`pod_lines`, `job_lines` and `worker_lines` make the lines from documents; `written` lays them out. The
sentence of a pod's transition depends on its phase and event, as hoss.v1.PodStep has them."""

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from hoss.errors import counted
from hossctl.console import Document
from hossctl.figures import written_duration

WIDTH = 80
_CLOCK, _AFTER = 12, 7  # characters of the time of day, and of the time since the first line
_MOST_LINES, _FIRST_LINES = 60, 10
_FORGOTTEN = "(what happened before is not known any more)"


@dataclass(frozen=True, slots=True)
class Line:
    """A transition and its time in Unix milliseconds; None: the present state."""

    at_ms: int | None
    text: str


def written(lines: Sequence[Line], now_ms: int) -> Iterator[str]:
    """The lines in WIDTH columns and local time, with a line before the first of each day. Where there are
    many, those in the middle are left out."""
    if not lines:
        return
    began = lines[0].at_ms
    day = None
    for line in _shortened(lines):
        at = now_ms if line.at_ms is None else line.at_ms
        when = datetime.fromtimestamp(at / 1000).astimezone()
        if line.at_ms is not None and when.date() != day:
            day = when.date()
            yield f"{day:%Y-%m-%d}"
        clock = "now" if line.at_ms is None else f"{when:%H:%M:%S}.{at % 1000:03d}"
        after = "" if began is None or line is lines[0] else f"+{written_duration((at - began) / 1000)}"
        yield from textwrap.wrap(
            line.text,
            WIDTH,
            initial_indent=f"{clock:<{_CLOCK}}  {after:>{_AFTER}}  ",
            subsequent_indent=" " * (_CLOCK + _AFTER + 4),
            break_on_hyphens=False,
        )


def ago(at_ms: int, now_ms: int) -> str:
    """The time between two moments in Unix milliseconds, as a duration."""
    return written_duration(max(0, now_ms - at_ms) / 1000)


def _shortened(lines: Sequence[Line]) -> Iterator[Line]:
    if len(lines) <= _MOST_LINES:
        yield from lines
        return
    last = _MOST_LINES - _FIRST_LINES
    yield from lines[:_FIRST_LINES]
    yield Line(lines[_FIRST_LINES].at_ms, f"... and {len(lines) - _MOST_LINES} more, which -o json tells")
    yield from lines[-last:]


# The sentences of transitions, by phase and event: of one pod, with {worker}, {node} and {reason}, and of
# several pods, after their number.
_PHRASES = {
    "Scheduling": {"": ("given to worker {worker}", "given to workers")},
    "Bound": {
        "": ("bound on {node}", "bound"),
        "Confirmed": ("confirmed: its reservation stands until it is released", "confirmed"),
        "Assigned": ("is on {node}, as the API server has it", "on nodes, as the API server has it"),
        "VictimsLeft": ("those that had to go for it have left", "free of those that had to go for them"),
        "Evicted": ("has to leave {node}: {reason}", "told to leave their nodes"),
    },
    "Queued": {
        "ScheduleAttemptFailure": ("queued again", "queued again after a refusal"),
        "BackoffComplete": ("queued again: its backoff is over", "queued again after their backoff"),
        "UnschedulableTimeout": (
            "queued again: no change came for five minutes",
            "queued again after five minutes without a change",
        ),
        "ClusterChange": ("queued again: a change may help it", "queued again after a change"),
        "PolicyChange": ("queued again: another policy is in force", "queued again under another policy"),
        "PreemptionAllowed": (
            "queued again: it has waited for moves, and may preempt now",
            "queued again after they waited for moves",
        ),
        "PodUpdate": ("queued again: the pod was changed", "queued again because they were changed"),
        "Returned": ("given back by {worker} before its turn; queued again", "given back untried"),
        "WorkerLost": (
            "worker {worker} was lost with it in hand; queued again",
            "queued again because their worker was lost",
        ),
        "Evicted": ("lost its place and is queued again: {reason}", "evicted and queued again"),
        "ReservationLost": (
            "its reservation is gone; queued again: {reason}",
            "queued again because their reservation was gone",
        ),
        "GatesRemoved": ("its last gate was removed; queued", "queued after their last gate was removed"),
        "GangUpdate": ("queued with others of its gang", "queued with others of their gang"),
        "Retried": ("hoss retry: queued again, its faults forgiven", "queued again by hoss retry"),
    },
    "Backoff": {
        "ScheduleAttemptFailure": ("waits before the next attempt: {reason}", "sent to wait for a while"),
        "ClusterChange": ("a change may help it, once its backoff is over", "near a change, in backoff"),
        "PodUpdate": ("was changed; waits for the end of its backoff", "changed, in backoff"),
        "GivenBack": ("had room and gives it back: {reason}", "given room that they gave back"),
        "BindingRefused": ("the API server did not bind it: {reason}", "not bound by the API server"),
    },
    "Unschedulable": {
        "ScheduleAttemptFailure": ("no node fits: {reason}", "found to fit on no node"),
        "Gated": ("{reason}", "held back by scheduling gates"),
        "Gathering": ("{reason}", "held until more pods of their gang were there"),
    },
    "Failed": {"GivenUp": ("failed: {reason}", "given up")},
    "Deleted": {"": ("deleted", "deleted")},
}


def of_one(transition: Document, *, same_reason: bool = False) -> str:
    """The sentence of one pod's transition. `same_reason`: the line before has the same reason."""
    phase, event, reason = transition["phase"], transition["event"], transition["reason"]
    phrases = _PHRASES.get(phase, {}).get(event)
    if phrases is None:  # of a newer dispatcher
        return ": ".join(filter(None, (phase.lower(), event, reason)))
    text = phrases[0].format(
        worker=transition["worker"] or "unknown",
        node=transition["node"] or "its node",
        reason="as before" if same_reason and reason else reason,
    )
    return text.removesuffix(": ")


def of_many(transition: Document) -> str:
    """The sentence of the same transition of several pods, without their number."""
    phase, event = transition["phase"], transition["event"]
    phrases = _PHRASES.get(phase, {}).get(event)
    return " ".join(filter(None, (phase.lower(), event))) if phrases is None else phrases[1]


# Fields of a pod's document that its history contains.
POD_FIELDS = (
    "steps",
    "stepsSinceUnixMs",
    "decisions",
    "faults",
    "queue",
    "submittedUnixMs",
    "phaseSinceUnixMs",
)
_WAITING = ("Queued", "Backoff", "Unschedulable")


def pod_lines(pod: Document, now_ms: int) -> list[Line]:
    """A pod from its submission until now. `pod` is the document of `describe`."""
    submitted, since = pod["submittedUnixMs"], pod["stepsSinceUnixMs"]
    lines = [Line(submitted, _accepted(pod))]
    if since > submitted:
        lines += [Line(f["atUnixMs"], f["text"]) for f in pod.get("faults", []) if f["atUnixMs"] <= since]
        lines.append(Line(since, _FORGOTTEN))
    lines += _transitions(pod, queued_ms=None if since > submitted else submitted)
    return [*lines, Line(None, _pod_now(pod, now_ms))]


def _accepted(pod: Document) -> str:
    job = f", of job {pod['job']}" if pod["job"] else ""
    rule = f"; routed by rule {pod['rule']}" if pod["rule"] else ""
    return f"accepted{job}{rule}"


def _transitions(pod: Document, queued_ms: int | None) -> Iterator[Line]:
    """Transitions, each followed by its decisions. `queued_ms`: when the pod was queued before the first."""
    transitions = pod["steps"]
    decisions = _by_attempt(transitions, pod.get("decisions", []))
    yield from map(_decision, decisions[-1])
    reason = ""
    for i, transition in enumerate(transitions):
        phase, at_ms = transition["phase"], transition["atUnixMs"]
        text = of_one(transition, same_reason=transition["reason"] == reason)
        if phase == "Scheduling" and queued_ms is not None:
            text += f" after {written_duration((at_ms - queued_ms) / 1000)} in the queue"
        if phase == "Bound" and not transition["event"] and _nominated(transitions[i + 1 :], pod):
            text = f"has a claim on {transition['node']}; pods that have to go for it are leaving"
        yield Line(at_ms, text)
        yield from map(_decision, decisions[i])
        reason = transition["reason"] or reason
        queued_ms = at_ms if phase == "Queued" else None


def _by_attempt(
    transitions: Sequence[Document], decisions: Sequence[Document]
) -> defaultdict[int, list[Document]]:
    """Decisions by the index of the transition that gave the pod to the worker; -1 where that is not known.
    Clocks of workers differ, so a decision can have an earlier time than that transition."""
    found: defaultdict[int, list[Document]] = defaultdict(list)
    for decision in decisions:
        given = [
            i
            for i, transition in enumerate(transitions)
            if (transition["phase"], transition["worker"]) == ("Scheduling", decision["worker"])
        ]
        before = [i for i in given if transitions[i]["atUnixMs"] <= decision["atUnixMs"]]
        found[(before or given[:1] or [-1])[-1]].append(decision)
    return found


def _decision(decision: Document) -> Line:
    if decision["verdict"] in ("COMMITTED", "DUPLICATE"):
        node = decision["node"]
        instead = "" if node == decision["choice"] else f", as {decision['choice']} had no room any more"
        text = f"reserves {node}{instead}"
    else:
        text = f"wants {decision['choice']} and is refused: {decision['verdict']}"
    others = f"; alternates {', '.join(decision['alternates'])}" if decision["alternates"] else ""
    view = f"its view at {decision['snapshotSeq']} of shard {decision['shard']}"
    return Line(decision["atUnixMs"], f"{decision['worker']} {text}{others} ({view})")


def _nominated(later: Sequence[Document], pod: Document) -> bool:
    """Whether a bound pod had to wait for its victims to leave. `later`: its transitions after it was
    bound."""
    for transition in later:
        if transition["phase"] != "Bound" or transition["event"] == "VictimsLeft":
            return bool(transition["event"] == "VictimsLeft")
    return bool(pod["nominatedNode"])


def _pod_now(pod: Document, now_ms: int) -> str:
    phase, duration = pod["phase"], ago(pod["phaseSinceUnixMs"], now_ms)
    if phase in _WAITING and "queue" in pod:
        return f"waits in queue {pod['queue']['name']}, for {duration}{_waits_for(pod, now_ms)}"
    if pod["nominatedNode"]:
        return f"waits for others to leave {pod['nominatedNode']}, for {duration}"
    if phase == "Bound":
        wrong = f", where it should not be any more: {pod['reason']}" if pod["reason"] else ""
        return f"on {pod['node']} for {duration}{wrong}"
    if phase == "Scheduling":
        return f"with worker {pod['worker']} for {duration}"
    return f"{phase.lower()} for {duration}"


def _waits_for(pod: Document, now_ms: int) -> str:
    queue = pod["queue"]
    if queue["name"] == "gated":
        return ": `hoss ungate pod` lets it in"
    if queue["name"] == "active":
        behind = pod.get("waitsBehind")
        return f" behind {behind}" if behind else ": the next worker that may have it takes it"
    latest = max(0, queue["atLatestUnixMs"] - now_ms) / 1000
    if queue["name"] == "backoff":
        return f": tried again in {written_duration(latest)}"
    by = f" ({', '.join(queue['refusedBy'])})" if queue["refusedBy"] else ""
    return f": tried again after a change that may help{by}, in {written_duration(latest)} at the latest"


# Fields of a job's document that its history contains.
JOB_FIELDS = ("steps", "stepsSinceUnixMs", "waiting", "reasons", "submittedUnixMs")
_MOST_REASONS = 10


def job_lines(job: Document, now_ms: int) -> list[Line]:
    """A job from its submission until now: how many of its pods made each transition and when, and what the
    others wait for. `job` is the document of `describe`."""
    submitted, since = job["submittedUnixMs"], job["stepsSinceUnixMs"]
    gang = f", of which {job['minAvailable']} are bound together" if job["minAvailable"] else ""
    lines = [Line(submitted, f"accepted: {counted(job['replicas'], 'pod')}{gang}")]
    if since > submitted:
        lines.append(Line(since, _FORGOTTEN))
    lines += [Line(transition["firstUnixMs"], _of_job(transition)) for transition in job["steps"]]
    done = f"{job['bound']:,} of {job['replicas']:,} bound"
    lines.append(Line(None, f"{done}, {job['deleted']:,} deleted" if job["deleted"] else done))
    return [*lines, *_waiting(job["waiting"], now_ms)]


def grouped(pods: Iterable[tuple[str, str, int]]) -> list[Document]:
    """Pods that are not bound, counted by phase and reason, the largest group first. `sinceUnixMs` is the
    earliest of a group. `pods`: phase, reason, and since when, in Unix milliseconds."""
    found: dict[tuple[str, str], Document] = {}
    for phase, reason, since_ms in pods:
        group = found.setdefault(
            (phase, reason), {"phase": phase, "reason": reason, "pods": 0, "sinceUnixMs": since_ms}
        )
        group["pods"] += 1
        group["sinceUnixMs"] = min(group["sinceUnixMs"], since_ms)
    return sorted(found.values(), key=lambda group: -group["pods"])


def _of_job(transition: Document) -> str:
    text = f"{counted(transition['pods'], 'pod')} {of_many(transition)}"
    first, last = transition["firstUnixMs"], transition["lastUnixMs"]
    return text if first == last else f"{text}, the last {ago(first, last)} after the first"


def _waiting(groups: list[Document], now_ms: int) -> Iterable[Line]:
    for group in groups[:_MOST_REASONS]:
        why = f": {group['reason']}" if group["reason"] else ""
        duration = ago(group["sinceUnixMs"], now_ms)
        yield Line(None, f"{group['pods']:,} {group['phase'].lower()}, for up to {duration}{why}")
    if len(groups) > _MOST_REASONS:
        rest = sum(group["pods"] for group in groups[_MOST_REASONS:])
        yield Line(None, f"{rest:,} for {len(groups) - _MOST_REASONS} other reasons, which -o json tells")


# Fields of a worker's document that its history contains.
WORKER_FIELDS = ("steps", "stateSinceUnixMs", "lastSeenMsAgo", "outstanding", "window")
_REMEMBERED = 50  # transitions of a worker that a dispatcher keeps
_GONE = ("Lost", "Left")
_STATES = {
    "Joining": "registers",
    "Ready": "takes work again",
    "Cordoned": "cordoned: gets no new work",
    "Draining": "drained: gets no new work, and has given back what it had not started",
}


def worker_lines(worker: Document) -> list[Line]:
    """A worker as far back as the dispatcher remembers, until now. `worker` is the document of `describe`."""
    lines: list[Line] = []
    if len(worker["steps"]) == _REMEMBERED:
        lines.append(Line(worker["steps"][0]["atUnixMs"], _FORGOTTEN))
    state = ""
    for transition in worker["steps"]:
        lines.append(Line(transition["atUnixMs"], _of_worker(transition, state)))
        state = transition["state"]
    return [*lines, Line(None, _worker_now(worker))]


def _of_worker(transition: Document, before: str) -> str:
    """The sentence of a worker's transition. `before`: the state that it left."""
    state, text = transition["state"], transition["text"]
    if state in _GONE and state != before:
        return f"{state.lower()}: {text}"
    if text:
        return str(text)
    entered = _STATES.get(state, str(state).lower())
    if before != "Joining":
        return entered
    return f"is given epoch {transition['epoch']}" + ("" if state == "Ready" else f"; {entered}")


def _worker_now(worker: Document) -> str:
    if worker["state"] in _GONE:
        seen = written_duration(worker["lastSeenMsAgo"] / 1000)
        return f"{worker['state'].lower()}; it was heard of {seen} ago"
    work = written_duration(worker["estimatedWorkMs"] / 1000)
    held = f"{worker['outstanding']:,} of {worker['window']:,} pods in hand, work for {work}"
    return f"{worker['state'].lower()}: {held if worker['outstanding'] else 'nothing in hand'}"
