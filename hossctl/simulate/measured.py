"""Service times from a run of the real thing: the document of `hoss bench throughput --json`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hoss.errors import InvalidInput
from hossctl.choices import Mix
from hossctl.figures import median, share
from hossctl.simulate.cluster import ServiceTimes


@dataclass(frozen=True, slots=True)
class Measured:
    """What a benchmark's platform did. `ledger_ratio`: of what the ledger's script alone did in the same run, which suffers as much from
    what else the machine does. The share is of all placements proposed."""

    nodes: int
    pods: int
    workers: int
    pods_per_second: float
    ledger_ratio: float
    conflict_share: float
    times: ServiceTimes


def read_measured(path: Path) -> Measured:
    """Medians over the document's runs. InvalidInput for files that cannot be read, or hold something else, or pods that differ."""
    where = f"--bench {path}"
    try:
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=where) from exc
    except ValueError as exc:
        raise InvalidInput("is no JSON; make it with `hoss bench throughput --json FILE`", where=where) from exc
    try:
        return _measured(document, where)
    except (KeyError, IndexError, TypeError) as exc:
        text = f"is no document of `hoss bench throughput --json FILE`: no {exc.args[0]}"
        raise InvalidInput(text, where=where) from exc


def _measured(document: Any, where: str) -> Measured:
    if document["mix"] != Mix.UNIFORM.value:
        raise InvalidInput(f"was measured with --mix {document['mix']}; only uniform pods are simulated", where=where)
    runs, workers = document["runs"], int(document["workers"])
    placements = [run["placement"] for run in runs]
    micros = {name: median([run["microsPerPod"][name] for run in runs]) for name in runs[0]["microsPerPod"]}
    assumed = ServiceTimes()
    # What grows with the number of workers is taken out of what was measured with these.
    times = replace(
        assumed,
        dispatcher=float(micros["dispatcher"]),
        worker=max(0.0, micros["workers"] - workers * assumed.feed),
        resolver=max(0.0, micros["resolvers"] - workers * assumed.follower),
        # A Redis elsewhere is no process of the platform, and its time not known.
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
