"""How the model of the API server is reached: requests that take time, watches that lag, and all that goes
wrong.

A request is carried out in the server's own process, so it is carried out even if whoever sent it is killed
or has given up. Reads with resourceVersion=0 and watches come from a cache, which follows the objects at a
distance of its own for each kind, as the watch cache of kube-apiserver does: nothing promises an order
between kinds.

A binding is first sent to the binding webhook, if a resolver serves one. The server waits for the answer for
some seconds; then the failurePolicy decides. It may bind seconds after the answer, or not at all."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

import orjson

from hoss.errors import TransportError
from hoss.kube.access import Access
from hoss.kube.api import JSON, REQUEST_SECONDS, STRATEGIC_PATCH, KubeApi, Refused, Reply
from hoss.wire.uids import random_uid_text
from tools.simulation.api_model import (
    ApiModel,
    Change,
    Object,
    Refusal,
    Selector,
    Target,
    refused,
    selector_of,
    target_of,
)
from tools.simulation.loop import Process, SimulationLoop

Handler = Callable[[bytes], Awaitable[tuple[int, bytes]]]

NAME = "api-server"

_TRIP_SECONDS = (0.0005, 0.004)
_CACHE_SECONDS = (0.0005, 0.005)  # how far a cache is behind, where no fault is
_BOOKMARK_SECONDS = (1.0, 10.0)
_LAST_BOOKMARK_SECONDS = 2.0  # before the end of a watch
_WEBHOOK_SECONDS = 2.0  # timeoutSeconds of the webhook's configuration
_ASKS_LEDGER = "resolver-"  # how the names of those begin who ask the ledger themselves before they bind
_GONE = "too old resource version"


@dataclass
class ApiFaults:
    """Shares of requests, and seconds. They may be changed at any time. `reached` counts what struck a
    request."""

    refused: float = 0.0  # answered 429, 500 or 503, and not carried out
    lost_answers: float = 0.0  # carried out, and the connection breaks
    late: float = 0.0  # carried out seconds later
    late_seconds: float = 5.0
    cache_seconds: float = 0.0  # how far a cache may be behind
    webhook_away: bool = False
    late_reviews: float = 0.0  # answers of the webhook that come after the server has given up
    late_bindings: float = 0.0  # bound seconds after the webhook allowed it
    abandoned_bindings: float = 0.0  # never bound, although the webhook allowed it
    away: dict[str, str] = field(default_factory=dict)  # "silent" or "refused", by client; "": for all
    reached: Counter[str] = field(default_factory=Counter)

    def begin(self, changed: Mapping[str, Any]) -> None:
        """From now on these fields are so."""
        for name, value in changed.items():
            setattr(self, name, value)

    def end(self, changed: Mapping[str, Any] | None = None) -> None:
        """These fields, or all, are again as they were at first."""
        for each in fields(self):
            if each.name != "reached" and (changed is None or each.name in changed):
                made = each.default_factory
                default = each.default if made is MISSING else made()
                setattr(self, each.name, default)


class _Request(NamedTuple):
    client: str
    method: str
    path: str
    body: Object | None
    params: Mapping[str, str]
    sent_after: int = 0  # so many losses of the ledger
    content_type: str = STRATEGIC_PATCH


class _Watcher:
    """One watch, from the server's side."""

    def __init__(self, client: str, target: Target, selector: Selector, version: int) -> None:
        self.client = client
        self.target = target
        self._selector = selector
        self._version = version
        self._lines: deque[bytes] = deque()
        self._more = asyncio.Event()
        self.ended = False
        self._broken = ""

    def push(self, change: Change) -> None:
        if change.version <= self._version:
            return
        self._version = change.version
        was, is_there = self._selector.matches(change.before), self._selector.matches(change.after)
        if not (was or is_there):
            return
        kind = "DELETED" if not is_there else "MODIFIED" if was else "ADDED"
        item = change.object
        if kind == "DELETED" and change.after is not None and change.before is not None:
            # It has left the selection: told as it was, with the version of now.
            version = change.after["metadata"]["resourceVersion"]
            item = {**change.before, "metadata": {**change.before["metadata"], "resourceVersion": version}}
        self._send(kind, item)

    def bookmark(self, version: int) -> None:
        if version > self._version:
            self._version = version
            self._send("BOOKMARK", {"kind": self.target.kind, "metadata": {"resourceVersion": str(version)}})

    def end(self, broken: str = "") -> None:
        self.ended, self._broken = True, broken
        self._more.set()

    def _send(self, kind: str, item: Object) -> None:
        if not self.ended:
            self._lines.append(orjson.dumps({"type": kind, "object": item}))
            self._more.set()

    async def lines(self, silence_seconds: float) -> AsyncIterator[bytes]:
        while True:
            while self._lines:
                yield self._lines.popleft()
            if self._broken:
                raise TransportError(self._broken)
            if self.ended:
                return
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), silence_seconds)
            except asyncio.TimeoutError as exc:
                raise TransportError(f"nothing came for {silence_seconds:g} s") from exc


