"""What clients ask about tenants: who holds how much, and whose pods go before a pod that waits."""

from dispatcher.core.podtable import Phase
from dispatcher.core.tenants import Holding
from dispatcher.runtime import Runtime
from hoss.v1 import dispatcher_pb2 as pb


def tenants(runtime: Runtime) -> pb.ListTenantsReply:
    """All that have pods, by name."""
    holdings = runtime.machine.tenants.holdings(runtime.now())
    return pb.ListTenantsReply(
        tenants=[
            pb.TenantInfo(
                name=held.name,
                weight=held.weight,
                share=held.share,
                resource=held.resource,
                queued=held.phases[Phase.QUEUED] + held.phases[Phase.BACKOFF],
                scheduling=held.phases[Phase.SCHEDULING],
                bound=held.phases[Phase.BOUND],
                unschedulable=held.phases[Phase.UNSCHEDULABLE],
            )
            for held in sorted(holdings, key=lambda held: held.name)
        ]
    )


def behind(runtime: Runtime, row: int) -> str:
    """Whose pods go before the active pod in a row, and why; "" where only arrival decides."""
    machine = runtime.machine
    template_id = machine.registry.pods.template[row : row + 1]
    ((_, priority, tenant),) = machine.registry.templates.places(template_id).T.tolist()
    higher, rivals = machine.queues.active.rivals(priority, tenant)
    if higher:
        return f"pods of a higher priority than its {priority}"
    if not rivals:
        return ""
    holdings = {held.name: held for held in machine.tenants.holdings(runtime.now())}
    mine = holdings[machine.tenants.name(tenant)]
    others = [holdings[name] for name in map(machine.tenants.name, rivals) if name in holdings]
    first = min(others, key=_standing, default=mine)
    if _standing(first) >= _standing(mine):
        return ""
    return f"tenant {first.name or '(none)'}, which {_told(first)}; tenant {mine.name or '(none)'} {_told(mine)}"


def _standing(held: Holding) -> float:
    return held.share / held.weight


def _told(held: Holding) -> str:
    return f"holds {held.share:.1%} of the cluster's {held.resource} (weight {held.weight:g})"
