"""What `hoss describe pod` tells: how a pod came where it is, step by step, each proposal with what the ledger said of it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hossctl import step_words
from hossctl.console import Document
from hossctl.figures import written_duration
from hossctl.timeline import Line, ago

TOLD = ("steps", "stepsSinceUnixMs", "decisions", "faults", "queue", "submittedUnixMs", "phaseSinceUnixMs")
_WAITING = ("Queued", "Backoff", "Unschedulable")


def pod_lines(pod: Document, now_ms: int) -> list[Line]:
    """From its submission until now; `pod` as `describe` makes it."""
    submitted, since = pod["submittedUnixMs"], pod["stepsSinceUnixMs"]
    lines = [Line(submitted, _accepted(pod))]
    if since > submitted:
        lines += [Line(f["atUnixMs"], f["text"]) for f in pod.get("faults", []) if f["atUnixMs"] <= since]
        lines.append(Line(since, "(what happened before is not known any more)"))
    lines += _happenings(pod, queued_ms=None if since > submitted else submitted)
    return [*lines, Line(None, _now(pod, now_ms))]


def _accepted(pod: Document) -> str:
    job = f", of job {pod['job']}" if pod["job"] else ""
    rule = f"; routed by rule {pod['rule']}" if pod["rule"] else ""
    return f"accepted{job}{rule}"


def _happenings(pod: Document, queued_ms: int | None) -> Iterator[Line]:
    """Steps and decisions. `queued_ms`: since when it is queued before the first of them."""
    steps = pod["steps"]
    decisions = _by_attempt(steps, pod.get("decisions", []))
    yield from map(_decided, decisions[-1])
    reason = ""
    for i, step in enumerate(steps):
        text = step_words.of_one(step, same_reason=step["reason"] == reason)
        if step["phase"] == "Scheduling" and queued_ms is not None:
            text += f" after {written_duration((step['atUnixMs'] - queued_ms) / 1000)} in the queue"
        if step["phase"] == "Bound" and not step["event"] and _nominated(steps[i + 1 :], pod):
            text = f"has a claim on {step['node']}; pods that have to go for it are leaving"
        yield Line(step["atUnixMs"], text)
        yield from map(_decided, decisions[i])
        reason = step["reason"] or reason
        queued_ms = step["atUnixMs"] if step["phase"] == "Queued" else None


def _by_attempt(steps: Sequence[Document], decisions: Sequence[Document]) -> defaultdict[int, list[Document]]:
    """Decisions by the step that gave the pod to their worker, -1 for those of steps that are not known. Workers have clocks of their own, so
    a decision may seem to be older than what led to it."""
    found: defaultdict[int, list[Document]] = defaultdict(list)
    for decision in decisions:
        mine = [i for i, s in enumerate(steps) if (s["phase"], s["worker"]) == ("Scheduling", decision["worker"])]
        before = [i for i in mine if steps[i]["atUnixMs"] <= decision["atUnixMs"]]
        found[(before or mine[:1] or [-1])[-1]].append(decision)
    return found


def _decided(decision: Document) -> Line:
    if decision["verdict"] in ("COMMITTED", "DUPLICATE"):
        where = decision["node"]
        instead = "" if where == decision["choice"] else f", as {decision['choice']} had no room any more"
        told = f"reserves {where}{instead}"
    else:
        told = f"wants {decision['choice']} and is refused: {decision['verdict']}"
    others = f"; alternates {', '.join(decision['alternates'])}" if decision["alternates"] else ""
    view = f"its view at {decision['snapshotSeq']} of shard {decision['shard']}"
    return Line(decision["atUnixMs"], f"{decision['worker']} {told}{others} ({view})")


def _nominated(later: Sequence[Document], pod: Document) -> bool:
    """Whether a pod that was bound then waits until others have left; `later`: its steps since."""
    for step in later:
        if step["phase"] != "Bound" or step["event"] == "VictimsLeft":
            return bool(step["event"] == "VictimsLeft")
    return bool(pod["nominatedNode"])


def _now(pod: Document, now_ms: int) -> str:
    phase, lasting = pod["phase"], ago(pod["phaseSinceUnixMs"], now_ms)
    if phase in _WAITING and "queue" in pod:
        return f"waits in queue {pod['queue']['name']}, for {lasting}{_waits_for(pod, now_ms)}"
    if pod["nominatedNode"]:
        return f"waits for others to leave {pod['nominatedNode']}, for {lasting}"
    if phase == "Bound":
        wrong = f", where it should not be any more: {pod['reason']}" if pod["reason"] else ""
        return f"on {pod['node']} for {lasting}{wrong}"
    if phase == "Scheduling":
        return f"with worker {pod['worker']} for {lasting}"
    return f"{phase.lower()} for {lasting}"


def _waits_for(pod: Document, now_ms: int) -> str:
    queue = pod["queue"]
    if queue["name"] == "gated":
        return ": `hoss ungate pod` lets it in"
    if queue["name"] == "active":
        return (
            f" behind {pod['waitsBehind']}" if pod.get("waitsBehind") else ": the next worker that may have it takes it"
        )
    latest = max(0, queue["atLatestUnixMs"] - now_ms) / 1000
    if queue["name"] == "backoff":
        return f": tried again in {written_duration(latest)}"
    by = f" ({', '.join(queue['refusedBy'])})" if queue["refusedBy"] else ""
    return f": tried again after a change that may help{by}, in {written_duration(latest)} at the latest"
