"""A private Kubernetes control plane: etcd, kube-apiserver and optionally kube-scheduler, as processes on
loopback.

It serves tests and benchmarks. Nothing in it outlives its directory, and etcd does not wait for the disk. It
has no controllers and no kubelets: nodes are plain Node objects, and a bound pod stays as it was bound.

The programs are found by the convention of envtest: $KUBEBUILDER_ASSETS names a directory that has them.
Without it they are expected in a cache outside the source tree, where tools/controlplane.py puts what it
builds from the Go module in tests/e2e/controlplane. The cache has one directory for each state of that
module."""

import hashlib
import os
import re
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import orjson

from hoss.errors import ConfigError, HossError
from hossctl.local.ports import free_ports
from hossctl.local.process import ProcessRecord, log_tail, record_of, stop_all

SOURCE = Path(__file__).parents[2] / "tests" / "e2e" / "controlplane"  # the Go module; it pins the versions
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
CACHE_VARIABLE = "HOSS_CONTROLPLANE_CACHE"
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler")

_START_SECONDS = 240.0  # three seconds on an idle machine, a minute and more on a busy one
_POLL_SECONDS = 0.05
_LIFETIME = timedelta(days=30)

# Requests a second that kube-scheduler may send: more than any test or benchmark needs, so that its own
# speed is measured and not this limit.
_SCHEDULER_QPS = 5000

# Have kube-apiserver serve the PodGroups of Kubernetes itself, which are alpha in 1.36.
WORKLOAD_API = ("--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true")

ADMINISTRATOR = "admin"  # the user of the kubeconfig
HOSS = "hoss"  # a user that has no rights at first
_SCHEDULER = "system:kube-scheduler"  # has its rights by RBAC's bootstrap policy


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory of the control plane's programs."""

    directory: Path

    def path(self, name: str) -> Path:
        """Of one of PROGRAMS."""
        return self.directory / name

    def missing(self) -> list[str]:
        """Names of the programs that are not there."""
        return [name for name in PROGRAMS if not os.access(self.path(name), os.X_OK)]


def find_binaries() -> Binaries:
    """The programs of $KUBEBUILDER_ASSETS, else of the cache. Raises ConfigError that says how to get
    them."""
    if given := os.environ.get(ASSETS_VARIABLE):
        binaries = Binaries(Path(given))
        if missing := binaries.missing():
            raise ConfigError(
                f"{given} has no {', '.join(missing)}; unset it to have them built, or fill it "
                "(setup-envtest brings all but kube-scheduler)",
                where=f"${ASSETS_VARIABLE}",
            )
        return binaries
    binaries = Binaries(cache_directory())
    if binaries.missing():
        needs_go = (
            ""
            if shutil.which("go")
            else f", when Go {go_version()} or newer is installed (https://go.dev/dl)"
        )
        raise ConfigError(
            f"there is none in {binaries.directory}; `make controlplane` builds it, in some minutes and once"
            f"{needs_go}; or set ${ASSETS_VARIABLE} to a directory with {', '.join(PROGRAMS)}",
            where="Kubernetes control plane",
        )
    return binaries


def cache_directory(source: Path | None = None) -> Path:
    """Where programs built from the present state of a Go module are: of the control plane's, or of the one
    in `source`. Raises ConfigError where the module is not installed."""
    source = source or SOURCE
    given = os.environ.get(CACHE_VARIABLE)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = Path(given) if given else home / "hoss" / "controlplane"
    sums = source / "go.sum"
    if not sums.is_file():
        raise ConfigError(
            f"{source} is not there: it comes with the source tree, not with an installed package; set "
            f"${ASSETS_VARIABLE}",
            where="Kubernetes control plane",
        )
    state = hashlib.sha256(sums.read_bytes()).hexdigest()[:12]
    return base / f"{version_of('k8s.io/kubernetes', source)}-{state}"


def version_of(package: str, source: Path | None = None) -> str:
    """The version that a go.mod requires of a package's module: the control plane's, or the one in
    `source`."""
    required: list[tuple[str, str]] = re.findall(
        r"^\s+(\S+) (v\S+)", ((source or SOURCE) / "go.mod").read_text(), re.MULTILINE
    )
    return next(version for module, version in required if package.startswith(module))


