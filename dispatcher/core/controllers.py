"""Kubernetes mode: what controllers of pods select, which is what default spreading counts beside Services (kube-scheduler's DefaultSelector).

Deployments' ReplicaSets are not among them: their pods bear a label that says as much (core.pod_objects), and they are many.
"""

from dataclasses import replace

from dispatcher.core.pod_objects import SeenPod
from hoss.model.cluster import Controller, OwnerReference
from hoss.model.pod import PodTemplate
from hoss.model.selectors import LabelSelector

_MOST_TEMPLATES = 20_000


class Controllers:
    """Selectors by controller."""

    def __init__(self) -> None:
        self._selectors: dict[tuple[OwnerReference, str], LabelSelector] = {}  # and namespace
        self._templates: dict[tuple[PodTemplate, LabelSelector], PodTemplate] = {}

    def apply(self, controller: Controller) -> None:
        """It is there, as it is now."""
        key = controller.identity, controller.namespace
        if controller.selector is None or controller.selector.everything:
            self._selectors.pop(key, None)
        else:
            self._selectors[key] = controller.selector

    def remove(self, identity: OwnerReference, namespace: str) -> None:
        """It is there no more."""
        self._selectors.pop((identity, namespace), None)

    def template_of(self, pod: SeenPod) -> PodTemplate:
        """The pod's template, with what its controller selects where default spreading is to count that. The same object for the same."""
        selector = None if pod.owner is None else self._selectors.get((pod.owner, pod.namespace))
        spec = pod.template.spec
        if selector is None or spec.spread or spec.default_spread is not None:
            return pod.template
        found = self._templates.get((pod.template, selector))
        if found is None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            found = replace(pod.template, spec=replace(spec, default_spread=selector))
            self._templates[pod.template, selector] = found
        return found
