"""Services get clocks, randomness and connections from their host (hoss.host), and from nowhere else.

The rule is checked on the source. A simulation replays exactly only if nothing in the services reads the
machine by itself, and if no composition root forgets to hand on what its host gave it."""

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hoss.client.backoff import Backoff
from hoss.host import Host
from hoss.wire.uids import random_uid_text, uid_from_text

ROOT = Path(__file__).parents[3]
SERVICES = ("hoss", "dispatcher", "scheduler_worker", "resolver")

# Everything in these modules, and these single names.
MODULES = ("time", "random", "secrets")
NAMES = {
    "asyncio.to_thread",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "grpc.aio.insecure_channel",
    "grpc.aio.secure_channel",
    "grpc.aio.server",
    "hoss.redis.access.reach",
    "hoss.rpc.channel",
    "hoss.serving.Server",
    "hoss.serving.until_stopped",
    "os.urandom",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "uuid.uuid1",
    "uuid.uuid4",
}
# Generators that are given their seed are not the machine's.
GENERATORS = {"random.Random", "numpy.random.default_rng"}

ALLOWED = {
    "hoss/client/access.py": "what a user's program connects with; services have a host instead",
    "hoss/host.py": "this is the real machine",
    "hoss/redis/accounts.py": "passwords, for commands; services make none",
    "hoss/rpc.py": "gRPC's channels; a host that has others does not call this",
    "hoss/serving.py": "gRPC's server; a host that has another does not call this",
    "hoss/sdk/running.py": "what a user's program runs; services have a host instead",
    "hoss/security/authority.py": "ids of tokens, for commands; services make none",
    "hoss/security/options.py": "the real machine, with TLS",
    "hoss/security/transport.py": "gRPC's channels with TLS; a host that has others does not call this",
    "hoss/telemetry/collector.py": "exports metrics; no service reads what it does",
    "hoss/telemetry/context.py": "ids and times of spans; no service decides anything by them",
    "hoss/telemetry/metrics.py": "since when a metric counts; no service reads it",
    "hoss/telemetry/tracing.py": "which traces are kept; no service decides anything by them",
    "hoss/manifests/documents.py": "completes a generateName for a user of the command",
    "scheduler_worker/experiments.py": "waits for the lock of a file that is shared with other processes",
}

# Made by the client's users and not by a composition root: calls from threads have no host but this one.
UNHOSTED = {"hoss/client/sync.py"}


class Module(NamedTuple):
    """A source file."""

    path: str
    tree: ast.Module


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    files = sorted(file for service in SERVICES for file in (ROOT / service).rglob("*.py"))
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    assert len(paths) > 200
    return [
        Module(path, ast.parse(file.read_text(encoding="utf-8")))
        for path, file in zip(paths, files, strict=True)
        if not path.startswith("hoss/v1/")
    ]


@pytest.fixture(scope="module")
def reads(modules) -> dict[str, list[tuple[int, str]]]:
    """What `read_from_the_machine` finds, by file; files without a find are left out."""
    found = {module.path: list(read_from_the_machine(module.tree)) for module in modules}
    return {path: uses for path, uses in found.items() if uses}


