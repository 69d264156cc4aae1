"""Fixtures that every kind of test may use."""

import asyncio
import faulthandler
import gc
import json
import os
import signal
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fork_server import FORK_SERVER, ForkedProcess
from left_processes import Run
from machine import forget_users_settings, needs
from redis_topologies import RunningRedis, as_documented, empty, use_chosen_server
from run_report import RunReport
from waiting import DEADLINE_SECONDS, wait_until

from dispatcher.journal import redis_store
from hoss.model.conflicts import Criteria
from hoss.model.pod import HostPort
from hoss.model.resources import PODS, Pairs
from hoss.redis import access as redis_access
from hoss.v1 import common_pb2
from hoss.wire.columns import NONE_U32, numbered_uids
from hossctl.local.process import ServiceProcess
from hossctl.local.redis_server import RedisServer
from resolver.core.values import Group, LedgerNodeChange, Proposal, claim_of
from resolver.ledger import scripts

# Tests that mostly wait for services come with tests that mostly compute between them, so that cores have
# work all the time; the short ones are last, so that no long one is what a run waits for at its end.
_WAITING = ("e2e", "integration")
_COMPUTING = ("simulation", "property", "fuzz", "contract", "conformance")

_TESTS = Path(__file__).parent

# Longer than the limit of pytest-timeout (pyproject.toml), which ends a test that hangs in Python alone.
HUNG_SECONDS = 700


def pytest_configure(config: pytest.Config) -> None:
    """A shell's jobs in the background ignore Ctrl-C, and so would every process that a test starts: some are
    to end by it. What a shell says of HOSS is not for tests either. Where nothing can be tested, say why at
    once, in one line."""
    forget_users_settings(os.environ)
    config.pluginmanager.register(RunReport(), "run report")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    use_chosen_server(config)
    if problem := needs():
        pytest.exit(f"no test can run on this machine: {problem}", returncode=pytest.ExitCode.USAGE_ERROR)
    config.add_cleanup(Run().end)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: tests of services wait more than they compute, so that a process a core would
    leave cores idle."""
    return 2 * (psutil.cpu_count() or 1)


# Their tests share nothing, and the whole file takes many minutes.
_SHARED_BY_TEST = ("tests/simulation/test_seeds.py",)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file, as `--dist loadfile`, but for files whose tests any process may run."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only where pytest-xdist is there

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return nodeid if file in _SHARED_BY_TEST else file

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Tests and modules stay until the end: a process that looked for garbage among them would do so in vain,
    while it collects and with every collection of a test."""
    config = session.config
    if hasattr(config, "workerinput") and [Path(name).resolve() for name in config.args] == [_TESTS]:
        config.args[:] = _own_share_first(config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _own_share_first(config: pytest.Config) -> list[str]:
    """All files of tests. In a new checkout every process of pytest-xdist would compile each of them. So each
    begins with other files, and then finds what the others have compiled."""
    left_out = [Path(name).resolve() for name in config.getoption("ignore") or ()]
    files = [
        str(file)
        for file in sorted(_TESTS.rglob("test_*.py"))
        if not any(file.is_relative_to(folder) for folder in left_out)
    ]
    number, processes = (
        int(config.workerinput["workerid"].removeprefix("gw")),
        config.workerinput["workercount"],
    )
    begin = len(files) * number // processes
    return files[begin:] + files[:begin]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Weave the folders, by file."""
    folders = {
        path: path.relative_to(_TESTS).parts[0] if path.is_relative_to(_TESTS) else ""
        for path in sorted({item.path for item in items})
    }
    places: dict[Path, float] = dict.fromkeys(folders, 1.0)
    for kind in (_WAITING, _COMPUTING):
        woven = sorted(
            (path for path in folders if folders[path] in kind), key=lambda p: kind.index(folders[p])
        )
        places |= {path: number / len(woven) for number, path in enumerate(woven)}
    items.sort(key=lambda item: (places[item.path], item.path))


@pytest.fixture(scope="session", autouse=True)
def _patience_with_redis() -> Iterator[None]:
    """Of ledgers and journals in this process: a Redis that the machine holds up for some seconds is not one
    that is away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "_TIMEOUT_SECONDS", DEADLINE_SECONDS)
        patch.setattr(redis_store, "_TIMEOUT_SECONDS", DEADLINE_SECONDS)
        patch.setattr(redis_access, "_CONNECT_SECONDS", DEADLINE_SECONDS)
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_services() -> Iterator[None]:
    """Services come from the fork server, which starts with the first of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServiceProcess, "launch", FORK_SERVER.launch)
        yield
    FORK_SERVER.stop()


@pytest.fixture
async def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody in the test's loop is ready, its clock goes on to the next timer at once. For tests whose
    parts wait for the loop alone: of a thread, a socket or a process the clock knows nothing."""
    loop = asyncio.get_running_loop()
    now, select = loop.time(), loop._selector.select

    def skip(timeout: float | None = None) -> list[Any]:
        nonlocal now
        now += timeout or 0.0
        return select(timeout if timeout is None else 0)

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(loop._selector, "select", skip)


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRedis]:
    """What serves the whole run, by the names in redis_topologies: do not stop any of it."""
    running = RunningRedis(tmp_path_factory.mktemp("redis"))
    yield running
    running.stop()


