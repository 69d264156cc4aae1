"""Where the guard learns what a pod asks for. The API server knows it best."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import orjson

from hoss.errors import TransportError
from hoss.kube.api import KubeApi, Object, Refused
from hoss.kube.reflector import Change, Gone
from hoss.wire.columns import uid_from_text

_NOT_FOUND = 404


def pending_elsewhere(own: Sequence[str]) -> dict[str, str]:
    """Parameters of a watch of the pods that somebody else is about to bind. Those of our `own` schedulers pass by their reservations, and
    nobody reads them."""
    return {"fieldSelector": ",".join(["spec.nodeName=", *(f"spec.schedulerName!={name}" for name in own)])}


class PodSource(Protocol):
    """What the guard needs of whoever knows pods."""

    def at_hand(self, namespace: str, name: str, uid: bytes) -> Object | None:
        """As `find`, where nobody has to be asked; None: somebody has to. A pod that is expected alone, no other one."""

    async def find(self, namespace: str, name: str, uid: bytes) -> Object | None:
        """The pod that goes by the name now, as a Kubernetes object; None: there is none. `uid`: of the pod that is expected,
        empty where none is; another one is given only if it is the latest. Raises TransportError when nobody can tell."""

    async def on_node(self, node: str) -> list[bytes]:
        """UIDs of the pods that take room on a node, 16 bytes each. Raises TransportError when nobody can tell."""


class KubePods:
    """Pods read one by one from the API server."""

    def __init__(self, api: KubeApi, *, patience_seconds: float) -> None:
        self._api = api
        self._patience_seconds = patience_seconds

    def at_hand(self, namespace: str, name: str, uid: bytes) -> Object | None:  # noqa: ARG002 - every pod is asked for
        return None

    async def find(self, namespace: str, name: str, uid: bytes) -> Object | None:
        # The server's own cache costs it next to nothing, and may be some milliseconds behind: what it does not have yet
        # is asked for again, of etcd.
        pod = await self._get(namespace, name, {"resourceVersion": "0"})
        if pod is not None and (not uid or uid_from_text(str(pod["metadata"]["uid"])) == uid):
            return pod
        return await self._get(namespace, name, {})

    async def on_node(self, node: str) -> list[bytes]:
        living = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        pods = await self._read("/api/v1/pods", {"fieldSelector": living, "resourceVersion": "0"})
        return [uid_from_text(str(pod["metadata"]["uid"])) for pod in (pods or {}).get("items") or ()]

    async def _get(self, namespace: str, name: str, params: dict[str, str]) -> Object | None:
        return await self._read(f"/api/v1/namespaces/{namespace}/pods/{name}", params)

    async def _read(self, path: str, params: dict[str, str]) -> Object | None:
        try:
            found: Object = await self._api.get(path, params, patience_seconds=self._patience_seconds)
        except Refused as refused:
            if refused.reply.status == _NOT_FOUND:
                return None
            raise TransportError(str(refused)) from refused
        return found


class _Kept(NamedTuple):
    uid: str
    text: bytes  # metadata and spec as JSON: a tenth of what they take as objects


class WatchedPods:
    """Pods that a reflector has told of, and for what it has not (yet) another source. Saves the API server a question for each
    binding, and the binding the time that it takes."""

    def __init__(self, others: PodSource) -> None:
        self._others = others
        self._kept: dict[tuple[str, str], _Kept] = {}

    def told(self, changes: Sequence[Change]) -> None:
        """News of a reflector of `pending_elsewhere`. A pod that is bound is gone from its sight."""
        for change in changes:
            if isinstance(change, Gone):
                kept = self._kept.get((change.namespace, change.name))
                if kept is not None and kept.uid == change.uid:
                    del self._kept[change.namespace, change.name]
                continue
            metadata = {name: value for name, value in change.object["metadata"].items() if name != "managedFields"}
            text = orjson.dumps({"metadata": metadata, "spec": change.object["spec"]})
            self._kept[metadata["namespace"], metadata["name"]] = _Kept(metadata["uid"], text)

    def at_hand(self, namespace: str, name: str, uid: bytes) -> Object | None:
        kept = self._kept.get((namespace, name))
        if kept is None or not uid or uid_from_text(kept.uid) != uid:
            return self._others.at_hand(namespace, name, uid)
        pod: Object = orjson.loads(kept.text)
        return pod

    async def find(self, namespace: str, name: str, uid: bytes) -> Object | None:
        return self.at_hand(namespace, name, uid) or await self._others.find(namespace, name, uid)

    async def on_node(self, node: str) -> list[bytes]:
        return await self._others.on_node(node)
