"""Google's cluster traces of May 2019 (google/cluster-data, format v3) as nodes and pods.

Files are JSON lines as Google publishes them, or CSV as BigQuery exports a query, gzipped or not, in the
order of their times. Columns that are read, of the tables' many:

    instance_events    time (microseconds), type, collection_id, instance_index, collection_type, priority,
                       resource_request.cpus, resource_request.memory (shares of the largest machine; in CSV
                       also cpus and memory)
    collection_events  time, type, collection_id
    machine_events     time, machine_id, type, capacity.cpus, capacity.memory (in CSV also cpus and memory)

An instance is a pod from each SUBMIT to the EVICT, FAIL, FINISH, KILL or LOST that follows. An instance that
is submitted again is another pod. An instance without an end of its own ends with its collection, where
collection events are given. Left out and counted are instances of alloc sets, which reserve room for tasks
that are in the trace themselves, and instances whose request is not recorded. Updates of requests,
constraints on machines, and machines that leave or change later are ignored."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hoss.model.node import NodeSpec
from hoss.model.pod import PodTemplate, Workload
from hossctl.traces.recording import Recording, Shapes, TraceMachine, TracePod, TraceWindow, node, rounded_up
from hossctl.traces.rows import Row, rows

ALLOC_INSTANCES = "instances of alloc sets, which hold room for tasks"
NO_REQUEST = "instances whose request is not recorded"

_EVENTS = (
    "SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST", "UPDATE_PENDING",
    "UPDATE_RUNNING",
)  # fmt: skip
_SUBMIT = _EVENTS.index("SUBMIT")
_ENDS = frozenset(map(_EVENTS.index, ("EVICT", "FAIL", "FINISH", "KILL", "LOST")))
_MACHINE_EVENTS = ("UNKNOWN", "ADD", "REMOVE", "UPDATE")
_COLLECTION_TYPES = ("JOB", "ALLOC_SET")
_AFTER_THE_TRACE = 2**63 - 1  # microseconds; means later than the end of the trace

_INSTANCE_COLUMNS = ("time", "type", "collection_id", "instance_index")
_REQUEST = {
    "cpus": "resource_request.cpus",
    "memory": "resource_request.memory",
    "resource_request_cpus": "resource_request.cpus",
    "resource_request_memory": "resource_request.memory",
}
_CAPACITY = {
    "cpus": "capacity.cpus",
    "memory": "capacity.memory",
    "capacity_cpus": "capacity.cpus",
    "capacity_memory": "capacity.memory",
}

_Key = tuple[int, int]  # collection, instance


def read_machines(path: Path, machine: TraceMachine) -> tuple[NodeSpec, ...]:
    """Machines of a machine_events file with their first capacity. Machines without a capacity are left
    out."""
    found: dict[int, NodeSpec] = {}
    for row in rows(path, ("machine_id", "type"), _CAPACITY):
        number = row.number("machine_id")
        cpu, memory = row.fraction("capacity.cpus"), row.fraction("capacity.memory")
        added = _event(row, _MACHINE_EVENTS) == _MACHINE_EVENTS.index("ADD")
        if added and number not in found and cpu is not None and memory is not None:
            amounts = rounded_up(cpu * machine.cpu_milli), rounded_up(memory * machine.memory_bytes)
            found[number] = node(f"machine-{number}", *amounts)
    return tuple(found.values())


def read_pods(path: Path, collections: Path | None, machine: TraceMachine, window: TraceWindow) -> Recording:
    """The pods of an instance_events file and the numbers left out; no nodes. Memory holds the pods of the
    window and all instances that have not ended. Raises InvalidInput with file, line and column."""
    reading = _Reading(Shapes(machine), window)
    for row in _in_order(path, _INSTANCE_COLUMNS, _REQUEST):
        time = row.number("time", most=_AFTER_THE_TRACE)
        if time >= window.end * 1e6:
            break
        reading.take(row, time / 1e6 if time < _AFTER_THE_TRACE else window.end)
        if reading.over:
            break
    reading.begin()
    if collections is not None and window.departures:
        reading.end_with(_ends(collections, window))
    left_out = {why: count for why, count in reading.left_out.items() if count}
    return Recording((), reading.pods, left_out)


@dataclass(slots=True)
class _Reading:
    """Instances, in the order of events. An instance from before the window waits until the window begins, in
    case it ends earlier."""

    shapes: Shapes
    window: TraceWindow
    pods: list[TracePod] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=lambda: {ALLOC_INSTANCES: 0, NO_REQUEST: 0})
    _early: dict[_Key, Workload] | None = field(default_factory=dict)  # None: the window has begun
    _open: dict[_Key, int] = field(default_factory=dict)  # index in `pods`
    # Of the pods that ended: how often they were submitted.
    _tries: dict[_Key, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether no later event can change the pods."""
        return self.window.full(len(self.pods)) and not (self.window.departures and self._open)

    def take(self, row: Row, seconds: float) -> None:
        if self._early is not None and seconds >= self.window.begin:
            self.begin()
        kind = _event(row, _EVENTS)
        key = (row.number("collection_id"), row.number("instance_index"))
        if kind in _ENDS:
            self._end(key, seconds)
        elif kind == _SUBMIT and not self._is_open(key) and (template := self._template(row)) is not None:
            self._submit(key, template, seconds)

    def begin(self) -> None:
        """The window begins: instances that are running become pods."""
        early, self._early = self._early or {}, None
        for key, workload in early.items():
            self._add(key, workload, self.window.begin)

    def end_with(self, ends: Mapping[int, float]) -> None:
        """Instances without an end of their own end with their collection."""
        for (collection, _), number in self._open.items():
            pod = self.pods[number]
            end = ends.get(collection)
            if end is not None and end > pod.creation_seconds:
                self.pods[number] = TracePod(pod.workload, pod.creation_seconds, end)

    def _is_open(self, key: _Key) -> bool:
        return key in self._open or (self._early is not None and key in self._early)

    def _template(self, row: Row) -> PodTemplate | None:
        if _named(row, "collection_type", _COLLECTION_TYPES) == _COLLECTION_TYPES.index("ALLOC_SET"):
            self.left_out[ALLOC_INSTANCES] += 1
            return None
        cpu, memory = row.fraction("resource_request.cpus"), row.fraction("resource_request.memory")
        if cpu is None or memory is None:
            self.left_out[NO_REQUEST] += 1
            return None
        priority = row.number("priority", most=2**31 - 1) if row.text("priority", optional=True) else 0
        return self.shapes.template(cpu, memory, priority)

    def _submit(self, key: _Key, template: PodTemplate, seconds: float) -> None:
        tries = self._tries.get(key, 0)
        name = f"{key[0]}-{key[1]}" + (f"-again-{tries}" if tries else "")
        workload = Workload(name, template)
        if self._early is not None:
            self._early[key] = workload
        else:
            self._add(key, workload, seconds)

    def _add(self, key: _Key, workload: Workload, seconds: float) -> None:
        if not self.window.full(len(self.pods)):
            self._open[key] = len(self.pods)
            self.pods.append(TracePod(workload, seconds, None))

    def _end(self, key: _Key, seconds: float) -> None:
        if self._early is not None:
            self._early.pop(key, None)
        elif (number := self._open.pop(key, None)) is not None:
            self._tries[key] = self._tries.get(key, 0) + 1
            if seconds < self.window.end:
                pod = self.pods[number]
                self.pods[number] = TracePod(pod.workload, pod.creation_seconds, seconds)


