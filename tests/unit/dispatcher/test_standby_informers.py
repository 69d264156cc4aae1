"""Kubernetes mode: a dispatcher that stands by lists and watches, and its term begins with what there is
then."""

import asyncio
import random

import pytest

from dispatcher.config import ClusterSection
from dispatcher.core.kubernetes.pod_objects import SeenPod
from dispatcher.kubernetes.informers import Informers, StandbyInformers
from hoss.tasks import background
from tools.simulation.api_connection import SimulatedApiServer
from tools.simulation.api_model import ApiModel
from tools.simulation.loop import SimulationLoop

PODS = "/api/v1/namespaces/default/pods"
USER = "user"


class Standby:
    """The informers of one dispatcher, and the API server that they follow, on virtual time."""

    def __init__(self, loop):
        self.server = SimulatedApiServer(loop, random.Random(2), ApiModel(random.Random(3)))
        self.process = loop.process("dispatcher")
        api = self.server.client(self.process, loop.time, random.Random(4))

        def make():
            made = Informers(api, ClusterSection(), max_pod_terms=100, clock=loop.time, rng=random.Random(5))
            self.made.append(made)
            return made

        self.made = []
        self.informers = StandbyInformers(make)

    def create(self, *names):
        for name in names:
            spec = {"schedulerName": "other", "nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}
            self._do("POST", PODS, {"metadata": {"name": name}, "spec": spec})

    def delete(self, name):
        self._do("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _do(self, method, path, body):
        assert self.server.carry_out_now(USER, method, path, body).done

    async def listed(self):
        """The first list of everything has been read."""
        for reflector in self.made[-1].reflectors:
            await reflector.complete.wait()

    async def known_pods(self):
        """The names of the pods that a term begins with, which it takes."""
        async with self.informers.of_term() as informers:
            await informers.known.wait()
            changes = informers.pods.take().values()
            assert all(isinstance(change, SeenPod) for change in changes)
            return sorted(pod.name for pod in changes)

    def lists_of_pods(self):
        return self.made[-1]._pod_reflector.counters["lists"]


@pytest.fixture
def carry_out():
    loop = SimulationLoop(random.Random(1))
    standby = Standby(loop)

    async def run(case):
        async with background(standby.informers.run()):
            await asyncio.wait_for(case(standby), 300.0)

    yield lambda case: loop.run_until_complete(loop.spawn(standby.process, run(case)))
    loop.close()


@pytest.fixture(params=["few objects", "many objects"])
def many(request, monkeypatch):
    """What is on one page of a list is listed again, and more is caught up with."""
    if request.param == "many objects":
        monkeypatch.setattr("hoss.kube.reflector.PAGE", 1)
    return request.param == "many objects"


def test_a_standby_has_listed_before_it_leads_and_begins_with_all_that_came_since(carry_out, many):
    async def case(standby):
        standby.create("a", "b", "c")
        standby.informers.stand_by()
        await standby.listed()
        await asyncio.sleep(60.0)
        standby.create("late")
        standby.delete("b")
        assert await standby.known_pods() == ["a", "c", "late"]
        assert standby.lists_of_pods() == (1 if many else 2)

    carry_out(case)


def test_pods_that_the_servers_cache_does_not_show_yet_are_known_when_the_term_begins(carry_out, many):
    """Otherwise what they hold would be released, as that of pods that are gone."""

    async def case(standby):
        standby.create("a", "b")
        standby.informers.stand_by()
        await standby.listed()
        standby.server.faults.begin({"cache_seconds": 1000.0})
        standby.create("late")
        await asyncio.sleep(1.0)
        assert len(standby.made[-1].pods) == 2
        assert await standby.known_pods() == ["a", "b", "late"]

    carry_out(case)


def test_a_standby_whose_watches_break_begins_with_what_there_is(carry_out, many):
    async def case(standby):
        standby.create("a", "b")
        standby.informers.stand_by()
        await standby.listed()
        standby.server.faults.begin({"away": {standby.process.name: "refused"}})
        assert standby.server.cut_watches() > 0
        standby.create("late")
        standby.delete("a")
        standby.server.model.compact()
        knowing = asyncio.ensure_future(standby.known_pods())
        await asyncio.sleep(30.0)
        assert not knowing.done()  # it does not begin with what it knew before
        standby.server.faults.end()
        assert await knowing == ["b", "late"]

    carry_out(case)


def test_nothing_is_kept_of_pods_that_came_and_went_while_a_dispatcher_stood_by(carry_out):
    async def case(standby):
        standby.create("a")
        standby.informers.stand_by()
        await standby.listed()
        for number in range(20):
            standby.create(f"short-{number}")
            await asyncio.sleep(1.0)
            standby.delete(f"short-{number}")
        await asyncio.sleep(1.0)
        assert [pod.name for pod in standby.made[-1].pods] == ["a"]

    carry_out(case)


def test_a_term_is_told_of_pods_that_go(carry_out):
    async def case(standby):
        standby.create("a", "b")
        standby.informers.stand_by()
        async with standby.informers.of_term() as informers:
            await informers.known.wait()
            uid = next(pod.uid for pod in informers.pods.take().values() if pod.name == "a")
            standby.delete("a")
            await asyncio.sleep(1.0)
            assert [change.uid for change in informers.pods] == [uid]

    carry_out(case)


def test_who_loses_the_lead_stands_by_anew_and_begins_its_next_term_with_everything(carry_out):
    async def case(standby):
        standby.create("a", "b")
        assert await standby.known_pods() == ["a", "b"]
        assert standby.lists_of_pods() == 1  # a first leader lists once
        standby.informers.stand_by()
        standby.informers.stand_by()
        await standby.listed()
        await asyncio.sleep(1.0)
        assert len(standby.made) == 2
        clients = [watcher.client for watcher in standby.server._watchers if watcher.target.kind == "Pod"]
        assert clients == ["dispatcher"]  # those of the former term have ended
        standby.create("late")
        assert await standby.known_pods() == ["a", "b", "late"]

    carry_out(case)


def test_an_error_in_reading_ends_a_dispatcher_that_stands_by(carry_out):
    async def case(standby):
        standby.create("a")
        standby.informers.stand_by()
        standby.made[-1].reader.read = None
        await asyncio.sleep(60.0)

    with pytest.raises(TypeError):
        carry_out(case)