@pytest.fixture
def redis_server(running_redis: RunningRedis) -> RedisServer:
    """A running Redis that holds nothing. One process serves the whole run: do not stop it, see
    `own_redis`."""
    (server,) = running_redis["server"].masters
    empty(server)
    return server


@pytest.fixture
def empty_redis(running_redis: RunningRedis) -> Callable[..., str]:
    """`empty_redis("server")`, or another name in redis_topologies: the URL of one that holds nothing, for
    the documented user, or for another one of those: `empty_redis("server", "hoss-resolver")`."""

    def find(name: str, user: str = "hoss") -> str:
        setup = running_redis[name]
        for server in setup.masters:
            empty(server)
        return as_documented(setup.url, setup.servers, user)

    return find


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis process of this test alone, append-only in `tmp_path / "redis"`, for tests that stop or freeze
    it."""
    server = RedisServer.start(tmp_path / "redis", append_only=True)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def make_node() -> Callable[..., LedgerNodeChange]:
    """Builds a node for a ledger: `make_node("n1", cpu=4000, pods=10)`; amounts default to plenty."""

    def build(
        name: str,
        *,
        cpu: int = 10_000,
        memory: int = 2**34,
        pods: int = 100,
        cards: int = 0,
        unschedulable: bool = False,
        labels: Pairs = (),
    ) -> LedgerNodeChange:
        allocatable = (cpu, memory, 0, pods, 0, 0)
        spec = common_pb2.NodeSpec(name=name, cards=cards, unschedulable=unschedulable)
        spec.allocatable.add(resource="cpu", amount=cpu)
        spec.allocatable.add(resource="memory", amount=memory)
        spec.allocatable.add(resource="pods", amount=pods)
        spec.labels.extend(common_pb2.Label(key=key, value=value) for key, value in labels)
        text = spec.SerializeToString(deterministic=True)
        return LedgerNodeChange(name, text, allocatable, unschedulable, cards, labels)

    return build


@pytest.fixture(scope="session")
def make_proposal() -> Callable[..., Proposal]:
    """Builds a proposal: a row of `nodes` for each pod, a slot for each pod unless `slots` says otherwise.

    `ports` and `groups` (themselves or names, "" for none) are by slot.
    """

    def build(
        pods: Sequence[int],
        nodes: Sequence[Sequence[int]],
        *,
        cpu: int | Sequence[int] = 100,
        slots: Sequence[int] | None = None,
        priorities: Sequence[int] | None = None,
        devices: Sequence[tuple[int, int]] | None = None,
        worker: str = "w1",
        epoch: int = 1,
        snapshot_seq: int = 2**40,
        unchecked: bool = False,
        ports: Sequence[Sequence[HostPort]] | None = None,
        groups: Sequence[str | Group] | None = None,
        criteria: Criteria = Criteria.FIT,
    ) -> Proposal:
        slots = list(range(len(pods))) if slots is None else slots
        count = max(slots) + 1
        requests = np.zeros((count, 6), np.int64)
        requests[:, 0] = cpu
        requests[:, PODS] = 1
        widest = max(len(row) for row in nodes)
        return Proposal(
            worker=worker,
            epoch=epoch,
            snapshot_seq=snapshot_seq,
            uids=np.concatenate([numbered_uids(b"test-prefix-", pod, 1) for pod in pods]),
            slots=np.array(slots, np.uint16),
            nodes=np.array([[*row, *[NONE_U32] * (widest - len(row))] for row in nodes], np.uint32),
            requests=requests,
            priorities=np.array(priorities or [0] * count, np.int32),
            attempts=np.zeros(count, np.uint16),
            devices=None if devices is None else np.array(devices, np.uint16),
            unchecked=unchecked,
            groups=() if ports is None and groups is None else _groups(count, ports, groups),
            criteria=criteria,
        )

    return build


def _groups(
    count: int, ports: Sequence[Sequence[HostPort]] | None, groups: Sequence[str | Group] | None
) -> tuple[Group | None, ...]:
    """By slot: a group of that name ("": none) with those ports."""
    made: list[Group | None] = []
    for slot in range(count):
        held = tuple(map(claim_of, ports[slot])) if ports else ()
        name = groups[slot] if groups else f"slot {slot}"
        if isinstance(name, Group):
            made.append(name)
            continue
        definition = (name + "".join(claim.hex() for claim in held)).encode()
        made.append(Group(zlib.crc32(definition) + 1, definition, held) if name else None)
    return tuple(made)


@pytest.fixture
def start_resolver(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts resolver processes: `start_resolver(redis_url, "--shards", "2")` returns host:port once it
    serves."""
    processes: list[ForkedProcess] = []

    def start(redis_url: str, *flags: str) -> str:
        ready = tmp_path / f"resolver-{len(processes)}.json"
        arguments = ["--listen", "127.0.0.1:0", "--redis-url", redis_url, "--ready-file", str(ready), *flags]
        process = FORK_SERVER.start("resolver", arguments)
        processes.append(process)

        def serves() -> bool:
            assert process.poll() is None, f"the resolver ended with {process.returncode}"
            return ready.exists()

        wait_until(serves, "the resolver to be ready")
        return f"127.0.0.1:{json.loads(ready.read_bytes())['port']}"

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(DEADLINE_SECONDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that hangs inside a library, with the interpreter's lock, ends with its process: the timeout of
    pytest-timeout needs the interpreter. Others go on, in another process."""
    faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
