"""A node with a real kubelet, containerd and runc, in namespaces of its own: what it mounts is nobody else's,
and when its first process is killed, the kernel ends containers and all.

What a kubelet changes on a machine stays in there too, cgroups below a directory of the node's own excepted.
Pods have a network without any way out."""

import contextlib
import functools
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import orjson
import psutil
from e2e.kubernetes.api import Api
from waiting import DEADLINE_SECONDS, wait_until

from hoss.errors import HossError
from hossctl.local.control_plane import ControlPlane
from hossctl.local.process import log_tail
from tools.kubelet import built, missing

IMAGE = "hoss.test/pause:1"  # does nothing until it is told to end, or for as long as its argument says

_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

# Everything that containerd and kubelet keep, at whatever fixed path, is in memory, and only for themselves.
# The kubelet sets some values of the kernel, which belong to all: it sets copies.
_BOOT = """
set -e
for private in /run /var/lib /var/log; do mount -t tmpfs private $private; done
mkdir -p /run/containerd /run/kernel
for value in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \\
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy=/run/kernel/$(basename $value)
  cat /proc/sys/$value > $copy
  mount --bind $copy /proc/sys/$value
done
containerd --config containerd.toml > containerd.log 2>&1 &
until ctr --namespace k8s.io images import image.tar > images.log 2>&1; do
  kill -0 $! && sleep 0.1
done
exec "$@"
"""

_CONTAINERD = """
version = 2
# They look for programs and devices that nothing here needs.
disabled_plugins = [{disabled}]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true  # to be spared more than its parent takes a right that root may lack
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{directory}/network"
    conf_dir = "{directory}/network"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"  # images are copied: not every file system can be laid over another
"""
_DISABLED = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")]

# A network plugin that connects nothing. Kubelets call a node ready only with one.
_NETWORK = """#!/bin/sh
cat > /dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}' ;;
ADD) cat << END
{"cniVersion": "0.4.0", "interfaces": [{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}],
 "ips": [{"version": "4", "address": "192.0.2.1/24", "interface": 0}]}
END
esac
"""


@functools.cache
def no_kubelet() -> str:
    """Why no node with a kubelet can be made here; "" where one can."""
    if os.geteuid() != 0:
        return "no kubelet: it takes root"
    if lacking := [name for name in ("containerd", "ctr", "runc", "unshare") if shutil.which(name) is None]:
        return f"no kubelet: no {', '.join(lacking)} on PATH (Debian: apt-get install containerd runc)"
    try:
        if lacking := missing():
            return f"no kubelet: no {', '.join(lacking)} in {built()}; `make kubelet` builds what it takes"
    except HossError as exc:
        return f"no kubelet: {exc}"
    tried = subprocess.run(
        [*_NAMESPACES, "mount", "-t", "tmpfs", "x", "/run"], capture_output=True, check=False
    )
    if tried.returncode:
        return f"no kubelet: no namespaces can be made ({tried.stderr.decode().strip()})"
    return _no_cgroup()


def _no_cgroup() -> str:
    made = [controller / f"hoss-probe-{os.getpid()}" for controller in _hierarchies()]
    try:
        for cgroup in made:
            cgroup.mkdir()
    except OSError as exc:
        return f"no kubelet: no cgroup can be made ({exc})"
    finally:
        for cgroup in made:
            if cgroup.is_dir():
                cgroup.rmdir()
    return "" if made else f"no kubelet: no cgroups are mounted at {_CGROUPS}"


def _hierarchies() -> list[Path]:
    """Where cgroups are made: one of version 2, or one for each controller of version 1."""
    if not _CGROUPS.is_dir():
        return []
    mounted = [_CGROUPS, *(path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())]
    return [path for path in mounted if (path / "cgroup.procs").exists() and path.is_mount()]


