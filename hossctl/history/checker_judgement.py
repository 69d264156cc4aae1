"""What a check returns: the promises, how much of each was judged, what could not be, and every violation."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Promise(str, Enum):
    """What is promised. docs/reliability.md says how each is judged."""

    NO_OVERCOMMIT = "no-overcommit"
    ONE_NODE = "one-node"
    STATES = "reservation-states"
    FENCING = "fenced-are-silent"
    GANGS = "gangs-whole"
    NOTHING_LOST = "nothing-lost"
    REFUSED = "refused-never-exists"
    WATCHERS = "watchers-told-last-state"
    OWNERS = "reservations-have-owners"
    AGREEMENT = "agreement"
    LIVENESS = "waits-for-a-true-reason"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise. `lines` are the numbers of the lines that show it; `at` is the time of the last."""

    promise: Promise
    at: float
    text: str
    lines: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"promise": self.promise.value, "at": self.at, "text": self.text, "lines": list(self.lines)}


@dataclass(slots=True)
class Judgement:
    """The result of a check. What was judged and not violated held. Nothing else is known."""

    events: int = 0
    violations: list[Violation] = field(default_factory=list)
    judged: Counter[Promise] = field(default_factory=Counter)  # how often each promise was judged
    # By promise: why something could not be judged, and how often.
    not_judged: dict[Promise, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def exit_code(self) -> int:
        """0: no violation; 1: a promise is broken; 2: nothing could be judged."""
        if self.violations:
            return 1
        return 0 if self.judged.total() else 2

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "events": self.events,
            "promises": [
                {
                    "promise": promise.value,
                    "judged": self.judged[promise],
                    "violations": sum(found.promise is promise for found in self.violations),
                    "notJudged": dict(self.not_judged.get(promise, {})),
                }
                for promise in Promise
            ],
            "violations": [found.as_json() for found in self.violations],
        }


class Findings:
    """Collects a judgement while the checker walks through a history."""

    def __init__(self) -> None:
        self.judgement = Judgement()
        self._times: list[float] = [0.0]  # by line number

    def walk_to(self, at: float) -> int:
        """The next line begins. Returns its number."""
        self._times.append(at)
        self.judgement.events += 1
        return self.judgement.events

    @property
    def line(self) -> int:
        """The line that is looked at; at the end, the last."""
        return self.judgement.events

    def judged(self, promise: Promise, count: int = 1) -> None:
        """A promise was looked at so often, whatever came of it."""
        self.judgement.judged[promise] += count

    def unjudged(self, promise: Promise, why: str, count: int = 1) -> None:
        """A promise could not be looked at."""
        if count:
            self.judgement.not_judged[promise][why] += count

    def violated(self, promise: Promise, text: str, *lines: int) -> None:
        """A promise is broken; lines of 0 are left out."""
        shown = tuple(sorted({line for line in lines if line}))
        at = self._times[shown[-1] if shown else -1]
        self.judgement.violations.append(Violation(promise, at, text, shown))
