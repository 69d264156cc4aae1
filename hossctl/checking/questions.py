"""Questions to code of others: each call has a time limit and is timed, and what is wrong with the answer
becomes one sentence.

The checks ask through a port, `BoundedCall`. The command calls in a thread and stops waiting after a time
limit, as a worker does with an algorithm; a thread that hangs ends with the process."""

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss import imports


class Hangs(Exception):  # noqa: N818 - named for what happened
    """Code of others has not answered in its time. Nothing more can be asked of it."""

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(f"has not answered for {limit_seconds:g} s")


class Wrong(Exception):  # noqa: N818 - named for what happened
    """An answer is wrong in one aspect. Of each method and aspect one case is reported."""

    def __init__(self, aspect: str, text: str) -> None:
        super().__init__(text)
        self.aspect = aspect


class BoundedCall(Protocol):
    """How code of others is called."""

    def __call__(self, ask: Callable[[], Any]) -> Any:
        """The answer. Raises what `ask` raises, and Hangs."""


def in_time(limit_seconds: float) -> BoundedCall:
    """Calls in a thread each, and waits for `limit_seconds`."""

    def call(ask: Callable[[], Any]) -> Any:
        answers: list[Any] = []
        raised: list[BaseException] = []

        def answer() -> None:
            try:
                answers.append(ask())
            except BaseException as exc:  # noqa: BLE001 - code of others may even exit
                raised.append(exc)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        thread.join(limit_seconds)
        if raised:
            raise raised[0]
        if not answers:
            raise Hangs(limit_seconds)
        return answers[0]

    return call


@dataclass(slots=True)
class Questions:
    """Asks, and keeps what was found. `case` says in words what is asked about."""

    call: BoundedCall
    clock: Callable[[], float]
    case: str = ""
    measures: bool = False  # whether calls about all nodes are timed in this case
    asked: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _fastest: dict[tuple[str, str], float] = field(default_factory=dict)  # seconds, by method and case
    _known: set[tuple[str, str]] = field(default_factory=set)

    @property
    def seconds(self) -> dict[str, float]:
        """How long each method takes in the case that takes it longest, by the fastest call of each case: the
        machine may have stalled in others."""
        found: dict[str, float] = {}
        for (method, _), seconds in self._fastest.items():
            found[method] = max(seconds, found.get(method, 0.0))
        return found

    def ask(self, method: str, ask: Callable[[], Any], *, timed: bool = False) -> Any:
        """The answer. Raises Wrong where the call raises, and Hangs. `timed`: the call is about all nodes."""
        self.asked += 1

        def call() -> tuple[Any, float]:
            began = self.clock()
            return ask(), self.clock() - began

        try:
            answer, seconds = self.call(call)
        except (Hangs, KeyboardInterrupt):
            raise
        except BaseException as exc:
            raise Wrong(f"raise {type(exc).__name__}", raised(exc)) from exc
        if timed and self.measures:
            key = method, self.case
            self._fastest[key] = min(seconds, self._fastest.get(key, seconds))
        return answer

    @contextlib.contextmanager
    def about(self, method: str) -> Iterator[None]:
        """What goes wrong in the block is a problem of this method, and the block ends."""
        try:
            yield
        except Wrong as wrong:
            self.report(method, wrong.aspect, str(wrong))
        except Hangs as hangs:
            self.report(method, "time", str(hangs))
            raise

    def report(self, method: str, aspect: str, text: str, *, warns: bool = False) -> None:
        """A problem, or a warning, of a method in the present case."""
        if (method, aspect) not in self._known:
            self._known.add((method, aspect))
            case = f" (asked about {self.case})" if self.case else ""
            (self.warnings if warns else self.problems).append(f"{method} {text}{case}")


def raised(exc: BaseException) -> str:
    """`raised ValueError: too few (line 7 of mine.py)`. The line is the last one outside of libraries."""
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not any(part in frame.filename for part in _NOT_OWN)
    ]
    place = f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
    return f"raised {type(exc).__name__}: {exc}{place}"


# In the paths of libraries, of imports (Python's and ours) and of the checks.
_NOT_OWN = ("site-packages", "importlib", imports.__file__, str(Path(__file__).parent))


def mask(answer: Any, count: int) -> NDArray[np.bool_]:
    """The answer as a mask of so many nodes. Raises Wrong."""
    found = _column(answer, count)
    if found.dtype != np.bool_:
        raise Wrong("dtype", f"answered with {found.dtype}, and a mask is of bool")
    return found


def numbers(
    answer: Any, count: int, *, highest: int | None, that_matter: Any = slice(None)
) -> NDArray[np.float64]:
    """The answer as whole numbers from 0 to `highest`, one a node; None: without an upper end. Raises
    Wrong."""
    found = _column(answer, count)
    if found.dtype.kind not in "iuf":
        raise Wrong("dtype", f"answered with {found.dtype}, and scores are numbers")
    values = found.astype(np.float64)
    mattering = values[that_matter]
    if not np.isfinite(mattering).all():
        strange = mattering[~np.isfinite(mattering)][0]
        raise Wrong("finiteness", f"answered with {strange}, and scores are finite")
    if (mattering != np.floor(mattering)).any():
        broken = mattering[mattering != np.floor(mattering)][0]
        raise Wrong("whole", f"answered with {broken:g}, and scores are whole numbers")
    outside = mattering < 0 if highest is None else (mattering < 0) | (mattering > highest)
    if outside.any():
        end = "" if highest is None else f" to {highest}"
        raise Wrong("range", f"answered with {mattering[outside][0]:g}, and scores go from 0{end}")
    return values


def _column(answer: Any, count: int) -> NDArray[Any]:
    try:
        found = np.asarray(answer)
    except Exception as exc:
        raise Wrong("shape", f"answered with {type(answer).__name__}, which is no column") from exc
    if found.shape != (count,):
        raise Wrong("shape", f"answered with shape {found.shape} for {count} nodes")
    return found
