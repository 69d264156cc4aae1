"""worker, apply, logs: the workers of the local platform, as things that one manages."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss import contexts
from hoss.errors import HossError, InvalidInput, LedgerUnavailable, NotFound, TransportError, printable
from hossctl.choices import ALGORITHMS, PROFILES
from hossctl.cli import EXIT_INTERRUPTED, run_async
from hossctl.console import Column, Document, Format, print_document, print_rows, say, warn
from hossctl.endpoints import dispatcher_of, of_state
from hossctl.options import Output, OutputOrTemplate, complete_words, read_output, read_workers

if TYPE_CHECKING:
    from hoss.v1 import dispatcher_pb2 as pb
    from hossctl.local.platform import Starter
    from hossctl.local.platform_state import PlatformState
    from hossctl.local.pools import WorkerChange

app = typer.Typer()
group = typer.Typer(
    no_args_is_help=True, help="Add, restart, remove and list the workers of the local platform."
)
app.add_typer(group, name="worker")

_REGISTERED = ("Ready", "Cordoned", "Draining")
_POLL_SECONDS = 0.05
_FOLLOW_SECONDS = 0.2


def complete_workers(incomplete: str) -> list[str]:
    """A completion of the names of the local platform's workers."""
    return [name.removeprefix("worker-") for name in complete_processes(f"worker-{incomplete}")]


def complete_processes(incomplete: str) -> list[str]:
    """A completion of the names of the local platform's processes."""
    import orjson

    try:  # the state file itself: what reads it whole takes longer to import than a user waits
        state = orjson.loads((contexts.home() / "platform.json").read_bytes())
    except (OSError, ValueError):
        return []
    names = [str(record["name"]) for record in state.get("processes", ())]
    return [name for name in names if name.startswith(incomplete)]


WorkerNames = Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_workers)]


