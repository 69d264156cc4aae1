"""What `hoss describe worker` tells: when it came, with which epochs, what befell it, and what it has in hand."""

from hossctl.console import Document
from hossctl.figures import written_duration
from hossctl.timeline import Line

TOLD = ("steps", "stateSinceUnixMs", "lastSeenMsAgo", "outstanding", "window")
MOST_STEPS = 50  # that a dispatcher remembers
_GONE = ("Lost", "Left")
_STATES = {
    "Joining": "registers",
    "Ready": "takes work again",
    "Cordoned": "cordoned: gets no new work",
    "Draining": "drained: gets no new work, and has given back what it had not started",
}


def worker_lines(worker: Document) -> list[Line]:
    """As far as the dispatcher remembers, until now; `worker` as `describe` makes it."""
    lines: list[Line] = []
    if len(worker["steps"]) == MOST_STEPS:
        lines.append(Line(worker["steps"][0]["atUnixMs"], "(what happened before is not known any more)"))
    state = ""
    for step in worker["steps"]:
        lines.append(Line(step["atUnixMs"], _step(step, state)))
        state = step["state"]
    return [*lines, Line(None, _now(worker))]


def _step(step: Document, before: str) -> str:
    """In words; `before`: the state that it was in."""
    state, text = step["state"], step["text"]
    if state in _GONE and state != before:
        return f"{state.lower()}: {text}"
    if text:
        return str(text)
    told = _STATES.get(state, str(state).lower())
    if before != "Joining":
        return told
    return f"is given epoch {step['epoch']}" + ("" if state == "Ready" else f"; {told}")


def _now(worker: Document) -> str:
    if worker["state"] in _GONE:
        return f"{worker['state'].lower()}; it was heard of {written_duration(worker['lastSeenMsAgo'] / 1000)} ago"
    work = written_duration(worker["estimatedWorkMs"] / 1000)
    held = f"{worker['outstanding']:,} of {worker['window']:,} pods in hand, work for {work}"
    return f"{worker['state'].lower()}: {held if worker['outstanding'] else 'nothing in hand'}"
