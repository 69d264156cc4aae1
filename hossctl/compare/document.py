"""The JSON document of a comparison, version 1: `hoss bench compare` writes it, and all reports are made from
it.

A comparison is a list of *runs*. A run is one seeded load under one *mode* on a platform of its own. Runs
with an equal `cell` are repetitions of one another. The document holds no figure that is computed from
several runs: the reader takes medians, see `hossctl.compare.report.summary`. A name ends with the unit of a
duration, shares are fractions, and amounts are in schema units.

`python -m hossctl.compare.document > docs/benchmarks/compare.schema.json` writes the JSON schema.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hoss.document_errors import describe_validation
from hoss.errors import InvalidInput, reading
from hossctl.choices import DEFAULT_SCHEDULER, Load, Mode

SCHEMA: Final = "hoss.dev/bench-compare/v1"

# A mode, load or scheduler: one of HOSS, an entry point, or a class of somebody's own.
PartName = Annotated[
    str,
    BeforeValidator(lambda name: name.value if isinstance(name, (Mode, Load)) else name),
    Field(min_length=1),
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class MachineInfo(_Part):
    """The machine of the measurement. Figures of two machines are not compared."""

    cpu: str
    cores: int = Field(ge=1)
    memory_mib: int = Field(ge=0)
    system: str
    python: str
    versions: dict[str, str]  # hoss, redis-server, grpcio, numpy, ...


class DecisionTimes(_Part):
    """Decision cost added in every worker, as in the Omega paper: a part for each work batch, and a part for
    each pod of it."""

    job_ms: float = Field(default=0.0, ge=0)
    task_ms: float = Field(default=0.0, ge=0)


class Cell(_Part):
    """What is varied. `fill` is the share of all cpu (of all cards, for openb) that the load requests. It is
    0 where `pods` is given. `scheduler` is what decides in the workers."""

    mode: PartName
    load: PartName
    scheduler: PartName = DEFAULT_SCHEDULER
    workers: int = Field(ge=1)
    nodes: int = Field(ge=1)
    fill: float = Field(ge=0)
    pods: int = Field(default=0, ge=0)
    decision: DecisionTimes = DecisionTimes()


class Latency(_Part):
    """Percentiles of one phase, milliseconds."""

    p50: float
    p99: float
    p999: float


class WorkerFigures(_Part):
    """One scheduler. `busyness`: the share of the run's time in which it was deciding (CPU and added decision
    cost)."""

    name: str
    busyness: float
    bound: int
    conflicts: int


class ServiceFigures(_Part):
    """All processes of one service together; memory is the sum of their peaks."""

    cpu_seconds: float
    peak_mib: float


class Overcommit(_Part):
    """Nodes that hold more than they have. `worst`: requested of allocatable on the worst node, of the worst
    resource."""

    nodes: int
    worst: float
    excess: dict[str, int]  # by resource, over all nodes


class PlacementQuality(_Part):
    """How well the pods lie at the end. Shares are fractions."""

    # FGD's measure: of all cards, the share that is free and that the load's pods cannot use. None without
    # cards.
    gpu_fragmentation: float | None
    # By resource that the load requests: of all there is, the share that is free and no use to its pods.
    stranded: dict[str, float]
    # By resource: the standard deviation, over nodes, of the share that is requested.
    spread: dict[str, float]
    nodes_in_use: int  # that hold any of the pods
    moves: int | None  # pods that changed their node while bound; None: the mode cannot report it
    # Jain's index of the share of each class of pods that was bound; a class has equal requests and rules.
    fairness: float


class ComparisonRun(_Part):
    """One load under one mode, from its first message to the last pod bound. A figure that a mode cannot
    report is None: kube-scheduler reports no conflicts, and on Kubernetes pods come without jobs."""

    cell: Cell
    repetition: int = Field(ge=0)
    seed: int
    started: str  # ISO 8601, UTC
    complete: bool = True  # False: the run was interrupted; figures are of its part
    pods: int
    bound: int
    unschedulable: int
    seconds: float
    pods_per_second: float
    # By phase: queued, deciding, committing, total. Phases that the mode does not have are left out.
    latency: dict[str, Latency]
    # Of the total: (milliseconds, share of pods within it), ascending.
    latency_curve: list[tuple[float, float]]
    jobs: int | None
    proposals: int | None  # pods proposed, counting each time
    conflicts: int | None  # of these, refused for a reason of their own
    jobs_with_conflicts: int | None
    # Refusals, each tried again: conflicts, and pods of a gang that were refused because another pod was.
    retries: int | None
    wasted_decisions: int | None  # proposals that bound nothing: `proposals` less `bound`
    workers: list[WorkerFigures]  # empty for kube-scheduler, which does not report how busy it was
    overcommit: Overcommit
    # Pods left over although, at the end, some node had room for them alone, or for all pods that a gang
    # needs.
    unschedulable_with_room: int
    utilisation: dict[str, float]  # by resource, at the end; above 1.0 where nodes are overcommitted
    # By resource: of the free amount, the share on nodes where the load's median pod does not fit.
    fragmentation: dict[str, float]
    services: dict[str, ServiceFigures]
    violations: list[str] | None  # findings of an audit; None: there was nothing to audit
    quality: PlacementQuality | None = None  # None: measured by a version that did not report it
    # Whether the ledger validated. False: the mode promises nothing. None: as for `quality`.
    validated: bool | None = None


class Comparison(_Part):
    """The whole document."""

    schema_: Literal["hoss.dev/bench-compare/v1"] = Field(default=SCHEMA, alias="schema")
    machine: MachineInfo
    command: str
    started: str
    finished: str = ""  # empty while it runs, and if it was interrupted
    notes: list[str] = []  # for the reader: more workers than cores, runs left out, ...
    runs: list[ComparisonRun] = []

    def as_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=1)


def read(path: Path) -> Comparison:
    """A comparison from a file. Raises InvalidInput with the path of the first field that is wrong."""
    with reading(str(path)):
        content = path.read_bytes()
    try:
        return Comparison.model_validate_json(content)
    except ValidationError as exc:
        raise InvalidInput(
            f"{describe_validation(exc, Comparison, most=1)}; a comparison of {SCHEMA} is needed",
            where=str(path),
        ) from exc


def json_schema() -> str:
    """JSON Schema 2020-12, as text that ends in a newline."""
    schema = Comparison.model_json_schema(by_alias=True, mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA}
    return json.dumps({**head, **schema}, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
