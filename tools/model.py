"""Checks the models of the ledger protocol (docs/model) with spin: `make model`.

A case is a model with its bounds. It either holds in every reachable state, or it has a fault switched on,
and then spin must find the step that breaks the claim. A search that ends early is a failure of either
kind."""

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hoss.errors import ConfigError, HossError

MODELS = Path(__file__).parents[1] / "docs/model"
PROGRAMS = ("spin", "gcc")
_MEMORY_MB = 4000
_DEPTH = 100_000


@dataclass(frozen=True, slots=True)
class Case:
    """`breaks`: "" where the model holds; else a part of the assertion that the fault violates, as spin
    prints it."""

    name: str
    model: str
    switches: tuple[str, ...] = ()
    breaks: str = ""
    quick: bool = False  # a few seconds: tests run it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What spin found. `violated`: the assertion, "" for none."""

    states: int
    cpu_seconds: float
    memory_mb: float
    violated: str


def no_checker() -> str:
    """Why models cannot be checked here; "" where they can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"no {' and no '.join(missing)} on PATH (Debian: apt-get install spin gcc)" if missing else ""


def check(case: Case) -> Verdict:
    """Search every state of the case. Raises HossError if the search could not be completed."""
    with tempfile.TemporaryDirectory() as directory:
        return _read(case, *_search(case, Path(directory)))


def counterexample(case: Case) -> str:
    """The fewest steps to the violated assertion, a line for each turn of a process; "" if the case holds."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _search(case, directory, shortest=True)
        trail = f"{case.model}.pml.trail"
        if not (directory / trail).exists():
            return ""
        # The replay ends in the violated assertion, which is an error of its own.
        replay = _run(
            ["spin", *_defines(case), "-p", "-k", trail, f"{case.model}.pml"], directory, fails=True
        )
    violated = re.search(r"Error: (assertion violated)", replay)
    return "\n".join([*_turns(replay), violated[1] if violated else "a process is blocked"]) + "\n"


def _turns(replay: str) -> list[str]:
    """Who did what: process, and the inlines that it went through."""
    inlines = {source.name: _inlines(source) for source in MODELS.glob("*.pml")}
    turns: list[tuple[str, list[str]]] = []
    for number, process, source, line in re.findall(r"proc +(\d+) \((\w+):\d+\) (\S+):(\d+)", replay):
        done = inlines[source].get(int(line))
        if done is None:
            continue
        who = f"{process} {number}"
        if not turns or turns[-1][0] != who:
            turns.append((who, []))
        if turns[-1][1][-1:] != [done]:
            turns[-1][1].append(done)
    return [f"{who:14} {', '.join(done)}" for who, done in turns]


def _inlines(source: Path) -> dict[int, str]:
    """The inline that each line of a model belongs to."""
    names, name = {}, None
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        if begins := re.match(r"inline (\w+)", line):
            name = begins[1]
        if name is not None:
            names[number] = name
        if line == "}":
            name = None
    return names


def _defines(case: Case) -> list[str]:
    return [f"-D{switch}" for switch in case.switches]


def _search(case: Case, directory: Path, *, shortest: bool = False) -> tuple[str, float]:
    """Returns spin's report, and the seconds of CPU time that the search took. `shortest`: go on from every
    error to a shorter one."""
    for source in MODELS.glob("*.pml"):
        shutil.copy(source, directory)
    _run(["spin", *_defines(case), "-a", f"{case.model}.pml"], directory)
    # The models have no cycles, so what is left is safety. The warnings are about spin's own code, whose
    # optimisation takes longer than a quick search.
    optimisation = "-O0" if case.quick else "-O2"
    flags = [optimisation, "-w", "-DSAFETY", f"-DMEMLIM={_MEMORY_MB}", *(["-DREACH"] if shortest else [])]
    _run(["gcc", *flags, "-o", "pan", "pan.c"], directory)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = _run(["./pan", f"-m{_DEPTH}", *(["-i"] if shortest else [])], directory)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(command: Sequence[str], directory: Path, *, fails: bool = False) -> str:
    ran = subprocess.run(  # noqa: S603 - our models, and the user's spin and gcc
        command, cwd=directory, capture_output=True, text=True, check=False
    )
    # spin writes its errors to standard output, and does not always end with a status for them.
    if not fails and (ran.returncode or "Error:" in ran.stdout):
        raise HossError(f"{' '.join(command)} failed: {(ran.stdout + ran.stderr)[-2000:]}")
    return ran.stdout


def _read(case: Case, found: str, cpu_seconds: float) -> Verdict:
    violated = re.search(r"^pan:\d+: (.*) \(at depth", found, re.MULTILINE)
    # After an error pan stops, and says that it did.
    if violated is None and ("Search not completed" in found or "errors: 0" not in found):
        raise HossError(f"{case.name}: the search ended early, which proves nothing: {_end(found)}")
    return Verdict(
        states=int(float(_figure(r"(\S+) states, stored", found))),
        cpu_seconds=cpu_seconds,
        memory_mb=float(_figure(r"(\S+)\s+total actual memory usage", found)),
        violated="" if violated is None else violated[1],
    )


def _end(found: str) -> str:
    """Without the lines of progress."""
    return "\n".join(line for line in found.splitlines() if not line.startswith("Depth="))[:400]


def _figure(pattern: str, found: str) -> str:
    match = re.search(pattern, found)
    if match is None:
        raise HossError(f"spin's report has no {pattern!r}: {_end(found)}")
    return match[1]


