"""DeviceCards: a share of an accelerator must fit on one card, whole cards must be free."""

import numpy as np

from hoss.model.fit import cards_fit
from hoss.model.pod import PodSpec
from hoss.model.resources import DEVICE_RESOURCE, DEVICE_SHARE_RESOURCE, WHOLE_CARD_MILLI
from hoss.wire.columns import NO_CARD
from scheduler_worker.core.cache.assumptions import pods_that_fit
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import FilterFastPaths, FilterPlugin
from scheduler_worker.core.nodes import Mask


class DeviceCards(FilterPlugin):
    """The ledger's rule for cards (hoss.model.resources.cards_fit)."""

    name = "DeviceCards"

    def __init__(self) -> None:
        self.fast_filter = FilterFastPaths(self._passes_one, self._passes_each)

    def filter(self, pod: Demand, nodes: NodeView) -> Mask | None:
        """See FilterPlugin. The cards of a view do not include its pods ahead."""
        if pod.devices is None or nodes.cards_used is None:
            return None
        if nodes.ahead is not None:
            passed = pods_that_fit(nodes.cards_used, pod.devices) > nodes.ahead
        else:
            passed = cards_fit(nodes.cards_used, pod.devices.count, pod.devices.milli)
        if DEVICE_RESOURCE in pod.claimed:
            # A device class stands for cards: on nodes without cards DynamicResources allocates devices.
            passed |= np.logical_and.reduce(nodes.cards_used == NO_CARD, axis=1)
        return passed

    def reason_for(self, spec: PodSpec) -> str:
        """The resource of which a card has too little."""
        whole = spec.devices is not None and spec.devices.milli == WHOLE_CARD_MILLI
        return f"Insufficient {DEVICE_RESOURCE if whole else DEVICE_SHARE_RESOURCE}"

    def _passes_one(self, demand: Demand, node: OneNode) -> bool:
        devices = demand.devices
        if devices is None or node.cards_used is None:
            return True
        if DEVICE_RESOURCE in demand.claimed and all(used == NO_CARD for used in node.cards_used):
            return True
        most = WHOLE_CARD_MILLI - devices.milli
        return sum([used <= most for used in node.cards_used]) >= devices.count

    def _passes_each(self, requested: RequestedResources, view: NodeView) -> Mask | None:  # noqa: ARG002
        """Plain demands request no cards."""
        return None