class KubeletNode:
    """It offers `milli_cpu` of this machine's cpu to pods. Started with all that it takes; `stop` ends it."""

    def __init__(self, directory: Path, plane: ControlPlane, name: str, *, milli_cpu: int = 1000) -> None:
        self.name = name
        self._directory = directory / name
        (self._directory / "network").mkdir(parents=True)
        self._cgroup = f"hoss-{os.getpid()}-{name}"
        self._write_files(milli_cpu)
        self._log = self._directory / "kubelet.log"
        kubelet = [f"{built() / 'kubelet'}", "--config=kubelet.json", f"--kubeconfig={plane.kubeconfig}"]
        kubelet += [f"--hostname-override={name}", "--root-dir=/run/kubelet", "--cert-dir=/run/kubelet/pki"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_NAMESPACES, "sh", "-c", _BOOT, "sh", *kubelet],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_ready(self, api: Api) -> None:
        """Return once its kubelet has registered the node, and says that it takes pods."""
        wait_until(lambda: self._is_ready(api), lambda: f"{self.name} is ready\n{log_tail(self._log)}")

    def stop(self) -> None:
        """Without a word to the API server, as a machine that loses power."""
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        for hierarchy in _hierarchies():
            wait_until(lambda root=hierarchy / self._cgroup: _removed(root), "its cgroups are empty")

    def _is_ready(self, api: Api) -> bool:
        assert self._process.poll() is None, f"{self.name} has ended\n{log_tail(self._log)}"
        status, node = api.request("GET", f"/api/v1/nodes/{self.name}")
        conditions = node["status"].get("conditions", ()) if status == 200 else ()
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _write_files(self, milli_cpu: int) -> None:
        reserved = (psutil.cpu_count() or 1) * 1000 - milli_cpu
        assert reserved >= 0, f"this machine has not {milli_cpu} milli of cpu"
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "systemReserved": {"cpu": f"{reserved}m"},  # told to the API server, and not enforced
            "enforceNodeAllocatable": [],
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "cgroupsPerQOS": False,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            # It listens nowhere: nobody asks for logs here.
            "enableServer": False,
            "healthzPort": 0,
            # A full disk of the machine under test is no business of these tests.
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": "/run/pod-logs",
            "volumePluginDir": "/run/volume-plugins",
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "1s",
        }
        self._write("kubelet.json", orjson.dumps(config))
        disabled = ", ".join(f'"{name}"' for name in _DISABLED)
        configured = _CONTAINERD.format(disabled=disabled, image=IMAGE, directory=self._directory)
        self._write("containerd.toml", configured.encode())
        self._write("image.tar", _image(IMAGE, (built() / "pause").read_bytes()))
        # containerd looks for a plugin of this name too.
        for plugin in ("none", "loopback"):
            self._write(f"network/{plugin}", _NETWORK.encode())
            (self._directory / "network" / plugin).chmod(0o755)
        network = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}
        self._write("network/none.conflist", orjson.dumps(network))

    def _write(self, name: str, content: bytes) -> None:
        (self._directory / name).write_bytes(content)


def _removed(cgroup: Path) -> bool:
    """Remove a cgroup with those in it, unless a process that was killed is still there."""
    with contextlib.suppress(OSError):
        for inner, _, _ in os.walk(cgroup, topdown=False):
            Path(inner).rmdir()
    return not cgroup.exists()


def _image(name: str, program: bytes) -> bytes:
    """An archive with an OCI image (image-spec v1) whose one file is what it runs."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    layer = blob("layer.v1.tar", _archive({"pause": program}))
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {"schemaVersion": 2, "config": blob("config.v1+json", orjson.dumps(config)), "layers": [layer]}
    listed = blob("manifest.v1+json", orjson.dumps(manifest))
    index = {"schemaVersion": 2, "manifests": [{**listed, "annotations": {"io.containerd.image.name": name}}]}
    layout = {"imageLayoutVersion": "1.0.0"}
    return _archive({**blobs, "index.json": orjson.dumps(index), "oci-layout": orjson.dumps(layout)})


def _archive(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
