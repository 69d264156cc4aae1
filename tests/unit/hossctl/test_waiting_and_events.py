"""wait, events, dry runs, and what people read in describe, with services in memory."""

import io
import json
import socket
import sys
import time
from dataclasses import replace

import pytest
from clients_in_memory import ResolverInMemory
from waiting import wait_until

from hoss.errors import TransportError
from hoss.rpc import channel, each_server
from hoss.v1 import common_pb2, dispatcher_pb2, resolver_pb2
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import node_to_proto
from hossctl.console import announced
from hossctl.endpoints import Endpoints
from hossctl.views.events import fetch_events, follow_events

MANIFESTS = """\
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {parallelism: 3, template: {spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
"""  # fmt: skip


def a_job(**fields) -> pb.JobInfo:
    return pb.JobInfo(name="web", namespace="default", **fields)


def test_what_is_so_already_is_not_waited_for(hoss, a_pod, a_node):
    hoss.dispatcher.pods = [a_pod("web-0", node="n1")]
    hoss.dispatcher.jobs = [a_job(replicas=3, bound=2, deleted=1)]
    hoss.dispatcher.workers = [pb.WorkerInfo(name="w1", state="Ready")]
    hoss.resolver.nodes = [a_node("n1", {"cpu": 1}, {})]
    told = hoss("wait", "--for=bound", "pod/web-0", "job/web")
    assert (told.exit_code, told.stderr) == (0, "pod/web-0 is bound\njob/web is bound\n")
    assert hoss("wait", "--for=ready", "worker/w1", "node/n1").exit_code == 0
    assert hoss("wait", "--for=deleted", "pod/gone", "node/gone", "worker/gone", "job/gone").exit_code == 0


