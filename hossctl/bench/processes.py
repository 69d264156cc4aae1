"""CPU seconds and peak memory of running processes, by process and by service."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil

from hossctl.local.process import ProcessRecord

_KIB = 1024
_MIB = 1024 * 1024


def cpu_seconds(records: Sequence[ProcessRecord]) -> dict[str, float]:
    """User and system time of each living process since its start, by name."""
    used = {}
    for record in records:
        process = record.find()
        if process is not None:
            times = process.cpu_times()
            used[record.name] = times.user + times.system
    return used


def peak_mib(records: Sequence[ProcessRecord]) -> dict[str, float]:
    """The peak resident memory of each living process by name, MiB. Systems without /proc report the present
    one."""
    return {
        record.name: _peak_bytes(process) / _MIB
        for record in records
        if (process := record.find()) is not None
    }


def by_service(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The difference of two readings by process name, summed over the processes of each service."""
    totals: dict[str, float] = defaultdict(float)
    for name, value in after.items():
        totals[service_of(name)] += value - before.get(name, 0.0)
    return dict(totals)


def service_of(name: str) -> str:
    """The service of a process: `worker-w1` is of workers. Parts of a control plane keep their names."""
    if name.startswith("kube-"):
        return name
    kind = name.partition("-")[0]
    return {"worker": "workers", "resolver": "resolvers"}.get(kind, kind)


def _peak_bytes(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return int(process.memory_info().rss)
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    return int(process.memory_info().rss)
