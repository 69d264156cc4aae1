"""policy get, policy set, policy test."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoss.errors import InvalidInput
from hossctl.console import Document, Format, print_document, say, warn
from hossctl.endpoints import Endpoints, dispatcher_of
from hossctl.eventloop import run_async
from hossctl.options import Dispatcher, Output, only, read_workers

if TYPE_CHECKING:
    from hoss.model.pod import Workload


app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Show, replace or try the policy that routes pods to workers.")
app.add_typer(group, name="policy")


@group.command("get")
def get_policy(dispatcher: Dispatcher = "", output: Output = Format.YAML) -> None:
    """The SchedulingPolicy in force; where it came from, and what is wrong with it, on stderr."""
    from hoss.v1 import dispatcher_pb2 as pb
    from hossctl.policy_text import policy_document, written_policy

    only(output, Format.TABLE, Format.JSON, Format.YAML)

    async def run() -> pb.Policy:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            return await client.get_policy()

    policy = run_async(run())
    if output is Format.JSON:
        print_document(policy_document(policy) | {"yaml": policy.yaml}, output)
        return
    say(written_policy(policy))
    for text in policy.warnings:
        warn(text)
    if output is Format.YAML:
        sys.stdout.write(policy.yaml.rstrip("\n") + "\n")


@group.command("set")
def set_policy(
    *,
    file: Annotated[Path, typer.Option("-f", "--file", help="A SchedulingPolicy document.")],
    if_version: Annotated[
        int, typer.Option(min=0, help="Replace that version and no other: somebody may have been quicker.")
    ] = 0,
    dispatcher: Dispatcher = "",
    output: Output = Format.TABLE,
) -> None:
    """Check a policy and put it in force, over restarts too. A policy that is refused leaves the old one."""
    from dispatcher.policy_document import read_policy

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    text = read_policy(file)

    async def run() -> Document:
        async with dispatcher_of(Endpoints(dispatcher)) as client:
            reply = await client.set_policy(text, if_version=if_version)
        return {"version": reply.version, "warnings": list(reply.warnings)}

    document = run_async(run())
    if output.for_people:
        for text_ in document["warnings"]:
            warn(text_)
        say(f"policy version {document['version']} is in force")
    else:
        print_document(document, output)


@group.command("test")
def try_policy(
    *,
    file: Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="Manifests of the pods; - is stdin.")],
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
    from dispatcher.policy_document import read_policy
    from hossctl.input import read_input
    from hossctl.policy_text import print_trial

    only(output, Format.TABLE, Format.JSON, Format.YAML)
    if workers and policy is None:
        raise InvalidInput("is missing; --workers tries a policy without a dispatcher", where="--policy")
    manifest = read_input(file)
    if not manifest.workloads:
        raise InvalidInput("holds no pods", where=file)
    yaml = "" if policy is None else read_policy(policy)
    document = (
        _tried_offline(yaml, manifest.workloads, workers)
        if workers
        else _tried(yaml, manifest.workloads, Endpoints(dispatcher))
    )
    if not output.for_people:
        print_document(document, output)
        return
    for text in (*manifest.warnings, *document["warnings"]):
        warn(text)
    for trial in document["pods"]:
        print_trial(trial)


def _tried(yaml: str, workloads: "Sequence[Workload]", endpoints: Endpoints) -> Document:
    from hoss.v1 import dispatcher_pb2 as pb
    from hossctl.policy_text import trial_document

    async def run() -> pb.TestPolicyReply:
        async with dispatcher_of(endpoints) as client:
            return await client.test_policy([workload.template for workload in workloads], yaml)

    reply = run_async(run())
    pods = [trial_document(*pair) for pair in zip(workloads, reply.trials, strict=True)]
    return {"version": reply.version, "warnings": list(reply.warnings), "pods": pods}


def _tried_offline(yaml: str, workloads: "Sequence[Workload]", workers: list[str]) -> Document:
    from hossctl.policy_text import offline_trials, trial_document

    trials, doubts = offline_trials(yaml, workloads, read_workers(0, workers))
    return {
        "version": 0,
        "warnings": doubts,
        "pods": [trial_document(*pair) for pair in zip(workloads, trials, strict=True)],
    }
