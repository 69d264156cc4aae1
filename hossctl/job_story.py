"""What `hoss describe job` tells: what its pods went through, how many and when, and what those wait for that are not bound."""

from collections.abc import Iterable

from hossctl import step_words
from hossctl.console import Document
from hossctl.timeline import Line, ago

TOLD = ("steps", "stepsSinceUnixMs", "waiting", "reasons", "submittedUnixMs")
_MOST_REASONS = 10


def job_lines(job: Document, now_ms: int) -> list[Line]:
    """From its submission until now; `job` as `describe` makes it."""
    submitted, since = job["submittedUnixMs"], job["stepsSinceUnixMs"]
    gang = f", of which {job['minAvailable']} are bound together" if job["minAvailable"] else ""
    lines = [Line(submitted, f"accepted: {_pods(job['replicas'])}{gang}")]
    if since > submitted:
        lines.append(Line(since, "(what happened before is not known any more)"))
    lines += [Line(step["firstUnixMs"], _passage(step)) for step in job["steps"]]
    done = f"{job['bound']:,} of {job['replicas']:,} bound"
    lines.append(Line(None, f"{done}, {job['deleted']:,} deleted" if job["deleted"] else done))
    return [*lines, *_waiting(job["waiting"], now_ms)]


def grouped(pods: Iterable[tuple[str, str, int]]) -> list[Document]:
    """Those that are not bound by phase and reason, most of them first, with when the first of each came there. `pods`: phase, reason
    and since when."""
    found: dict[tuple[str, str], Document] = {}
    for phase, reason, since_ms in pods:
        group = found.setdefault(
            (phase, reason), {"phase": phase, "reason": reason, "pods": 0, "sinceUnixMs": since_ms}
        )
        group["pods"] += 1
        group["sinceUnixMs"] = min(group["sinceUnixMs"], since_ms)
    return sorted(found.values(), key=lambda group: -group["pods"])


def _passage(step: Document) -> str:
    text = f"{_pods(step['pods'])} {step_words.of_many(step)}"
    if step["lastUnixMs"] == step["firstUnixMs"]:
        return text
    return f"{text}, the last {ago(step['firstUnixMs'], step['lastUnixMs'])} after the first"


def _waiting(groups: list[Document], now_ms: int) -> Iterable[Line]:
    for group in groups[:_MOST_REASONS]:
        why = f": {group['reason']}" if group["reason"] else ""
        yield Line(
            None, f"{group['pods']:,} {group['phase'].lower()}, for up to {ago(group['sinceUnixMs'], now_ms)}{why}"
        )
    if len(groups) > _MOST_REASONS:
        rest = sum(group["pods"] for group in groups[_MOST_REASONS:])
        yield Line(None, f"{rest:,} for {len(groups) - _MOST_REASONS} other reasons, which -o json tells")


def _pods(count: int) -> str:
    return f"{count:,} pod{'s' * (count != 1)}"
