"""The Alibaba GPU cluster trace ("openb", clusterdata cluster-trace-gpu-v2023) as nodes and pods.

Nodes: sn, cpu_milli, memory_mib, gpu (cards), model (of the cards). Pods: name, cpu_milli, memory_mib,
num_gpu, gpu_milli (below 1000: a share of one card), gpu_spec (card models allowed, separated by |, empty for
any), qos, and times in seconds.

Four of the trace's pod lists, openb_pod_list_multigpu*, have only the first five columns of eleven: their
pods come at the beginning and stay."""

from collections.abc import Iterator
from pathlib import Path

from hoss.model.node import NodeSpec
from hoss.model.pod import DeviceRequest, PodSpec, PodTemplate, QosClass, Workload
from hoss.model.resources import DEVICE_RESOURCE, MAX_AMOUNT, MAX_CARDS
from hoss.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from hossctl.traces.recording import HOSTNAME_LABEL, PODS_PER_NODE, TracePod
from hossctl.traces.rows import Row, rows

CARD_MODEL_LABEL = "hoss.dev/gpu-model"

_MIB = 2**20
_MOST_MIB = MAX_AMOUNT // _MIB
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
# What all of the trace's pod lists have; those named "multigpu" have nothing else.
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIME_COLUMNS = ("creation_time", "deletion_time")


def read_nodes(path: Path) -> list[NodeSpec]:
    """The trace's nodes, in file order. Raises InvalidInput naming file, line, column and value."""
    nodes: dict[str, NodeSpec] = {}
    for row in rows(path, _NODE_COLUMNS):
        cards = row.number("gpu")
        if cards > MAX_CARDS:
            raise row.error("gpu", f"is {cards}; HOSS keeps account of {MAX_CARDS} cards of a node at most")
        name, model = row.text("sn"), row.text("model", optional=True)
        if name in nodes:
            raise row.error("sn", f"{name!r} is in the file twice")
        labels = [(HOSTNAME_LABEL, name), *([(CARD_MODEL_LABEL, model)] if model else [])]
        allocatable = {
            "cpu": row.number("cpu_milli"),
            "memory": row.number("memory_mib", most=_MOST_MIB) * _MIB,
            "pods": PODS_PER_NODE,
            **({DEVICE_RESOURCE: cards} if cards else {}),
        }
        nodes[name] = NodeSpec(
            name, labels=tuple(sorted(labels)), allocatable=tuple(sorted(allocatable.items())), cards=cards
        )
    return list(nodes.values())


def read_pods(path: Path) -> list[Workload]:
    """The trace's pods as bare pods, in file order. Pods of equal shape share one template object."""
    return [workload for workload, _ in _pods(path)]


def read_trace(path: Path) -> list[TracePod]:
    """The trace's pods with their times; in a list without times all come at 0 and stay. Raises InvalidInput
    naming file, line, column and value."""
    return [TracePod(workload, *_times(row)) for workload, row in _pods(path)]


def _times(row: Row) -> tuple[float, float | None]:
    """Creation and deletion. A list has both columns or none of them."""
    missing = [column for column in _TIME_COLUMNS if not row.has(column)]
    if len(missing) == len(_TIME_COLUMNS):
        return 0.0, None
    if missing:
        raise row.error(missing[0], "is not in the file; a list has both times or neither")
    return row.number("creation_time"), row.number("deletion_time")


def _pods(path: Path) -> Iterator[tuple[Workload, Row]]:
    shapes: dict[tuple[int, int, int, int, str], PodTemplate] = {}
    names: set[str] = set()
    for row in rows(path, _POD_COLUMNS):
        cards, card_milli = row.number("num_gpu"), row.number("gpu_milli")
        if cards > MAX_CARDS:
            raise row.error("num_gpu", f"is {cards}; no node can have more than {MAX_CARDS} cards")
        if cards and not (card_milli == 1000 or (cards == 1 and 1 <= card_milli < 1000)):
            raise row.error(
                "gpu_milli", f"is {card_milli}; it is 1000 for whole cards, 1 to 999 for a share of one card"
            )
        name = row.text("name")
        if name in names:
            raise row.error("name", f"{name!r} is in the file twice")
        names.add(name)
        models = row.text("gpu_spec", optional=True)
        shape = (
            row.number("cpu_milli"),
            row.number("memory_mib", most=_MOST_MIB),
            cards,
            card_milli if cards else 0,
            models,
        )
        template = shapes.get(shape)
        if template is None:
            template = shapes[shape] = _template(*shape)
        yield Workload(name, template), row


def _template(cpu_milli: int, memory_mib: int, cards: int, card_milli: int, models: str) -> PodTemplate:
    requests = {"cpu": cpu_milli, "memory": memory_mib * _MIB}
    if card_milli == 1000:
        requests[DEVICE_RESOURCE] = cards
    affinity = None
    if models:
        allowed = tuple(sorted(set(models.split("|"))))
        affinity = NodeSelector((NodeSelectorTerm((Requirement(CARD_MODEL_LABEL, "In", allowed),)),))
    spec = PodSpec(
        requests=tuple(sorted((name, amount) for name, amount in requests.items() if amount)),
        nonzero_cpu_milli=cpu_milli,
        nonzero_memory_bytes=memory_mib * _MIB,
        required_node_affinity=affinity,
        devices=DeviceRequest(cards, card_milli) if cards else None,
    )
    # The trace has no limits, so by Kubernetes' rule every pod with requests is Burstable.
    qos = QosClass.BURSTABLE if cpu_milli or memory_mib else QosClass.BEST_EFFORT
    return PodTemplate(spec, qos_class=qos)
