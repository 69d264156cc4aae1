"""Azure's packing trace of 2020 (AzurePublicDataset, AzureTracesForPacking2020) as nodes and pods.

The file is SQLite and has two tables. Columns that are read:

    vm        vmId, vmTypeId, priority (0 high, 1 low), starttime, endtime (days; before 0: it was there
              already; NULL: it never ends)
    vmType    vmTypeId, machineId, core, memory, hdd, ssd, nic (shares of one machine of that kind)

A type of VM has shares of several kinds of machine; nodes are machines of one kind, and VMs of types that it
does not take are left out and counted. Disks and network are resources counted in millionths of the machine.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hoss.errors import InvalidInput
from hoss.model.pod import PodTemplate, Workload
from hossctl.traces.recording import (
    Recording,
    Shapes,
    TraceMachine,
    TracePod,
    TraceWindow,
    machines,
    rounded_up,
)

DAY_SECONDS = 86_400
PARTS = 1_000_000  # that a machine's disks and network have

_OTHERS = ("hdd", "ssd", "nic")
_TABLES = {
    "vm": ("vmId", "vmTypeId", "priority", "starttime", "endtime"),
    "vmType": ("vmTypeId", "machineId", "core", "memory", *_OTHERS),
}
_HIGH, _LOW = 1, 0  # priorities of pods
# Without VMs that ended before the window or started after it. NULL means no end.
_IN_WINDOW = "starttime < :end AND (endtime IS NULL OR endtime > :begin)"
_REQUESTS = f"""
    SELECT vmId, vmTypeId, priority, starttime, endtime FROM vm
    WHERE {_IN_WINDOW} AND vmTypeId IN (SELECT vmTypeId FROM vmType WHERE machineId = :machine)
    ORDER BY max(starttime, :begin), vmId LIMIT :limit
"""  # noqa: S608 - made of constants
_LEFT_OUT = f"""
    SELECT count(*) FROM vm
    WHERE {_IN_WINDOW} AND vmTypeId NOT IN (SELECT vmTypeId FROM vmType WHERE machineId = :machine)
"""  # noqa: S608 - made of constants
_MOST_TYPES = "SELECT machineId FROM vmType GROUP BY machineId ORDER BY count(*) DESC, machineId LIMIT 1"


def read(
    path: Path, nodes: int, machine: TraceMachine, window: TraceWindow, machine_type: int | None = None
) -> Recording:
    """VMs as pods, and `nodes` machines of the given type, or of the type that most types of VM have shares
    of. InvalidInput names file, table and column."""
    with _opened(path) as database:
        kinds = [
            kind for (kind,) in database.execute("SELECT DISTINCT machineId FROM vmType ORDER BY machineId")
        ]
        if not kinds:
            raise InvalidInput("has no rows", where=f"{path} table vmType")
        if machine_type is None:
            ((machine_type,),) = database.execute(_MOST_TYPES)
        elif machine_type not in kinds:
            shown = ", ".join(map(str, kinds))
            raise InvalidInput(
                f"{machine_type} is no machine of {path}; it has {shown}", where="--machine-type"
            )
        templates = _templates(database, path, machine, machine_type)
        pods = list(_pods(database, path, templates, window, machine_type))
        ((left_out,),) = database.execute(_LEFT_OUT, {**_limits(window), "machine": machine_type})
    others = tuple((_resource(name), PARTS) for name in _OTHERS)
    reason = f"VMs of types that machine {machine_type} does not take"
    return Recording(machines(nodes, machine, others), pods, {reason: left_out} if left_out else {})


def _templates(
    database: sqlite3.Connection, path: Path, machine: TraceMachine, machine_type: int
) -> dict[tuple[object, bool], PodTemplate]:
    """By type of VM, and whether its priority is high."""
    shapes, found = Shapes(machine), {}
    columns = f"vmTypeId, core, memory, {', '.join(_OTHERS)}"
    query = f"SELECT {columns} FROM vmType WHERE machineId = ?"  # noqa: S608 - made of constants
    for kind, *shares in database.execute(query, (machine_type,)):
        for name, share in zip(("core", "memory", *_OTHERS), shares, strict=True):
            if not (isinstance(share, (int, float)) and 0 <= share <= 1):
                where = f"{path} table vmType, vmTypeId {kind}, column {name}"
                raise InvalidInput(f"is {share!r}; a share of the machine belongs here, 0 to 1", where=where)
        core, memory, *others = shares
        parts = tuple(
            (_resource(n), rounded_up(share * PARTS)) for n, share in zip(_OTHERS, others, strict=True)
        )
        for urgent, priority in ((True, _HIGH), (False, _LOW)):
            found[kind, urgent] = shapes.template(core, memory, priority, parts)
    return found


def _pods(
    database: sqlite3.Connection,
    path: Path,
    templates: dict[tuple[object, bool], PodTemplate],
    window: TraceWindow,
    machine_type: int,
) -> Iterator[TracePod]:
    parameters = {**_limits(window), "machine": machine_type, "limit": window.limit or -1}
    for name, kind, priority, start, end in database.execute(_REQUESTS, parameters):
        for column, days in (("starttime", start), ("endtime", 0.0 if end is None else end)):
            if not isinstance(days, (int, float)):
                raise InvalidInput(
                    f"is {days!r}; a number of days belongs here",
                    where=f"{path} table vm, vmId {name}, column {column}",
                )
        if end is not None and end < start:
            problem = f"is {end:g}, before its starttime {start:g}"
            raise InvalidInput(problem, where=f"{path} table vm, vmId {name}, column endtime")
        seconds = None if end is None else end * DAY_SECONDS
        deleted = seconds if seconds is not None and seconds < window.end else None
        yield TracePod(
            Workload(f"vm-{name}", templates[kind, priority == 0]),
            max(start * DAY_SECONDS, window.begin),
            deleted,
        )


def _limits(window: TraceWindow) -> dict[str, float]:
    return {"begin": window.begin / DAY_SECONDS, "end": window.end / DAY_SECONDS}


def _resource(column: str) -> str:
    return f"azure.com/{column}"


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database, read only, with its tables checked. Errors of SQLite become InvalidInput."""
    if not path.is_file():
        raise InvalidInput("cannot be read: no such file", where=str(path))
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            for table, columns in _TABLES.items():
                _check(database, path, table, columns)
            yield database
    except sqlite3.Error as exc:
        raise InvalidInput(f"is no SQLite file that can be read: {exc}", where=str(path)) from exc


def _check(database: sqlite3.Connection, path: Path, table: str, columns: tuple[str, ...]) -> None:
    found = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    if not found:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        raise InvalidInput(f"has no table {table}; found {', '.join(tables) or 'none'}", where=str(path))
    missing = [column for column in columns if column not in found]
    if missing:
        where = f"{path} table {table}"
        raise InvalidInput(f"has no column {', '.join(missing)}; found {', '.join(found)}", where=where)