class SimulatedApiServer:
    """One API server for all processes of a simulation. `ignores_failures`: the webhook's failurePolicy is
    Ignore."""

    def __init__(
        self,
        loop: SimulationLoop,
        rng: random.Random,
        model: ApiModel,
        *,
        ignores_failures: bool = False,
        observe: Callable[[str, str], None] = lambda _who, _text: None,
    ) -> None:
        self.model = model
        self.faults = ApiFaults()
        # Called after each change with whoever asked for it, and whether the ledger that is there was asked:
        # by the webhook, or by who sent the request.
        self.losses = 0  # of the ledger; what it had allowed before is known to nobody
        self.on_change: Callable[[Change, str, bool], None] = lambda _change, _client, _judged: None
        self._loop = loop
        self._rng = rng
        self._ignores_failures = ignores_failures
        self._observe = observe
        self._process = loop.process(NAME)
        self._reviewers: dict[str, tuple[Process, Handler]] = {}
        self._watchers: dict[_Watcher, None] = {}
        self._cache: dict[str, dict[tuple[str, str], Object]] = {}
        self._shown: dict[str, list[Change]] = {}
        self._shown_at: dict[str, float] = {}
        self._coming: dict[str, deque[Change]] = {}  # changes that the cache of a kind does not have yet
        self._asking = ("", False)  # who asks for what is carried out, and whether the webhook judged it
        model.on_change = self._changed

    def client(self, process: Process, clock: Callable[[], float], rng: random.Random) -> KubeApi:
        """What a process reaches the server with."""
        return SimulatedKubeApi(self, process.name, clock, rng)

    # -- who comes and goes

    @asynccontextmanager
    async def reviewed_by(self, process: Process, handler: Handler) -> AsyncIterator[None]:
        """The webhook is served by this process, too, within the block."""
        self._reviewers[process.name] = process, handler
        try:
            yield
        finally:
            self._reviewers.pop(process.name, None)

    def disconnected(self, client: str) -> None:
        """A process has ended."""
        self._reviewers.pop(client, None)
        for watcher in [watcher for watcher in self._watchers if watcher.client == client]:
            del self._watchers[watcher]

    def cut_watches(self, client: str = "") -> int:
        """Every watch breaks, or every one of a client, as when the server is replaced. Returns how many
        did."""
        cut = [watcher for watcher in self._watchers if client in ("", watcher.client)]
        for watcher in cut:
            del self._watchers[watcher]
            watcher.end("connection reset by peer")
        return len(cut)

    # -- requests

    def carry_out_now(self, client: str, method: str, path: str, body: Object | None = None) -> Reply:
        """A request of somebody to whom nothing ever happens, such as a kubelet."""
        return self._answer(_Request(client, method, path, body, {}), judged=False)

    async def request(self, request: _Request, timeout_seconds: float) -> Reply:
        """Raises TransportError where no answer comes in time."""
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._loop.spawn(self._process, self._serve(request, answer))
        try:
            return await asyncio.wait_for(answer, timeout_seconds)
        except asyncio.TimeoutError as exc:
            raise TransportError(f"no answer in time to {request.method} {request.path}") from exc

    async def watch(self, client: str, path: str, params: Mapping[str, str]) -> "_Watcher | Reply":
        """The watch, or the refusal. Raises TransportError."""
        await self._trip()
        self._reach(client)
        if (refusal := self._refusal()) is not None:
            return refusal
        try:
            target = target_of(path)
        except Refusal as unknown:
            return unknown.reply
        version = int(params["resourceVersion"])
        watcher = _Watcher(client, target, selector_of(target, params), version)
        if version < self.model.compacted:
            return refused(410, f"{_GONE}: {version} ({self.model.compacted})", "Expired")
        for change in self._shown.get(target.kind, ()):
            watcher.push(change)
        self._watchers[watcher] = None
        in_server = self._process.context.copy()
        seconds = int(params["timeoutSeconds"])
        self._loop.call_later(seconds, self._time_out, watcher, context=in_server)
        first = min(self._rng.uniform(*_BOOKMARK_SECONDS), max(0.0, seconds - _LAST_BOOKMARK_SECONDS))
        self._loop.call_later(first, self._bookmark, watcher, context=in_server)
        return watcher

    def end_watch(self, watcher: _Watcher) -> None:
        """The client wants no more."""
        self._watchers.pop(watcher, None)

    def _time_out(self, watcher: _Watcher) -> None:
        self._watchers.pop(watcher, None)
        watcher.end()

    def _bookmark(self, watcher: _Watcher) -> None:
        if watcher not in self._watchers:
            return
        kind = watcher.target.kind
        shown = self._shown.get(kind)
        version = self.model.version if not self._coming.get(kind) else shown[-1].version if shown else 0
        watcher.bookmark(version)
        seconds = self._rng.uniform(*_BOOKMARK_SECONDS)
        self._loop.call_later(seconds, self._bookmark, watcher, context=self._process.context.copy())

    async def _serve(self, request: _Request, answer: "asyncio.Future[Reply]") -> None:
        try:
            reply = await self._served(request)
        except TransportError as exc:
            if not answer.done():
                answer.set_exception(exc)
            return
        await self._trip()
        if self._strikes(self.faults.lost_answers, "answer lost"):
            if not answer.done():
                answer.set_exception(TransportError("connection reset by peer"))
        elif self._is_away(request.client) != "silent" and not answer.done():
            answer.set_result(reply)

    async def _served(self, request: _Request) -> Reply:
        await self._trip()
        while self._is_away(request.client) == "silent":  # noqa: ASYNC110 - it is what a network does
            # It waits in the network, and may arrive after the client has given up.
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
        self._reach(request.client)
        if (refusal := self._refusal()) is not None:
            return refusal
        if self._strikes(self.faults.late, "carried out late"):
            await asyncio.sleep(self._rng.uniform(0.2, self.faults.late_seconds))
        if request.method == "POST" and request.path.endswith("/binding") and self._reviewers:
            return await self._bind(request)
        return self._answer(request, judged=False)

    def _answer(self, request: _Request, *, judged: bool) -> Reply:
        sent_by_ledger = request.client.startswith(_ASKS_LEDGER) and request.sent_after == self.losses
        self._asking = request.client, judged or sent_by_ledger
        reply = self._read_cached(request) or self.model.answer(
            request.method, request.path, request.body, request.params, request.content_type
        )
        self._asking = "", False
        if request.method != "GET" or not reply.done:
            self._observe(request.client, f"{request.method} {request.path} {reply.status}")
        return reply

    def _read_cached(self, request: _Request) -> Reply | None:
        """The answer to a read that may be old; None: it is no such read."""
        if request.method != "GET" or request.params.get("resourceVersion") != "0":
            return None
        target = target_of(request.path)
        cached = self._cache.get(target.kind, {})
        if not target.name:
            version = self._shown[target.kind][-1].version if self._shown.get(target.kind) else 1
            return self.model.listed(target, request.params, [cached[key] for key in sorted(cached)], version)
        found = cached.get((target.namespace, target.name))
        if found is None:
            return refused(404, f'{target.kind} "{target.name}" not found')
        return Reply(200, orjson.dumps(found))

    # -- the webhook

    async def _bind(self, request: _Request) -> Reply:
        """Have the webhook judge a binding, then bind, if it allows that."""
        faults, losses = self.faults, self.losses
        verdict = await self._reviewed(request)
        if verdict is None:
            if not self._ignores_failures:
                return refused(500, "failed calling webhook: context deadline exceeded")
            faults.reached["binding unjudged"] += 1
            return self._answer(request, judged=False)
        if not verdict["allowed"]:
            status = verdict["status"]
            return refused(status["code"], f"admission webhook denied the request: {status['message']}")
        if self._strikes(faults.abandoned_bindings, "binding abandoned"):
            return refused(500, "context canceled")
        if self._strikes(faults.late_bindings, "bound late"):
            await asyncio.sleep(self._rng.uniform(0.5, faults.late_seconds))
        return self._answer(request, judged=losses == self.losses)

    async def _reviewed(self, request: _Request) -> Object | None:
        """The webhook's response; None: there was none in time."""
        if self.faults.webhook_away:
            self.faults.reached["webhook not reached"] += 1
            return None
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": random_uid_text(self._rng),
                "namespace": target_of(request.path).namespace,
                "name": target_of(request.path).name,
                "operation": "CREATE",
                "object": request.body,
            },
        }
        late = self._strikes(self.faults.late_reviews, "webhook answered late")
        process, handler = self._reviewers[self._rng.choice(list(self._reviewers))]
        asked = self._loop.spawn(process, _delayed(handler, orjson.dumps(review), self._trip_seconds()))
        try:
            # The webhook goes on when the server gives up: its answer is stale then.
            status, body = await asyncio.wait_for(asyncio.shield(asked), 0.002 if late else _WEBHOOK_SECONDS)
        except asyncio.TimeoutError:
            return None
        except Exception as exc:  # noqa: BLE001 - what the webhook did not expect is for the judge
            self._loop.call_exception_handler({"message": "the webhook failed", "exception": exc})
            return None
        await self._trip()
        found: Object | None = orjson.loads(body)["response"] if status == 200 else None
        return found

    # -- faults, and the cache

    def _changed(self, change: Change) -> None:
        client, judged = self._asking
        self.on_change(change, client, judged)
        behind = self._rng.uniform(*_CACHE_SECONDS) + self._rng.random() * self.faults.cache_seconds
        at = max(self._shown_at.get(change.kind, 0.0), self._loop.time() + behind)
        self._shown_at[change.kind] = at
        # Timers of one moment come in any order, changes of one kind in theirs.
        self._coming.setdefault(change.kind, deque()).append(change)
        self._loop.call_at(at, self._show, change.kind, context=self._process.context.copy())

    def _show(self, kind: str) -> None:
        """The cache of a kind has one change more."""
        change = self._coming[kind].popleft()
        self._shown.setdefault(kind, []).append(change)
        metadata = change.object["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        if change.after is None:
            self._cache[kind].pop(key, None)
        else:
            self._cache.setdefault(kind, {})[key] = change.after
        for watcher in [watcher for watcher in self._watchers if watcher.target.kind == kind]:
            watcher.push(change)

    def _strikes(self, share: float, what: str) -> bool:
        if share and self._rng.random() < share:
            self.faults.reached[what] += 1
            return True
        return False

    def _refusal(self) -> Reply | None:
        if not self._strikes(self.faults.refused, "request refused"):
            return None
        status = self._rng.choice((429, 429, 500, 503))
        return refused(status, "the simulated server is busy", "", self._rng.choice((0, 1)))

    def _is_away(self, client: str) -> str:
        return self.faults.away.get(client) or self.faults.away.get("", "")

    def _reach(self, client: str) -> None:
        if how := self._is_away(client):
            self.faults.reached["server not reached"] += 1
            raise TransportError(f"the API server cannot be reached: {how}")

    def _trip_seconds(self) -> float:
        return self._rng.uniform(*_TRIP_SECONDS)

    async def _trip(self) -> None:
        await asyncio.sleep(self._trip_seconds())


async def _delayed(handler: Handler, body: bytes, seconds: float) -> tuple[int, bytes]:
    await asyncio.sleep(seconds)
    return await handler(body)


class SimulatedKubeApi(KubeApi):
    """The client of one process."""

    def __init__(
        self, server: SimulatedApiServer, process: str, clock: Callable[[], float], rng: random.Random
    ) -> None:
        super().__init__(Access(f"http://{NAME}", None), clock=clock, rng=rng)
        self._simulated = server
        self._process = process

    async def send(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Reply:
        losses = self._simulated.losses
        request = _Request(self._process, method, path, body, dict(params or {}), losses, content_type)
        return await self._simulated.request(request, timeout_seconds)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        watcher = await self._simulated.watch(self._process, path, params)
        if isinstance(watcher, Reply):
            raise Refused(watcher, f"GET {path}")
        try:
            yield watcher.lines(silence_seconds)
        finally:
            self._simulated.end_watch(watcher)
