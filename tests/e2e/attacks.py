"""What attacks on a platform have in common: every method there is, and a platform that takes tokens of
others."""

import asyncio
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import yaml
from e2e.cluster import Cluster
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import DEADLINE_SECONDS

from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient
from hoss.config import API_VERSION
from hoss.errors import HossError
from hoss.host import THIS_HOST
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.rights import refusal
from hoss.security.users import KIND as AUTHENTICATION_KIND
from hoss.v1 import dispatcher_pb2, resolver_pb2, workerlink_pb2

SERVICES = {
    "Dispatcher": ("dispatcher", dispatcher_pb2),
    "WorkerLink": ("dispatcher", workerlink_pb2),
    "Resolver": ("resolver", resolver_pb2),
}
METHODS = {
    f"/{module.DESCRIPTOR.services_by_name[name].full_name}/{method.name}": (kind, method)
    for name, (kind, module) in SERVICES.items()
    for method in module.DESCRIPTOR.services_by_name[name].methods
}


_LATER_CALLS = 3
_NO_ANSWER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


async def attempt(
    channel: grpc.aio.Channel, method: str, *, connects: bool = True, let_in: bool = False
) -> grpc.StatusCode:
    """The status of a call with an empty request. `connects`: the caller gets a connection, and waits for it:
    an attempt to connect lasts two seconds, and a machine may stall for longer. `let_in`: the caller should
    be. A stream that says nothing is then OK once later calls on its connection have been answered: it would
    have been refused before."""
    descriptor = METHODS[method][1]
    form = "_".join(
        "stream" if streams else "unary"
        for streams in (descriptor.client_streaming, descriptor.server_streaming)
    )
    call = getattr(channel, form)(method)(
        iter([b""]) if descriptor.client_streaming else b"", timeout=DEADLINE_SECONDS, wait_for_ready=connects
    )
    try:
        if descriptor.server_streaming:
            reading = asyncio.ensure_future(call.read())
            try:
                if let_in:
                    await _answered(channel)
                if reading.done() or not let_in:
                    await reading
            finally:
                call.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        else:
            await call
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return grpc.StatusCode.OK


async def _answered(channel: grpc.aio.Channel) -> None:
    """Several calls, one after another, have been answered, if only by a refusal."""
    health = health_pb2_grpc.HealthStub(channel)
    for _ in range(_LATER_CALLS):
        try:
            await health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS, wait_for_ready=True)
        except grpc.aio.AioRpcError as exc:  # noqa: PERF203 - a refusal is an answer
            assert exc.code() not in _NO_ANSWER, exc  # noqa: PT017 - other codes are answers


class ConfiguredCluster:
    """A dispatcher and a resolver with TLS that take tokens as a document says."""

    def __init__(
        self,
        directory: Path,
        authentication: dict[str, Any],
        *,
        kubeconfigs: dict[str, Path] | None = None,
    ) -> None:
        """`authentication`: what its document says. `kubeconfigs`: of both services, in Kubernetes mode."""
        self.authority = Authority.create(directory / "authority", now=THIS_HOST.utc_now())
        self.entry = self._issued(Identity(CallerKind.CLIENT, "entry"))
        path = directory / "authentication.yaml"
        document = {"apiVersion": API_VERSION, "kind": AUTHENTICATION_KIND, **authentication}
        path.write_text(yaml.safe_dump(document))
        flags: dict[str, list[str]] = {"dispatcher": [], "resolver": []}
        for name, given in flags.items():
            given += [
                "--authentication",
                str(path),
                "--tls-dir",
                str(self._issued(Identity(CallerKind(name)))),
            ]
            if kubeconfigs:
                given += ["--kubeconfig", str(kubeconfigs[name])]
        self.cluster = Cluster(
            directory, dispatcher_flags=flags["dispatcher"], resolver_flags=flags["resolver"]
        )
        self.directory = directory
        self._authentication = path

    def start_dashboard(self) -> str:
        """A dashboard that takes the same tokens; returns its URL."""
        issued = self._issued(Identity(CallerKind.CLIENT, "dashboard", Role.OPERATE))
        return self.cluster.start_dashboard(
            "--tls-dir", str(issued), "--authentication", str(self._authentication)
        )

    def _issued(self, identity: Identity) -> Path:
        return self.authority.issue(identity, now=THIS_HOST.utc_now()).directory

    def bearing(self, token: str) -> DispatcherClient:
        access = ClientAccess(self.entry, token)
        return DispatcherClient([self.cluster.address("dispatcher")], open_channel=access.channel)

    async def codes(
        self, token: str, methods: Iterable[str] = METHODS, *, let_in: Container[str] = ()
    ) -> dict[str, grpc.StatusCode]:
        """The status of an empty call of each method, all at once. `let_in`: methods that should let the
        bearer in."""

        async def code(method: str) -> grpc.StatusCode:
            kind = METHODS[method][0]
            access = ClientAccess(self.entry, token)
            async with access.channel([self.cluster.address(kind)], kind=kind) as channel:
                return await attempt(channel, method, let_in=method in let_in)

        methods = list(methods)
        return dict(zip(methods, await asyncio.gather(*map(code, methods)), strict=True))

    async def said(self, token: str) -> str:
        """Why a call is refused; "" if it is not."""
        async with self.bearing(token) as client:
            try:
                await client.list_jobs()
            except HossError as exc:
                return f"{type(exc).__name__}: {exc}"
        return ""

    async def check_rights(self, token: str, identity: Identity) -> None:
        """The bearer may call exactly what the table of rights says of that identity."""
        allowed = {method for method in METHODS if not refusal(method, identity)}
        for method, code in (await self.codes(token, let_in=allowed)).items():
            if method in allowed:
                denied = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
                assert code not in denied, method
            else:
                assert code is grpc.StatusCode.PERMISSION_DENIED, method

    async def check_secret(self, tokens: Iterable[str]) -> None:
        """No token is in what the services have written."""
        texts = await asyncio.to_thread(self._texts)
        assert any("caller_refused" in text for text in texts.values())
        leaks = [name for name, text in texts.items() for token in tokens if token.split(".")[2] in text]
        assert leaks == []

    def _texts(self) -> dict[str, str]:
        return {str(path): path.read_text(errors="replace") for path in self.directory.glob("*.log")}

    def stop(self) -> None:
        self.cluster.stop()
