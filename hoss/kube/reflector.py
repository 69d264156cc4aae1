"""All objects of one kind as they come, change and go: listed in pages, then watched, and listed again where the watch has a gap.

Whoever follows is told of every object that is there, of every later state it should know, and of every end, in an order in which an
object's end comes before the beginning of another of its name. Nothing is told twice but by the API server itself.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import orjson

from hoss.client.backoff import Backoff
from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object, Refused, Reply
from hoss.telemetry import logger

PAGE = 1000  # objects: 3 to 6 MB of pods, which parse in 10 ms

# A watch is ended by the server after this and begun again, by chance apart so that not all of a cluster's begin together. Meanwhile a
# bookmark comes every minute: a server that is silent for longer is gone.
_WATCH_SECONDS = (240, 480)
_SILENCE_SECONDS = 90.0

_FIRST_DELAY_SECONDS = 0.05
_MAX_DELAY_SECONDS = 5.0
_GONE = 410


class Seen(NamedTuple):
    """An object that is there, as it is now."""

    object: Object


class Gone(NamedTuple):
    """An object that is there no more."""

    uid: str
    namespace: str  # "" for what has none
    name: str


Change = Seen | Gone


class _Known(NamedTuple):
    version: str
    namespace: str
    name: str


class _Page(NamedTuple):
    items: list[Object]
    version: str  # of the whole list
    begins_anew: bool  # what came before of this list does not count


class _TooOld(Exception):  # noqa: N818 - says what happened
    """The server has no history from there on."""


class Reflector:
    """One kind of objects. `run` must be running; `told` hears of what is new, in order, and must not wait."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        told: Callable[[list[Change]], None],
        *,
        params: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path` of the list, such as /api/v1/pods; `params` such as a fieldSelector."""
        self.path = path
        self.complete = asyncio.Event()  # all that was there at some moment after the start has been told
        self.stale_since: float | None = clock()  # since when there may be news that did not come; None: it follows
        self.problem = ""
        self.counters = {"lists": 0, "watches": 0}
        self._api = api
        self._told = told
        self._params = dict(params or {})
        self._clock = clock
        self._known: dict[str, _Known] = {}  # by UID
        self._version = ""  # of the last that was told; "": a list is due

    def __len__(self) -> int:
        return len(self._known)

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS)
        while True:
            try:
                if not self._version:
                    await self._list()
                begun = self._clock()
                await self._watch()
                if self._clock() - begun < 1:  # cut at once, again and again: not without a pause
                    await self._pause(backoff, "the watch ends as soon as it begins")
                else:
                    backoff.succeeded()
            except _TooOld:  # noqa: PERF203 - the loop is the retry
                logger().info("list_again", path=self.path, version=self._version)
                self._version = ""
            except (Refused, TransportError) as exc:
                await self._pause(backoff, str(exc))

    async def _pause(self, backoff: Backoff, problem: str) -> None:
        if self.stale_since is None:
            self.stale_since = self._clock()
        if not self.problem:
            logger().warning("reflector_stale", path=self.path, error=problem)
        self.problem = problem
        await asyncio.sleep(backoff.failed(self._clock()) or 0)

    def _follows(self) -> None:
        if self.problem:
            logger().info("reflector_follows", path=self.path)
        self.stale_since, self.problem = None, ""

    async def _list(self) -> None:
        """Tell what is different from what was told before. At first that is everything: then page by page, as they come."""
        first = not self._known
        there: set[str] = set()
        changed: dict[str, Object] = {}
        async for page in self._pages():
            if page.begins_anew:  # of what was told already, something may be gone by now, and has to be told first
                first = False
                there.clear()
                changed.clear()
            news = {uid: item for item in page.items if self._differs(uid := item["metadata"]["uid"], item)}
            there.update(item["metadata"]["uid"] for item in page.items)
            if first:
                self._tell([*map(Seen, news.values())])
            else:
                changed.update(news)
            version = page.version
        self.counters["lists"] += 1
        gone = [Gone(uid, known.namespace, known.name) for uid, known in self._known.items() if uid not in there]
        self._tell([*gone, *map(Seen, changed.values())])
        self._version = version
        self._follows()
        self.complete.set()

    def _differs(self, uid: str, item: Object) -> bool:
        known = self._known.get(uid)
        return known is None or known.version != item["metadata"]["resourceVersion"]

    async def _pages(self) -> AsyncIterator[_Page]:
        """The server makes the next page while whoever asks works on this one."""
        listed, anew = await self._page({"limit": str(PAGE)}), False
        while True:
            more = listed["metadata"].get("continue", "")
            page = _Page(listed["items"], listed["metadata"]["resourceVersion"], anew)
            if not more:
                yield page
                return
            following = asyncio.create_task(self._page({"limit": str(PAGE), "continue": more}))
            try:
                await asyncio.sleep(0)  # it is sent
                yield page
                listed, anew = await following, False
            except Refused as exc:
                if exc.reply.status != _GONE:
                    raise
                # Listing took longer than the server keeps history: all at once then.
                listed, anew = await self._page({}), True
            finally:
                following.cancel()

    async def _page(self, params: dict[str, str]) -> Any:
        return await self._api.get(self.path, self._params | params, timeout_seconds=60.0, patience_seconds=0)

    async def _watch(self) -> None:
        """Tell what happens from the last version on, until the server ends it. Raises _TooOld, TransportError or Refused."""
        params = self._params | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),
        }
        self.counters["watches"] += 1
        try:
            async with self._api.stream(self.path, params, silence_seconds=_SILENCE_SECONDS) as lines:
                self._follows()
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
            self._tell([Gone(metadata["uid"], metadata.get("namespace", ""), metadata["name"])])
        elif kind != "BOOKMARK":
            self._tell([Seen(item)])
        self._version = metadata["resourceVersion"]

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, Gone):
                self._known.pop(change.uid, None)
            else:
                self._note(change.object["metadata"])
        if changes:
            self._told(changes)

    def _note(self, metadata: Mapping[str, Any]) -> None:
        self._known[metadata["uid"]] = _Known(
            metadata["resourceVersion"], metadata.get("namespace", ""), metadata["name"]
        )