@group.command()
def add(
    names: Annotated[list[str], typer.Argument(metavar="NAME[:K=V,K=V]...", help="With their labels.")],
    *,
    profile: Annotated[
        str,
        typer.Option(
            help="How they choose nodes: spread, binpack and others.",
            autocompletion=complete_words(*PROFILES),
        ),
    ] = "",
    algorithm: Annotated[
        str,
        typer.Option(
            help="What places batches: random, module:Class and others.",
            autocompletion=complete_words(*ALGORITHMS),
        ),
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A WorkerConfig document; labels, profile and algorithm override it."
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Start more workers on the local platform, and wait until they take work."""
    from hoss.config import read_text
    from hossctl.local.pools import Action, WorkerChange, check_worker

    given = (("--profile", profile), ("--algorithm", algorithm))
    flags = tuple(text for flag, value in given if value for text in (flag, value))
    document = read_text(config.resolve()) if config else ""
    workers = [
        replace(worker, flags=flags, document=document) for worker in read_workers(0, names, where="worker")
    ]
    for worker in workers:
        if remark := check_worker(worker, where=str(config) if config else f"worker {worker.name}"):
            warn(f"worker {worker.name}: {remark}")
    with _running() as starter:
        known = {worker.name for worker in starter.state.workers}
        if taken := [worker.name for worker in workers if worker.name in known]:
            raise InvalidInput(
                "runs already; choose another name, or `hoss worker restart` it", where=", ".join(taken)
            )
        _report(_carry_out(starter, [WorkerChange(Action.ADD, w, "") for w in workers], output), output)


@group.command()
def restart(names: WorkerNames, output: Output = Format.TABLE) -> None:
    """Restart workers one after the other, also those that have ended. What a worker has not started goes to
    others."""
    from hossctl.local.pools import Action, WorkerChange, named_worker

    with _running() as starter:
        workers = [named_worker(starter.state, name) for name in dict.fromkeys(names)]
        _report(_carry_out(starter, [WorkerChange(Action.RESTART, w, "") for w in workers], output), output)


@group.command()
def remove(names: WorkerNames, output: Output = Format.TABLE) -> None:
    """Stop workers for good. What they have not started goes to others; what they have placed stays."""
    from hossctl.local.pools import Action, WorkerChange, named_worker

    with _running() as starter:
        workers = [named_worker(starter.state, name) for name in dict.fromkeys(names)]
        _report(_carry_out(starter, [WorkerChange(Action.REMOVE, w, "") for w in workers], output), output)
        if not starter.state.workers:
            warn("no worker is left; pods wait until one is added")


@group.command("list")
def list_workers(output_or_template: OutputOrTemplate = "table") -> None:
    """The workers that the local platform runs, with their pools and processes; `hoss get workers` says how
    they do."""
    output, template = read_output(output_or_template)
    state = _state()
    documents = _documents(state, _states(state))
    if output is Format.NAME:
        for document in documents:
            sys.stdout.write(f"worker/{document['name']}\n")
    elif output.for_people:
        print_rows(documents, _COLUMNS, wide=output is Format.WIDE)
    else:
        print_document({"kind": "List", "items": documents}, output, template)


_COLUMNS = (
    Column("NAME", lambda worker: worker["name"]),
    Column("POOL", lambda worker: worker["pool"]),
    Column("STATE", lambda worker: worker["state"]),
    Column("PID", lambda worker: worker["pid"] if worker["running"] else "ended"),
    Column("LABELS", lambda worker: ",".join(f"{key}={value}" for key, value in worker["labels"].items())),
    Column("FLAGS", lambda worker: " ".join(worker["flags"]), wide=True),
    Column("SEED", lambda worker: worker["seed"], wide=True),
    Column("LOG", lambda worker: worker["log"], wide=True),
)


def _documents(state: "PlatformState", states: dict[str, str]) -> list[Document]:
    found = []
    for worker in sorted(state.workers, key=lambda worker: worker.name):
        record = state.process_of(worker)
        found.append(
            {
                "kind": "LocalWorker",
                "name": worker.name,
                "pool": worker.pool,
                "state": states.get(worker.name, ""),
                "pid": record.pid if record else 0,
                "running": record is not None and record.find() is not None,
                "labels": dict(worker.labels),
                "flags": list(worker.flags),
                "seed": worker.seed,
                "log": record.log if record else "",
            }
        )
    return found


def _states(state: "PlatformState") -> dict[str, str]:
    """The dispatcher's view of the workers by name; none, with a warning, where it does not answer."""
    try:
        return {worker.name: worker.state for worker in run_async(_registered(state))}
    except (TransportError, LedgerUnavailable) as exc:
        warn(str(exc))
        return {}


@app.command()
def apply(
    *,
    file: Annotated[
        Path,
        typer.Option("-f", "--file", help="A Platform document, or a directory with platform.yaml."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Make the pools and the policies of the local platform those of a document. Workers of no pool stay as
    they are."""
    from hoss.config import read_text
    from hossctl.local.pools import changes, read_platform
    from hossctl.rebalance.policy import read_policy

    document = read_platform(file)
    policy = "" if document.policy is None else _checked_policy(document.policy)
    rebalance = "" if document.rebalance is None else read_policy(document.rebalance)[1]
    with _running() as starter:
        planned = changes(document.workers, starter.state)
        new_policy = bool(policy) and run_async(_policy(starter.state)) != read_text(
            Path(document.policy or "")
        )
        result: Document = {
            "dryRun": dry_run,
            "changes": [_change_document(change) for change in planned],
            "policyChanges": new_policy,
            "rebalancingChanges": rebalance != starter.rebalancing(),
            "killed": [],
        }
        if output.for_people:
            _say_plan(planned, result, rebalances=bool(rebalance))
        if not dry_run:
            if new_policy:
                run_async(_set_policy(starter.state, policy))
            result["killed"] = _carry_out(starter, planned, output)["killed"]
            if result["rebalancingChanges"]:
                starter.set_rebalancing(rebalance)
    if not output.for_people:
        print_document(result, output)


def _checked_policy(path: Path) -> str:
    from dispatcher.policy.documents import parse_policy
    from hoss.config import read_text

    text = read_text(path)
    parse_policy(text, where=str(path))
    return text


async def _policy(state: "PlatformState") -> str:
    async with dispatcher_of(of_state(state)) as client:
        return (await client.get_policy()).yaml


async def _set_policy(state: "PlatformState", yaml: str) -> None:
    async with dispatcher_of(of_state(state)) as client:
        await client.set_policy(yaml)


def _change_document(change: "WorkerChange") -> Document:
    worker = change.worker
    return {
        "action": change.action.value,
        "worker": worker.name,
        "pool": worker.pool,
        "reason": change.reason,
    }


def _say_plan(planned: "Sequence[WorkerChange]", result: Document, *, rebalances: bool) -> None:
    for change in planned:
        say(f"{change.action.value} worker {change.worker.name}: {change.reason}")
    if result["policyChanges"]:
        say("replace the policy")
    if result["rebalancingChanges"]:
        say("start the rebalance controller by its policy" if rebalances else "end the rebalance controller")
    if not (planned or result["policyChanges"] or result["rebalancingChanges"]):
        say("nothing changes: the platform is as the document says")
    elif result["dryRun"]:
        say("dry run: nothing was done")


def _state() -> "PlatformState":
    """The local platform that runs. Raises TransportError."""
    from hossctl.local import platform_state

    state = platform_state.load_state(contexts.home())
    if state is None or not state.living():
        raise TransportError("no platform is running here: start one with `hoss up`")
    return state


@contextlib.contextmanager
def _running() -> "Iterator[Starter]":
    """The local platform, locked against other commands that change it."""
    from hossctl.local import platform

    home = contexts.home()
    _state()  # before the lock makes its directory
    with platform.exclusive(home):
        yield platform.Starter.of_running(home, _state())


async def _registered(state: "PlatformState") -> "list[pb.WorkerInfo]":
    async with dispatcher_of(of_state(state)) as client:
        return await client.list_workers()


def _carry_out(starter: "Starter", planned: "Sequence[WorkerChange]", output: Format) -> Document:
    """Carry out changes, with progress for people; a document of what was done."""
    if not planned:
        return {"changes": [], "killed": []}
    from hossctl.load.progress import counting
    from hossctl.local.pools import carry_out

    epochs = {worker.name: worker.epoch for worker in run_async(_registered(starter.state))}
    with counting("workers", len(planned), quiet=not output.for_people) as done:
        killed = carry_out(
            starter, planned, lambda names: _wait_until_registered(starter.state, names, epochs), done
        )
    return {"changes": [_change_document(change) for change in planned], "killed": killed}


def _wait_until_registered(state: "PlatformState", names: Sequence[str], epochs: dict[str, int]) -> None:
    """Wait until workers have a registration that is newer than `epochs`. Raises HossError after a time."""
    import asyncio

    from hossctl.local.process import READY_SECONDS

    async def wait() -> list[str]:
        deadline = time.monotonic() + READY_SECONDS
        async with dispatcher_of(of_state(state)) as client:
            while True:
                present = {
                    worker.name
                    for worker in await client.list_workers()
                    if worker.state in _REGISTERED and worker.epoch > epochs.get(worker.name, 0)
                }
                missing = [name for name in names if name not in present]
                if not missing or time.monotonic() > deadline:
                    return missing
                await asyncio.sleep(_POLL_SECONDS)

    if missing := run_async(wait()):
        raise HossError(
            f"the dispatcher does not know {', '.join(missing)} yet; see `hoss worker logs {missing[0]}`"
        )


def _report(result: Document, output: Format) -> None:
    done = {"add": "added", "restart": "restarted", "remove": "removed"}
    if not output.for_people:
        print_document(result, output)
        return
    for change in result["changes"]:
        say(f"worker {change['worker']}: {done[change['action']]}")
    for name in result["killed"]:
        warn(f"worker {name} did not end when asked and had to be killed; its pods go to others")


Tail = Annotated[int, typer.Option("--tail", min=0, help="The last lines of each; 0: all.")]
Follow = Annotated[
    bool, typer.Option("-f", "--follow", help="Go on with every new line, until Ctrl-C (exit code 130).")
]


@group.command("logs")
def worker_logs(names: WorkerNames, *, tail: Tail = 20, follow: Follow = False) -> None:
    """The logs of workers."""
    from hossctl.local.pools import named_worker

    state = _started()
    _show_logs(state, [named_worker(state, name).process for name in names], tail, follow=follow)


@app.command()
def logs(
    processes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROCESS]...", help="As `hoss status` names them.", autocompletion=complete_processes
        ),
    ] = None,
    *,
    tail: Tail = 20,
    follow: Follow = False,
) -> None:
    """The logs of the local platform's processes, also of those that have ended; of all where none is
    named."""
    _show_logs(_started(), processes or [], tail, follow=follow)


def _started() -> "PlatformState":
    """The local platform, even if all of it has ended. Raises TransportError."""
    from hossctl.local import platform_state

    state = platform_state.load_state(contexts.home())
    if state is None:
        raise TransportError("no platform is running here: start one with `hoss up`")
    return state


def _show_logs(state: "PlatformState", names: Sequence[str], tail: int, *, follow: bool) -> None:
    files = {record.name: Path(record.log) for record in state.processes}
    if missing := [name for name in names if name not in files]:
        raise NotFound(f"is no process of the local platform; there are {', '.join(files)}", where=missing[0])
    chosen = list(dict.fromkeys(names)) or list(files)
    width = max(map(len, chosen))
    with contextlib.ExitStack() as stack:
        followed: list[tuple[str, Callable[[], list[str]]]] = []
        for name in chosen:
            prefix = f"{name.ljust(width)} | " if len(chosen) > 1 else ""
            read = _lines_of(stack, files[name])
            present = read()
            _write(prefix, present[-tail:] if tail else present)
            followed.append((prefix, read))
        try:
            while follow:
                time.sleep(_FOLLOW_SECONDS)
                for prefix, read in followed:
                    _write(prefix, read())
        except KeyboardInterrupt:  # how a user ends it
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _lines_of(stack: contextlib.ExitStack, path: Path) -> "Callable[[], list[str]]":
    """A function that reads the complete lines of a log that were written since its last call."""
    try:
        file = stack.enter_context(path.open(encoding="utf-8", errors="replace"))
    except OSError as exc:
        raise HossError(f"{path} cannot be read ({exc.strerror})") from exc
    rest = ""

    def read() -> list[str]:
        nonlocal rest
        *complete, rest = (rest + file.read()).split("\n")
        return complete

    return read


def _write(prefix: str, lines: Sequence[str]) -> None:
    for line in lines:
        sys.stdout.write(printable(f"{prefix}{line}\n"))
    if lines:
        sys.stdout.flush()
