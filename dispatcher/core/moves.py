"""A run of moves: which planned moves are made next, and when the run stops by itself.

Moves are made in the plan's order, a few at a time, no faster than the rate. Moves of one step do not depend
on each other: no target is the source of another one. The run pauses when more pods wait than at its start,
and when several moves in a row are refused: the cluster is not what the plan was made for.

A run outlives the dispatcher that began it: `BegunRun` and `RunProgress` are what the journal keeps of it. A
step that the next term could not find out about is written there before it is made: in Kubernetes mode an
eviction, and which pod gets the place (`BegunEviction`)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

STEP_MOVES = 50
REFUSED_IN_A_ROW = 5
MORE_WAITING = 10  # pods, or a tenth of those that waited at the start, whichever is more
SILENT_SECONDS = 20.0  # after so long without a report another controller may take over


class MoveState(str, Enum):
    """Of one planned move."""

    WAITING = "Waiting"
    EVICTED = "Evicted"  # Kubernetes mode: its successor is awaited
    MOVED = "Moved"
    REFUSED = "Refused"


_ENDED = (MoveState.MOVED, MoveState.REFUSED)


_BY_LETTER = {state.value[0]: state for state in MoveState}


class RunState(str, Enum):
    """Of a run. Paused ones can be resumed or undone, and done ones can be undone."""

    RUNNING = "Running"
    PAUSED = "Paused"
    DONE = "Done"


@dataclass(frozen=True, slots=True)
class BegunEviction:
    """Kubernetes mode: what the next term needs to go on with a move whose pod is evicted."""

    pod: bytes  # as the API server had it (JSON): its successor is recognised by that
    seq: int  # of the commit that reserved the new place
    # UID and "namespace/name" of the pod that gets the place. The ledger says whether it has got it.
    successor: tuple[bytes, str] | None = None


@dataclass(slots=True)
class PlannedMove:
    """A move of a plan, and what became of it. Nodes are indexes; -1: a node that was gone when this
    dispatcher took over."""

    uid: bytes
    pod: str  # "namespace/name"
    source: int
    target: int
    state: MoveState = MoveState.WAITING
    text: str = ""  # why it was refused, or what it waits for; of a moved one: its successor
    eviction: BegunEviction | None = None  # once it may have been asked for, until the move ends
    # The commit by which a former term reserved the target; 0: none. Up to there the ledger has judged what
    # came to the target's shard.
    judged_seq: int = 0


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run as it was begun. Nodes are names here: an index may be another node's in the next term."""

    moves: tuple[tuple[bytes, str, str, str], ...]  # UID, pod, source, target
    seen: tuple[int, ...]
    waiting_before: int
    moves_per_second: float
    purpose: str
    controller: str
    undo: bool = False


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is. `states`: the first letter of each move's state; `texts`, `evictions`: by number of
    the move."""

    state: str
    reason: str
    undone: bool
    states: str
    texts: Mapping[int, str]
    evictions: Mapping[int, BegunEviction] = field(default_factory=dict)

    def of_move(self, number: int) -> MoveState:
        """The state of one move."""
        return _BY_LETTER[self.states[number]]

    def counts(self) -> Counter[MoveState]:
        """The number of moves by state."""
        return Counter({_BY_LETTER[letter]: n for letter, n in Counter(self.states).items()})

    @staticmethod
    def known(states: str) -> bool:
        """Whether these are letters of states."""
        return all(letter in _BY_LETTER for letter in states)


# What the purposes begin with of runs that move back what another one has moved. Only people read them.
_UNDO, _REDO = "undo", "redo"


def is_reserved(purpose: str) -> bool:
    """Whether only the dispatcher itself gives such a purpose."""
    return purpose.partition(": ")[0] in (_UNDO, _REDO)


@dataclass(slots=True)
class MoveRun:
    """`seen`: by shard, the seq that the plan was based on. `waiting_before`: the pods that waited at the
    start. Times are monotonic seconds."""

    moves: list[PlannedMove]
    seen: tuple[int, ...]
    waiting_before: int
    moves_per_second: float
    purpose: str = ""
    controller: str = ""  # the id of the controller that began it; empty: a person did
    undo: bool = False  # it moves back what another run has moved
    state: RunState = RunState.RUNNING
    reason: str = ""  # why it is paused, or what `take_back` left
    _undone: bool = field(default=False, init=False)
    _next: int = field(default=0, init=False)
    _refused_in_a_row: int = field(default=0, init=False)
    _allowed_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._skip_ended()  # moves of pods or nodes that are gone are refused from the start

    def seen_for(self, move: PlannedMove) -> tuple[int, ...]:
        """By shard, the seq up to which the ledger need not look for what this move does not know."""
        seen, target_shard = list(self.seen), move.target % len(self.seen)
        seen[target_shard] = max(seen[target_shard], move.judged_seq)
        return tuple(seen)

    def due(self, now: float, waiting: int) -> Sequence[PlannedMove]:
        """The moves to make now, of which each gets an outcome by `moved` or `refused` before the next call,
        or waits again, to be tried once more. `waiting`: the pods that wait now."""
        self._skip_ended()
        if self.state is not RunState.RUNNING:
            return ()
        if waiting > self.waiting_before + max(MORE_WAITING, self.waiting_before // 10):
            self.pause(f"{waiting} pods wait, and {self.waiting_before} waited when the moves began")
            return ()
        if now < self._allowed_at:
            return ()
        most = max(1, min(STEP_MOVES, int(self.moves_per_second)))
        step: list[PlannedMove] = []
        left: set[int] = set()
        for move in self.moves[self._next :]:
            if move.state is not MoveState.WAITING:
                continue
            if len(step) == most or move.target in left or any(move.uid == other.uid for other in step):
                break
            step.append(move)
            left.add(move.source)
        self._allowed_at = now + len(step) / self.moves_per_second
        return step

    def evicted(self, move: PlannedMove, eviction: BegunEviction) -> None:
        """The pod is evicted now, unless `waits` says that it was not. Its successor will get the target."""
        move.state, move.text, move.eviction = (
            MoveState.EVICTED,
            "evicted; its successor is awaited",
            eviction,
        )

    def succeeded(self, move: PlannedMove, uid: bytes, name: str) -> None:
        """This pod, and no other one, is to get the target of an evicted pod."""
        if move.eviction is not None:
            move.eviction = replace(move.eviction, successor=(uid, name))

    def waits(self, move: PlannedMove, text: str) -> None:
        """The pod could not be evicted yet, for this reason."""
        move.state, move.text = MoveState.WAITING, text
        if self._undone:
            self._withdraw(move)

    def moved(self, move: PlannedMove, successor: str = "") -> None:
        """The pod, or in Kubernetes mode its successor ("namespace/name"), is on the target."""
        move.state, move.text, move.eviction = MoveState.MOVED, successor, None
        self._refused_in_a_row = 0
        self._skip_ended()

    def refused(self, move: PlannedMove, text: str) -> None:
        """The pod stays on its source, or nobody came for its target, for this reason."""
        move.state, move.text, move.eviction = MoveState.REFUSED, text, None
        self._refused_in_a_row += 1
        self._skip_ended()
        if self._refused_in_a_row >= REFUSED_IN_A_ROW and self.state is RunState.RUNNING:
            self.pause(f"{self._refused_in_a_row} moves in a row were refused, the last one: {text}")

    def pause(self, reason: str) -> None:
        """Make no more moves until `resume`."""
        if self.state is RunState.RUNNING:
            self.state, self.reason = RunState.PAUSED, reason

    def resume(self, waiting: int) -> None:
        """Go on; what waits now is the new measure."""
        if self.state is RunState.PAUSED:
            self.state, self.reason, self.waiting_before = RunState.RUNNING, "", waiting
            self._refused_in_a_row = 0

    def undone(self, seen: tuple[int, ...], waiting: int) -> "MoveRun":
        """The run that moves back what was moved, the last one first."""
        back = [
            PlannedMove(move.uid, move.pod, move.target, move.source)
            for move in reversed(self.moves)
            if move.state is MoveState.MOVED and move.source >= 0  # else its node is gone
        ]
        return MoveRun(back, seen, waiting, self.moves_per_second, self._opposite, undo=not self.undo)

    @property
    def _opposite(self) -> str:
        """The purpose of the run that moves these pods back. An undo that is undone is the run again."""
        what = self.purpose.partition(": ")[2] if is_reserved(self.purpose) else self.purpose
        word = _REDO if self.undo else _UNDO
        return f"{word}: {what}" if what else word

    def begun(self, name: Callable[[int], str]) -> BegunRun:
        """What does not change of the run. `name`: of a node."""
        return BegunRun(
            tuple((move.uid, move.pod, name(move.source), name(move.target)) for move in self.moves),
            self.seen,
            self.waiting_before,
            self.moves_per_second,
            self.purpose,
            self.controller,
            self.undo,
        )

    def progress(self) -> RunProgress:
        """What changes of it."""
        return RunProgress(
            self.state.value,
            self.reason,
            self._undone,
            "".join([move.state.value[0] for move in self.moves]),
            {number: move.text for number, move in enumerate(self.moves) if move.text},
            {number: move.eviction for number, move in enumerate(self.moves) if move.eviction is not None},
        )

    @classmethod
    def continued(
        cls,
        begun: BegunRun,
        progress: RunProgress,
        *,
        index_of: Callable[[str], int | None],
        node_of: Callable[[bytes], int | None],
    ) -> "MoveRun":
        """The run in the next dispatcher's term. `index_of`: of a node by name; `node_of`: where a pod is
        bound, by UID, if it is.

        The journal may be older than the end of the former term, so where a pod is decides. Moves that are
        still to come are judged anew when they are due, as always. What became of evicted pods is for the
        caller to find out: their moves stay as they are."""
        moves = []
        for number, (uid, pod, source, target) in enumerate(begun.moves):
            state, text = progress.of_move(number), progress.texts.get(number, "")
            eviction = progress.evictions.get(number)
            at, to, now = index_of(source), index_of(target), node_of(uid)
            if state not in _ENDED and now is not None and now == to:
                state, text, eviction = MoveState.MOVED, "", None
            elif state not in _ENDED and (to is None or (at is None and eviction is None)):
                state, text = MoveState.REFUSED, f"the node {target if to is None else source} is gone"
                eviction = None
            moves.append(
                PlannedMove(
                    uid, pod, -1 if at is None else at, -1 if to is None else to, state, text, eviction
                )
            )
        run = cls(
            moves,
            begun.seen,
            begun.waiting_before,
            begun.moves_per_second,
            begun.purpose,
            begun.controller,
            begun.undo,
            RunState(progress.state),
            progress.reason,
        )
        run._undone = progress.undone
        run._skip_ended()
        return run

    def take_back(self) -> None:
        """Kubernetes mode: make no more moves, and end those whose pods are not evicted yet. What is evicted
        cannot be taken back."""
        self._undone, self.state, self.reason = True, RunState.PAUSED, self._undone_reason()
        for move in self.moves:
            if move.state is MoveState.WAITING:
                self._withdraw(move)
        self._skip_ended()

    def maybe_evicted(self) -> list[PlannedMove]:
        """The moves that have not ended and whose pods may be evicted."""
        return [
            move
            for move in self.moves
            if move.state is MoveState.EVICTED or (move.eviction is not None and move.state not in _ENDED)
        ]

    def counts(self) -> Counter[MoveState]:
        """The number of moves by state."""
        return Counter(move.state for move in self.moves)

    def _skip_ended(self) -> None:
        while self._next < len(self.moves) and self.moves[self._next].state in _ENDED:
            self._next += 1
        if self._next == len(self.moves):
            self.state, self.reason = RunState.DONE, self._undone_reason() if self._undone else ""

    def _withdraw(self, move: PlannedMove) -> None:
        move.state, move.text = MoveState.REFUSED, "undone before its pod was evicted"

    def _undone_reason(self) -> str:
        counts = self.counts()
        gone = counts[MoveState.MOVED] + counts[MoveState.EVICTED]
        if not gone:
            return "undone by hand"
        return (
            f"undone by hand, but for {gone} pods that were evicted already: their successors get the new"
            " places"
        )


@dataclass(slots=True)
class ControllerSeat:
    """The one controller that may begin runs, and whether people have paused it.

    The pause is in the journal, so it outlives both: a new term takes the controller's word only where the
    journal has none, and a new controller takes ours. Times are monotonic seconds."""

    id: str = ""
    paused: bool | None = None  # None: nobody ever said
    _heard_at: float = field(default=0.0, init=False)

    def report(self, controller: str, now: float, *, paused: bool) -> str:
        """A controller says that it is there. Returns why it may not act; empty: it may."""
        if self.id not in ("", controller) and now < self._heard_at + SILENT_SECONDS:
            return f"another rebalance controller is at work; stop it, and wait {SILENT_SECONDS:g} seconds"
        self.id, self._heard_at = controller, now
        if self.paused is None:
            self.paused = paused
        return ""

    def leave(self, controller: str) -> None:
        """This controller ends. Another one need not wait."""
        if self.id == controller:
            self.id = ""

    def refusal(self, controller: str) -> str:
        """Why this controller may not begin a run; empty: it may. People (no id) always may."""
        if not controller:
            return ""
        if controller != self.id:
            return "another rebalance controller is at work, or this one has not reported yet"
        return "the controller is paused; `hoss rebalance resume` lets it go on" if self.paused else ""
