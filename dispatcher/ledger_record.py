"""What the dispatcher knows of the ledger, as parts of one: nodes as the feed told of them, and every bound pod."""

from collections.abc import Iterator, Mapping

import numpy as np

from dispatcher.core.podtable import NO_REASON, Phase
from dispatcher.core.registry import PodRegistry
from hoss.model.pod_groups import group_of
from hoss.v1 import common_pb2
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U16, U32
from hoss.wire.pod_groups import definition_of

_ROWS = 5000  # of one part


def record_parts(registry: PodRegistry, specs: Mapping[int, bytes], head: pb.LedgerHead) -> list[pb.LedgerPart]:
    """The head, nodes (`specs`: NodeSpec messages by index), and bound pods. All of one moment: nothing is awaited."""
    return [pb.LedgerPart(head=head), *_nodes(specs), *_pods(registry)]


def _nodes(specs: Mapping[int, bytes]) -> Iterator[pb.LedgerPart]:
    entries = [pb.NodeEntry(index=i, spec=common_pb2.NodeSpec.FromString(spec)) for i, spec in sorted(specs.items())]
    for start in range(0, len(entries), _ROWS):
        yield pb.LedgerPart(nodes=entries[start : start + _ROWS])


def _pods(registry: PodRegistry) -> Iterator[pb.LedgerPart]:
    pods = registry.pods
    leaving = pods.assigned[: pods.size] & (pods.eviction[: pods.size] != NO_REASON)  # their room is another's already
    rows = np.flatnonzero((pods.phase[: pods.size] == Phase.BOUND) & (pods.node[: pods.size] != NONE_U32) & ~leaving)
    templates, kinds = np.unique(pods.template[rows], return_inverse=True)
    if len(templates):
        yield pb.LedgerPart(kinds=[kind_of(registry, template) for template in templates.tolist()])
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        yield pb.LedgerPart(
            pods=pb.PodColumns(
                uids=np.ascontiguousarray(pods.uid[part]).tobytes(),
                nodes=pods.node[part].astype(U32).tobytes(),
                kinds=kinds[start : start + _ROWS].astype(U32).tobytes(),
                attempts=pods.attempts[part].astype(U16).tobytes(),
            )
        )


def kind_of(registry: PodRegistry, template: int) -> pb.PodKind:
    """What the ledger is told of the pods of a template."""
    spec = registry.templates.pod_spec(int(registry.templates.class_id[template]))
    kind = pb.PodKind(
        requests=[common_pb2.Amount(resource=name, amount=amount) for name, amount in spec.requests],
        priority=int(registry.templates.priority[template]),
        group=definition_of(group_of(spec)),
    )
    kind.requests.add(resource="pods", amount=1)
    if spec.devices is not None:
        kind.cards, kind.card_milli = spec.devices.count, spec.devices.milli
    return kind
