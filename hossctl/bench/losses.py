"""What benchmarks of a loss have in common: a platform whose ledger is full of pods, before something of it goes and comes back."""

from collections.abc import Iterable
from dataclasses import dataclass

from hoss.model.node import NodeSpec
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import Finding
from hossctl.choices import Mix
from hossctl.console import Document
from hossctl.load import bench_load, bench_nodes
from hossctl.platform import WorkerOptions


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured, `repeat` times on a fresh platform. `redis_url`: empty, it has a Redis of its own."""

    nodes: int
    pods: int
    workers: int
    seed: int
    repeat: int = 1
    redis_url: str = ""

    def as_json(self) -> Document:
        """Named as the fields, but for where Redis is."""
        return {
            "nodes": self.nodes,
            "pods": self.pods,
            "workers": self.workers,
            "seed": self.seed,
            "repeat": self.repeat,
        }

    def node_specs(self) -> list[NodeSpec]:
        """The nodes."""
        return bench_nodes(Mix.UNIFORM, self.nodes, seed=self.seed)

    def worker_options(self) -> tuple[WorkerOptions, ...]:
        """The workers, alike."""
        return tuple(WorkerOptions(f"w{number + 1}") for number in range(self.workers))

    def load(self, name: str, pods: int) -> list[pb.SubmitRequest]:
        """So many pods, all alike."""
        return bench_load(Mix.UNIFORM, pods, cards=0, seed=self.seed, name=name)


def finding_lines(findings: Iterable[Finding]) -> list[tuple[str, object]]:
    """What audits found, for people."""
    return [(f"INVARIANT {finding.invariant}", finding.text) for finding in findings]
