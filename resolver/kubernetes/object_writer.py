"""Makes, patches and deletes objects of the API server as they are now, while others change them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hoss.errors import TransportError
from hoss.kube.api import JSON, MERGE_PATCH, STRATEGIC_PATCH, KubeApi, Object, Reply
from hoss.kube.paths import object_path

_PATIENCE_SECONDS = 10.0
_ATTEMPTS = 5  # at an object that others change at the same time
_CONFLICT, _NOT_FOUND = 409, 404


class ObjectWriter:
    """Raises TransportError if the API server does not answer, and what `refused` makes of the reason if the
    object is not there, or may not be changed. The client limits the requests under way."""

    def __init__(
        self,
        api: KubeApi,
        refused: Callable[[str], Exception],
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._api = api
        self._refused = refused
        self._patience_seconds = patience_seconds

    async def read(self, path: str, gone: str = "") -> Object:
        """The object. `gone`: the reason if it is not there; by default what the API server says."""
        reply = await self._ask("GET", path)
        if reply.status == _NOT_FOUND:
            raise self._refused(gone or reply.message)
        if not reply.done:
            raise TransportError(f"{path} cannot be read: {reply.status} {reply.message}")
        found: Object = reply.json()
        return found

    async def create(self, path: str, item: Object, name: str) -> Object:
        """Create the object in the list at `path`. Returns it, or the one that has its name already."""
        reply = await self._ask("POST", path, item, content_type=JSON)
        if reply.status == _CONFLICT:
            return await self.read(object_path(path, name))
        if not reply.done:
            raise self._refused(reply.message)
        made: Object = reply.json()
        return made

    async def delete(self, path: str, uid: str) -> None:
        """Delete this very object. One that is gone, or another of its name, is no fault."""
        body = {"preconditions": {"uid": uid}}
        reply = await self._ask("DELETE", path, body, content_type=JSON)
        if not reply.done and reply.status not in (_CONFLICT, _NOT_FOUND):
            raise self._refused(reply.message)

    async def protect(self, path: str, finalizer: str) -> Object | None:
        """Give the object this finalizer beside those that it has, whatever they are: the one change that
        needs no look at the object before. Returns the object; None: the API server refuses it."""
        body = {"metadata": {"finalizers": [finalizer]}}
        reply = await self._ask("PATCH", path, body, content_type=STRATEGIC_PATCH)
        if not reply.done:
            return None
        protected: Object = reply.json()
        return protected

    async def write(
        self,
        path: str,
        patch_of: Callable[[Object], Mapping[str, Any] | None],
        *,
        part: str = "",
        gone: str = "",
        known: Object | None = None,
        check: Callable[[], Awaitable[None]] | None = None,
        doing: str = "",
    ) -> Object:
        """Patch the object, or this part of it (`/status`), unless `patch_of` what it is now is None. Returns
        the object. `gone`: as in `read`. `known`: the object as it was read or written right before, which
        saves to read it. If it has changed since, the API server refuses the patch, and it is read. `check`:
        what has to be so of other objects after this one was read and before it is patched; it raises.
        `doing`: what the API server did not let us do, before its reason."""
        for _ in range(_ATTEMPTS):
            found = await self.read(path, gone) if known is None else known
            known = None
            patch = patch_of(found)
            if patch is None:
                return found
            if check is not None:
                await check()
            reply = await self._ask("PATCH", path + part, dict(patch))
            if reply.done:
                written: Object = reply.json()
                return written
            if reply.status not in (_CONFLICT, _NOT_FOUND):
                break
        raise self._refused(f"{doing}: {reply.message}" if doing else reply.message)

    async def _ask(
        self, method: str, path: str, body: Object | None = None, content_type: str = MERGE_PATCH
    ) -> Reply:
        # Repeating is harmless: a patch is of one state of the object, a creation of one name, a deletion of
        # one UID. A second one gets 409 or 404.
        return await self._api.ask(
            method, path, body, content_type=content_type, patience_seconds=self._patience_seconds
        )
