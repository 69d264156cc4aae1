"""fragmentation, rebalance: which of the free room pods can use, which moves would help, and making them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.choices import RebalanceGoal
from hossctl.cli import run_async
from hossctl.console import (
    Document,
    Format,
    announced,
    on_interrupt,
    print_document,
    print_lines,
    print_rows,
    print_summary,
    say,
    warn,
)
from hossctl.endpoints import Endpoints
from hossctl.options import Dispatcher, Output, Resolver

if TYPE_CHECKING:
    from hossctl.rebalance.gathering import Gathered
    from hossctl.rebalance.new_nodes import NewNodes
    from hossctl.rebalance.usage import UsageFile
    from scheduler_worker.core.rebalance.plan_state import WaitingPods

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Plan moves of pods between nodes, and make them.")
app.add_typer(group, name="rebalance")


@app.command()
def fragmentation(
    *,
    label: Annotated[
        str, typer.Option(metavar="LABEL", help="Nodes with equal values of this label are a pool.")
    ] = "",
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Of the free room, how much the usual pods and the waiting pods can use; what is stranded beside full
    resources; cards in pieces; nodes that could be emptied."""
    from hoss.manifests.fields import check_key
    from hossctl.explain.offline import preset
    from hossctl.rebalance import room
    from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE

    if label:
        check_key(label, "--label")
    gathered = _gathered(Endpoints(dispatcher, resolver))
    document = room.fragmentation_document(gathered, preset(DEFAULT_PROFILE), label)
    if not output.for_people:
        print_document(document, output)
        return
    print_rows(room.room_rows(document), room.ROOM_COLUMNS)
    if document["waiting"]:
        print_lines([""])
        print_rows(document["waiting"], room.WAITING_COLUMNS)
    print_lines(["", *room.room_sentences(document)])


_Usage = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What pods use, as metrics.k8s.io has it; for the goal quiet-nodes."),
]
_UsageAge = Annotated[
    float,
    typer.Option(min=1, metavar="SECONDS", help="Measurements of pods that are older do not count."),
]


@group.command("noisy")
def noisy(
    *,
    usage: Annotated[
        Path, typer.Option(metavar="FILE", help="What pods use, as metrics.k8s.io has it (PodMetricsList).")
    ],
    usage_max_age: _UsageAge = 600.0,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Nodes by what their pods use beyond what they request, the noisiest first."""
    from hossctl.explain.offline import preset
    from hossctl.rebalance import usage as usages
    from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE

    read = _read_usage(usage, usage_max_age)
    document = usages.noisy_document(
        _gathered(Endpoints(dispatcher, resolver)), preset(DEFAULT_PROFILE), read
    )
    if not output.for_people:
        print_document(document, output)
        return
    print_rows(document["nodes"], usages.NOISY_COLUMNS)
    if missing := usages.missing_usage(document):
        warn(missing)


@group.command("plan")
def plan(
    *,
    goal: Annotated[RebalanceGoal, typer.Option(help="What the moves are for.")] = RebalanceGoal.FIT_PENDING,
    max_moves: Annotated[int, typer.Option(min=0, help="The most moves of the plan.")] = 100,
    max_pods_per_workload: Annotated[
        int, typer.Option(min=1, help="The most moves of pods of one job or controller.")
    ] = 1_000_000,
    drain: Annotated[
        str,
        typer.Option(metavar="NODE|LABEL=VALUE", help="Instead of a goal: empty these nodes, for a what-if."),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", help="Pods that would wait, for a what-if; goal fit-pending."),
    ] = None,
    add_nodes: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="So many more nodes, for a what-if; with --like."),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            metavar="NODE|FILE", help="The shape of the added nodes: a node's, or the Node in a file."
        ),
    ] = "",
    usage: _Usage = None,
    usage_max_age: _UsageAge = 600.0,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Print which pods to move where, what it brings, what it costs, and what remains impossible and why.
    Nothing is moved.

    Rules, taints, disruption budgets and priorities are kept. Bare pods, gangs and pods with the annotation
    hoss.dev/movable: "false" stay where they are; "true" lets bare pods and gangs move."""
    from hossctl.explain.offline import preset
    from hossctl.rebalance import plans
    from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE
    from scheduler_worker.core.rebalance.movable_pods import PlanLimits

    if file is not None and (drain or goal is not RebalanceGoal.FIT_PENDING):
        raise InvalidInput("goes with the goal fit-pending only, without --drain", where="-f")
    new = _new_nodes(add_nodes, like)
    more = [] if file is None else _read_waiting(file)
    used = _usage_for(goal, usage, usage_max_age)
    gathered = _gathered(Endpoints(dispatcher, resolver))
    with announced("planning"):
        document = plans.plan_document(
            gathered,
            preset(DEFAULT_PROFILE),
            goal,
            PlanLimits(max_moves, max_pods_per_workload),
            drain=drain,
            more=more,
            usage=used,
            new=new,
        )
    if not output.for_people:
        print_document(document, output)
        return
    if document["moves"]:
        print_rows(document["moves"], plans.MOVE_COLUMNS)
        print_lines([""])
    print_summary(f"Plan for {document['goal']}", plans.plan_lines(document))
    say("nothing was moved")


_FollowSeconds = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to follow the moves; then they go on without us.")
]


