"""A cluster whose bindings a resolver judges: the manifests of deploy/ on a real API server, and the rights
that they give."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import psutil
from e2e.kubernetes.api import Api
from waiting import DEADLINE_SECONDS, wait_until

from hoss.certificates import validity
from hoss.client.resolver import ResolverClient
from hoss.model.node import NodeSpec
from hoss.wire.columns import NONE_U32, decode_uids
from hoss.wire.uids import uid_from_text
from hossctl.local.binding_webhook import NAMESPACE, path_of, webhook_objects
from hossctl.local.control_plane import ControlPlane
from hossctl.local.ports import free_ports
from hossctl.local.process import ServiceProcess, stop_all
from hossctl.local.redis_server import RedisServer

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/hoss-binding-guard"
SECRET = "/api/v1/namespaces/hoss-system/secrets/hoss-binding-guard"
_ACCOUNTS = "/api/v1/namespaces/hoss-system/serviceaccounts"
GI = 2**30

ResultT = TypeVar("ResultT")


class Guarded:
    """Redis, a resolver, and the webhook. `add_node` puts a node into API server and ledger, as the mirror
    does."""

    def __init__(
        self,
        directory: Path,
        plane: ControlPlane,
        api: Api,
        *,
        failure_policy: str = "Ignore",
        flags: Sequence[str] = (),
        authority: bytes = b"",
    ) -> None:
        """`authority`: PEM, that the API server is told to trust from the start."""
        self.api = api
        self._directory = directory
        self._flags = flags
        self._port, self._webhook_port = free_ports(2)
        self._kubeconfig = directory / "resolver.kubeconfig"
        self._install(plane, failure_policy, authority)
        self.redis = RedisServer.start(directory / "redis")
        self.resolver: ServiceProcess
        self.start_resolver()

    @property
    def webhook_url(self) -> str:
        return f"https://127.0.0.1:{self._webhook_port}/bindings"

    def start_resolver(self, *, asked: bool = True) -> None:
        """Start it where it always is, and return once it serves, and where it is to be `asked` the API
        server does so."""
        arguments = ["--listen", f"127.0.0.1:{self._port}", "--redis-url", self.redis.url]
        arguments += [
            "--kubeconfig",
            str(self._kubeconfig),
            "--webhook-listen",
            f"127.0.0.1:{self._webhook_port}",
        ]
        arguments += ["--webhook-host", "127.0.0.1", *self._flags]
        self.resolver = ServiceProcess("resolver", "resolver", arguments, self._directory)
        self.resolver.wait_ready(time.monotonic() + DEADLINE_SECONDS)
        if asked:
            await_guard(self.api)

    def kill_resolver(self) -> None:
        process = psutil.Process(self.resolver.record.pid)
        process.kill()
        psutil.wait_procs([process], timeout=DEADLINE_SECONDS)

    def stop(self) -> None:
        stop_all([self.resolver.record])
        self.redis.kill()

    def log(self) -> str:
        return self.resolver.log.read_text()

    def add_node(self, name: str, *, cpu: int = 4000, memory: int = 8 * GI, pods: int = 110) -> None:
        self.api.create_node(name, cpu=f"{cpu}m", memory=str(memory), pods=pods)
        amounts = (("cpu", cpu), ("memory", memory), ("pods", pods))
        spec = NodeSpec(name, labels=(("kubernetes.io/hostname", name),), allocatable=amounts)
        self.ask(lambda resolver: resolver.upsert_nodes([spec]))

    def holds(self, *pods: Any) -> list[bool]:
        """Which of these pods hold a reservation."""
        uids = decode_uids(b"".join(uid_from_text(pod["metadata"]["uid"]) for pod in pods))
        return [node != NONE_U32 for node in self.ask(lambda resolver: resolver.lookup(uids)).nodes.tolist()]

    def requested_cpu(self, node: str) -> int:
        (info,) = self.ask(lambda resolver: resolver.list_nodes([node]))
        return next((amount.amount for amount in info.requested if amount.resource == "cpu"), 0)

    def ask(self, question: Callable[[ResolverClient], Awaitable[ResultT]]) -> ResultT:
        """One call of the resolver."""

        async def run() -> ResultT:
            client = ResolverClient([f"127.0.0.1:{self._port}"])
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(run())

    def authority(self) -> bytes:
        """What the API server trusts."""
        (hook,) = self.api("GET", CONFIGURATION)["webhooks"]
        return base64.b64decode(hook["clientConfig"].get("caBundle", ""))

    def served_until(self) -> datetime:
        """When the certificate ends that a new connection gets now."""
        pem = ssl.get_server_certificate(("127.0.0.1", self._webhook_port), timeout=DEADLINE_SECONDS)
        return validity(pem.encode())[1]

    def _install(self, plane: ControlPlane, failure_policy: str, authority: bytes) -> None:
        install(self.api, self.webhook_url, failure_policy=failure_policy, authority=authority)
        self._kubeconfig.write_text(kubeconfig_of(self.api, plane, "hoss-resolver"))


def await_guard(api: Api) -> None:
    """Return once the API server asks the guard."""
    probe = {"metadata": {"name": "probe", "namespace": "default", "uid": "0" * 32}}
    wait_until(
        lambda: "not among the nodes" in str(api.bind(probe, "none", dry_run=True)), "the guard is asked"
    )


def install(api: Api, url: str, *, failure_policy: str, authority: bytes = b"") -> None:
    """The manifest, and what it counts on; no certificate of an earlier test."""
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})  # may be there
    api.request("POST", _ACCOUNTS, {"metadata": {"name": "hoss-resolver"}})
    api.request("DELETE", SECRET)
    # A machine under test may stall for longer than a second.
    for document in webhook_objects(
        url, failure_policy=failure_policy, authority=authority, timeout_seconds=10
    ):
        apply(api, document)


def apply(api: Api, document: Any, *parameters: str) -> None:
    """As `kubectl apply --server-side`."""
    path = "&".join((f"{path_of(document)}?fieldManager=test&force=true", *parameters))
    api("PATCH", path, document, **{"Content-Type": "application/apply-patch+yaml"})


def kubeconfig_of(api: Api, plane: ControlPlane, account: str) -> str:
    """Of a service account of HOSS's namespace, which is there."""
    config = json.loads(plane.kubeconfig.read_bytes())
    config["users"][0]["user"] = {"token": token_of(api, account)}
    return json.dumps(config)


def token_of(api: Api, account: str) -> str:
    """Likewise."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(api("POST", f"{_ACCOUNTS}/{account}/token", request)["status"]["token"])
