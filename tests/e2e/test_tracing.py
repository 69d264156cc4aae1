"""Traces of a platform that runs: one from Submit to confirmation, and those of batches where something went
wrong."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import Cluster
from e2e.loads import all_bound, prepare, some_bound
from e2e.test_platform import DEPLOYMENT
from waiting import until, wait_until

from hoss.client.dispatcher import submission
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hossctl.endpoints import clients_of
from hossctl.views.trace import Span, read_spans, spans_of, uid_of

TRACEPARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


class Traced(Cluster):
    """A cluster whose services share a file of traces."""

    def __init__(self, directory: Path, ratio: float, **options: Any) -> None:
        self.file, self._ratio = directory / "trace.jsonl", ratio
        super().__init__(directory, **options)

    def _launch(self, name: str, module: str, *arguments: str) -> None:
        flags = ["--trace-file", str(self.file)]
        flags += ["--trace-ratio", str(self._ratio)] if module == "dispatcher" else []
        super()._launch(name, module, *arguments, *flags)

    def stopped(self) -> list[Span]:
        """What was exported, once all have ended as they should."""
        for name in reversed(self._services):
            self.end(name)
        return read_spans(self.file)


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[type[Traced]]:
    made: list[Traced] = []

    def make(ratio: float) -> Traced:
        made.append(Traced(tmp_path, ratio))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


def workloads(replicas: int, *, cpu_milli: int = 100, name: str = "job") -> list[Workload]:
    return [Workload(name, PodTemplate(PodSpec(requests=(("cpu", cpu_milli),)), owner_kind="Job"), replicas)]


async def test_a_trace_goes_on_from_the_client_through_all_services(new_cluster):
    cluster = new_cluster(0.0)  # what the client has chosen is kept all the same
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1, nodes=20)
        (request,) = submission(workloads(30))
        await clients.dispatcher.stub.Submit(request, metadata=(("traceparent", TRACEPARENT),))
        await until(lambda: all_bound(clients, 30))
        await until(lambda: _confirmed(clients))
    spans = cluster.stopped()
    way = spans_of(spans, uid_of(spans, "default", "job-7"))
    by_name = {span.name: span for span in way}
    assert [span.name for span in way] == [
        "submit", "work batch", "place", "propose", "commit", "confirm", "confirm commits",
    ]  # fmt: skip
    assert {span.trace_id for span in way} == {"ab" * 16}
    assert by_name["submit"].parent == "cd" * 8
    parents = [
        ("work batch", "submit"),
        ("place", "work batch"),
        ("propose", "work batch"),
        ("commit", "propose"),
    ]
    parents += [("confirm", "work batch"), ("confirm commits", "confirm")]
    for child, parent in parents:
        assert by_name[child].parent == by_name[parent].id, child
    assert {span.service for span in way} == {"dispatcher", "worker", "resolver"}
    decisions = [event.attributes for event in by_name["propose"].events]
    assert len({decision["uid"] for decision in decisions}) == 30
    assert {decision["verdict"] for decision in decisions} == {"COMMITTED"}
    assert all(len(decision["alternates"]) == 2 and decision["snapshot_seq"] for decision in decisions)


async def test_of_what_went_well_nothing_is_kept_that_was_not_chosen(new_cluster):
    cluster = new_cluster(0.0)
    cluster.start_worker("w1")
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1, nodes=20)
        for request in submission(workloads(30)):
            await clients.dispatcher.submit(request)
        await until(lambda: all_bound(clients, 30))
        await until(lambda: _confirmed(clients))
    assert cluster.stopped() == []


async def test_a_batch_in_which_pods_were_refused_is_kept_by_all_who_had_to_do_with_it(new_cluster):
    """The second worker hears of refusals alone: to it the node is empty, which the first one has half
    filled."""
    cluster = new_cluster(0.0)
    unaware = ("--sync", "refusal", "--pull-interval-ms", "60000")
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=0, nodes=1, cpus=20)
        cluster.start_worker("w1")
        cluster.start_worker("w2", options=unaware)
        await until(lambda: _filled(clients, 2))
        for bound, idle, at_work in ((70, "w2", "w1"), (133, "w1", "w2")):
            await clients.dispatcher.set_worker_state(idle, "Cordoned")
            await clients.dispatcher.set_worker_state(at_work, "Ready")
            for request in submission(workloads(70, cpu_milli=150, name=f"of-{at_work}")):
                await clients.dispatcher.submit(request)
            await until(lambda least=bound: some_bound(clients, least))
    spans = cluster.stopped()
    assert {"submit", "work batch", "place", "propose", "commit"} <= {span.name for span in spans}
    refused = [span for span in spans if span.name == "propose" and span.attributes["refused"]]
    assert refused
    assert all(span.error for span in refused)
    for span in refused:
        assert {event.attributes["verdict"] for event in span.events} == {"CONFLICT_RESOURCE"}
        assert len(span.events) == span.attributes["refused"]


@contextlib.asynccontextmanager
async def _thirty_pods_in_hand(new_cluster):
    """At worker w1, which decides for a long time."""
    cluster = new_cluster(0.0)
    cluster.start_worker("w1", options=("--decision-job-ms", "20000"))
    async with clients_of(cluster.endpoints) as clients:
        await prepare(clients, workers=1, nodes=20)
        for request in submission(workloads(30)):
            await clients.dispatcher.submit(request)
        await until(lambda: _in_hand(clients, 30))
        yield cluster, clients


async def test_a_worker_that_dies_leaves_its_batch_as_an_error(new_cluster):
    async with _thirty_pods_in_hand(new_cluster) as (cluster, clients):
        cluster.kill("w1")
        cluster.start_worker("w2")
        await until(lambda: all_bound(clients, 30))
        # Written within seconds, and not only at the end.
        await until(lambda: cluster.file.stat().st_size, "the span of the lost batch")
    (batch,) = [span for span in cluster.stopped() if span.name == "work batch"]
    assert batch.error == "worker w1 was lost, or gave up its registration, with 30 pods in hand"


async def test_a_term_that_ends_leaves_what_is_in_hand_as_an_error(new_cluster):
    async with _thirty_pods_in_hand(new_cluster) as (cluster, _):
        cluster.end("dispatcher")
    (batch,) = [span for span in read_spans(cluster.file) if span.name == "work batch"]
    assert batch.error == "the dispatcher's term ended with 30 pods in hand"


def test_hoss_trace_and_describe_tell_how_a_pod_was_placed(hoss):
    hoss("up", "--nodes", "20", "--trace", "1")
    hoss("submit", "-f", "-", stdin=DEPLOYMENT)
    file = hoss.home / "trace.jsonl"
    wait_until(
        lambda: file.exists() and '"confirm commits"' in file.read_text() and '"propose"' in file.read_text(),
        "spans",
    )
    described = _described(hoss, "web-3")
    (decision,) = described["decisions"]
    assert (decision["verdict"], decision["node"]) == ("COMMITTED", described["node"])
    assert decision["choice"].startswith("node-")
    assert len(decision["alternates"]) == 2
    hoss("down")  # writes what is left, and the file stays
    shown = hoss("trace", "web-3").stdout
    for name in ("submit", "work batch", "place", "propose", "commit", "confirm"):
        assert f" {name} " in shown
    assert "* decision: choice" in shown
    found = hoss.json("trace", described["uid"], "--file", str(file))
    assert found["spans"][0]["traceId"] == decision["traceparent"].split("-")[1]
    assert "no trace of pod 'web-99'" in hoss("trace", "web-99", code=1).stderr
    damaged = hoss.home / "damaged.jsonl"
    damaged.write_text("{}\n{}\n")
    assert (
        "damaged.jsonl: line 1: is no export" in hoss("trace", "web-3", "--file", str(damaged), code=2).stderr
    )


def test_without_tracing_nothing_says_to_which_span_it_belongs(hoss):
    hoss("up", "--nodes", "20")
    hoss("submit", "-f", "-", stdin=DEPLOYMENT)
    wait_until(lambda: hoss.json("get", "pods", "web-3")["phase"] == "Bound", "a bound pod")
    (decision,) = _described(hoss, "web-3")["decisions"]
    assert decision["traceparent"] == ""
    assert not (hoss.home / "trace.jsonl").exists()
    assert "hoss up --trace 1" in hoss("trace", "web-3", code=2).stderr


def _described(hoss, name: str):
    """With its decision records, which its worker may send a second later."""

    def decisions():
        document = hoss.json("describe", "pod", name)
        return document["decisions"] and document

    return wait_until(decisions, "decision records")


async def _confirmed(clients) -> bool:
    return not [uid async for chunk in clients.resolver.reservations() for uid in chunk.assumed if uid]


async def _filled(clients, workers: int) -> bool:
    return sum(worker.fill_seconds > 0 for worker in await clients.dispatcher.list_workers()) == workers


async def _in_hand(clients, pods: int) -> bool:
    return sum(worker.outstanding for worker in await clients.dispatcher.list_workers()) == pods
