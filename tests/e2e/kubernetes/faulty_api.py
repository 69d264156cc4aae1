"""A proxy before the real API server that is slow, refuses, hangs, cuts watches, and loses answers of what
was done."""

import asyncio
import math
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web
from waiting import DEADLINE_SECONDS

from hoss.kube.api import tls_connector
from hossctl.local.control_plane import ControlPlane

_LOOK_SECONDS = 0.02
_HEADERS = ("Authorization", "Content-Type", "Accept")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with requests of these methods whose path, with its query, has `path` in it; of `share`
    of them."""

    path: str = ""
    methods: tuple[str, ...] = ("GET", "POST", "PUT", "PATCH", "DELETE")
    share: float = 1.0
    status: int = 0  # answered, and nothing is done
    retry_after: str = ""
    delay_seconds: float = 0.0  # before it is passed on
    hangs: bool = False  # passed on when the fault is over, though who asked may have given up long ago
    loses_answer: bool = False  # it is done, and the connection is cut
    ends_after_seconds: float = 0.0  # the connection of an answer that goes on is cut

    def hits(self, request: web.Request) -> bool:
        """Whether it is of this kind."""
        return request.method in self.methods and self.path in request.path_qs


class FaultyApi:
    """Listens on `url` with plain HTTP; `kubeconfig` is an administrator's. `faults` may be set at any time;
    the first that hits counts."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.faults: tuple[Fault, ...] = ()
        self.struck = 0  # requests, and watches that were cut
        self._plane = plane
        self._chance = random.Random(7)
        self._loop: asyncio.AbstractEventLoop
        self._over = asyncio.Event()
        self._port = 0
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(DEADLINE_SECONDS), "the proxy does not start"
        self.url = f"http://127.0.0.1:{self._port}"
        self.kubeconfig = directory / "faulty.kubeconfig"
        config = orjson.loads(plane.kubeconfig.read_bytes())
        config["clusters"][0]["cluster"] = {"server": self.url}
        self.kubeconfig.write_bytes(orjson.dumps(config))

    def stop(self) -> None:
        """End it, with every connection."""
        self.faults = ()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(DEADLINE_SECONDS)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        async with aiohttp.ClientSession(
            connector=tls_connector(0, None), timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            self._session = session
            ready.set()
            await self._over.wait()
            await runner.cleanup()

    def _fault(self, request: web.Request) -> Fault | None:
        fault = next((fault for fault in self.faults if fault.hits(request)), None)
        if fault is None or self._chance.random() >= fault.share:
            return None
        self.struck += not fault.ends_after_seconds  # these are counted when they end
        return fault

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = self._fault(request) or Fault()
        if fault.status:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return web.json_response(
                {"reason": "Faulty", "message": "said by the proxy"}, status=fault.status, headers=headers
            )
        await asyncio.sleep(fault.delay_seconds)
        await self._healed(request, fault)
        headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
        url = self._plane.url + request.path_qs
        try:
            async with self._session.request(request.method, url, data=body, headers=headers) as answer:
                if fault.loses_answer:
                    await answer.read()
                    return self._cut(request)
                if "watch=" in request.query_string:
                    return await self._pass_on(request, answer)
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type=answer.content_type
                )
        except (aiohttp.ClientError, OSError):
            return self._cut(request)

    async def _healed(self, request: web.Request, fault: Fault) -> None:
        while fault.hangs and any(now.hangs and now.hits(request) for now in self.faults):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    async def _pass_on(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """What a watch tells, while nothing is wrong with it."""
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        begun = time.monotonic()
        chunks = answer.content.iter_any().__aiter__()
        pending = asyncio.ensure_future(chunks.__anext__())
        try:
            while not self._over.is_set():
                done, _ = await asyncio.wait({pending}, timeout=_LOOK_SECONDS)
                if time.monotonic() - begun > self._ends_after_seconds(request):
                    self.struck += 1
                    return self._cut(request, response)
                if done:
                    await self._healed(request, self._fault(request) or Fault())
                    await response.write(pending.result())
                    pending = asyncio.ensure_future(chunks.__anext__())
        except StopAsyncIteration:
            await response.write_eof()
        finally:
            pending.cancel()
        return response

    def _ends_after_seconds(self, request: web.Request) -> float:
        """By the faults of this moment: it may have begun before them."""
        return next(
            (f.ends_after_seconds for f in self.faults if f.ends_after_seconds and f.hits(request)), math.inf
        )

    def _cut(self, request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return response or web.Response(status=500)
