"""Following one kind of objects through pages, cut watches and lost history."""

import asyncio
import contextlib
from itertools import pairwise

import orjson
import pytest
from aiohttp import web
from unit.kube.server import Handler, answering, saying
from waiting import until

from hoss.errors import TransportError
from hoss.kube.api import Refused
from hoss.kube.reflector import Change, KindAvailability, ObjectGone, ObjectSeen, Reflector
from hoss.tasks import background

PODS = "/api/v1/pods"


def pod(name: str, version: int | str, uid: str = "") -> dict:
    metadata = {
        "uid": uid or f"uid-{name}",
        "namespace": "default",
        "name": name,
        "resourceVersion": str(version),
    }
    return {"metadata": metadata}


def page(*pods: dict, version: int | str, more: str = "") -> Handler:
    return saying(200, {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(pods)})


def watch(*events: tuple[str, dict], stays: bool = True) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.headers["X-Asked"] = request.query_string
        await response.prepare(request)
        for kind, item in events:
            await response.write(orjson.dumps({"type": kind, "object": item}) + b"\n")
        if stays:
            await asyncio.get_running_loop().create_future()
        return response

    return handler


def noting(handler: Handler, asked: list[dict]) -> Handler:
    async def note(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        return await handler(request)

    return note


@contextlib.asynccontextmanager
async def following(*handlers: Handler, **options: bool):
    changes: list[Change] = []
    async with answering(*handlers) as api:
        reflector = Reflector(api, PODS, changes.extend, **options)
        async with background(reflector.run()):
            yield reflector, changes


def names(changes: list[Change]) -> list[str]:
    return [
        f"-{c.name}" if isinstance(c, ObjectGone) else f"+{c.object['metadata']['name']}" for c in changes
    ]


async def test_pages_are_told_together_and_the_watch_begins_where_the_list_ended():
    asked: list[dict] = []
    pages = page(pod("a", 3), version=9, more="next"), page(pod("b", 4), version=9)
    handlers = [noting(handler, asked) for handler in (*pages, watch(("ADDED", pod("c", 10))))]
    async with following(*handlers) as (reflector, changes):
        await until(lambda: len(changes) == 3)
        assert names(changes) == ["+a", "+b", "+c"]
        assert reflector.complete.is_set()
        assert len(reflector) == 3
    assert asked[1]["continue"] == "next"
    assert (asked[2]["resourceVersion"], asked[2]["allowWatchBookmarks"]) == ("9", "true")


async def test_a_watch_that_is_cut_goes_on_from_the_last_bookmark_without_a_list():
    asked: list[dict] = []
    bookmark = ("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    cut = watch(("MODIFIED", pod("a", 12)), bookmark, stays=False)
    handlers = page(pod("a", 3), version=9), cut, watch(("DELETED", pod("a", 80)))
    async with following(*(noting(handler, asked) for handler in handlers)) as (reflector, changes):
        await until(lambda: len(changes) == 3)
        assert names(changes) == ["+a", "+a", "-a"]
        assert reflector.counters["lists"] == 1
    assert asked[2]["resourceVersion"] == "77"


@pytest.mark.parametrize(
    "gone",
    [saying(410, {"reason": "Expired"}), watch(("ERROR", {"code": 410, "reason": "Expired"}), stays=False)],
    ids=["at once", "in the stream"],
)
async def test_lost_history_leads_to_a_list_whose_differences_alone_are_told(gone):
    again = page(pod("kept", 3), pod("changed", 15), pod("new", 16), version=20)
    first = page(pod("kept", 3), pod("changed", 4), pod("left", 5), version=9)
    async with following(first, gone, again, watch()) as (reflector, changes):
        await until(lambda: reflector.counters["lists"] == 2)
        assert names(changes[3:]) == ["+changed", "+new", "-left"]


async def test_all_objects_are_told_once_more_where_they_are_read_otherwise_from_now_on():
    handlers = page(pod("a", 3), version=9), watch(("ADDED", pod("b", 10))), page(pod("b", 10), version=11)
    async with following(*handlers, watch(("MODIFIED", pod("b", 12)))) as (reflector, changes):
        await until(lambda: len(changes) == 2)
        reflector.repeat()
        await until(lambda: len(changes) == 5)
        assert names(changes) == ["+a", "+b", "+b", "-a", "+b"]
        assert reflector.counters == {"lists": 2, "watches": 2}


async def test_the_end_of_a_pod_is_told_before_the_beginning_of_the_next_of_its_name():
    first, second = page(pod("web-0", 3, uid="old"), version=9), page(pod("web-0", 15, uid="new"), version=20)
    async with following(first, saying(410), second, watch()) as (_, changes):
        await until(lambda: len(changes) == 3)
        assert changes[1] == ObjectGone("old", "default", "web-0")
        assert isinstance(changes[2], ObjectSeen)


async def test_of_a_repeated_list_what_is_gone_is_told_after_all_that_is_there():
    """What counts devices in use would see a free one before it sees who has it now, which may be told in a
    later slice. Only an object whose name another one has goes first, right before that one."""
    first = page(pod("gone", 3), pod("web-0", 4, uid="old"), version=9)
    new = [pod(f"new{number}", 15) for number in range(600)]
    second = page(*new, pod("web-0", 16, uid="new"), version=20)
    async with following(first, saying(410), second, watch()) as (reflector, changes):
        await until(lambda: reflector.counters["lists"] == 2)
        assert names(changes[2:]) == [*(f"+new{n}" for n in range(600)), "-web-0", "+web-0", "-gone"]
        assert len(reflector) == 601


async def test_a_page_that_came_too_late_begins_the_list_anew_in_one_piece():
    asked: list[dict] = []
    whole = page(pod("a", 3), pod("b", 4), version=30)
    handlers = page(pod("a", 3), version=9, more="next"), saying(410, {"reason": "Expired"}), whole, watch()
    async with following(*(noting(handler, asked) for handler in handlers)) as (_, changes):
        await until(lambda: len(changes) == 2)
        assert names(changes) == ["+a", "+b"]
    assert "limit" not in asked[2]


async def test_of_a_first_list_that_begins_anew_ends_are_told_first():
    handlers = (
        page(pod("web-0", 3, uid="old"), version=9, more="next"),
        saying(410, {"reason": "Expired"}),
        page(pod("web-0", 25, uid="new"), version=30),
        watch(),
    )
    async with following(*handlers) as (reflector, changes):
        await until(reflector.complete.is_set)
        assert names(changes) == ["+web-0", "-web-0", "+web-0"]
        assert changes[1] == ObjectGone("old", "default", "web-0")


async def test_a_first_list_is_told_page_by_page_and_goes_on_after_a_failure():
    first = page(pod("a", 3), version=9, more="next")
    again = page(pod("a", 3), pod("b", 4), version=20)
    async with following(first, saying(503), again, watch()) as (reflector, changes):
        await until(reflector.complete.is_set)
        assert names(changes) == ["+a", "+b"]


async def test_a_page_is_told_in_slices_between_which_others_run():
    """Otherwise a dispatcher that reads a full cluster renews its lease late, loses its term, and reads
    anew."""
    both = [page(*(pod(f"{kind}{number}", 3) for number in range(1000)), version=9) for kind in "ab"]
    steps: list[int] = []  # how many were told before each step of another task

    async def another(changes: list[Change]) -> None:
        while True:
            steps.append(len(changes))
            await asyncio.sleep(0)

    async with following(both[0], saying(410), both[1], watch()) as (reflector, changes):
        async with background(another(changes)):
            await until(lambda: reflector.counters["lists"] == 2)
        assert names(changes) == [*(f"+a{n}" for n in range(1000)), *(f"+b{n}" for n in range(1000)),
                                  *(f"-a{n}" for n in range(1000))]  # fmt: skip
    assert max(later - before for before, later in pairwise(steps)) <= 250


async def test_a_server_that_is_away_makes_it_stale_and_back_again():
    async with following(page(pod("a", 3), version=9), saying(503), watch(("ADDED", pod("b", 10)))) as (
        reflector,
        changes,
    ):
        await until(lambda: reflector.stale_since is not None and "503" in reflector.problem)
        await until(lambda: len(changes) == 2)
        assert (reflector.stale_since, reflector.problem) == (None, "")


async def test_who_may_not_list_says_so_and_goes_on_trying():
    forbidden = saying(403, {"reason": "Forbidden", "message": "pods is forbidden"})
    async with following(forbidden, page(version=9), watch()) as (reflector, _):
        await until(lambda: "pods is forbidden" in reflector.problem)
        await until(reflector.complete.is_set)


FORBIDDEN = saying(403, {"reason": "Forbidden", "message": "pods is forbidden"})


@pytest.mark.parametrize(
    ("discovery", "availability"),
    [
        (saying(200, {"resources": [{"name": "pods"}]}), KindAvailability.FORBIDDEN),
        (saying(200, {"resources": [{"name": "pods/status"}]}), KindAvailability.NOT_SERVED),
        (saying(404), KindAvailability.NOT_SERVED),
        (FORBIDDEN, KindAvailability.FORBIDDEN),
        (saying(503), KindAvailability.FORBIDDEN),
    ],
    ids=["served", "another kind", "no kind of the group", "no right to ask", "no answer"],
)
async def test_who_may_not_read_an_optional_kind_learns_whether_the_server_has_it_and_waits_for_nobody(
    discovery, availability
):
    async with following(FORBIDDEN, discovery, optional=True, required=False) as (reflector, changes):
        await until(reflector.complete.is_set)
        assert (reflector.availability, changes) == (availability, [])
        assert ("pods is forbidden" in reflector.problem) == (availability is KindAvailability.FORBIDDEN)


async def test_a_right_that_comes_later_is_found(monkeypatch):
    monkeypatch.setattr("hoss.kube.reflector.ABSENT_KIND_SECONDS", 0.05)
    served = saying(200, {"resources": [{"name": "pods"}]})
    listed = page(pod("a", 3), version=9)
    async with following(FORBIDDEN, served, listed, watch(), optional=True, required=False) as (
        reflector,
        changes,
    ):
        await until(lambda: len(changes) == 1)
        assert (reflector.availability, reflector.problem) == (KindAvailability.FOLLOWED, "")


async def test_a_kind_that_is_required_is_not_complete_while_it_may_not_be_read():
    served = saying(200, {"resources": [{"name": "pods"}]})
    async with following(FORBIDDEN, served, page(version=9), watch(), optional=True) as (reflector, _):
        await until(lambda: "pods is forbidden" in reflector.problem)
        await until(reflector.complete.is_set)
        assert reflector.availability is KindAvailability.FOLLOWED


async def test_of_a_kind_that_the_server_need_not_have_there_are_no_objects():
    async with following(saying(404), optional=True) as (reflector, changes):
        await until(reflector.complete.is_set)
        assert (changes, reflector.stale_since, reflector.problem) == ([], None, "")
        assert reflector.availability is KindAvailability.NOT_SERVED
    async with following(saying(404), page(version=9), watch()) as (reflector, _):
        await until(lambda: "404" in reflector.problem)


# -- catching up


class QuietServer:
    """Lists show the latest state, and a watch whatever the cache of the server has: `shown`, as of
    `cached`. A bookmark comes at once to a watch that ends soon, and to no other."""

    def __init__(self) -> None:
        self.latest, self.cached = 9, 9
        self.shown: list[dict] = []
        self.asked: list[dict] = []
        self.lists: list[dict] = [pod("a", 3)]
        self.latest_handler: Handler | None = None  # of the request for the latest version, if not as usual
        self.refusal: Handler | None = None  # of every request that comes from now on

    async def handler(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append(query)
        if self.refusal is not None:
            return await self.refusal(request)
        if query.get("limit") == "1" and self.latest_handler is not None:
            return await self.latest_handler(request)
        if "watch" not in query:
            return await page(*self.lists, version=self.latest)(request)
        events = [("ADDED", item) for item in self.shown]
        if int(query["timeoutSeconds"]) < 10:
            events.append(("BOOKMARK", {"metadata": {"resourceVersion": str(self.cached)}}))
        return await watch(*events)(request)

    def watches(self) -> list[dict]:
        return [query for query in self.asked if "watch" in query]


@contextlib.asynccontextmanager
async def following_a_quiet_server(**options: bool):
    server = QuietServer()
    async with following(server.handler, **options) as (reflector, changes):
        await until(lambda: len(server.watches()) == 1)
        yield server, reflector, changes


async def test_who_catches_up_has_what_the_servers_cache_shows_late_and_a_bookmark_says_so(monkeypatch):
    monkeypatch.setattr("hoss.kube.reflector._CATCH_UP_ALONE_SECONDS", 0.01)
    async with following_a_quiet_server() as (server, reflector, changes):
        server.latest, server.cached, server.shown = 20, 20, [pod("late", 15)]
        await reflector.catch_up()
        assert names(changes) == ["+a", "+late"]
        assert reflector.counters["lists"] == 1
        latest = next(query for query in server.asked if query.get("limit") == "1")
        assert "resourceVersion" not in latest  # the latest state, not the cache's
        assert server.watches()[1]["resourceVersion"] == "9"  # it goes on where the former watch was
        await reflector.catch_up()  # it is there already
        assert len(server.watches()) == 2


async def test_who_catches_up_waits_until_the_cache_shows_all_that_there_was(monkeypatch):
    monkeypatch.setattr("hoss.kube.reflector._CATCH_UP_ALONE_SECONDS", 0.01)
    async with following_a_quiet_server() as (server, reflector, changes):
        server.latest, server.cached = 20, 15
        catching_up = asyncio.ensure_future(reflector.catch_up())
        await until(lambda: len(server.watches()) == 2)
        server.cached, server.shown = 20, [pod("late", 19)]
        done, _ = await asyncio.wait((catching_up,), timeout=0.05)
        assert (done, names(changes)) == (set(), ["+a"])
        reflector._begin_anew()  # as when the server ends the watch
        await catching_up
        assert names(changes) == ["+a", "+late"]


async def test_a_cache_that_stays_behind_is_passed_by_with_a_list(monkeypatch):
    monkeypatch.setattr("hoss.kube.reflector._CATCH_UP_ALONE_SECONDS", 0.01)
    monkeypatch.setattr("hoss.kube.reflector._CATCH_UP_SECONDS", 0.02)
    async with following_a_quiet_server() as (server, reflector, changes):
        server.latest, server.lists = 20, [pod("a", 3), pod("late", 15)]
        await reflector.catch_up()
        assert names(changes) == ["+a", "+late"]
        assert reflector.counters["lists"] == 2


async def test_who_cannot_find_out_how_far_the_server_is_says_so(monkeypatch):
    async with following_a_quiet_server() as (server, reflector, _):
        away = saying(503, {"reason": "ServiceUnavailable", "message": "etcd is away"})
        monkeypatch.setattr(server, "latest_handler", away)
        with pytest.raises(TransportError, match="etcd is away"):
            await reflector.catch_up()


async def test_nobody_waits_for_a_kind_that_the_server_does_not_have():
    async with following(saying(404), optional=True) as (reflector, _):
        await asyncio.wait_for(reflector.catch_up(), 10)


@pytest.mark.parametrize(
    ("refusal", "availability"),
    [(saying(404), KindAvailability.NOT_SERVED), (FORBIDDEN, KindAvailability.FORBIDDEN)],
)
async def test_who_catches_up_ends_the_watch_of_a_kind_whose_right_was_taken_away(refusal, availability):
    async with following_a_quiet_server(optional=True, required=False) as (server, reflector, _):
        server.refusal = refusal  # the watch that there is goes on
        with pytest.raises(Refused):
            await reflector.catch_up()
        await until(lambda: reflector.availability is availability)
        await reflector.catch_up()


async def test_a_version_that_is_no_integer_says_nothing_and_the_watch_goes_on(monkeypatch):
    monkeypatch.setattr("hoss.kube.reflector._CATCH_UP_ALONE_SECONDS", 0.01)
    async with following_a_quiet_server() as (server, reflector, changes):
        server.latest, server.cached = 20, 20
        server.shown = [pod("early", "unknown"), pod("late", 20)]
        await reflector.catch_up()
        assert names(changes) == ["+a", "+early", "+late"]
        assert reflector.counters == {"lists": 1, "watches": 2}


async def test_who_catches_up_is_told_of_a_latest_version_that_is_no_integer(monkeypatch):
    async with following_a_quiet_server() as (server, reflector, _):
        monkeypatch.setattr(server, "latest_handler", page(version="unknown"))
        with pytest.raises(TransportError, match="'unknown' of /api/v1/pods is no integer"):
            await reflector.catch_up()
