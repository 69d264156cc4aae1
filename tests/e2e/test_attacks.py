"""A platform as `hoss up` starts it, and everybody whom it must refuse. Bearers of tokens that others have
made: test_foreign_tokens.py, and kubernetes/test_service_account_tokens.py."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from e2e.attacks import METHODS, attempt
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from waiting import DEADLINE_SECONDS, until

from hoss import certificates, rpc
from hoss.certificates import KeyPair
from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.client.resolver import ResolverClient
from hoss.errors import AccessDenied, ConfigError, HossError, InvalidInput, TransportError
from hoss.host import THIS_HOST
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.rpc import MOST_TOKEN_BYTES
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.rights import refusal
from hoss.security.transport import TlsFiles, server_credentials
from hoss.serving import Server
from hoss.v1 import dispatcher_pb2, resolver_pb2, workerlink_pb2
from hoss.v1.workerlink_pb2_grpc import WorkerLinkStub
from hoss.wire.uids import uid_text
from hossctl.endpoints import clients_of, of_state
from hossctl.load.nodes import simulated_nodes
from hossctl.local import platform, platform_state


class Attacked:
    """A running platform, and identities of its authority."""

    def __init__(self, state: platform_state.PlatformState, directory: Path) -> None:
        self.state = state
        self.directory = directory
        self.authority = Authority(directory / platform.SECURITY_DIRECTORY)
        self.addresses = {"dispatcher": state.dispatcher, "resolver": state.resolvers[0]}
        self.entry = self.directory_of(Identity(CallerKind.CLIENT, "entry"))

    def directory_of(self, identity: Identity) -> Path:
        return self.authority.current(identity, now=THIS_HOST.utc_now()).directory

    def token(self, role: Role, tenant: str = "", days: float = 1) -> str:
        return self.authority.create_token(
            Identity(CallerKind.CLIENT, "bearer", role, tenant),
            now=THIS_HOST.utc_now(),
            lifetime=timedelta(days=days),
        )

    def client(self, role: Role, tenant: str = "") -> DispatcherClient:
        """By a token."""
        access = ClientAccess(self.entry, self.token(role, tenant))
        return DispatcherClient([self.addresses["dispatcher"]], open_channel=access.channel)


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    options = platform.PlatformOptions(workers=(platform_state.WorkerOptions("w1"),))
    with platform.temporary(options) as starter:

        async def fill() -> None:
            async with clients_of(of_state(starter.state)) as clients:
                await clients.resolver.upsert_nodes(simulated_nodes(3, seed=1))

        asyncio.run(fill())
        yield Attacked(starter.state, starter.directory)


@pytest.fixture
def strange(tmp_path: Path) -> Authority:
    """An authority that the platform does not know."""
    return Authority.create(tmp_path / "strange", now=THIS_HOST.utc_now())


def channel_of(attacked: Attacked, access: ClientAccess, method: str) -> grpc.aio.Channel:
    kind = METHODS[method][0]
    return access.channel([attacked.addresses[kind]], kind=kind)


@pytest.mark.parametrize("method", METHODS)
async def test_a_stranger_reaches_no_method(attacked: Attacked, strange: Authority, method: str) -> None:
    """Without TLS, with TLS and no certificate, and with a certificate of another authority."""
    kind = METHODS[method][0]
    address = attacked.addresses[kind]
    foreign = strange.issue(Identity(CallerKind.CLIENT, "eve", Role.ADMIN), now=THIS_HOST.utc_now()).directory
    shutil.copy(attacked.entry / "ca.crt", foreign / "ca.crt")  # trusts the platform, and is not trusted
    only_trusts = grpc.ssl_channel_credentials((attacked.entry / "ca.crt").read_bytes())
    name = ("grpc.ssl_target_name_override", f"{kind}.hoss.internal")
    for channel in (
        rpc.channel([address]),
        grpc.aio.secure_channel(address, only_trusts, options=[name]),
        ClientAccess(foreign).channel([address], kind=kind),
    ):
        async with channel:
            assert await attempt(channel, method, connects=False) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("method", METHODS)
async def test_a_caller_of_the_wrong_kind_or_role_is_refused_by_every_method(
    attacked: Attacked, method: str
) -> None:
    callers = [
        Identity(CallerKind.CLIENT, "entry"),
        Identity(CallerKind.CLIENT, "viewer", Role.VIEW),
        Identity(CallerKind.CLIENT, "ana", Role.SUBMIT, "research"),
        Identity(CallerKind.CLIENT, "operator", Role.ADMIN),
        Identity(CallerKind.WORKER, "w9"),
        Identity(CallerKind.RESOLVER),
    ]
    refused = [identity for identity in callers if refusal(method, identity)]
    assert refused
    for identity in refused:
        async with channel_of(attacked, ClientAccess(attacked.directory_of(identity)), method) as channel:
            code = await attempt(channel, method)
            assert code is grpc.StatusCode.PERMISSION_DENIED, identity


async def expect(client: DispatcherClient, problem: type[HossError], words: str) -> None:
    async with client:
        with pytest.raises(problem, match=words):
            await client.list_jobs()


async def test_tokens_that_are_expired_revoked_foreign_or_changed_are_refused_with_the_reason(
    attacked: Attacked, strange: Authority
) -> None:
    def bearing(token: str) -> DispatcherClient:
        return DispatcherClient(
            [attacked.state.dispatcher], open_channel=ClientAccess(attacked.entry, token).channel
        )

    async with bearing(attacked.token(Role.VIEW)) as client:
        await client.list_jobs()
    await expect(bearing(attacked.token(Role.VIEW, days=-1)), AccessDenied, "expired")
    identity = Identity(CallerKind.CLIENT, "eve", Role.ADMIN)
    foreign = strange.create_token(identity, now=THIS_HOST.utc_now(), lifetime=timedelta(days=1))
    await expect(bearing(foreign), AccessDenied, "not signed by this platform")
    await expect(bearing("nonsense"), AccessDenied, "no token of HOSS")
    revoked = attacked.token(Role.VIEW)
    async with bearing(revoked) as client:
        await client.list_jobs()
        attacked.authority.revoke_token(attacked.authority.tokens()[-1]["id"], now=THIS_HOST.utc_now())
        with pytest.raises(AccessDenied, match="revoked"):  # replayed on a connection that stands
            await client.list_jobs()


async def test_a_service_gains_nothing_by_a_token(attacked: Attacked) -> None:
    access = ClientAccess(
        attacked.directory_of(Identity(CallerKind.WORKER, "w9")), attacked.token(Role.ADMIN)
    )
    await expect(
        DispatcherClient([attacked.state.dispatcher], open_channel=access.channel),
        AccessDenied,
        "a worker may not",
    )


async def test_a_revoked_certificate_is_refused_on_a_connection_that_stands(attacked: Attacked) -> None:
    identity = Identity(CallerKind.CLIENT, "leaver", Role.VIEW)
    access = ClientAccess(attacked.directory_of(identity))
    async with DispatcherClient([attacked.state.dispatcher], open_channel=access.channel) as client:
        await client.list_jobs()
        attacked.authority.revoke_certificate(
            attacked.authority.named("client/leaver"), now=THIS_HOST.utc_now()
        )
        with pytest.raises(AccessDenied, match="certificate was revoked"):
            await client.list_jobs()


async def test_a_watch_ends_with_its_token_and_its_client_is_told_why(attacked: Attacked) -> None:
    access = ClientAccess(attacked.entry, attacked.token(Role.VIEW))
    mine = attacked.authority.tokens()[-1]["id"]
    async with (
        attacked.client(Role.SUBMIT, "seen") as other,
        DispatcherClient([attacked.state.dispatcher], open_channel=access.channel) as client,
    ):
        await other.submit(job("seen", "seen"))
        watching = client.watch(states=True)
        await asyncio.wait_for(anext(watching), DEADLINE_SECONDS)
        attacked.authority.revoke_token(mine, now=THIS_HOST.utc_now())
        with pytest.raises(AccessDenied, match="the token was revoked"):
            async for _ in watching:
                pass


async def test_a_workers_link_ends_with_its_certificate(attacked: Attacked) -> None:
    access = ClientAccess(attacked.directory_of(Identity(CallerKind.WORKER, "w7")))
    register = workerlink_pb2.WorkerMessage(
        register=workerlink_pb2.Register(name="w7", incarnation=1, window=1)
    )
    async with access.channel([attacked.addresses["dispatcher"]], kind="dispatcher") as channel:
        call = WorkerLinkStub(channel).Connect(timeout=DEADLINE_SECONDS)
        await call.write(register)
        await call.read()
        attacked.authority.revoke_certificate(attacked.authority.named("worker/w7"), now=THIS_HOST.utc_now())
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while not call.done():
                await call.write(workerlink_pb2.WorkerMessage(heartbeat=workerlink_pb2.Heartbeat()))
                await asyncio.sleep(0.1)
        # Python's client makes INTERNAL of an end that crosses a message on its way.
        assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
    log = (attacked.directory / "logs" / "dispatcher.log").read_text().splitlines()
    (line,) = (line for line in log if '"stream_ended"' in line and '"worker/w7"' in line)
    assert "the certificate was revoked" in line


@pytest.mark.parametrize("days", [-10, 10])
async def test_an_expired_certificate_and_one_of_next_week_do_not_connect(
    attacked: Attacked, tmp_path, days, monkeypatch
) -> None:
    now = THIS_HOST.utc_now() + timedelta(days=days)
    issued = attacked.authority.issue(
        Identity(CallerKind.CLIENT, "late", Role.ADMIN),
        now=now,
        lifetime=timedelta(days=1),
        into=tmp_path / "late",
    )
    with pytest.raises(ConfigError, match="has expired" if days < 0 else "not valid yet"):
        ClientAccess(issued.directory).channel([attacked.state.dispatcher], kind="dispatcher")

    def not_checked(_files: TlsFiles, _now: object) -> None:
        """What another program than HOSS's client would do."""

    monkeypatch.setattr(TlsFiles, "check_times", not_checked)
    client = DispatcherClient(
        [attacked.state.dispatcher], open_channel=ClientAccess(issued.directory).channel
    )
    await expect(client, TransportError, "Socket closed|cannot be reached")


