"""DeviceCards: a share of an accelerator must fit on one card, whole cards must be free."""

from hoss.model.fit import cards_fit
from hoss.model.pod import DeviceRequest
from hoss.model.resources import DEVICE_RESOURCE, DEVICE_SHARE_RESOURCE, WHOLE_CARD_MILLI
from scheduler_worker.core.cache.assumptions import pods_that_fit
from scheduler_worker.core.cache.columns import NodeView, OneNode, RequestedResources
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.framework.extension_points import Refusals
from scheduler_worker.core.nodes import Mask


class DeviceCards:
    """The ledger's rule for cards (hoss.model.resources.cards_fit)."""

    name = "DeviceCards"
    one_at_a_time = True
    side_by_side = True

    def passes(self, demand: Demand, view: NodeView) -> Mask | None:
        """See DynamicFilter. The cards of a view do not include its pods ahead."""
        if demand.devices is None or view.cards_used is None:
            return None
        if view.ahead is not None:
            return pods_that_fit(view.cards_used, demand.devices) > view.ahead
        return cards_fit(view.cards_used, demand.devices.count, demand.devices.milli)

    def passes_one(self, demand: Demand, node: OneNode) -> bool:
        """See OneNodeFilter."""
        devices = demand.devices
        if devices is None or node.cards_used is None:
            return True
        most = WHOLE_CARD_MILLI - devices.milli
        return sum([used <= most for used in node.cards_used]) >= devices.count

    def passes_each(self, requested: RequestedResources, view: NodeView) -> Mask | None:  # noqa: ARG002
        """See SideBySideFilter. Plain demands request no cards."""
        return None

    def refusals(self, demand: Demand, view: NodeView) -> Refusals | None:
        """See DynamicFilter."""
        passed = self.passes(demand, view)
        if passed is None or demand.devices is None:
            return None
        return Refusals(reasons=((_reason(demand.devices), ~passed),), unresolvable=passed & False)


def _reason(devices: DeviceRequest) -> str:
    whole = devices.milli == WHOLE_CARD_MILLI
    return f"Insufficient {DEVICE_RESOURCE if whole else DEVICE_SHARE_RESOURCE}"