def test_when_the_time_is_over_it_says_what_is_missing(hoss, a_pod):
    hoss.dispatcher.pods = [
        a_pod("web-0", pb.UNSCHEDULABLE, reason="0/2 nodes are available: 2 Insufficient cpu.", job="web")
    ]
    hoss.dispatcher.jobs = [a_job(replicas=3, bound=2, unschedulable=1)]
    late = hoss("wait", "--for", "bound", "pod/web-0", "job/web", "--timeout", "0.01s")
    assert late.exit_code == 1
    assert "pod/web-0 is not bound after 10ms: unschedulable: 0/2 nodes are available" in late.stderr
    assert "job/web is not bound after 10ms: 2 of 3 pods are bound, 1 unschedulable (" in late.stderr
    items = hoss("wait", "--for", "deleted", "job/web", "--timeout", "0", "-o", "json")
    assert '"reached": false' in items.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["job/nope"], 1, "job/nope: is not there in namespace default; `hoss get jobs -A` lists all"),
        (["pod/nope"], 1, "pod/nope: is not there in namespace default; `hoss get pods -A` lists all"),
        (["--for=ready", "node/nope"], 1, "node/nope: is not there; `hoss get nodes` lists all"),
        (["web"], 2, "'web' names no object; write KIND/NAME"),
        (["service/web"], 2, "'service' is not listed here"),
        (["--for=asleep", "pod/web"], 2, "'asleep' is no state; it is one of bound, deleted, failed, ready"),
        (["--for=ready", "pod/web"], 2, "a pod is never ready; it is bound, deleted, failed"),
        (["--timeout=soon", "pod/web"], 2, "'soon' is no time; write seconds, or 15m, 6h, 2d"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_at_once(hoss, arguments, code, problem):
    refused = hoss("wait", *arguments)
    assert refused.exit_code == code
    assert problem in refused.stderr


@pytest.fixture
def eventful(hoss, a_pod):
    """One worker, one job, one pod of no job and one node to which something happened."""
    worker = pb.WorkerInfo(name="w1", state="Ready", epoch=7)
    worker.steps.add(at_unix_ms=1000, state="Joining", epoch=7)
    worker.steps.add(at_unix_ms=2000, state="Ready", epoch=7)
    job = a_job(replicas=3, bound=2, submitted_unix_ms=3000)
    job.steps.add(phase=pb.BOUND, pods=2, first_unix_ms=4000, last_unix_ms=5000)
    pod = a_pod("solo", node="n1", submitted_unix_ms=3500)
    pod.steps.add(at_unix_ms=6000, phase=pb.BOUND, node="n1", worker="w1")
    hoss.dispatcher.workers, hoss.dispatcher.jobs, hoss.dispatcher.pods = [worker], [job], [pod]
    hoss.resolver.events = [resolver_pb2.NodeEvent(unix_ms=5500, node="n1", text="quarantined")]
    return hoss


def test_events_of_everything_come_in_the_order_of_time(eventful):
    told = eventful("events", "-o", "jsonpath={.items[*].object}")
    assert told.exit_code == 0, told.output
    assert told.stdout.split() == [
        "worker/w1", "worker/w1", "job/web", "pod/solo", "job/web", "node/n1", "pod/solo",
    ]  # fmt: skip
    table = eventful("events").stdout.splitlines()
    assert table[0].split() == ["TIME", "OBJECT", "EVENT"]
    assert table[5].endswith("job/web     2 pods bound, the last 1s after the first")


def test_events_of_one_object_are_its_own(eventful):
    lines = eventful("events", "job/web").stdout.splitlines()
    assert len(lines) == 3
    refused = eventful("events", "job/nope")
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_each_resolver_is_asked_for_the_cordons_that_it_knows(hoss, monkeypatch):
    texts = {"127.0.0.1:1": "cordoned by ann", "127.0.0.1:2": "uncordoned by bob"}

    def client(addresses, **_):
        [address] = addresses
        resolver = ResolverInMemory()
        if address in texts:
            resolver.events = [resolver_pb2.NodeEvent(unix_ms=5, node="n1", text=texts[address])]
        else:
            resolver.status = refuse
        return resolver

    async def refuse(_timeout_seconds):
        raise TransportError("it does not answer")

    hoss.resolver.nodes = []
    monkeypatch.setattr("hoss.client.resolver.ResolverClient", client)
    told = hoss("events", "--resolver", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "-o", "json")
    assert {event["text"] for event in json.loads(told.stdout)["items"]} == set(texts.values())
    assert "the resolver at 127.0.0.1:3 knows are left out: it does not answer" in told.stderr


@pytest.fixture
def behind(monkeypatch):
    """The addresses of names, for the name service to tell."""
    behind = {}

    def look_up(host, _port, **_):
        if host not in behind:
            raise socket.gaierror("unknown")
        family = {False: socket.AF_INET, True: socket.AF_INET6}
        return [(family[":" in one], socket.SOCK_STREAM, 6, "", (one, 0)) for one in behind[host]]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    return behind


@pytest.fixture
def asked(monkeypatch):
    """The addresses at which resolvers are asked; each tells of a cordon there."""
    asked = []

    def client(addresses, **_):
        [address] = addresses
        asked.append(address)
        resolver = ResolverInMemory()
        resolver.events = [resolver_pb2.NodeEvent(unix_ms=5, node="n1", text=f"cordoned at {address}")]
        return resolver

    monkeypatch.setattr("hoss.client.resolver.ResolverClient", client)
    return asked


def events_of_nodes(resolver):
    return follow_events(Endpoints("127.0.0.1:1", resolver), "default", None, interval_seconds=0.001)


async def texts_of_next(followed):
    return [event["text"] for event in await anext(followed)]


async def test_each_resolver_behind_one_name_is_asked_for_the_cordons_that_it_knows(hoss, behind, asked):
    """As a headless Service names them. Those that are gone from it are forgotten."""
    behind |= {"one": ["10.0.0.1", "fd00::1"], "several": ["10.0.0.2", "10.0.0.1", "10.0.0.2"]}
    behind["six"] = ["fd00::2", "fd00::1"]
    followed = events_of_nodes("dns:///several:7")
    assert {"cordoned at 10.0.0.1:7", "cordoned at 10.0.0.2:7"} <= set(await texts_of_next(followed))
    behind["several"] = ["10.0.0.2", "10.0.0.3"]
    new = await texts_of_next(followed)
    while not new:
        new = await texts_of_next(followed)
    assert new == ["cordoned at 10.0.0.3:7"]
    await followed.aclose()
    for of, addresses in (
        ("one:7", ["one:7"]),
        ("unknown:7", ["unknown:7"]),
        ("several:7", ["10.0.0.2:7", "10.0.0.3:7"]),
        ("dns:///six:7", ["[fd00::1]:7", "[fd00::2]:7"]),
        ("[fd00::1]:7", ["[fd00::1]:7"]),
    ):
        asked.clear()
        await fetch_events(Endpoints("127.0.0.1:1", of), "default", None)
        assert sorted(asked) == addresses


async def test_a_watch_tells_no_event_again_after_a_look_up_that_failed(hoss, behind, asked):
    behind["several"] = addresses = ["10.0.0.1", "10.0.0.2"]
    followed = events_of_nodes("several:7")
    assert len(await anext(followed)) >= 2
    del behind["several"]
    asked.clear()
    assert await anext(followed) == []
    assert sorted(asked) == ["10.0.0.1:7", "10.0.0.2:7"]
    behind["several"] = addresses
    assert await anext(followed) == []
    await followed.aclose()


async def test_events_of_a_resolver_with_two_addresses_are_told_once(hoss, behind):
    behind["both"] = ["10.0.0.1", "10.0.0.2"]
    hoss.resolver.events = [resolver_pb2.NodeEvent(unix_ms=5, node="n1", text="cordoned")]
    found = await fetch_events(Endpoints("127.0.0.1:1", "both:7"), "default", None)
    assert [event["text"] for event in found].count("cordoned") == 1


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_malformed_name_is_unknown(host):
    for look_up in (each_server, lambda address: channel([address, "127.0.0.1:1"])):
        with pytest.raises(TransportError, match=f"{host}.*is not known to the name service"):
            look_up(f"{host}:7")


async def test_a_watch_of_events_goes_on_with_new_ones_alone(eventful):
    followed = follow_events(Endpoints(), "default", None, interval_seconds=0.001)
    assert len(await anext(followed)) == 7
    eventful.dispatcher.workers[0].steps.add(at_unix_ms=9000, state="Cordoned", epoch=7)
    new = await anext(followed)
    while not new:  # a list that was fetched before
        new = await anext(followed)
    assert [(event["object"], event["text"]) for event in new] == [
        ("worker/w1", "cordoned: gets no new work")
    ]
    await followed.aclose()


async def test_a_resolver_that_misses_looks_of_a_watch_is_warned_about_once_and_tells_nothing_twice(
    eventful, monkeypatch, capsys
):
    answers = [True, False, False, True, False]
    waited = []
    status = eventful.resolver.status

    async def status_or_not(timeout_seconds=10.0):
        waited.append(timeout_seconds)
        if not answers.pop(0):
            raise TransportError("it does not answer")
        return await status()

    monkeypatch.setattr(eventful.resolver, "status", status_or_not)
    followed = follow_events(Endpoints(), "default", None, interval_seconds=0.001)
    assert len(await anext(followed)) == 7
    assert [await anext(followed) for _ in range(3)] == [[], [], []]
    assert capsys.readouterr().err.count("are left out: it does not answer") == 1
    assert await anext(followed) == []
    assert capsys.readouterr().err.count("are left out: it does not answer") == 1
    assert max(waited) < 10
    await followed.aclose()


def test_a_dry_run_sends_nothing_and_says_what_would_become_of_everything(hoss, a_pod, tmp_path):
    (tmp_path / "all.yaml").write_text(MANIFESTS)
    told = hoss("submit", "-f", "all.yaml", "--dry-run")
    assert told.exit_code == 0, told.stderr
    assert told.stderr.splitlines() == [
        "Namespace shop would be created",
        "pod/a valid (1 pod)",
        "job/j valid (3 pods)",
        "dry run: nothing was sent",
    ]
    assert not hoss.dispatcher.submitted
    assert not hoss.dispatcher.objects

    hoss("submit", "-f", "all.yaml")
    hoss.dispatcher.submitted.clear()
    hoss.dispatcher.pods = [a_pod("a"), a_pod("j-2")]
    again = hoss("submit", "-f", "all.yaml", "--dry-run")
    remedy = "delete it first, or submit under another name"
    assert (again.exit_code, again.stderr.splitlines()) == (
        1,
        [
            "Namespace shop unchanged",
            f"error: pod/a would be refused: it is there already; {remedy}",
            f"error: job/j would be refused: pod j-2 is there already; {remedy}",
            "dry run: nothing was sent",
        ],
    )
    hoss.dispatcher.pods, hoss.dispatcher.jobs = [], [pb.JobInfo(namespace="default", name="j")]
    refused = json.loads(hoss("submit", "-f", "all.yaml", "--dry-run", "-o", "json").stdout)
    assert [one.get("refused") for one in refused["workloads"]] == [None, "it is there already"]
    assert not hoss.dispatcher.submitted


def test_a_dry_run_of_a_large_job_reads_names_instead_of_asking_for_each(hoss, a_pod, monkeypatch, tmp_path):
    (tmp_path / "large.yaml").write_text(MANIFESTS.replace("parallelism: 3", "parallelism: 9000000"))
    monkeypatch.setattr(type(hoss.dispatcher), "get_pod", None)
    assert hoss("submit", "-f", "large.yaml", "--dry-run").exit_code == 0
    hoss.dispatcher.pods = [a_pod("j-9000000"), a_pod("j-007"), a_pod("jj-1")]
    assert hoss("submit", "-f", "large.yaml", "--dry-run").exit_code == 0
    hoss.dispatcher.pods += [a_pod("j-8999999"), a_pod("j-2999")]
    told = hoss("submit", "-f", "large.yaml", "--dry-run").stderr
    assert "job/j would be refused: pod j-2999 is there already" in told


def test_a_dry_run_says_which_nodes_would_change(hoss, a_node, tmp_path):
    (tmp_path / "nodes.yaml").write_text(
        "".join(
            f"apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nstatus:"
            f" {{allocatable: {{cpu: {cpu}, pods: 110}}}}\n---\n"
            for name, cpu in (("same", 4), ("larger", 8), ("new", 4))
        )
    )
    hoss("submit", "-f", "nodes.yaml")
    held = {node.name: node for node in hoss.resolver.upserted}
    hoss.resolver.nodes = [
        resolver_pb2.NodeInfo(spec=node_to_proto(node))
        for node in (held["same"], replace(held["same"], name="larger"))
    ]
    told = hoss("submit", "-f", "nodes.yaml", "--dry-run").stderr.splitlines()
    assert told[:3] == ["1 node unchanged", "1 node would be changed", "1 node would be added"]


def test_a_dry_run_without_a_platform_checks_what_can_be_checked(hoss, monkeypatch, tmp_path):
    (tmp_path / "all.yaml").write_text(MANIFESTS)
    monkeypatch.delenv("HOSS_DISPATCHER")
    told = hoss("submit", "-f", "all.yaml", "--dry-run")
    assert (told.exit_code, told.stderr.splitlines()) == (
        0,
        [
            "Namespace shop valid",
            "pod/a valid (1 pod)",
            "job/j valid (3 pods)",
            (
                "names were not looked up: no platform is running here: start one with `hoss up`, or name one"
                " with --dispatcher"
            ),
            "dry run: nothing was sent",
        ],
    )


def test_a_dry_run_of_a_deletion_finds_what_is_there_and_deletes_nothing(hoss, a_pod):
    hoss.dispatcher.pods = [a_pod("web-0"), a_pod("web-1")]
    told = hoss("delete", "pod", "web-0", "web-1", "--dry-run")
    assert (told.exit_code, told.stderr) == (0, "would delete 2 pods\n")
    assert len(hoss.dispatcher.pods) == 2
    missing = hoss("delete", "pod", "web-0", "nope", "--dry-run")
    assert missing.exit_code == 1
    assert "nope" in missing.stderr


def test_describe_writes_amounts_and_times_for_people_and_numbers_for_programs(hoss, a_pod):
    pod = a_pod("web-0", node="n1", submitted_unix_ms=int(time.time() * 1000))
    pod.template.spec.requests.append(common_pb2.Amount(resource="cpu", amount=250))
    pod.template.spec.requests.append(common_pb2.Amount(resource="memory", amount=256 * 2**20))
    hoss.dispatcher.pods = [pod]
    assert "cpu 250m, memory 256Mi" in hoss("describe", "pod", "web-0").stdout
    assert '"memory": 268435456' in hoss("describe", "pod", "web-0", "-o", "json").stdout


def test_status_fills_in_a_template(hoss):
    hoss.dispatcher.workers = [dispatcher_pb2.WorkerInfo(name="w1", state="Ready")]
    assert hoss("status", "-o", "jsonpath={.workers[*].name}").stdout == "w1\n"


def test_what_takes_long_is_announced_on_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("HOSS_QUIET", raising=False)
    for shown, errors in ((True, Terminal()), (False, io.StringIO())):
        monkeypatch.setattr(sys, "stderr", errors)
        with announced("stopping", after_seconds=0.001):
            if shown:
                wait_until(lambda errors=errors: "stopping: 0 s so far\n" in errors.getvalue())
        assert bool(errors.getvalue()) is shown


def test_one_way_completes_commands(hoss):
    assert "--install-completion" not in hoss("--help").output
    assert "_HOSS_COMPLETE=complete_bash" in hoss("completion", "bash").output
