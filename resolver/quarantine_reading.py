"""What the resolver tells of nodes in quarantine."""

from collections.abc import Iterable
from datetime import datetime, timezone

from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from resolver.ledger.port import Ledger
from resolver.quarantine import Quarantine


async def show_quarantine(quarantine: Quarantine, shards: int, nodes: Iterable[pb.NodeInfo]) -> None:
    """Say of each node why it is out, if it is."""
    kept = {node: found for shard in range(shards) for node, found in (await quarantine.kept(shard)).items()}
    for node in nodes if kept else ():
        found = kept.get(node.index)
        if found is not None:
            told = pb.Quarantine(reason=found.reason, since_unix_ms=found.since_ms, until_unix_ms=found.until_ms)
            node.quarantine.CopyFrom(told)


async def tell_of_quarantine(quarantine: Quarantine, ledger: Ledger, status: pb.ResolverStatus) -> None:
    """The events of late, and a sentence for each node that is out. Names are looked up only where there are any."""
    kept = {shard: await quarantine.kept(shard) for shard in range(ledger.shards)}
    asked = {event.node % ledger.shards for event in quarantine.events} | {shard for shard, out in kept.items() if out}
    names: dict[int, str] = {}
    for shard in asked:
        specs = (await ledger.snapshot(shard)).specs
        names.update((index, common_pb2.NodeSpec.FromString(spec).name) for index, spec in specs.items())
    for event in quarantine.events:
        status.events.add(unix_ms=event.unix_ms, node=names.get(event.node, str(event.node)), text=event.text)
    for out in kept.values():
        for node, found in out.items():
            until = datetime.fromtimestamp(found.until_ms / 1000, timezone.utc).strftime("%H:%M:%S UTC")
            name = names.get(node, str(node))
            status.quarantined.append(
                f"node {name} gets nothing until {until} (`hoss uncordon node {name}` ends that): {found.reason}"
            )
