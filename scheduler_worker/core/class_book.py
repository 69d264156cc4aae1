"""The classes that the dispatcher has defined, by its numbers; and the same narrowed to the nodes that a policy gives them.

A class and a rule meet here once, not once a pod: what comes out is a class of its own, with masks and rankings of its own.
"""

from collections.abc import Iterable
from dataclasses import replace

from hoss.model.pod import PodSpec
from hoss.model.selectors import NodeScope
from scheduler_worker.core.classes import DemandTable, PodClass


class ClassBook:
    """Numbers to classes. What is narrowed goes with the class that it was made of."""

    def __init__(self, demands: DemandTable) -> None:
        self._demands = demands
        self._classes: dict[int, PodClass] = {}
        self._narrowed: dict[int, dict[NodeScope, PodClass]] = {}

    def define(self, number: int, spec: PodSpec) -> None:
        """Class `number` is `spec` from now on."""
        self._classes[number] = self._demands.compile(spec, number)
        self._narrowed.pop(number, None)

    def forget(self, numbers: Iterable[int]) -> None:
        """These numbers come no more."""
        for number in numbers:
            self._classes.pop(number, None)
            self._narrowed.pop(number, None)

    def clear(self) -> None:
        """Nothing is defined."""
        self._classes.clear()
        self._narrowed.clear()

    def unknown(self, numbers: Iterable[int]) -> list[int]:
        """Those of the numbers that were never defined."""
        return [number for number in numbers if number not in self._classes]

    def get(self, number: int, scope: NodeScope | None) -> PodClass:
        """A class that was defined, on these nodes."""
        pod_class = self._classes[number]
        if scope is None:
            return pod_class
        narrowed = self._narrowed.setdefault(number, {})
        found = narrowed.get(scope)
        if found is None:
            found = narrowed[scope] = self._demands.compile(replace(pod_class.spec, scope=scope), number)
        return found