async def test_a_client_does_not_take_a_worker_or_a_resolver_for_a_dispatcher(attacked: Attacked) -> None:
    for posing in (attacked.addresses["resolver"], attacked.state.processes[-1].address):
        client = DispatcherClient([posing], open_channel=ClientAccess(attacked.entry).channel)
        await expect(client, TransportError, "certificate")


async def test_a_worker_does_not_register_under_another_name(attacked: Attacked) -> None:
    access = ClientAccess(attacked.directory_of(Identity(CallerKind.WORKER, "w9")))
    async with access.channel([attacked.state.dispatcher], kind="dispatcher") as channel:
        register = workerlink_pb2.Register(name="w1", window=10)
        call = WorkerLinkStub(channel).Connect(iter([workerlink_pb2.WorkerMessage(register=register)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "worker/w9" in caught.value.details()


async def test_a_worker_does_not_propose_under_another_name(attacked: Attacked) -> None:
    access = ClientAccess(attacked.directory_of(Identity(CallerKind.WORKER, "w9")))
    resolver = ResolverClient([attacked.addresses["resolver"]], open_channel=access.channel)
    batch = resolver_pb2.ProposalBatch(worker="w1", epoch=1, batch_id=1)
    parts = resolver_pb2.ProposalBatch(
        worker="w9", epoch=1, batch_id=2, parts=[resolver_pb2.ProposalBatch(worker="w1", epoch=1)]
    )

    async def proposals():
        yield batch
        yield parts
        await asyncio.sleep(DEADLINE_SECONDS)

    answers = []
    call = resolver.stub.Propose(proposals())
    async for answer in call:
        answers.append(answer.invalid)
        if len(answers) == 2:
            break
    call.cancel()
    await resolver.close()
    assert all("worker/w9" in invalid for invalid in answers)


def job(name: str, namespace: str, replicas: int = 2, **spec) -> dispatcher_pb2.SubmitRequest:
    template = PodTemplate(PodSpec(namespace=namespace, **spec), owner_kind="Job")
    (request,) = submission([Workload(name, template, replicas)])
    return request


async def waits_for_room(client: DispatcherClient) -> bool:
    """Whether all large pods of its tenant were found to fit nowhere."""
    large = [info.phase async for info in client.list_pods() if info.name.startswith("huge-")]
    return bool(large) and set(large) == {dispatcher_pb2.UNSCHEDULABLE}


async def names_of(client: DispatcherClient) -> list[str]:
    return sorted([info.name async for info in client.list_pods()])


async def test_a_tenant_sees_and_changes_its_own_pods_and_those_of_others_do_not_exist_for_it(
    attacked: Attacked,
) -> None:
    async with attacked.client(Role.SUBMIT, "blue") as blue, attacked.client(Role.SUBMIT, "red") as red:
        await blue.submit(job("b", "blue"))
        await red.submit(job("r", "red"))
        of_blue = [info async for info in blue.list_pods()]
        assert await names_of(red) == ["r-0", "r-1"]
        assert [j.name for j in await red.list_jobs()] == ["r"]
        assert [j.name for j in await red.list_jobs("blue", "b")] == []
        assert [
            t.name for t in (await red.stub.ListTenants(dispatcher_pb2.ListTenantsRequest())).tenants
        ] == ["red"]
        # By name and by UID: the answer is that of a pod that does not exist.
        for name, uid in (("b-0", b""), ("none-0", b""), ("", of_blue[0].uid), ("", b"x" * 16)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await red.stub.GetPod(dispatcher_pb2.GetPodRequest(namespace="blue", name=name, uid=uid))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            said = f"with UID {uid_text(uid)}" if uid else f"{name!r} in namespace 'blue'"
            assert caught.value.details() == f"there is no pod {said}; `hoss get pods -A` lists all"
        request = {"namespace": "blue", "jobs": ["b"], "pods": ["b-0"], "uids": of_blue[0].uid}
        for call, message in (
            (red.stub.Delete, dispatcher_pb2.DeleteRequest(**request)),
            (red.stub.Retry, dispatcher_pb2.RetryRequest(**request)),
            (red.stub.RemoveGates, dispatcher_pb2.RemoveGatesRequest(**request)),
        ):
            reply = await call(message)
            assert len(reply.not_found) == 3
        assert (await red.stub.Retry(dispatcher_pb2.RetryRequest(every=True))).retried_pods == 0
        assert await names_of(blue) == ["b-0", "b-1"]
        # A view may not do what submit may.
        async with attacked.client(Role.VIEW, "red") as viewer:
            with pytest.raises(AccessDenied, match="role submit"):
                await viewer.submit(job("v", "red"))


async def test_a_tenant_submits_nothing_in_anothers_name(attacked: Attacked) -> None:
    async with attacked.client(Role.SUBMIT, "red") as red:
        with pytest.raises(AccessDenied, match="limited to 'red'"):
            await red.submit(job("mine", "blue"))

        async def requests():
            yield job("streamed", "blue")

        with pytest.raises(AccessDenied, match="limited to 'red'"):
            async for _ in red.submit_stream(requests()):
                pass
    async with attacked.client(Role.VIEW) as everything:
        assert not {"mine-0", "streamed-0"} & set(await names_of(everything))


async def test_who_knows_anothers_request_id_is_not_told_of_its_pods(attacked: Attacked) -> None:
    async with attacked.client(Role.SUBMIT, "red") as red, attacked.client(Role.SUBMIT, "green") as green:
        request = job("owned", "red")
        request.request_id = "guessed"
        first = await red.submit(request)
        assert [each.name for each in (await red.submit(request)).sets] == ["owned"]
        other = job("owned", "green")
        other.request_id, other.submitted_by = "guessed", "client/bearer@red"
        with pytest.raises(InvalidInput, match="somebody else has used this request_id"):
            await green.submit(other)
        assert await names_of(green) == []
        assert first.accepted_pods == 2


async def test_a_client_does_not_write_to_the_ledger_under_a_term(attacked: Attacked) -> None:
    operator = Identity(CallerKind.CLIENT, "operator", Role.ADMIN)
    access = ClientAccess(attacked.directory_of(operator))
    resolver = ResolverClient([attacked.addresses["resolver"]], open_channel=access.channel)
    resolver.term = 2**40
    nobody = np.zeros((1, 16), np.uint8)
    for write in (
        lambda: resolver.release(nobody),
        lambda: resolver.upsert_nodes(simulated_nodes(1, seed=1)),
        lambda: resolver.remove_nodes(["nobody"]),
        lambda: resolver.cordon_node(simulated_nodes(1, seed=1)[0].name, True),
    ):
        with pytest.raises(InvalidInput, match="only a dispatcher writes under a term"):
            await write()
    resolver.term = 0
    assert (await resolver.release(nobody)).released == 0
    await resolver.close()


@pytest.mark.parametrize("states", [True, False])
async def test_a_tenants_watch_has_no_event_and_no_text_of_others(attacked: Attacked, states: bool) -> None:
    async with attacked.client(Role.SUBMIT, "green") as green, attacked.client(Role.SUBMIT, "grey") as grey:
        names = f"states-{states}".lower()
        await grey.submit(job(f"before-{names}", "grey"))
        call = green.stub.Watch(dispatcher_pb2.WatchRequest(states=states))
        seen, texts, numbers = set(), set(), count()

        async def follow() -> None:
            async for batch in call:
                seen.update(batch.uids[i : i + 16] for i in range(0, len(batch.uids), 16))
                texts.update(batch.reason_texts)

        async def begun() -> bool:
            await green.submit(job(f"first-{names}-{next(numbers)}", "green"))
            return bool(seen)

        async def last_is_seen() -> bool:
            last = {info.uid async for info in green.list_pods() if info.name.startswith(f"own-{names}")}
            return len(last) == 2 and last <= seen

        following = asyncio.ensure_future(follow())
        await until(begun, "an event of the stream")
        await grey.submit(job(f"huge-{names}", "grey", requests=(("cpu", 10**9),)))
        await until(lambda: waits_for_room(grey), "an event of a pod of others, with a text")
        # Events come in order: with one of a later pod, those of others would be there.
        await green.submit(job(f"own-{names}", "green"))
        await until(last_is_seen, "an event of an own pod")
        others = {info.uid async for info in grey.list_pods()}
        following.cancel()
        assert others
        assert not seen & others
        assert not any("cpu" in text for text in texts)


def test_a_server_speaks_tls_1_3_alone(attacked: Attacked) -> None:
    host, _, port = attacked.addresses["dispatcher"].rpartition(":")
    for version, accepted in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(attacked.entry / "ca.crt")
        context.load_cert_chain(attacked.entry / "tls.crt", attacked.entry / "tls.key")
        context.set_alpn_protocols(["h2"])
        context.maximum_version = version
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS))
            if not accepted:
                stack.enter_context(pytest.raises(OSError))
            secured = stack.enter_context(context.wrap_socket(plain))
            assert secured.version() == "TLSv1.3"


async def test_no_secret_of_the_run_is_in_a_log_a_state_file_or_a_process_list(attacked: Attacked) -> None:
    token = attacked.token(Role.VIEW)
    access = ClientAccess(attacked.entry, token)
    async with DispatcherClient([attacked.state.dispatcher], open_channel=access.channel) as client:
        await client.list_jobs()
        with pytest.raises(AccessDenied):
            await client.submit(job("refused", "anywhere"))
    access = ClientAccess(attacked.entry, f"{token}x")
    await expect(
        DispatcherClient([attacked.state.dispatcher], open_channel=access.channel),
        AccessDenied,
        "was changed|no token",
    )
    security = attacked.directory / platform.SECURITY_DIRECTORY
    keys = [*security.rglob("*.key")]
    secrets = [token, (security / "redis.password").read_text().strip()]
    secrets += [key.read_text().splitlines()[1] for key in keys]
    assert len(secrets) > 8
    places = [attacked.directory / platform_state.STATE_FILE, *(attacked.directory / "logs").iterdir()]
    texts = {str(path): path.read_text(errors="replace") for path in places}
    texts |= {
        record.name: " ".join(process.cmdline())
        for record in attacked.state.processes
        if (process := record.find()) is not None
    }
    assert any('"audit"' in text for text in texts.values())
    assert any('"caller_refused"' in text for text in texts.values())
    assert [name for name, text in texts.items() for secret in secrets if secret in text] == []


def open_to_others(path: Path) -> bool:
    """Whether another user may do anything with a path. One that is gone was a file that the running platform
    has replaced since it was listed, such as a dump of Redis."""
    try:
        return bool(path.stat().st_mode & 0o077)
    except FileNotFoundError:
        return False


def test_another_user_of_this_machine_reads_no_file_of_the_platform(attacked: Attacked) -> None:
    """Neither the ledger and the journal of Redis, nor logs, with the names of pods and tenants."""
    closed = {path for path in attacked.directory.rglob("*") if path.is_dir() and not open_to_others(path)}
    readable = [
        str(path.relative_to(attacked.directory))
        for path in attacked.directory.rglob("*")
        if not closed & {*path.parents} and open_to_others(path)
    ]
    assert {path.name for path in closed} >= {"redis", "logs", platform.SECURITY_DIRECTORY}
    assert readable == []


def test_the_platforms_redis_answers_nobody_without_the_password(attacked: Attacked) -> None:
    address = next(record.address for record in attacked.state.processes if record.name == "redis")
    host, _, port = address.rpartition(":")
    with redis.Redis(host=host, port=int(port)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.keys("*")


async def test_who_did_what_is_in_the_audit_log(attacked: Attacked) -> None:
    async with attacked.client(Role.OPERATE) as operator, attacked.client(Role.VIEW) as viewer:
        await operator.set_worker_state("w1", "Cordoned")
        await operator.set_worker_state("w1", "Ready")
        with pytest.raises(AccessDenied):
            await viewer.set_worker_state("w1", "Cordoned")
    log = (attacked.directory / "logs" / "dispatcher.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if '"event": "audit"' in line]
    states = [line for line in lines if line["method"].endswith("/SetWorkerState")][-3:]
    assert [(line["role"], line["outcome"]) for line in states] == [
        ("operate", "allowed"),
        ("operate", "allowed"),
        ("view", "refused"),
    ]
    assert all(line["caller"] == "client/bearer" and line["request"]["name"] == "w1" for line in states)


@pytest.mark.parametrize("kind", ["dispatcher", "resolver"])
async def test_health_is_watched_behind_the_same_door(attacked: Attacked, kind: str) -> None:
    """As channels to several dispatchers do."""
    async with ClientAccess(attacked.entry).channel([attacked.addresses[kind]], kind=kind) as channel:
        call = HealthStub(channel).Watch(HealthCheckRequest(), timeout=DEADLINE_SECONDS)
        assert (await call.read()).status == HealthCheckResponse.SERVING
        call.cancel()


def directory_with(pair: KeyPair, authority: Path, directory: Path) -> Path:
    """As --tls-dir takes it. `authority`: whom it trusts."""
    directory.mkdir()
    (directory / "ca.crt").write_bytes(authority.read_bytes())
    (directory / "tls.crt").write_bytes(pair.certificate)
    (directory / "tls.key").write_bytes(pair.key)
    return directory


def self_signed(uri: str, host: str = "") -> KeyPair:
    key, now = ec.generate_private_key(ec.SECP256R1()), THIS_HOST.utc_now()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "self")])
    names = [x509.UniformResourceIdentifier(uri), *([x509.DNSName(host)] if host else [])]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return KeyPair(signed.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


async def test_a_self_signed_certificate_does_not_connect_and_its_bearer_is_told_what_to_do(
    attacked: Attacked, tmp_path: Path
) -> None:
    pair = self_signed("hoss:client/eve?role=admin")
    access = ClientAccess(directory_with(pair, attacked.entry / "ca.crt", tmp_path / "eve"))
    client = DispatcherClient([attacked.state.dispatcher], open_channel=access.channel)
    await expect(client, TransportError, "may want TLS and a certificate of its authority: give one with")


def test_a_user_whose_certificate_is_not_known_reads_one_sentence(
    attacked: Attacked, strange: Authority
) -> None:
    """And none of gRPC's own lines beside it."""
    eve = strange.issue(Identity(CallerKind.CLIENT, "eve", Role.ADMIN), now=THIS_HOST.utc_now()).directory
    done = subprocess.run(
        [sys.executable, "-m", "hossctl", "get", "pods", "--dispatcher", attacked.state.dispatcher],
        env={**os.environ, "HOSS_TLS_DIR": str(eve), "HOSS_HOME": str(eve)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 3
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("error: dispatcher ")
    assert "of another authority than this client trusts" in sentence


async def test_the_longest_token_gets_to_the_service(attacked: Attacked) -> None:
    """Beside the other headers of a call; one of an issuer with many groups is long."""
    access = ClientAccess(attacked.entry, "a." * (MOST_TOKEN_BYTES // 2))
    for _ in range(20):  # gRPC refuses too much by chance
        client = DispatcherClient([attacked.state.dispatcher], open_channel=access.channel)
        await expect(client, AccessDenied, "is no token of HOSS")


async def test_a_certificate_of_the_authority_without_an_identity_is_no_caller(
    attacked: Attacked, tmp_path: Path
) -> None:
    security = attacked.authority.directory
    authority = KeyPair((security / "ca.crt").read_bytes(), (security / "ca.key").read_bytes())
    now, day = THIS_HOST.utc_now(), timedelta(days=1)
    for number, uri in enumerate(("https://example.com/eve", "hoss:root/eve", "hoss:client/eve?role=god")):
        pair = certificates.issue(authority, (), now=now, lifetime=day, uri=uri)
        directory = directory_with(pair, attacked.entry / "ca.crt", tmp_path / str(number))
        client = DispatcherClient([attacked.state.dispatcher], open_channel=ClientAccess(directory).channel)
        await expect(client, AccessDenied, "names no identity of HOSS" if number == 0 else "cannot be read")


async def test_a_certificate_without_a_role_and_no_token_is_told_to_show_one(attacked: Attacked) -> None:
    client = DispatcherClient([attacked.state.dispatcher], open_channel=ClientAccess(attacked.entry).channel)
    await expect(client, AccessDenied, "its certificate has none: show a token too")


async def test_a_plaintext_client_at_a_tls_port_is_told_what_to_do(attacked: Attacked) -> None:
    client = DispatcherClient([attacked.state.dispatcher], open_channel=rpc.channel)
    await expect(client, TransportError, "may want TLS and a certificate of its authority: give one with")


async def test_a_tls_client_at_a_plaintext_port_is_told_what_to_do(attacked: Attacked) -> None:
    server = Server()
    port = await server.start("127.0.0.1:0", [])
    try:
        access = ClientAccess(attacked.entry, attacked.token(Role.ADMIN))
        client = DispatcherClient([f"127.0.0.1:{port}"], open_channel=access.channel)
        await expect(client, TransportError, "it speaks no TLS, and this client does")
    finally:
        await server.stop()


@pytest.mark.parametrize("signed", ["by itself", "by another authority"])
async def test_a_server_that_poses_as_a_dispatcher_is_recognised(
    attacked: Attacked, strange: Authority, tmp_path: Path, signed: str
) -> None:
    if signed == "by itself":
        pair = self_signed("hoss:dispatcher", "dispatcher.hoss.internal")
        posing = directory_with(pair, attacked.entry / "ca.crt", tmp_path / "posing")
    else:
        posing = strange.issue(Identity(CallerKind.DISPATCHER), now=THIS_HOST.utc_now()).directory
    server = Server(credentials=server_credentials(TlsFiles(posing)))
    port = await server.start("127.0.0.1:0", [])
    try:
        access = ClientAccess(attacked.entry, attacked.token(Role.ADMIN))
        client = DispatcherClient([f"127.0.0.1:{port}"], open_channel=access.channel)
        await expect(client, TransportError, "of another authority than this client trusts")
    finally:
        await server.stop()
