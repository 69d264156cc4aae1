"""What `hoss bench compare` writes and everything else about a comparison reads: the JSON document, version 1.

A comparison is a list of *runs*. Each is one seeded load under one *mode* on a platform of its own; runs whose `cell` is
equal are repetitions of one another. Nothing in it is computed from several runs: medians are for the reader to take, see
`hossctl.compare.summary`. Durations are in the unit that a name ends with, shares are fractions, amounts in schema units.
"""

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hoss.errors import InvalidInput
from hossctl.compare.axes import Load, Mode

SCHEMA: Final = "hoss.dev/bench-compare/v1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Machine(_Part):
    """Where it was measured. Figures of two machines are not compared."""

    cpu: str
    cores: int = Field(ge=1)
    memory_mib: int = Field(ge=0)
    system: str
    python: str
    versions: dict[str, str]  # hoss, redis-server, grpcio, numpy, ...


class Decision(_Part):
    """Decision cost added in every worker, as in the Omega paper: so much for a batch of work, so much for each pod of it."""

    job_ms: float = Field(default=0.0, ge=0)
    task_ms: float = Field(default=0.0, ge=0)


class Cell(_Part):
    """What is varied. `fill` is the share of all cpu (of all cards, for openb) that the load asks for; 0 with `pods` given."""

    mode: Mode
    load: Load
    workers: int = Field(ge=1)
    nodes: int = Field(ge=1)
    fill: float = Field(ge=0)
    pods: int = Field(default=0, ge=0)
    decision: Decision = Decision()


class Latency(_Part):
    """Of one phase, milliseconds."""

    p50: float
    p99: float
    p999: float


class Worker(_Part):
    """One scheduler. `busyness`: the share of the run's time in which it was deciding (CPU and added decision cost)."""

    name: str
    busyness: float
    bound: int
    conflicts: int


class Service(_Part):
    """All processes of one service together; memory is the sum of their peaks."""

    cpu_seconds: float
    peak_mib: float


class Overcommit(_Part):
    """Nodes that hold more than they have. `worst`: requested of allocatable on the worst node, of the worst resource."""

    nodes: int
    worst: float
    excess: dict[str, int]  # by resource, over all nodes


class Run(_Part):
    """One load under one mode, from its first message to the last pod bound. What is None no one can know of this mode: kube-scheduler
    tells no conflicts, and on Kubernetes pods come without jobs."""

    cell: Cell
    repetition: int = Field(ge=0)
    seed: int
    started: str  # ISO 8601, UTC
    complete: bool = True  # False: the run was interrupted; figures are of what had been done
    pods: int
    bound: int
    unschedulable: int
    seconds: float
    pods_per_second: float
    latency: dict[
        str, Latency
    ]  # by phase: queued, deciding, committing, total; phases that a mode has not are left out
    latency_curve: list[tuple[float, float]]  # of the whole: (milliseconds, share of pods at most that), ascending
    jobs: int | None
    proposals: int | None  # pods proposed, counting each time
    conflicts: int | None  # of these, refused for a reason of their own
    jobs_with_conflicts: int | None
    retries: int | None  # refusals, each tried again: conflicts, and those that shared the fate of one in a gang
    wasted_decisions: int | None  # proposals that bound nothing: `proposals` less `bound`
    workers: list[Worker]  # none of kube-scheduler, which does not say how busy it was
    overcommit: Overcommit
    unschedulable_with_room: (
        int  # pods left over though, at the end, some node had room for them alone, or for all a gang needs
    )
    utilisation: dict[str, float]  # by resource, at the end; above 1.0 where nodes are overcommitted
    fragmentation: dict[
        str, float
    ]  # by resource: of what is free, the share on nodes where the load's median pod does not fit
    services: dict[str, Service]
    violations: list[str] | None  # what an audit found; None: there was nothing to audit


class Comparison(_Part):
    """The whole document."""

    schema_: Literal["hoss.dev/bench-compare/v1"] = Field(default=SCHEMA, alias="schema")
    machine: Machine
    command: str
    started: str
    finished: str = ""  # empty while it runs, and for ever if it was interrupted
    notes: list[str] = []  # what a reader must know: more workers than cores, runs left out, ...
    runs: list[Run] = []

    def as_json(self) -> str:
        """The document's text."""
        return self.model_dump_json(by_alias=True, indent=1)


def read(path: Path) -> Comparison:
    """A comparison from a file. Raises InvalidInput with the path of the first field that is wrong."""
    try:
        return Comparison.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise InvalidInput(f"cannot be read ({exc.strerror})", where=str(path)) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        raise InvalidInput(f"{field}: {first['msg']}; a comparison of {SCHEMA} is needed", where=str(path)) from exc
