"""Service times from a run of the real thing: the document of `hoss bench throughput --json`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hoss.errors import InvalidInput, reading
from hossctl.choices import Mix
from hossctl.figures import median, share


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Microseconds of CPU for each pod, and the mean seconds that a message takes. The defaults are from
    docs/benchmarks.md for uniform pods and two workers."""

    client: float = 1.5  # sending pods and reading the events
    dispatcher: float = 1.3
    worker: float = 2.5  # for a pod that it places
    feed: float = 0.3  # for a pod, its own or another's, in a worker's feed
    resolver: float = 0.9  # for a pod that it decides
    follower: float = 0.1  # for a pod in the feed and a worker that follows it there
    ledger: float = 3.0
    hop_seconds: float = 0.0002


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a benchmark. `ledger_ratio`: the rate by that of the ledger's script alone in the same
    run, which suffers equally from other load of the machine. `conflict_share`: of all placements
    proposed."""

    nodes: int
    pods: int
    workers: int
    pods_per_second: float
    ledger_ratio: float
    conflict_share: float
    times: ServiceTimes


def read_measured(path: Path) -> Measured:
    """Medians over the document's runs. InvalidInput for files that cannot be read, other documents, and pods
    that differ."""
    where = f"--bench {path}"
    try:
        with reading(where):
            document = json.loads(path.read_bytes())
    except ValueError as exc:
        raise InvalidInput(
            "is no JSON; make it with `hoss bench throughput --json FILE`", where=where
        ) from exc
    try:
        return _measured(document, where)
    except (KeyError, IndexError, TypeError) as exc:
        text = f"is no document of `hoss bench throughput --json FILE`: no {exc.args[0]}"
        raise InvalidInput(text, where=where) from exc


def _measured(document: Any, where: str) -> Measured:
    if document["mix"] != Mix.UNIFORM.value:
        raise InvalidInput(
            f"was measured with --mix {document['mix']}; only uniform pods are simulated", where=where
        )
    runs, workers = document["runs"], int(document["workers"])
    placements = [run["placement"] for run in runs]
    micros = {name: median([run["microsPerPod"][name] for run in runs]) for name in runs[0]["microsPerPod"]}
    assumed = ServiceTimes()
    # The parts that grow with the number of workers are subtracted.
    times = replace(
        assumed,
        dispatcher=float(micros["dispatcher"]),
        worker=max(0.0, micros["workers"] - workers * assumed.feed),
        resolver=max(0.0, micros["resolvers"] - workers * assumed.follower),
        # The time of a Redis elsewhere is not known.
        ledger=float(micros.get("redis", assumed.ledger)),
    )
    return Measured(
        int(document["nodes"]),
        int(document["pods"]),
        workers,
        float(document["podsPerSecond"]),
        float(document["ratio"]),
        median([share(p["conflicts"], p["bound"] + p["conflicts"]) for p in placements]),
        times,
    )
