"""Pre-bind: plugins prepare pods that the ledger has reserved, before they count as bound.

The reservations are assumed meanwhile, marked as pre-binding (ReservationState in
proto/hoss/v1/resolver.proto). Pods that are ready are answered as bound, and the dispatcher confirms their
commits. The others are answered as unreserved, and the dispatcher releases what they hold and tries them
again. Pods that go together go back together: those of a gang below its minimum, and those of work that is
all or nothing.

One question is asked at a time. What is reserved meanwhile is in the next one, so a pod waits for one
question at most, and its lease does not end before its own is answered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hoss.model.pod import PodSpec
from hoss.wire.columns import Uids
from scheduler_worker.core.cache.node_info import NodeInfoCache
from scheduler_worker.core.framework.extension_points import Diagnosis, PreBindPlugin, ReservedBatch
from scheduler_worker.core.framework.sandbox import PluginFailed, PluginFailures
from scheduler_worker.core.messages import Outcome
from scheduler_worker.core.nodes import Mask
from scheduler_worker.core.work import OutcomeCollector, Positions, Work

NODE_GONE = "its node was removed after it was reserved"
_TOGETHER = " (it goes together with others)"
_EARLIER_ONES = Diagnosis("pods that the gang needs were not ready")  # in an earlier question


@dataclass(frozen=True, slots=True, eq=False)
class PodsToPrepare:
    """n pods of one work batch that were reserved by one verdict."""

    work: Work
    rows: Positions  # (n,)
    nodes: NDArray[np.uint32]  # (n,)
    specs: tuple[PodSpec, ...]
    classes: NDArray[np.intp]  # (n,): position in `specs`
    commits: tuple[tuple[int, int], ...]  # (shard, seq)
    whole: object  # pods with the same one go together: a gang, or all or nothing


class PreBindQuestion(NamedTuple):
    """Pods to be prepared. `together`: of consecutive pods, which end before the first number, at least the
    second number must be ready, or none of them is."""

    pods: ReservedBatch
    together: tuple[tuple[int, int], ...]


class PreBindAnswer(NamedTuple):
    """Which of the n pods are not ready, and why."""

    unready: tuple[tuple[Mask, Diagnosis], ...]
    failures: tuple[PluginFailed, ...]


class PreBindCalls(Protocol):
    """Asks the plugins, one question at a time."""

    def ask(self, question: PreBindQuestion) -> None:
        """Begin to prepare these pods. Not before the former answer is taken or abandoned."""

    def take(self) -> PreBindAnswer | None:
        """The answer, once; None while there is none."""

    def abandon(self) -> None:
        """Nobody wants the answer any more: what is ready by then is to be undone."""


def prepare(
    question: PreBindQuestion,
    plugins: Sequence[PreBindPlugin],
    asking: Callable[[str], None] = lambda _plugin: None,
) -> PreBindAnswer:
    """Ask plugin after plugin about the pods that those before it have prepared, and undo what was done for
    pods that go back. `asking` is called with the plugin that is asked next. Raises nothing that plugins
    raise."""
    pods, count = question.pods, len(question.pods.classes)
    ready, found = np.ones(count, np.bool_), list[tuple[Mask, Diagnosis]]()
    failures: list[PluginFailed] = []

    def hold(positions: NDArray[np.intp], why: Diagnosis) -> None:
        mask = np.zeros(count, np.bool_)
        mask[positions] = True
        if mask.any():
            found.append((mask, why))
            np.logical_and(ready, ~mask, out=ready)

    for plugin in plugins:
        left = np.flatnonzero(ready)
        if not len(left):
            break
        asking(plugin.name)
        try:
            unready = plugin.pre_bind(pods.of(left))
        except PluginFailed as failure:
            failures.append(failure)
            hold(left, Diagnosis(str(failure), failed=True))
        else:
            if unready is not None:
                hold(left[unready.pods], Diagnosis(unready.reason, frozenset({plugin.name})))
        _hold_together(question.together, ready, found, hold)
    failures += undo(pods.of(np.flatnonzero(~ready)), plugins, asking)
    return PreBindAnswer(tuple(found), tuple(failures))


def _hold_together(
    together: Sequence[tuple[int, int]],
    ready: Mask,
    found: Sequence[tuple[Mask, Diagnosis]],
    hold: Callable[[NDArray[np.intp], Diagnosis], None],
) -> None:
    start = 0
    for end, needed in together:
        left = np.flatnonzero(ready[start:end]) + start
        if 0 < len(left) < needed:
            whys = (
                why._replace(text=f"{why.text}{_TOGETHER}") for mask, why in found if mask[start:end].any()
            )
            hold(left, next(whys, _EARLIER_ONES))
        start = end


def undo(
    pods: ReservedBatch, plugins: Sequence[PreBindPlugin], asking: Callable[[str], None]
) -> list[PluginFailed]:
    """Tell the plugins, the last one first, that these pods will not be bound. Returns failures."""
    failures = []
    for plugin in reversed(plugins) if len(pods.classes) else ():
        asking(plugin.name)
        try:
            plugin.unreserve(pods)
        except PluginFailed as failure:
            failures.append(failure)
    return failures


class PreBinding:
    """Pods that are reserved and not answered: waiting, or being prepared."""

    def __init__(self, calls: PreBindCalls, cache: NodeInfoCache, outcomes: OutcomeCollector) -> None:
        self._calls = calls
        self._cache = cache
        self._outcomes = outcomes
        self._waiting: list[PodsToPrepare] = []
        self._asked: list[PodsToPrepare] = []
        self._stuck = ""

    def __bool__(self) -> bool:
        """Whether any pod waits or is being prepared."""
        return bool(self._waiting or self._asked)

    def add(self, reserved: PodsToPrepare) -> None:
        """These pods are reserved. `step` has them prepared."""
        if len(reserved.rows):
            self._waiting.append(reserved)

    def step(self, failures: PluginFailures) -> None:
        """Answer what plugins have prepared, and have them prepare what was reserved since. All parts of a
        gang must have been added."""
        while True:
            if self._asked:
                answer = self._calls.take()
                if answer is None:
                    return
                asked, self._asked = self._asked, []
                for failure in answer.failures:
                    failures.note(failure)
                self._answer(asked, answer.unready)
            if self._stuck:
                self._give_up()
            if not self._waiting:
                return
            self._ask()

    def give_up(self, why: str) -> None:
        """A plugin does not answer any more: all pods go back, also those that are reserved from now on."""
        self._stuck = why
        self._calls.abandon()
        self._waiting = [*self._asked, *self._waiting]
        self._asked = []
        self._give_up()

    def drop(self) -> None:
        """Another epoch: the dispatcher releases what the pods hold, and gives them to any worker."""
        if self._asked:
            self._calls.abandon()
        self._waiting, self._asked = [], []

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        pods = sum(len(part.rows) for part in waiting)
        self._answer(waiting, ((np.ones(pods, np.bool_), Diagnosis(self._stuck, failed=True)),))

    def _ask(self) -> None:
        wholes: dict[int, list[PodsToPrepare]] = {}
        for part in self._waiting:
            wholes.setdefault(id(part.whole), []).append(part)
        known = []
        for part in chain.from_iterable(wholes.values()):
            there = np.array([self._cache.catalogue.specs[node] is not None for node in part.nodes.tolist()])
            if there.all():
                known.append(part)
            else:  # the removal has released what they hold
                self._answer([part], ((np.ones(len(part.rows), np.bool_), Diagnosis(NODE_GONE)),))
        self._waiting = []
        if known:
            self._asked = known
            self._calls.ask(PreBindQuestion(self._batch(known), _together(known)))

    def _batch(self, parts: Sequence[PodsToPrepare]) -> ReservedBatch:
        starts = np.cumsum([0, *(len(part.specs) for part in parts)])
        at, nodes = np.unique(np.concatenate([part.nodes for part in parts]), return_inverse=True)
        specs = self._cache.catalogue.specs
        uids: Uids = np.concatenate([part.work.uids[part.rows] for part in parts])
        return ReservedBatch(
            specs=tuple(spec for part in parts for spec in part.specs),
            classes=np.concatenate(
                [part.classes + start for part, start in zip(parts, starts.tolist(), strict=False)]
            ),
            uids=uids,
            node_specs=tuple(spec for node in at.tolist() if (spec := specs[node]) is not None),
            nodes=nodes.astype(np.intp),
        )

    def _answer(self, parts: Sequence[PodsToPrepare], unready: Sequence[tuple[Mask, Diagnosis]]) -> None:
        start = 0
        for part in parts:
            end = start + len(part.rows)
            ready = np.ones(len(part.rows), np.bool_)
            for shard, seq in part.commits:
                part.work.committed_in(shard, seq)
            for mask, why in unready:
                back = mask[start:end]
                ready &= ~back
                part.work.unreserved(int(back.sum()))
                self._outcomes.give(
                    part.work,
                    part.rows[back],
                    Outcome.UNRESERVED,
                    nodes=part.nodes[back],
                    why=why,
                )
            self._outcomes.give(part.work, part.rows[ready], Outcome.BOUND, nodes=part.nodes[ready])
            start = end


def _together(parts: Sequence[PodsToPrepare]) -> tuple[tuple[int, int], ...]:
    """Where the pods of each whole end, and how many of them must be ready."""
    pods: dict[int, int] = {}
    needed: dict[int, int] = {}
    for part in parts:
        whole = id(part.whole)
        pods[whole] = pods.get(whole, 0) + len(part.rows)
        needed[whole] = pods[whole] if part.work.transactional else part.work.still_needed(pods[whole])
    return tuple(zip(np.cumsum(list(pods.values())).tolist(), needed.values(), strict=True))
