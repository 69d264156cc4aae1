"""The ways in which the workers of a cell are coordinated. All modes use the same services; what differs
between two modes is written here and nowhere else.

    single               one worker
    multi-uncoordinated  workers with caches of their own, fed as usual by the bindings; the ledger accepts
                         every proposal unchecked
    multi-partitioned    worker i of n takes nodes i, i + n, i + 2n ... and no others. Pods go to the least
                         loaded worker. A partition by tenant would be worse: a worker could idle while
                         another has a queue
    multi-locked         one lock on a file. A worker holds it from before it decides on a batch, with a cache
                         that has the previous holder's commits, until the ledger has answered. Decisions of
                         two workers never overlap, and none is refused
    multi-hoss           workers decide at the same time; the ledger validates

A mode of your own is a subclass of `CoordinationMode` (docs/tutorials/comparison.md)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hossctl.choices import Mode
from hossctl.compare.registry import PartRegistry

PARTITION: Final = "hoss.dev/partition"


class CoordinationMode:
    """How workers are kept from giving the same room away twice. As it is: all decide at the same time, and
    the ledger validates. A subclass says what is different; workers are counted from 0."""

    # Proposals are committed without validation. Such a mode promises nothing: the command does not fail
    # where it overcommits nodes.
    unchecked: bool = False
    # A document of kind Policy: which worker gets which pods. None: the least loaded one.
    policy: Path | None = None

    def worker_flags(self, worker: int, workers: int, directory: Path) -> Sequence[str]:  # noqa: ARG002
        """Further flags of a worker's process. `directory` is empty, the same for all workers of a run, and
        is removed after it."""
        return ()

    def node_labels(self, node: int, workers: int) -> Mapping[str, str]:  # noqa: ARG002
        """Further labels of a node, which is the load's node of that number."""
        return {}

    def takes_other_schedulers(self, workers: int) -> bool:
        """Whether schedulers that know no flags of HOSS's workers can run in this mode."""
        flags = [self.worker_flags(worker, workers, Path()) for worker in range(workers)]
        return not self.unchecked and not any(flags)


class Uncoordinated(CoordinationMode):
    """Nobody checks."""

    unchecked = True


class Partitioned(CoordinationMode):
    """Every worker has nodes of its own, by a label."""

    def worker_flags(self, worker: int, workers: int, directory: Path) -> Sequence[str]:  # noqa: ARG002
        """See CoordinationMode."""
        return ("--node-label", f"{PARTITION}={worker}")

    def node_labels(self, node: int, workers: int) -> Mapping[str, str]:
        """See CoordinationMode."""
        return {PARTITION: str(node % workers)}


class Locked(CoordinationMode):
    """One worker decides at a time."""

    def worker_flags(self, worker: int, workers: int, directory: Path) -> Sequence[str]:  # noqa: ARG002
        """See CoordinationMode."""
        return ("--turns", str(directory / "lock"))


_BUILT_IN: Final[Mapping[str, Callable[[], CoordinationMode]]] = {
    Mode.SINGLE.value: CoordinationMode,
    Mode.UNCOORDINATED.value: Uncoordinated,
    Mode.PARTITIONED.value: Partitioned,
    Mode.LOCKED.value: Locked,
    Mode.HOSS.value: CoordinationMode,
}
MODE_REGISTRY: Final = PartRegistry("hoss.modes", CoordinationMode, "CoordinationMode", _BUILT_IN)
