"""Two schedulers race for the same nodes: once with placements that nobody validates, once through the
ledger.

Both pack, both need some time to decide, and neither waits for the other. So both choose the same nodes on
views that miss what the other has just placed. What is oversold then is counted on the nodes themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from hoss.client.dispatcher import submission
from hoss.errors import counted
from hoss.model.pod import Workload
from hoss.v1 import resolver_pb2
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.endpoints import Clients
from hossctl.figures import camel
from hossctl.load import report
from hossctl.load.generated import bench_nodes, pod_template
from hossctl.load.nodes import GIB
from hossctl.load.report import Placement, Usage
from hossctl.local.platform import PlatformOptions

WORKERS = 2
NODES = 40
_POD_CPU_MILLI, _POD_MEMORY_BYTES = 2000, 4 * GIB
_PODS_PER_NODE = 16  # by CPU
PODS = NODES * _PODS_PER_NODE * 9 // 10  # room for all, so that overselling is nobody's need
# A decision of 20 ms for some 50 pods: that of a fast scheduler for a batch.
_FLAGS = ("--profile", "binpack", "--decision-job-ms", "20")


@dataclass(frozen=True, slots=True)
class Race:
    """The outcome of one race."""

    checked: bool  # whether the ledger validated placements
    placement: Placement
    oversold_nodes: int
    oversold_pods: int  # beyond the room of their nodes

    def line(self) -> str:
        """The outcome in one sentence."""
        if self.checked:
            refused = f"{counted(self.placement.conflicts, 'placement')} refused in time and made elsewhere"
            return f"{self.oversold_nodes:,} nodes oversold: {refused}"
        if not self.oversold_nodes:
            return "by luck no node was oversold this time"
        return (
            f"{self.oversold_nodes:,} of {NODES} nodes oversold: {self.oversold_pods:,} of {PODS:,} pods"
            " do not"
            " fit where they were put, and a kubelet would reject them"
        )

    def as_json(self) -> Document:
        """For programs."""
        return {
            **camel(self, "checked", "oversold_nodes", "oversold_pods"),
            "placement": self.placement.as_json(),
        }


def race(*, checked: bool, redis_url: str, seed: int) -> Race:
    """Run a race on a platform of its own. Raises HossError where the platform cannot be had."""
    nodes = bench_nodes(Mix.UNIFORM, NODES, seed=seed)
    template = pod_template({"cpu": _POD_CPU_MILLI, "memory": _POD_MEMORY_BYTES}, owner="Job", app="race")
    requests = list(submission([Workload("race", template, replicas=PODS)]))

    async def run(clients: Clients) -> Race:
        await report.prepare(clients, nodes, WORKERS)
        # The overlap control would else keep the two apart once they meet.
        await clients.dispatcher.steer("shared")
        placement = await report.place(clients, requests)
        held = await clients.resolver.list_nodes()
        over: Usage = report.usage_of(held)
        return Race(checked, placement, len(over.overcommitted), oversold_pods(held))

    options = PlatformOptions(
        workers=report.workers(WORKERS, flags=_FLAGS), redis_url=redis_url, unchecked=not checked, seed=seed
    )
    with report.platform(options) as starter:
        return report.run_on(starter.state, run)


def oversold_pods(nodes: Sequence[resolver_pb2.NodeInfo]) -> int:
    """How many of a race's pods its nodes have no CPU for."""
    beyond = 0
    for node in nodes:
        offered = {amount.resource: amount.amount for amount in node.spec.allocatable}
        used = {amount.resource: amount.amount for amount in node.requested}
        beyond += -(-max(0, used.get("cpu", 0) - offered.get("cpu", 0)) // _POD_CPU_MILLI)
    return beyond
