"""How each mode is made from the same services: what differs between two modes is what is written here, and nothing else.

single               one worker
multi-uncoordinated  workers with caches of their own, fed as ever by what is bound; the ledger takes every proposal unchecked
multi-partitioned    worker i of n takes nodes i, i + n, i + 2n ... and no others; pods go to whichever has least to do, which is
                     kinder than a partition by tenant: nobody is idle while another has a queue
multi-locked         a lock on a file, held from before a batch of work is decided on, with a cache that has seen the last holder's
                     commits, until the ledger has answered: no two workers' decisions overlap, and none is refused
multi-hoss           workers decide at once; the ledger validates
kube-scheduler       on a control plane of its own, see `hossctl.compare.kubernetes`
kube-hoss            multi-hoss, on a control plane like that: the dispatcher follows the API server, the resolver binds there
"""

from collections.abc import Sequence
from pathlib import Path

from hoss.model.node import NodeSpec
from hossctl.compare.axes import Mode
from hossctl.compare.document import Cell, Decision
from hossctl.compare.loads import labelled
from hossctl.platform import PlatformOptions, WorkerOptions

PARTITION = "hoss.dev/partition"


def platform_of(cell: Cell, *, seed: int, redis_url: str, lock: Path) -> PlatformOptions:
    """The services of a cell's platform; `lock` is a file for the global lock."""
    slow = _decision_flags(cell.decision)
    workers = [
        WorkerOptions(f"w{number + 1}", flags=(*slow, *_mode_flags(cell.mode, number, lock)))
        for number in range(cell.workers)
    ]
    unchecked = cell.mode is Mode.UNCOORDINATED
    return PlatformOptions(workers=tuple(workers), redis_url=redis_url, unchecked=unchecked, seed=seed)


def nodes_for(cell: Cell, nodes: Sequence[NodeSpec]) -> Sequence[NodeSpec]:
    """The nodes as the mode needs them."""
    if cell.mode is not Mode.PARTITIONED:
        return nodes
    return [labelled(node, PARTITION, str(index % cell.workers)) for index, node in enumerate(nodes)]


def _mode_flags(mode: Mode, number: int, lock: Path) -> tuple[str, ...]:
    if mode is Mode.PARTITIONED:
        return ("--node-label", f"{PARTITION}={number}")
    if mode is Mode.LOCKED:
        return ("--turns", str(lock))
    return ()


def _decision_flags(decision: Decision) -> tuple[str, ...]:
    if not decision.job_ms and not decision.task_ms:
        return ()
    return ("--decision-job-ms", str(decision.job_ms), "--decision-task-ms", str(decision.task_ms))
