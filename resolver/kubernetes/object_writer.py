"""Patches objects of the API server as they are now, while others change them."""

from collections.abc import Callable, Mapping
from typing import Any

from hoss.errors import TransportError
from hoss.kube.api import MERGE_PATCH, KubeApi, Object, Reply

_PATIENCE_SECONDS = 10.0
_ATTEMPTS = 5  # at an object that others change at the same time
_CONFLICT, _NOT_FOUND = 409, 404


class ObjectWriter:
    """Raises TransportError if the API server does not answer, and what `refused` makes of the reason if the
    object is not there, or may not be changed. The client limits the requests under way."""

    def __init__(self, api: KubeApi, refused: Callable[[str], Exception]) -> None:
        self._api = api
        self._refused = refused

    async def read(self, path: str, gone: str = "") -> Object:
        """The object. `gone`: the reason if it is not there; by default what the API server says."""
        reply = await self._ask("GET", path)
        if reply.status == _NOT_FOUND:
            raise self._refused(gone or reply.message)
        if not reply.done:
            raise TransportError(f"{path} cannot be read: {reply.status} {reply.message}")
        found: Object = reply.json()
        return found

    async def write(
        self,
        path: str,
        patch_of: Callable[[Object], Mapping[str, Any] | None],
        *,
        part: str = "",
        gone: str = "",
    ) -> Object:
        """Patch the object, or this part of it (`/status`), unless `patch_of` what it is now is None. Returns the
        object. `gone`: as in `read`."""
        for _ in range(_ATTEMPTS):
            found = await self.read(path, gone)
            patch = patch_of(found)
            if patch is None:
                return found
            reply = await self._ask("PATCH", path + part, dict(patch))
            if reply.done:
                written: Object = reply.json()
                return written
            if reply.status not in (_CONFLICT, _NOT_FOUND):
                break
        raise self._refused(reply.message)

    async def _ask(self, method: str, path: str, body: Object | None = None) -> Reply:
        # Repeating a patch is harmless: it is of one state of the object, and a second one gets 409.
        return await self._api.ask(
            method, path, body, content_type=MERGE_PATCH, patience_seconds=_PATIENCE_SECONDS
        )