def go_version() -> str:
    """The Go that go.mod asks for, as "1.26"."""
    found = re.search(r"^go (\d+\.\d+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else ""


class ControlPlane:
    """Running processes. `stop` ends them. A part can be killed, or frozen by its record, and started again
    at the same address."""

    def __init__(
        self, directory: Path, binaries: Binaries, *, audited: str = "", apiserver_flags: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self._apiserver_flags = tuple(apiserver_flags)
        self.audit_log = directory / "audit.log"  # JSON lines
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
        self._tokens = {
            ADMINISTRATOR: self.token,
            **{user: secrets.token_hex(16) for user in (HOSS, _SCHEDULER)},
        }
        self._processes: dict[str, tuple[subprocess.Popen[bytes], ProcessRecord]] = {}

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        scheduler: bool = False,
        binaries: Binaries | None = None,
        audited: str = "",
        apiserver_flags: Sequence[str] = (),
    ) -> "ControlPlane":
        """Start one with its files in `directory` and wait until it serves; with `scheduler` also a
        kube-scheduler. `audited`: requests of this namespace's service accounts are written to `audit_log`.
        `apiserver_flags`: more flags, such as WORKLOAD_API.

        Raises ConfigError where programs are missing, and HossError when a part does not come up, with the
        end of its log."""
        plane = cls(directory, binaries or find_binaries(), audited=audited, apiserver_flags=apiserver_flags)
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
        """Start etcd on the data that an earlier one left in this directory."""
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "etcd-peer"))
        self._launch(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # its data goes with the directory anyway
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
            # No controller creates service accounts for pods or removes the taint that new nodes get.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            # A loopback address cannot be an endpoint of the service `kubernetes`, and nothing here uses it.
            "--endpoint-reconciler-type=none",
            # Comparisons measure schedulers, not their shares of the API server.
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--allow-privileged=true",
            "--profiling=false",
            *self._audit_flags(),
            *self._apiserver_flags,
        )
        self._await("kube-apiserver", f"{self.url}/readyz")

    def _audit_flags(self) -> list[str]:
        if not self._audited:
            return []
        return [f"--audit-policy-file={self.directory / 'audit.json'}", f"--audit-log-path={self.audit_log}"]

    def start_scheduler(self, config: Path | None = None) -> None:
        """Start kube-scheduler. Without a file of kind KubeSchedulerConfiguration it has no limit on
        requests, and schedules the pods that name no other. Raises HossError where it ends, with the end of
        its log."""
        port = self._ports["kube-scheduler"]
        self._launch(
            "kube-scheduler",
            f"--config={config or self.directory / 'scheduler.json'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={self.directory / 'apiserver.crt'}",
            f"--tls-private-key-file={self.directory / 'apiserver.key'}",
        )
        self._await("kube-scheduler", f"https://127.0.0.1:{port}/readyz")

    def record(self, name: str) -> ProcessRecord:
        """The record of one of PROGRAMS that was started."""
        return self._processes[name][1]

    def kill(self, name: str) -> None:
        """Kill one with SIGKILL and wait until it has ended."""
        process, _ = self._processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all parts, users before what they use."""
        for name in ("kube-scheduler", "kube-apiserver", "etcd"):
            if name in self._processes:
                process, record = self._processes.pop(name)
                # An API server would wait a minute for its watchers to leave.
                stop_all([record], grace_seconds=2.0)
                process.wait()

    def _launch(self, name: str, *arguments: str) -> None:
        log = self.directory / f"{name}.log"
        with log.open("ab") as output:
            # A session of its own: Ctrl-C reaches only us, and we stop the parts in order.
            process = subprocess.Popen(  # noqa: S603 - programs found above, our arguments
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
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our URLs
        trust = ssl.create_default_context(cafile=str(self.certificate_authority))
        try:
            with urllib.request.urlopen(request, timeout=2.0, context=trust) as reply:  # noqa: S310
                return bool(reply.status == 200)
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except (OSError, urllib.error.URLError):
            return False

    def _write_files(self) -> None:
        # Callers that only look for the programs do not need cryptography, which is an extra.
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

        from hoss.certificates import issue, new_authority  # noqa: PLC0415

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
        """As JSON, which is valid YAML."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificate_authority)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "hoss",
            "clusters": [{"name": "hoss", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "hoss", "context": {"cluster": "hoss", "user": user}}],
        }
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