def as_expected(case: Case, verdict: Verdict) -> bool:
    """Whether the case holds, or breaks in the way that its fault should break it."""
    return case.breaks in verdict.violated if case.breaks else not verdict.violated


def main(arguments: Sequence[str]) -> int:
    """Check the cases that are named, or all; one line for each. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.model", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"cases, of {', '.join(case.name for case in CASES)}")
    parser.add_argument("--quick", action="store_true", help="only cases of a few seconds")
    parser.add_argument("--show", action="store_true", help="print the steps of counterexamples instead")
    options = parser.parse_args(arguments)
    known = {case.name: case for case in CASES}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no case {', '.join(unknown)}")
    if problem := no_checker():
        raise ConfigError(f"the models are checked by spin: {problem}", where="models")
    wrong = 0
    for case in [known[name] for name in options.names] or CASES:
        if options.quick and not case.quick:
            continue
        if options.show:
            sys.stdout.write(counterexample(case) or f"{case.name} holds: there is no counterexample\n")
            continue
        verdict = check(case)
        right = as_expected(case, verdict)
        wrong += not right
        found = f"breaks {verdict.violated[:90]}" if verdict.violated else "holds"
        sys.stdout.write(
            f"{'ok   ' if right else 'WRONG'} {case.name:32} {verdict.states:>10,} states "
            f"{verdict.cpu_seconds:7.1f} s CPU {verdict.memory_mb:7.0f} MB  {found}\n"
        )
        sys.stdout.flush()
    return 1 if wrong else 0


_NO_DEATH, _NO_LOSS, _NO_COPY, _NO_EVICTION = "DEATHS=0", "LOSSES=0", "COPIES=0", "EVICTIONS=0"
_NO_DELETION, _NO_EXPIRY, _NO_REFUSAL = "DELETIONS=0", "EXPIRIES=0", "REFUSALS=0"
_ORPHANED_GANG = (_NO_EVICTION, _NO_EXPIRY, _NO_COPY, _NO_REFUSAL, "TRIES=1")
_FROZEN_RESOLVER = (_NO_EVICTION, _NO_LOSS, _NO_DEATH, _NO_REFUSAL, "TRIES=1")

CASES = (
    Case("commit-lost-worker", "commit", ("STRICT", _NO_EVICTION, _NO_DELETION, "RETRIES=1")),
    Case("commit-released", "commit", ("STRICT", _NO_LOSS)),
    Case("commit-small", "commit", ("STRICT", _NO_LOSS, _NO_EXPIRY, _NO_DELETION, "RETRIES=1"), quick=True),
    Case("gang-orphaned", "two_phase", _ORPHANED_GANG, quick=True),
    Case("gang-lost-worker", "two_phase", (_NO_EVICTION, _NO_EXPIRY, "TRIES=1")),
    Case("gang-frozen-resolver", "two_phase", _FROZEN_RESOLVER, quick=True),
    Case("gang-evicted", "two_phase", (_NO_LOSS, _NO_DEATH, _NO_EXPIRY), quick=True),
    Case("rules-dying-resolver", "rules", (_NO_DELETION, "PLACEMENTS=3")),
    Case("rules-deleted", "rules", (_NO_DEATH,)),
    Case("takeover-evicted", "takeover", (_NO_DELETION, _NO_EXPIRY)),
    Case("takeover-deleted", "takeover", (_NO_EVICTION, _NO_EXPIRY)),
    Case("takeover-expired", "takeover", (_NO_EVICTION, _NO_DELETION)),
    # The protocol as it was. Each must be found.
    Case("release-by-uid", "commit", ("RELEASE_BY_UID", _NO_LOSS, _NO_DELETION), "sure", quick=True),
    Case("confirm-prepared", "two_phase", ("CONFIRM_PREPARED", *_ORPHANED_GANG), "was_whole", quick=True),
    Case(
        "commit-any-epoch",
        "two_phase",
        ("COMMIT_PREPARED_ANY_EPOCH", *_ORPHANED_GANG),
        "fenced[",
        quick=True,
    ),
    Case(
        "takeover-without-fencing",
        "takeover",
        ("TAKEOVER_WITHOUT_FENCING", _NO_DELETION),
        "fenced[",
        quick=True,
    ),
    Case("writes-without-term", "takeover", ("WRITES_WITHOUT_TERM", _NO_DELETION), "sure", quick=True),
    # More that the models found.
    Case("abort-confirmed", "two_phase", ("ABORT_CONFIRMED", *_FROZEN_RESOLVER), "sure", quick=True),
    Case("start-unconfirmed", "two_phase", ("START_UNCONFIRMED", *_FROZEN_RESOLVER), "was_whole", quick=True),
    Case(
        "old-copies", "commit", ("DECIDE_OLD_COPIES", "STRICT", _NO_LOSS, _NO_EVICTION), "state[", quick=True
    ),
    Case("rules-unvalidated", "rules", ("VALIDATE_NOTHING", _NO_DELETION), "state[0]==2", quick=True),
    Case("rules-seen-past-prepared", "rules", ("SEEN_PAST_PREPARED", _NO_DELETION), "state[0]==2"),
    Case("rules-confirm-prepared", "rules", ("CONFIRM_PREPARED", _NO_DELETION), "state[0]==2", quick=True),
)

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HossError as exc:
        sys.exit(str(exc))