@group.command("run")
def run(
    *,
    goal: Annotated[RebalanceGoal, typer.Option(help="Plan for this, and carry it out.")] = (
        RebalanceGoal.FIT_PENDING
    ),
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Instead: a plan from `hoss rebalance plan -o json`."),
    ] = None,
    max_moves: Annotated[int, typer.Option(min=0, help="The most moves of a plan.")] = 100,
    max_pods_per_workload: Annotated[
        int, typer.Option(min=1, help="The most moves of pods of one job or controller.")
    ] = 1_000_000,
    usage: _Usage = None,
    usage_max_age: _UsageAge = 600.0,
    rate: Annotated[float, typer.Option(min=0.01, max=50, help="The most moves a second.")] = 5.0,
    timeout: _FollowSeconds = 600.0,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
    output: Output = Format.TABLE,
) -> None:
    """Move pods as a plan says. Each pod's new place is reserved while it holds the old one.

    The dispatcher judges each move anew, and tells which it refused. With a goal, what was refused is planned
    again, twice at most. The run pauses when more pods wait than before, or when several moves in a row are
    refused. Exit code 1 if a move was refused at the end, or the run is paused."""
    from hossctl.explain.offline import preset
    from hossctl.load.progress import bar
    from hossctl.rebalance import plans, running
    from scheduler_worker.core.plugins.profiles import DEFAULT_PROFILE
    from scheduler_worker.core.rebalance.movable_pods import PlanLimits

    endpoints, limits = Endpoints(dispatcher, resolver), PlanLimits(max_moves, max_pods_per_workload)
    used = _usage_for(goal, usage, usage_max_age)
    rounds = running.PLANS if plan_file is None else 1
    document: Document = {}
    for _ in range(rounds):
        if plan_file is None:
            profile = preset(DEFAULT_PROFILE)
            gathered = _gathered(endpoints)
            with announced("planning"):
                planned = plans.plan_document(gathered, profile, goal, limits, usage=used)
        else:
            planned = running.read_plan(plan_file)
        if not planned["moves"]:
            document = document or running.nothing_to_do(planned)
            break
        with (
            on_interrupt(
                "the moves that the dispatcher has go on: `hoss rebalance status` shows them, `pause` stops"
                " them, and `undo` takes them back"
            ),
            bar("moves", len(planned["moves"]), quiet=not output.for_people, patient=True) as show,
        ):
            document = running.carry_out(endpoints, planned, rate, timeout, show)
        if document["state"] != "Done" or not document["refused"]:
            break
    _show(document, output)
    if document["state"] == "Running":
        warn(f"not done after {timeout:g} s: `hoss rebalance status` shows how the moves go on")
    if document["refused"] and plan_file is not None:
        say("what was refused does not fit the cluster as it is now; plan again with `hoss rebalance plan`")
    if document["refused"] or document["state"] == "Paused":
        raise typer.Exit(1)


@group.command("status")
def status(*, dispatcher: Dispatcher = "", output: Output = Format.TABLE) -> None:
    """How far the present run of moves is, or how the last one ended; and what the controller does."""
    _show(_asked("STATUS", dispatcher), output)


@group.command("pause")
def pause(*, dispatcher: Dispatcher = "", output: Output = Format.TABLE) -> None:
    """Make no more moves, by hand or by the controller. What is on its way ends on the old node or on the new
    one."""
    _show(_asked("PAUSE", dispatcher), output)


@group.command("resume")
def resume(*, dispatcher: Dispatcher = "", output: Output = Format.TABLE) -> None:
    """Go on with a paused run, and let the controller go on."""
    _show(_asked("RESUME", dispatcher), output)


