"""Checks an algorithm of others, which is also the class of a scheduler of one's own (`hoss.sdk`)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.fit import cards_fit, fits, take_cards
from hoss.model.placing import NO_NODE, NodeSnapshot, PlacementBatch, checked_placements
from hossctl.checking.clusters import CheckedBatch
from hossctl.checking.questions import Hangs, Questions, Wrong
from scheduler_worker.core.placement.algorithms import BUDGET_SECONDS

_PLACE = "place"


def check_algorithm(make: Callable[[], Any], batches: Sequence[CheckedBatch], questions: Questions) -> None:
    """Ask two new algorithms about each batch. They have to give the same valid answers. What is wrong is in
    `questions`; an algorithm that hangs is not asked again."""
    made: list[Any] = []
    try:
        with questions.about("the class"):
            made += [questions.ask("make", make), questions.ask("make", make)]
        if len(made) == 2:
            _ask(made[0], made[1], batches, questions)
    except Hangs:
        return
    slowest = questions.seconds.get(_PLACE, 0.0)
    if slowest > BUDGET_SECONDS:
        questions.case = ""
        questions.report(
            _PLACE, "budget", f"takes {slowest:.2f} s, and its budget is {BUDGET_SECONDS:g} s", warns=True
        )


def _ask(algorithm: Any, twin: Any, batches: Sequence[CheckedBatch], questions: Questions) -> None:
    most = max(len(asked.snapshot.specs) for asked in batches)
    for asked in batches:
        questions.case = asked.words
        questions.measures = len(asked.snapshot.specs) == most and len(asked.batch.runs) > 2
        with questions.about(_PLACE):
            nodes, again = (_answer(each, asked, questions) for each in (algorithm, twin))
            if not np.array_equal(nodes, again):
                raise Wrong(
                    "determinism",
                    "gave another answer in another object of the class: draw from a seed, so that others "
                    "can repeat it",
                )
            if left := _left_out(asked.batch, asked.snapshot, nodes):
                text = f"left out {left} pods or more that fit somewhere; they queue again"
                questions.report(_PLACE, "left out", text, warns=True)


def _answer(algorithm: Any, asked: CheckedBatch, questions: Questions) -> NDArray[np.intp]:
    answer = questions.ask(
        _PLACE, lambda: algorithm.place(asked.batch, asked.snapshot, BUDGET_SECONDS), timed=True
    )
    try:
        return checked_placements(asked.batch, asked.snapshot, answer)
    except Exception as exc:  # an answer of others may be anything
        raise Wrong("answer", str(exc)) from exc


def _left_out(batch: PlacementBatch, snapshot: NodeSnapshot, nodes: NDArray[np.intp]) -> int:
    """Pods without a node in runs of which one more pod fits: at least so many of them were left out."""
    requested = snapshot.requested.copy()
    cards = None if snapshot.cards_used is None else snapshot.cards_used.copy()
    for run in batch.runs:
        chosen = nodes[run.first : run.first + run.count]
        chosen = chosen[chosen != NO_NODE]
        requested += run.request[:, None] * np.bincount(chosen, minlength=requested.shape[1])
        if run.spec.devices is not None and cards is not None:
            take_cards(cards, chosen.tolist(), run.spec.devices.count, run.spec.devices.milli)
    left = 0
    for run in batch.runs:
        waiting = int((nodes[run.first : run.first + run.count] == NO_NODE).sum())
        room = run.admitted & fits(snapshot.allocatable, requested, run.request)
        if run.spec.devices is not None and cards is not None:
            room &= cards_fit(cards, run.spec.devices.count, run.spec.devices.milli)
        left += min(waiting, int(room.sum()))
    return left