def _ends(path: Path, window: TraceWindow) -> dict[int, float]:
    """When collections ended for the last time, of those that did in the window."""
    ends: dict[int, float] = {}
    for row in _in_order(path, ("time", "type", "collection_id")):
        seconds = row.number("time", most=_AFTER_THE_TRACE) / 1e6
        if seconds >= window.end:
            break
        if _event(row, _EVENTS) in _ENDS:
            ends[row.number("collection_id")] = seconds
    return ends


def _in_order(
    path: Path, columns: tuple[str, ...], spellings: Mapping[str, str] | None = None
) -> Iterator[Row]:
    last = 0
    for row in rows(path, columns, spellings):
        time = row.number("time", most=_AFTER_THE_TRACE)
        if time < last:
            problem = (
                f"is {time} and {last} comes before it; sort the events by time (in BigQuery: ORDER BY time)"
            )
            raise row.error("time", problem)
        last = time
        yield row


def _event(row: Row, names: tuple[str, ...]) -> int:
    found = _named(row, "type", names)
    if found is None:
        raise row.error("type", "is empty")
    return found


def _named(row: Row, column: str, names: tuple[str, ...]) -> int | None:
    """A member of an enumeration by its number, as the trace has it, or its name; None where the cell is
    empty."""
    cell = row.text(column, optional=True)
    if not cell:
        return None
    if cell in names:
        return names.index(cell)
    if not (cell.isascii() and cell.isdigit() and int(cell) < len(names)):
        raise row.error(
            column, f"is {cell!r}; 0 to {len(names) - 1} or one of {', '.join(names)} belongs here"
        )
    return int(cell)