@group.command("undo")
def undo(*, dispatcher: Dispatcher = "", output: Output = Format.TABLE) -> None:
    """Move back what the run has moved, the last pod first. This is a run of its own: see status. It pauses
    the controller, which would plan the same again. In Kubernetes mode only moves whose pods are not evicted
    yet are taken back."""
    _show(_asked("UNDO", dispatcher), output)


@group.command("controller")
def controller(
    *,
    file: Annotated[Path, typer.Option("-f", "--file", help="A RebalancePolicy document.")],
    check: Annotated[bool, typer.Option("--check", help="Only check the document.")] = False,
    metrics_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where Prometheus reads metrics; empty: nowhere.")
    ] = "",
    tls_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="The certificate to connect with; else the context's.")
    ] = "",
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Written once the controller is at work.")
    ] = None,
    dispatcher: Dispatcher = "",
    resolver: Resolver = "",
) -> None:
    """Plan and move by itself, as a RebalancePolicy says, until it is ended. One at a time; it needs the role
    operate. `hoss up --rebalance FILE` starts it with the local platform.

    `hoss rebalance status` shows what it does, and `pause` and `resume` steer it. In Kubernetes mode a
    moved pod's successor counts as the pod."""
    from hossctl.rebalance.policy import read_policy

    policy, _ = read_policy(file)
    if check:
        say(f"{file} can be used")
        return
    from hoss.serving import run as run_service
    from hossctl.rebalance.controlling import serve

    endpoints = Endpoints(dispatcher, resolver, tls_dir)
    run_service(lambda: serve(policy, endpoints, metrics_listen, ready_file))


def _asked(action: str, dispatcher: str) -> Document:
    from hossctl.rebalance import running

    return running.asked(Endpoints(dispatcher), action)


def _show(document: Document, output: Format) -> None:
    from hossctl.rebalance import running

    if not output.for_people:
        print_document(document, output)
        return
    if document["state"]:
        if document["moves"]:
            print_rows(document["moves"], running.MOVE_COLUMNS)
            print_lines([""])
        print_summary(f"Moves for {document['purpose'] or 'a plan'}", running.run_lines(document))
    else:
        say("there were no moves yet")
    if document["controller"] is not None:
        print_lines([""])
        print_summary("Rebalance controller", running.controller_lines(document["controller"]))


def _gathered(endpoints: Endpoints) -> "Gathered":
    from hossctl.endpoints import clients_of
    from hossctl.rebalance.gathering import gather

    async def read() -> "Gathered":
        async with clients_of(endpoints) as clients:
            return await gather(clients)

    with announced("reading the platform"):
        return run_async(read())


def _usage_for(goal: RebalanceGoal, file: Path | None, max_age: float) -> "UsageFile | None":
    """What pods use, for a goal that needs it. Raises InvalidInput where it is missing, old, or of no use."""
    wanted = goal is RebalanceGoal.QUIET_NODES
    if wanted and file is None:
        raise InvalidInput("is missing; the goal quiet-nodes needs to know what pods use", where="--usage")
    if not wanted and file is not None:
        raise InvalidInput("goes with the goal quiet-nodes only", where="--usage")
    return None if file is None else _read_usage(file, max_age)


def _new_nodes(count: int | None, like: str) -> "NewNodes | None":
    """The nodes that a what-if adds. Raises InvalidInput where half of the question is missing."""
    from hossctl.rebalance.new_nodes import read_new_nodes

    if count is None and like:
        raise InvalidInput("goes with --add-nodes, which says how many", where="--like")
    if count is not None and not like:
        raise InvalidInput("is missing; name a node, or a file with a Node", where="--like")
    return None if count is None else read_new_nodes(count, like)


def _read_usage(file: Path, max_age: float) -> "UsageFile":
    from datetime import datetime, timezone

    from hossctl.rebalance.usage import read_usage

    return read_usage(file, now=datetime.now(tz=timezone.utc), max_age_seconds=max_age)


def _read_waiting(file: Path) -> "list[WaitingPods]":
    from hoss.manifests.documents import read_objects
    from hoss.manifests.guarded import read_bytes
    from hoss.model.cluster import Cluster
    from hossctl.explain.offline import pending_pods
    from scheduler_worker.core.rebalance.plan_state import WaitingPods

    pending = pending_pods(read_objects(read_bytes(file, str(file)), where=str(file)), Cluster())
    if not pending:
        raise InvalidInput("holds no Pod and nothing that makes pods", where=str(file))
    return [WaitingPods(pod.title, pod.spec, pod.pods) for pod in pending]
