"""Pods in a dictionary, where the resolver's PodSource is wanted: held to
tests/e2e/kubernetes/test_pod_source.py like the real one."""

from typing import Any

from hoss.wire.uids import uid_from_text, uid_text


class PodsInMemory:
    """`add` as an API server's clients create, `remove` as they delete."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Any] = {}
        self._latest: dict[tuple[str, str], Any] = {}
        self._created = 0
        self.found = 0  # how often anything was asked
        self.watched = False  # whether every pod is at hand

    def add(self, name: str, *, namespace: str = "default", uid: bytes = b"", **spec: Any) -> Any:
        """A pod of that spec; a name that is taken gets another pod."""
        self._created += 1
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": uid_text(uid or self._created.to_bytes(16, "big")),
        }
        pod = {"metadata": metadata, "spec": {"schedulerName": "somebody-else", **spec}}
        self._pods[namespace, name] = pod
        return pod

    def remove(self, name: str, *, namespace: str = "default") -> None:
        del self._pods[namespace, name]
        self._latest.pop((namespace, name), None)

    def cached(self, namespace: str, name: str, uid: bytes) -> Any:
        pod = self._pods.get((namespace, name)) if self.watched else None
        return pod if pod and uid_from_text(pod["metadata"]["uid"]) == uid else None

    async def find(self, namespace: str, name: str, uid: bytes) -> Any:
        self.found += 1
        return self._pods.get((namespace, name))

    async def latest(self, namespace: str, name: str) -> Any:
        return self._latest.get((namespace, name)) or self._pods.get((namespace, name))

    def patch_unseen(self, name: str, **status: Any) -> None:
        """The pod's status changes, and only who asks for the latest pod sees it."""
        self._latest["default", name] = {**self._pods["default", name], "status": status}

    async def on_node(self, node: str) -> list[Any]:
        return [pod for pod in self._pods.values() if pod["spec"].get("nodeName") == node]
