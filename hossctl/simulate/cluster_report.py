"""What a simulated platform did, for people and for programs.

The document (camel case, seconds unless named otherwise):

    nodes, pods, workers, resolvers, shards, cores, seed    cores 0: each process has its own
    serviceMicros            assumed CPU microseconds per pod: client, dispatcher, worker, feed, resolver, follower, ledger
                             (see hossctl.simulate.cluster.ServiceTimes)
    hopSeconds               that a message is under way
    seconds                  virtual, until the last pod was reported bound
    bound, podsPerSecond
    ledgerRatio              podsPerSecond of what the ledger alone would do
    proposed, conflicts, conflictShare
    overcommittedNodes       0 unless something is wrong
    busyness                 share of the time, by process
    busiest                  the process that is
    measured                 of the benchmark that the times are from, else null: podsPerSecond, ledgerRatio, conflictShare;
                             sameSize tells whether nodes, pods and workers are the same here
"""

from dataclasses import asdict

from hossctl.console import Document
from hossctl.figures import median
from hossctl.simulate.cluster import Outcome, Setting
from hossctl.simulate.measured import Measured


def as_json(outcome: Outcome, measured: Measured | None) -> Document:
    """See the module's docstring."""
    setting = outcome.setting
    micros = asdict(setting.times)
    hop_seconds = micros.pop("hop_seconds")
    return {
        "nodes": setting.nodes,
        "pods": setting.pods,
        "workers": setting.workers,
        "resolvers": setting.resolvers,
        "shards": setting.shards,
        "cores": setting.cores,
        "seed": setting.seed,
        "serviceMicros": {name: round(value, 3) for name, value in micros.items()},
        "hopSeconds": hop_seconds,
        "seconds": round(outcome.seconds, 4),
        "bound": outcome.bound,
        "podsPerSecond": round(outcome.pods_per_second, 1),
        "ledgerRatio": round(outcome.ledger_ratio, 4),
        "proposed": outcome.proposed,
        "conflicts": outcome.conflicts,
        "conflictShare": round(outcome.conflict_share, 5),
        "overcommittedNodes": outcome.overcommitted,
        "busyness": {name: round(share, 4) for name, share in outcome.busyness.items()},
        "busiest": _busiest(outcome),
        "measured": None
        if measured is None
        else {
            "podsPerSecond": measured.pods_per_second,
            "ledgerRatio": measured.ledger_ratio,
            "conflictShare": round(measured.conflict_share, 5),
            "sameSize": _same_size(setting, measured),
        },
    }


def lines(outcome: Outcome, measured: Measured | None) -> list[tuple[str, object]]:
    """For people."""
    same = measured is not None and _same_size(outcome.setting, measured)
    ratio = f"{outcome.ledger_ratio:.2f}"
    speed, conflicts = (
        f"{outcome.pods_per_second:,.0f}",
        f"{outcome.conflict_share:.2%} of {outcome.proposed:,} placements",
    )
    if measured is not None and same:
        speed += f"; measured {measured.pods_per_second:,.0f}"
        ratio += f"; measured {measured.ledger_ratio:.2f}"
        conflicts += f"; measured {measured.conflict_share:.2%}"
    left = outcome.setting.pods - outcome.bound
    workers = [share for name, share in outcome.busyness.items() if name.startswith("worker-")]
    shown: list[tuple[str, object]] = [
        ("pods/s", speed),
        ("of the ledger alone", ratio),
        ("bound", f"{outcome.bound:,} of {outcome.setting.pods:,} in {outcome.seconds:,.2f} s"),
        ("conflicts", conflicts),
        ("overcommitted nodes", outcome.overcommitted),
        ("busiest", f"{_busiest(outcome)}, {max(outcome.busyness.values()):.0%} of the time"),
    ]
    if left:
        shown.insert(3, ("not bound", f"{left:,}: no node has room for them"))
    others = [(f"busy {name}", f"{share:.0%}") for name, share in outcome.busyness.items() if "worker-" not in name]
    return [*shown, *others, ("busy workers", f"{median(workers):.0%} (median), {max(workers):.0%} (most)")]


def _busiest(outcome: Outcome) -> str:
    return max(outcome.busyness, key=lambda name: outcome.busyness[name])


def _same_size(setting: Setting, measured: Measured) -> bool:
    return (setting.nodes, setting.pods, setting.workers) == (measured.nodes, measured.pods, measured.workers)
