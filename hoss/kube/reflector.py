"""A reflector (as in client-go): all objects of one kind, listed in pages, then watched.

The reflector lists again where the watch has a gap. The handler gets every object that exists, every later
change and every deletion. The deletion of an object comes before the creation of another object of its name.
Other deletions that a list shows come after all else that it shows.
The reflector repeats nothing that the API server does not repeat itself.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import orjson

from hoss.client.backoff import Backoff
from hoss.errors import TransportError
from hoss.host import THIS_HOST
from hoss.kube.api import KubeApi, Object, Refused, Reply
from hoss.telemetry import logger

PAGE = 500  # objects: 2 MB of pods, which parse in 5 ms, and in 30 ms on a machine that does much else
# Objects of a list that are handled in one step of the event loop: pods take 40 us and more each.
_SLICE = 250

# The server ends a watch after this time, and the reflector starts a new one. The time is random, so that not
# all watches of a cluster start together. A bookmark comes every minute: a server silent for longer is gone.
_WATCH_SECONDS = (240, 480)
_SILENCE_SECONDS = 90.0

# A watch that is to catch up ends soon. The server sends a bookmark two seconds before the end of a watch.
_SHORT_WATCH_SECONDS = 3
_CATCH_UP_ALONE_SECONDS = 0.2  # before the watch is begun anew: on a busy cluster a change comes sooner
_CATCH_UP_SECONDS = 10.0  # before a list takes the place of the watch
_LATEST_SECONDS = 5.0  # within which the server has to say what its latest version is

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 5.0
_GONE, _NOT_FOUND, _FORBIDDEN = 410, 404, 403

# Until the reflector asks again for a kind that the server does not have, or that we may not read.
ABSENT_KIND_SECONDS = 15.0


class KindAvailability(Enum):
    """Whether the objects of a kind can be followed."""

    FOLLOWED = "followed"  # or it is not known yet
    NOT_SERVED = "not served"  # the server does not have the kind, so there are none
    FORBIDDEN = "forbidden"  # the server has the kind, and we may not read it


class ObjectSeen(NamedTuple):
    """An object that exists, in its present state."""

    object: Object


class ObjectGone(NamedTuple):
    """An object that was deleted."""

    uid: str
    namespace: str  # "" for what has none
    name: str


Change = ObjectSeen | ObjectGone


class _Known(NamedTuple):
    version: str
    namespace: str
    name: str


class _Page(NamedTuple):
    items: list[Object]
    version: str  # of the whole list
    restarts: bool  # the pages before this one do not count


class _TooOld(Exception):  # noqa: N818 - says what happened
    """The server has no history from that version on."""


class Reflector:
    """One kind of objects. `run` must be running. `handler` gets the changes in order and must not block."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        handler: Callable[[list[Change]], None],
        *,
        params: Mapping[str, str] | None = None,
        optional: bool = False,
        required: bool = True,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        rng: random.Random = THIS_HOST.rng,
    ) -> None:
        """`path` of the list, such as /api/v1/pods; `params` such as a fieldSelector. `optional`:
        the server may not have this kind. Then there are no objects, and the reflector asks again. An
        optional kind that is not `required` counts as complete also where it may not be read."""
        self.path = path
        self.availability = KindAvailability.FOLLOWED  # only for an optional kind it is anything else
        self.complete = asyncio.Event()  # the first list has been handled
        # Since when changes may be missing, by `clock`. None: the watch is up to date.
        self.stale_since: float | None = clock()
        self.problem = ""
        self.counters = {"lists": 0, "watches": 0}
        self._api = api
        self._handler = handler
        self._params = dict(params or {})
        self._optional = optional
        self._required = required
        self._clock = clock
        self._rng = rng
        self._known: dict[str, _Known] = {}  # by UID
        self._version = ""  # of the last change that was handled; "": a list is due
        self._repeat = False  # the handler is to get all objects once more
        self._list_due = False  # the watch is too slow, or somebody waits for a new list
        self._listed = asyncio.Event()  # a list that was begun when none was due any more
        self._sought = 0  # the version that `catch_up` waits for; 0: nobody waits
        self._reached = asyncio.Event()  # the version that was sought
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._known)

    def repeat(self) -> None:
        """Give the handler all objects once more: it reads them otherwise from now on."""
        self._repeat = True
        self._begin_anew()

    async def catch_up(self) -> None:
        """Return once the handler has had every change that the server carried out before this call, however
        far the server's cache is behind. Raises Refused or TransportError if the server does not say how far
        that is. `run` must be running.

        The server is asked for the version of a list of one object. Without a resourceVersion in the request
        that is its latest. Versions of one kind are integers in the order of the changes (since Kubernetes
        1.35 that is promised, and it was so before). If nothing changes, only a bookmark says that nothing is
        missing. A watch gets one shortly before its end, so a short one takes its place."""
        await self.complete.wait()
        if self.availability is not KindAvailability.FOLLOWED:
            return
        params = self._params | {"limit": "1"}
        try:
            listed = await self._api.get(
                self.path, params, timeout_seconds=_LATEST_SECONDS, patience_seconds=0
            )
        except Refused as exc:
            if self._optional and exc.reply.status in (_NOT_FOUND, _FORBIDDEN):
                self._begin_anew()  # A watch outlives the right to it, and `run` has to see that it is gone.
            raise
        latest = listed["metadata"]["resourceVersion"]
        if not latest.isdecimal():
            raise TransportError(f"the API server's version {latest[:40]!r} of {self.path} is no integer")
        self._sought = max(self._sought, int(latest))
        self._reached.clear()
        self._look_whether_reached()
        if await self._reaches_within(_CATCH_UP_ALONE_SECONDS):
            return
        self._begin_anew()
        if await self._reaches_within(_CATCH_UP_SECONDS):
            return
        logger().info("list_again", path=self.path, version=self._version, sought=self._sought)
        self._list_due = True
        self._begin_anew()
        await self._reached.wait()

    async def refresh(self) -> None:
        """As `catch_up`, but wait as long as the server needs. Few objects are listed again instead: that is
        sooner done than a bookmark comes."""
        await self.complete.wait()
        if len(self) > PAGE:
            try:
                await self.catch_up()
            except (Refused, TransportError) as exc:
                logger().info("list_again", path=self.path, version=self._version, error=str(exc))
            else:
                return
        if self.availability is KindAvailability.FOLLOWED:
            self._listed.clear()
            self._list_due = True
            self._begin_anew()
            await self._listed.wait()

    async def _reaches_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._reached.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def _look_whether_reached(self) -> None:
        # One that is no integer says nothing, and the watch must go on.
        if self._sought and self._version.isdecimal() and int(self._version) >= self._sought:
            self._sought = 0
            self._reached.set()

    def _nothing_to_reach(self) -> None:
        """The kind cannot be followed any more."""
        self._sought = 0
        self._reached.set()
        self._listed.set()

    def _begin_anew(self) -> None:
        """End the present watch. The next one begins where it was, unless a list is due."""
        if self._watching is not None:
            self._watching.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS, rng=self._rng)
        while True:
            try:
                if self._repeat:
                    self._repeat, self._version = False, ""
                    self._known = {uid: known._replace(version="") for uid, known in self._known.items()}
                if self._list_due:
                    self._list_due, self._version = False, ""
                if not self._version:
                    await self._list()
                begun = self._clock()
                if self._repeat or self._list_due or not await self._watch_until_begun_anew():
                    continue
                if self._clock() - begun < 1:  # cut at once: pause before the next attempt
                    await self._pause(backoff, "the watch ends as soon as it begins")
                else:
                    backoff.succeeded()
            except _TooOld:
                logger().info("list_again", path=self.path, version=self._version)
                self._version = ""
            except (Refused, TransportError) as exc:
                if self._optional and isinstance(exc, Refused) and await self._absent(exc):
                    await asyncio.sleep(ABSENT_KIND_SECONDS)
                    continue
                await self._pause(backoff, str(exc))

    async def _watch_until_begun_anew(self) -> bool:
        """As `_watch`. False: it was to begin anew."""
        self._watching = watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((watching,))
        finally:
            self._watching = None
            watching.cancel()
        if watching.cancelled():
            return False
        watching.result()
        return True

    async def _absent(self, refusal: Refused) -> bool:
        """Whether an optional kind is not there for us. A client without rights gets the same answer for a
        kind that the server does not have."""
        status = refusal.reply.status
        if status == _NOT_FOUND or (status == _FORBIDDEN and not await self._served()):
            self._missing()
            return True
        if status != _FORBIDDEN or self._required:
            return False
        self._stale(str(refusal))
        self.availability = KindAvailability.FORBIDDEN
        self.complete.set()
        self._nothing_to_reach()
        return True

    async def _served(self) -> bool:
        """Whether the server has the kind, by discovery. If it does not say, it has."""
        version, _, resource = self.path.rpartition("/")
        try:
            found = await self._api.get(version, patience_seconds=0)
        except Refused as exc:
            return exc.reply.status != _NOT_FOUND
        except TransportError:
            return True
        return any(item["name"] == resource for item in found["resources"])

    async def _pause(self, backoff: Backoff, problem: str) -> None:
        self._stale(problem)
        await asyncio.sleep(backoff.failed(self._clock()) or 0)

    def _stale(self, problem: str) -> None:
        if self.stale_since is None:
            self.stale_since = self._clock()
        if not self.problem:
            logger().warning("reflector_stale", path=self.path, error=problem)
        self.problem = problem

    def _missing(self) -> None:
        """The server does not have this kind, so there are no objects."""
        self._handle([ObjectGone(uid, of.namespace, of.name) for uid, of in self._known.items()])
        self._version = ""
        self._up_to_date()
        self.availability = KindAvailability.NOT_SERVED
        self.complete.set()
        self._nothing_to_reach()

    def _up_to_date(self) -> None:
        if self.problem:
            logger().info("reflector_follows", path=self.path)
        self.stale_since, self.problem = None, ""
        self.availability = KindAvailability.FOLLOWED

    async def _list(self) -> None:
        """Handle what differs from the known objects. The first list is handled page by page."""
        first = not self._known
        there: set[str] = set()
        changed: dict[str, Object] = {}
        async for page in self._pages():
            if page.restarts:
                # Objects of the earlier pages may be gone, and others may have their names.
                first = False
                there.clear()
                changed.clear()
            updates = {
                uid: item for item in page.items if self._differs(uid := item["metadata"]["uid"], item)
            }
            there.update(item["metadata"]["uid"] for item in page.items)
            if first:
                await self._handle_in_slices([*map(ObjectSeen, updates.values())])
            else:
                changed.update(updates)
            version = page.version
        gone = [
            ObjectGone(uid, known.namespace, known.name)
            for uid, known in self._known.items()
            if uid not in there
        ]
        # Whoever counts what is in use must not see the room of what is gone before what has taken it, which
        # may be in a later slice. So deletions come last, or right before an object that has the name now.
        replaced = {(of.namespace, of.name): of for of in gone}
        changes: list[Change] = []
        for item in changed.values():
            if (before := replaced.pop(_name_of(item["metadata"]), None)) is not None:
                changes.append(before)
            changes.append(ObjectSeen(item))
        await self._handle_in_slices([*changes, *replaced.values()])
        self.counters["lists"] += 1
        self._version = version
        self._up_to_date()
        self.complete.set()
        if not self._list_due:
            self._listed.set()
        self._look_whether_reached()

    def _differs(self, uid: str, item: Object) -> bool:
        known = self._known.get(uid)
        return known is None or known.version != item["metadata"]["resourceVersion"]

    async def _pages(self) -> AsyncIterator[_Page]:
        """The server prepares the next page while the caller handles this one."""
        listed, restarts = await self._page({"limit": str(PAGE)}), False
        while True:
            more = listed["metadata"].get("continue", "")
            page = _Page(listed["items"], listed["metadata"]["resourceVersion"], restarts)
            if not more:
                yield page
                return
            following = asyncio.create_task(self._page({"limit": str(PAGE), "continue": more}))
            try:
                await asyncio.sleep(0)  # sends the request
                yield page
                listed, restarts = await following, False
            except Refused as exc:
                if exc.reply.status != _GONE:
                    raise
                # Listing took longer than the server keeps history: list all in one page.
                listed, restarts = await self._page({}), True
            finally:
                following.cancel()

    async def _page(self, params: dict[str, str]) -> Any:
        return await self._api.get(self.path, self._params | params, timeout_seconds=60.0, patience_seconds=0)

    async def _watch(self) -> None:
        """Handle changes from the last version on, until the server ends the watch. Raises _TooOld,
        TransportError or Refused."""
        params = self._params | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(
                _SHORT_WATCH_SECONDS if self._sought else self._rng.randint(*_WATCH_SECONDS)
            ),
        }
        self.counters["watches"] += 1
        try:
            async with self._api.stream(self.path, params, silence_seconds=_SILENCE_SECONDS) as lines:
                self._up_to_date()
                async for line in lines:
                    self._take(line)
        except Refused as exc:
            if exc.reply.status == _GONE:
                raise _TooOld from exc
            raise

    def _take(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise TransportError(f"the API server's watch of {self.path} is no JSON: {line[:80]!r}") from exc
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("code") == _GONE:
                raise _TooOld
            raise Refused(Reply(int(item.get("code", 500)), orjson.dumps(item)), f"a watch of {self.path}")
        metadata = item["metadata"]
        if kind == "DELETED":
            self._handle([ObjectGone(metadata["uid"], metadata.get("namespace", ""), metadata["name"])])
        elif kind != "BOOKMARK":
            self._handle([ObjectSeen(item)])
        self._version = metadata["resourceVersion"]
        self._look_whether_reached()

    async def _handle_in_slices(self, changes: list[Change]) -> None:
        """Between slices others run: the one who handles may also have a lease to renew."""
        for start in range(0, len(changes), _SLICE):
            if start:
                await asyncio.sleep(0)
            self._handle(changes[start : start + _SLICE])

    def _handle(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ObjectGone):
                self._known.pop(change.uid, None)
            else:
                self._note(change.object["metadata"])
        if changes:
            self._handler(changes)

    def _note(self, metadata: Mapping[str, Any]) -> None:
        self._known[metadata["uid"]] = _Known(metadata["resourceVersion"], *_name_of(metadata))


def _name_of(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The namespace and the name of an object."""
    return metadata.get("namespace", ""), metadata["name"]
