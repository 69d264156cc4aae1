"""A Kubernetes control plane of one's own: etcd, kube-apiserver and, where asked for, kube-scheduler, as processes on loopback.

For tests and benchmarks: nothing in it outlives its directory, and etcd never waits for the disk. There are no controllers and no
kubelets: nodes are plain Node objects, pods are created by whoever needs them, and stay as they were bound.
"""

import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hoss.certificates import issue, new_authority
from hoss.errors import HossError
from hossctl.kube_binaries import Binaries, find_binaries
from hossctl.ports import free_ports
from hossctl.process import ProcessRecord, log_tail, record_of, stop_all

_START_SECONDS = 240.0  # three seconds on an idle machine, a minute and more on a busy one
_POLL_SECONDS = 0.05
_LIFETIME = timedelta(days=30)

# What a client may send, beyond what any test or benchmark does: the limits of a scheduler are its own to show.
_SCHEDULER_QPS = 5000

ADMINISTRATOR = "admin"  # the user of the kubeconfig
HOSS = "hoss"  # a user without any rights, until somebody grants some
_SCHEDULER = "system:kube-scheduler"  # whom RBAC's own bootstrap policy knows


class ControlPlane:
    """Running processes. `stop` ends them; parts can be killed, frozen by their record, and started again where they were."""

    def __init__(self, directory: Path, binaries: Binaries, *, audited: str = "") -> None:
        self.directory = directory
        # JSON lines: requests of the service accounts of the namespace `audited`.
        self.audit_log = directory / "audit.log"
        self._audited = audited
        listening = ("kube-apiserver", "etcd", "etcd-peer", "kube-scheduler")
        self._ports = dict(zip(listening, free_ports(len(listening)), strict=True))
        self.url = f"https://127.0.0.1:{self._ports['kube-apiserver']}"
        self.kubeconfig = directory / "kubeconfig"  # of an administrator
        self.hoss_kubeconfig = directory / "hoss.kubeconfig"
        self.scheduler_kubeconfig = directory / "scheduler.kubeconfig"  # with a scheduler's rights
        self.certificate_authority = directory / "ca.crt"
        self.token = secrets.token_hex(16)  # the administrator's
        self._binaries = binaries
        self._tokens = {ADMINISTRATOR: self.token, **{user: secrets.token_hex(16) for user in (HOSS, _SCHEDULER)}}
        self._processes: dict[str, tuple[subprocess.Popen[bytes], ProcessRecord]] = {}

    @classmethod
    def start(
        cls, directory: Path, *, scheduler: bool = False, binaries: Binaries | None = None, audited: str = ""
    ) -> "ControlPlane":
        """Start one with its files in `directory` and wait until it serves; with `scheduler` also a kube-scheduler. `audited`: a
        namespace whose service accounts' requests are logged.

        Raises ConfigError where there are no binaries, HossError when a part does not come up, with the end of its log.
        """
        plane = cls(directory, binaries or find_binaries(), audited=audited)
        directory.mkdir(parents=True, exist_ok=True)
        plane._write_files()
        try:
            plane.start_etcd()
            plane.start_apiserver()
            if scheduler:
                plane.start_scheduler()
        except BaseException:
            plane.stop()
            raise
        return plane

    def start_etcd(self) -> None:
        """Start etcd, with what an earlier one in this directory left."""
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "etcd-peer"))
        self._launch(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # what it holds is gone with the directory anyway
            f"--quota-backend-bytes={8 * 2**30}",
            "--log-level=warn",
        )
        self._await("etcd", f"{client}/readyz")

    def start_apiserver(self) -> None:
        """Start kube-apiserver at the address it always has."""
        self._launch(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['kube-apiserver']}",
            f"--tls-cert-file={self.directory / 'apiserver.crt'}",
            f"--tls-private-key-file={self.directory / 'apiserver.key'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory / 'service-accounts.key'}",
            f"--service-account-signing-key-file={self.directory / 'service-accounts.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # No controller makes service accounts for pods, and none takes away the taint that new nodes get.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            # A single loopback address is no endpoint for the service `kubernetes`, which nobody here uses.
            "--endpoint-reconciler-type=none",
            # Comparisons are between schedulers, not between their shares of the API server.
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--allow-privileged=true",
            "--profiling=false",
            *self._audit_flags(),
        )
        self._await("kube-apiserver", f"{self.url}/readyz")

    def _audit_flags(self) -> list[str]:
        if not self._audited:
            return []
        return [f"--audit-policy-file={self.directory / 'audit.json'}", f"--audit-log-path={self.audit_log}"]

    def start_scheduler(self) -> None:
        """Start kube-scheduler, its limit on requests lifted. It schedules the pods that name no scheduler."""
        port = self._ports["kube-scheduler"]
        self._launch(
            "kube-scheduler",
            f"--config={self.directory / 'scheduler.json'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={self.directory / 'apiserver.crt'}",
            f"--tls-private-key-file={self.directory / 'apiserver.key'}",
        )
        self._await("kube-scheduler", f"https://127.0.0.1:{port}/readyz")

    def record(self, name: str) -> ProcessRecord:
        """Of a part that was started: "etcd", "kube-apiserver" or "kube-scheduler"."""
        return self._processes[name][1]

    def kill(self, name: str) -> None:
        """As kill -9, and wait until it is gone."""
        process, _ = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all parts, those first that use the others."""
        for name in ("kube-scheduler", "kube-apiserver", "etcd"):
            if name in self._processes:
                # An API server waits a minute for its watchers to leave; nobody needs its goodbye.
                stop_all([self._processes.pop(name)[1]], grace_seconds=2.0)

    def _launch(self, name: str, *arguments: str) -> None:
        log = self.directory / f"{name}.log"
        with log.open("ab") as output:
            # A session of its own, as every process we start: Ctrl-C is for us, and we stop in order.
            process = subprocess.Popen(  # noqa: S603 - the binaries we found, our arguments
                [str(self._binaries.path(name)), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes[name] = process, record_of(name, process.pid, log)

    def _await(self, name: str, url: str) -> None:
        process, record = self._processes[name]
        log = Path(record.log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers(url):
            code = process.poll()
            if code is not None:
                raise HossError(f"{name} ended with code {code} before it served\n{log_tail(log)}")
            if time.monotonic() > deadline:
                raise HossError(f"{name} did not serve within {_START_SECONDS:g} s\n{log_tail(log)}")
            time.sleep(_POLL_SECONDS)

    def _answers(self, url: str) -> bool:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310 - our URLs
        trust = ssl.create_default_context(cafile=str(self.certificate_authority))
        try:
            with urllib.request.urlopen(request, timeout=2.0, context=trust) as reply:  # noqa: S310 - our URLs
                return bool(reply.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _write_files(self) -> None:
        now = datetime.now(timezone.utc)
        authority = new_authority("hoss test control plane", now=now, lifetime=_LIFETIME)
        serving = issue(authority, ["127.0.0.1", "localhost"], now=now, lifetime=_LIFETIME)
        signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        groups = {ADMINISTRATOR: ',"system:masters"'}
        tokens = [f"{token},{user},{user}{groups.get(user, '')}\n" for user, token in self._tokens.items()]
        self._write("tokens.csv", "".join(tokens).encode())
        self._write("ca.crt", authority.certificate)
        self._write("apiserver.crt", serving.certificate)
        self._write("apiserver.key", serving.key)
        self._write("service-accounts.key", signing.private_bytes(*pem))
        self._write("kubeconfig", self._kubeconfig_of(ADMINISTRATOR))
        self._write("hoss.kubeconfig", self._kubeconfig_of(HOSS))
        self._write("scheduler.kubeconfig", self._kubeconfig_of(_SCHEDULER))
        self._write("scheduler.json", self._scheduler_configuration())
        self._write("audit.json", self._audit_policy())

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)

    def _kubeconfig_of(self, user: str) -> bytes:
        """As JSON, which is YAML as well."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "hoss",
            "clusters": [_named("hoss", "cluster", server=self.url, **{"certificate-authority": str(self.certificate_authority)})],
            "users": [_named(user, "user", token=self._tokens[user])],
            "contexts": [_named("hoss", "context", cluster="hoss", user=user)],
        }  # fmt: skip
        return orjson.dumps(config, option=orjson.OPT_INDENT_2)

    def _audit_policy(self) -> bytes:
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{self._audited}"]}],
        }
        return orjson.dumps(policy, option=orjson.OPT_INDENT_2)

    def _scheduler_configuration(self) -> bytes:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.scheduler_kubeconfig),
                "qps": _SCHEDULER_QPS,
                "burst": _SCHEDULER_QPS,
            },
        }
        return orjson.dumps(config, option=orjson.OPT_INDENT_2)


def _named(name: str, kind: str, **fields: str) -> dict[str, object]:
    return {"name": name, kind: fields}
