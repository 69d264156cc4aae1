"""policy get, policy set, policy test, steer: how the dispatcher routes pods and limits conflicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.console import Document, Format, print_document, print_lines, say, warn
from hossctl.endpoints import Endpoints, ask_dispatcher
from hossctl.options import Dispatcher, Output, read_input, read_workers

if TYPE_CHECKING:
    from hoss.model.pod import Workload


app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Show, replace or try the policy that routes pods to workers.")
app.add_typer(group, name="policy")


@group.command("get")
def get_policy(dispatcher: Dispatcher = "", output: Output = Format.YAML) -> None:
    """The SchedulingPolicy in force; where it came from, and what is wrong with it, on stderr."""
    from hossctl.views.policy import policy_document, written_policy

    policy = ask_dispatcher(Endpoints(dispatcher), lambda client: client.get_policy())
    if output is Format.JSON:
        print_document(policy_document(policy) | {"yaml": policy.yaml}, output)
        return
    say(written_policy(policy))
    for warning in policy.warnings:
        warn(warning)
    if output is Format.YAML:
        print_lines([policy.yaml.rstrip("\n")])


@group.command("set")
def set_policy(
    *,
    file: Annotated[Path, typer.Option("-f", "--file", help="A SchedulingPolicy document.")],
    if_version: Annotated[
        int, typer.Option(min=0, help="Replace this version only; another is not overwritten.")
    ] = 0,
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Check a policy and put it in force, over restarts too. A policy that is refused leaves the old one."""
    from hoss.config import read_text

    text = read_text(file)
    reply = ask_dispatcher(
        Endpoints(dispatcher), lambda client: client.set_policy(text, if_version=if_version)
    )
    document: Document = {"version": reply.version, "warnings": list(reply.warnings)}
    if output.for_people:
        for warning in document["warnings"]:
            warn(warning)
        say(f"policy version {document['version']} is in force")
    else:
        print_document(document, output)


@group.command("test")
def try_policy(
    *,
    file: Annotated[
        str, typer.Option("-f", "--file", metavar="FILE", help="Manifests of the pods; - is stdin.")
    ],
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A SchedulingPolicy to try; else the one in force.")
    ] = None,
    workers: Annotated[
        list[str],
        typer.Option(
            "--workers",
            "--worker",
            metavar="NAME:LABEL=VALUE,...",
            help="Ask no dispatcher: as if these workers were there, and idle. May be repeated.",
        ),
    ] = [],  # noqa: B006 - typer's way to say none
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Say which rule and which worker each pod would get at this moment, and why. Changes nothing."""
    from hoss.config import read_text
    from hossctl.views.policy import print_dry_run

    if workers and policy is None:
        raise InvalidInput("is missing; --workers tries a policy without a dispatcher", where="--policy")
    manifest = read_input(file)
    if not manifest.workloads:
        raise InvalidInput("holds no pods", where=file)
    yaml = "" if policy is None else read_text(policy)
    document = (
        _dry_run_offline(yaml, manifest.workloads, workers)
        if workers
        else _dry_run(yaml, manifest.workloads, Endpoints(dispatcher))
    )
    if not output.for_people:
        print_document(document, output)
        return
    for warning in (*manifest.warnings, *document["warnings"]):
        warn(warning)
    for dry_run in document["pods"]:
        print_dry_run(dry_run)


def _dry_run(yaml: str, workloads: "Sequence[Workload]", endpoints: Endpoints) -> Document:
    from hossctl.views.policy import dry_run_document

    templates = [workload.template for workload in workloads]
    reply = ask_dispatcher(endpoints, lambda client: client.test_policy(templates, yaml))
    pods = [dry_run_document(*pair) for pair in zip(workloads, reply.trials, strict=True)]
    return {"version": reply.version, "warnings": list(reply.warnings), "pods": pods}


def _dry_run_offline(yaml: str, workloads: "Sequence[Workload]", workers: list[str]) -> Document:
    from hossctl.views.policy import dry_run_document, dry_run_offline

    dry_runs, warnings = dry_run_offline(yaml, workloads, read_workers(0, workers))
    return {
        "version": 0,
        "warnings": warnings,
        "pods": [dry_run_document(*pair) for pair in zip(workloads, dry_runs, strict=True)],
    }


@app.command()
def steer(
    *,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="auto|shared|shuffled|soft-partition", help="How workers order equally good nodes."
        ),
    ] = "",
    workers: Annotated[
        str, typer.Option(metavar="auto|N", help="How many of a rule's workers get work at once.")
    ] = "",
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Fix how much workers' node preferences overlap and how many get work at once; auto: by what conflicts
    cost.

    It holds until it is changed or the dispatcher ends; `steering` in its configuration is permanent.
    """
    from hossctl.views.documents.conflicts import overlap_control_document, written_overlap_control

    if not overlap and not workers:
        raise InvalidInput(
            "give one of them or both; `hoss get conflicts` shows what is in force",
            where="--overlap, --workers",
        )

    control = ask_dispatcher(Endpoints(dispatcher), lambda client: client.steer(overlap, workers))
    document = overlap_control_document(control)
    if output.for_people:
        say(written_overlap_control(document))
    else:
        print_document(document, output)
