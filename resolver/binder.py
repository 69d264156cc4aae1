"""Binds reserved pods at the API server: many at once, each by its UID, and looked at where an answer is in doubt."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hoss.errors import TransportError
from hoss.kube.api import REQUEST_SECONDS, KubeApi, Object, Reply
from resolver.core.binding import BindResult, Bound, body_of, judge_answer, judge_pod

# Who asked asks again after this, so that a call has an end. The API server gives a request up after a minute, and most take 10 ms.
_PATIENCE_SECONDS = 20.0

# A refusal that the pod itself does not explain is believed after so many.
_REFUSALS = 3
_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 2.0


class Wish(NamedTuple):
    """A pod, "namespace/name", and the node it is to be bound to."""

    pod: str
    uid: str
    node: str


class Binder:
    """Any number of pods at a time; the client bounds how many requests are under way."""

    def __init__(
        self, api: KubeApi, *, patience_seconds: float = _PATIENCE_SECONDS, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._api = api
        self._patience_seconds = patience_seconds
        self._request_seconds = request_seconds

    async def bind(self, wishes: Sequence[Wish]) -> list[Bound]:
        """What became of each. UNKNOWN where it was not learnt in time."""
        found = await asyncio.gather(*map(self._bind, wishes))
        for bound in found:
            self.counters[f"bindings_{bound.result.name.lower()}"] += 1
        return list(found)

    async def _bind(self, wish: Wish) -> Bound:
        deadline, delay = time.monotonic() + self._patience_seconds, _FIRST_DELAY_SECONDS
        refusals = 0
        doubtful = False  # an attempt that was not answered may be done yet: after one, no is no answer
        while True:
            problem, found = "", None
            try:
                reply = await self._send("POST", f"{_path(wish.pod)}/binding", body_of(*wish))
                if reply.done:
                    return Bound(BindResult.DONE)
                found, problem = judge_answer(reply.status, reply.message), reply.message
                if found is None and reply.status != 429:
                    doubtful |= reply.passing
                    refusals += reply.status == 409
                    found = judge_pod(await self._read(wish.pod), wish.uid, wish.node)
            except TransportError as exc:
                doubtful, problem = True, str(exc)
            if found is None and refusals >= _REFUSALS:
                found = Bound(BindResult.REFUSED, f"the API server refuses the binding: {problem}")
            if found is not None and not (doubtful and found.result is BindResult.REFUSED):
                return found
            if time.monotonic() + delay > deadline:
                return Bound(BindResult.UNKNOWN, problem)
            self.counters["bindings_repeated"] += 1
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _MAX_DELAY_SECONDS)

    async def _read(self, pod: str) -> Object | None:
        """The pod, None where there is none. Raises TransportError where nobody can tell."""
        reply = await self._send("GET", _path(pod))
        if reply.status == 404:
            return None
        if not reply.done:
            raise TransportError(f"pod {pod} cannot be read: {reply.status} {reply.message}")
        found: Object = reply.json()
        return found

    async def _send(self, method: str, path: str, body: Object | None = None) -> Reply:
        return await self._api.send(method, path, body, timeout_seconds=self._request_seconds)


def _path(pod: str) -> str:
    namespace, _, name = pod.partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
