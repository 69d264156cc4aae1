"""Makes nodes.csv and pods.csv beside it: a small trace in the format of the openb GPU trace, of the shape of
that one.

    python tests/traces/make_trace.py               # the two files that the tests replay
    python tests/traces/make_trace.py --nodes 1000 --seed 7 DIRECTORY

No row is taken from a recording. What was taken are proportions: of nodes with eight, four, two and no cards;
of pods that want no card, a share of one, one, or several; of cpu and memory to cards; of what all pods ask
for to what there is (98 % of the cards, two thirds of the cpu, half of the memory); of how long pods wait and
live. So a replay fills the cards, few pods are large, and the last ones find only shares of cards left. Other
than in the recording a few pods name the models of cards that they can use, and pods of several cards are so
many that there are some.

The same numbers make the same files, on every Python: of chance only `Random.random` is used, and no function
that platforms round differently."""

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

FILES = (Path(__file__).parent / "nodes.csv", Path(__file__).parent / "pods.csv")
NODES = 96
SEED = 1
FILL = 0.98  # of the cards
_GIB = 1024  # MiB

# Share of the nodes; then cpus, GiB, cards, model of the cards.
_NODE_KINDS = (
    (0.36, (96, 384, 8, "M8")),
    (0.25, (104, 512, 2, "S2")),
    (0.08, (16, 128, 2, "P2")),
    (0.05, (32, 128, 4, "V4")),
    (0.04, (128, 768, 8, "L8")),
    (0.11, (32, 256, 0, "")),
    (0.11, (96, 512, 0, "")),
)
# Share of the pods; then cards, thousandths of each, and (milli-cpus, MiB) of which a pod has one.
_POD_KINDS = (
    (0.13, (0, 0, ((8_000, 48 * _GIB), (12_000, 48 * _GIB), (15_000, 30 * _GIB), (32_000, 56 * _GIB)))),
    (0.14, (1, 800, ((3_000, 6 * _GIB), (4_000, 10 * _GIB)))),
    (0.09, (1, 450, ((8_000, 30 * _GIB), (12_000, 46 * _GIB)))),
    (0.06, (1, 650, ((12_000, 46 * _GIB), (6_000, 12 * _GIB)))),
    (0.05, (1, 300, ((4_000, 24 * _GIB), (8_000, 30 * _GIB)))),
    (0.04, (1, 200, ((4_000, 15 * _GIB), (4_000, 30 * _GIB)))),
    (0.14, (1, 1000, ((3_000, 6 * _GIB), (4_000, 24 * _GIB)))),
    (0.20, (1, 1000, ((11_000, 48 * _GIB), (12_000, 24 * _GIB)))),
    (0.12, (1, 1000, ((16_000, 58 * _GIB), (18_000, 64 * _GIB), (24_000, 92 * _GIB)))),
    (0.01, (2, 1000, ((6_000, 42 * _GIB), (16_000, 64 * _GIB)))),
    (0.01, (4, 1000, ((32_000, 128 * _GIB),))),
    (0.01, (8, 1000, ((64_000, 256 * _GIB), (88_000, 320 * _GIB)))),
)
_MODELS = ((0.95, ""), (0.02, "S2"), (0.03, "M8|L8"))  # that a pod with one card can use
_QUALITIES = ((0.57, "LS"), (0.42, "BE"), (0.01, "Burstable"))
_ENDS = ((0.64, "Running"), (0.23, "Failed"), (0.11, "Pending"), (0.02, "Succeeded"))
_MEAN_GAP_SECONDS = 300
_DELAYS = ((0.3, 0), (0.4, 1), (0.2, 30), (0.1, 120))  # seconds in the queue
_LIVES = ((0.3, 100), (0.3, 300), (0.2, 1_000), (0.15, 4_000), (0.05, 20_000))  # seconds

_T = TypeVar("_T")


def make(directory: Path, *, nodes: int = NODES, seed: int = SEED) -> None:
    """Write nodes.csv and pods.csv."""
    chance = Random(seed)
    made = list(_nodes(nodes))
    _write(directory / "nodes.csv", ("sn", "cpu_milli", "memory_mib", "gpu", "model"), made)
    columns = (
        "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase",
        "creation_time", "deletion_time", "scheduled_time",
    )  # fmt: skip
    _write(directory / "pods.csv", columns, _pods(chance, FILL * sum(node[3] for node in made)))


def _nodes(count: int) -> Iterator[tuple[str, int, int, int, str]]:
    """As the recording has it, all of a kind together."""
    shares = [share for share, _ in _NODE_KINDS]
    ends = [round(count * sum(shares[: number + 1])) for number in range(len(shares))]
    for number in range(count):
        kind = next(kind for end, (_, kind) in zip(ends, _NODE_KINDS, strict=True) if number < end)
        cpus, gib, cards, model = kind
        yield f"node-{number:04d}", 1000 * cpus, _GIB * gib, cards, model


def _pods(chance: Random, cards: float) -> Iterator[tuple[object, ...]]:
    """As many as ask for so many cards together."""
    number, now = 0, 0
    while cards > 0:
        count, milli, sizes = _pick(chance, _POD_KINDS)
        cards -= count * milli / 1000
        cpu, memory = sizes[int(chance.random() * len(sizes))]
        models = _pick(chance, _MODELS) if count == 1 else ""
        end = _pick(chance, _ENDS)
        scheduled = now + _pick(chance, _DELAYS)
        life = int(_pick(chance, _LIVES) * (0.5 + chance.random()))
        known = "" if end == "Pending" else scheduled
        quality = _pick(chance, _QUALITIES)
        yield (
            f"pod-{number:04d}",
            cpu,
            memory,
            count,
            milli,
            models,
            quality,
            end,
            now,
            scheduled + life,
            known,
        )
        number += 1
        now += int(2 * _MEAN_GAP_SECONDS * chance.random())


def _pick(chance: Random, weighted: Sequence[tuple[float, _T]]) -> _T:
    at = chance.random() * sum(weight for weight, _ in weighted)
    for weight, value in weighted:
        at -= weight
        if at < 0:
            return value
    return weighted[-1][1]


def _write(
    file: Path, columns: Sequence[str], rows: Iterator[Sequence[object]] | Sequence[Sequence[object]]
) -> None:
    with file.open("w", newline="", encoding="utf-8") as text:
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A small trace in the format of openb: nodes.csv and pods.csv."
    )
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"how many; {NODES} unless told otherwise")
    parser.add_argument("--seed", type=int, default=SEED, help="another one makes another trace")
    told = parser.parse_args()
    make(told.directory, nodes=told.nodes, seed=told.seed)


if __name__ == "__main__":
    main()