def read_from_the_machine(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of each use of MODULES and NAMES, and of generators without a seed."""
    nodes = list(ast.walk(tree))
    full = _imports(nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(call.func) for call in calls}
    seeded = {id(call.func) for call in calls if call.args}
    for node in nodes:
        name = _name(node, full)
        if name in GENERATORS:
            if id(node) in called and id(node) not in seeded:
                yield node.lineno, name
        elif name in NAMES or (name.partition(".")[0] in MODULES and "." in name):
            yield node.lineno, name


def _imports(nodes: list[ast.AST]) -> dict[str, str]:
    full = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                full[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            full |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return full


def _name(node: ast.AST, full: dict[str, str]) -> str:
    """The full name that an expression stands for; "" for everything else."""
    if isinstance(node, ast.Name):
        return full.get(node.id, "")
    if isinstance(node, ast.Attribute) and (of := _name(node.value, full)):
        return f"{of}.{node.attr}"
    return ""


def hosted(modules: list[Module]) -> dict[str, set[str]]:
    """The parameters that have this machine as their default, by function or class."""
    found: dict[str, set[str]] = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.AnnAssign) and _is_of_this_host(member.value):
                        found.setdefault(node.name, set()).add(ast.unparse(member.target))
                    elif isinstance(member, ast.FunctionDef) and member.name == "__init__":
                        found.setdefault(node.name, set()).update(_of_this_host(member))
            elif isinstance(node, ast.FunctionDef) and node.name != "__init__":
                found.setdefault(node.name, set()).update(_of_this_host(node))
    return {name: parameters for name, parameters in found.items() if parameters}


def _of_this_host(function: ast.FunctionDef) -> Iterator[str]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults + given.kw_defaults
    for parameter, default in zip([*positional, *given.kwonlyargs], defaults, strict=True):
        if _is_of_this_host(default):
            yield parameter.arg


def _is_of_this_host(default: ast.expr | None) -> bool:
    if isinstance(default, ast.Name):  # what programs connect with that have no host: hoss/client/access.py
        return default.id == "found_channel"
    return isinstance(default, ast.Attribute) and ast.unparse(default.value) == "THIS_HOST"


def forgotten(tree: ast.Module, takers: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    """Line and name of each call that leaves one of these parameters to its default."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called, *_ = node.args if ast.unparse(node.func) == "partial" else (node.func,)
            of, _, name = ast.unparse(called).rpartition(".")
            if of == "pb":  # a message that bears the name of a class
                continue
            missing = takers.get(name, set()) - {keyword.arg for keyword in node.keywords}
            if missing:
                yield node.lineno, f"{name} without {', '.join(sorted(missing))}"


def test_no_service_reads_a_clock_draws_a_number_or_opens_a_connection_by_itself(reads):
    found = [
        f"{path}:{line} reads {name}"
        for path, uses in reads.items()
        if path not in ALLOWED
        for line, name in uses
    ]
    assert found == []


def test_every_exception_is_still_needed(reads):
    assert set(ALLOWED) - reads.keys() == set()


def test_what_a_host_gave_is_handed_on_to_every_part_that_takes_it(modules):
    takers = hosted(modules)
    assert takers["Backoff"] == {"rng"}
    assert takers["Runtime"] == {"clock", "rng"}
    assert takers["Committer"] == {"clock"}
    found = [
        f"{module.path}:{line} makes {what}"
        for module in modules
        if module.path not in UNHOSTED
        for line, what in forgotten(module.tree, takers)
    ]
    assert found == []


def test_this_host_is_the_default_of_parameters_and_nothing_else(modules):
    hosts = [module for module in modules if module.path not in UNHOSTED]
    uses = [node for module in hosts for node in ast.walk(module.tree) if _is_of_this_host(node)]
    defaults = sum(map(len, hosted(hosts).values()))
    assert len(uses) == defaults > 20


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time\ntime.monotonic()", "time.monotonic"),
        ("import time as t\nclock = t.time_ns", "time.time_ns"),
        ("from time import monotonic\nmonotonic()", "time.monotonic"),
        ("import random\nrandom.uniform(1, 2)", "random.uniform"),
        ("import random\nrandom.Random()", "random.Random"),
        ("import numpy as np\nnp.random.default_rng()", "numpy.random.default_rng"),
        ("from hoss import rpc\nrpc.channel(['a:1'])", "hoss.rpc.channel"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("def f():\n    import secrets\n    return secrets.token_hex(8)", "secrets.token_hex"),
    ],
)
def test_a_module_that_reads_the_machine_is_found(source, name):
    assert [found for _, found in read_from_the_machine(ast.parse(source))] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "import random\ndef f(rng: random.Random) -> float:\n    return rng.uniform(0, 1)",
        "import random\nrandom.Random(5)",
        "import time",
        "def f(time):\n    return time.monotonic()",
    ],
)
def test_what_is_passed_in_or_seeded_is_not_read_from_the_machine(source):
    assert list(read_from_the_machine(ast.parse(source))) == []


def test_a_call_that_forgets_the_clock_is_found():
    takers = {"Backoff": {"rng"}}
    assert list(forgotten(ast.parse("Backoff(1, 2, rng=rng)"), takers)) == []
    assert list(forgotten(ast.parse("backoff.Backoff(1, 2)"), takers)) == [(1, "Backoff without rng")]
    assert list(forgotten(ast.parse("partial(Backoff, 1)"), takers)) == [(1, "Backoff without rng")]


def test_the_same_generator_gives_the_same_delays_and_the_same_ids():
    def drawn(seed: int) -> tuple[list[float | None], str]:
        rng = random.Random(seed)
        backoff = Backoff(0.1, 5.0, rng=rng)
        return [backoff.failed(0.0) for _ in range(5)], random_uid_text(rng)

    assert drawn(1) == drawn(1) != drawn(2)
    delays, uid = drawn(1)
    assert [0.05 <= delays[0] <= 0.1, 0.8 <= delays[4] <= 1.6] == [True, True]
    assert len(uid_from_text(uid)) == 16


def test_a_host_says_in_utc_what_its_own_clock_says():
    class Epoch(Host):
        def unix(self) -> float:
            return 86_400.0

    assert Epoch().utc_now().isoformat() == "1970-01-02T00:00:00+00:00"
