"""The network between machines is cut, slow and lossy."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from faults.striking import kept_every_promise

from tools.faults.machines import Network, no_network

_CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.3)"
_LISTEN = (
    "import socket,sys; s = socket.create_server((sys.argv[1], 0)); print(s.getsockname()[1], flush=True)\n"
    "while True: s.accept()"
)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["cut-worker", "slow-network"])
async def test_nothing_is_lost_doubled_or_overcommitted_when_lines_fail(fault: str, tmp_path: Path) -> None:
    await kept_every_promise(fault, tmp_path)


@pytest.mark.thorough
async def test_a_dispatcher_without_redis_and_clients_is_replaced_while_it_still_reaches_the_workers(
    tmp_path: Path,
) -> None:
    """They leave it for its successor. It lasts for five seconds at least; its lease ends after one and a
    half."""
    outcome = await kept_every_promise("cut-dispatcher", tmp_path)
    assert outcome.seconds < outcome.lasted


@pytest.mark.skipif(bool(no_network()), reason=no_network())
def test_a_cut_line_is_silent_in_the_directions_that_are_cut_until_it_is_healed() -> None:
    with Network.opened(["a", "b"]) as network, contextlib.ExitStack() as stack:
        ports = {name: _listen(network, name, stack) for name in ("a", "b")}

        def reaches(one: str, other: str) -> bool:
            command = [
                *network.prefix(one),
                sys.executable,
                "-c",
                _CONNECT,
                network.address(other),
                ports[other],
            ]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        assert reaches("a", "b")
        assert reaches("b", "a")
        network.cut("a", "b")
        assert not reaches("a", "b")
        assert not reaches("b", "a")
        network.heal()
        assert reaches("a", "b")


@pytest.mark.skipif(bool(no_network()), reason=no_network())
def test_a_network_is_gone_after_its_block_whatever_happened_in_it() -> None:
    def there() -> str:
        shown = (["ip", "netns"], ["ip", "-o", "link"])
        return "".join(
            subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in shown
        )

    def fail() -> None:
        with Network.opened(["a"]) as network:
            names.append(network.prefix("a")[3])
            assert names[0] in there()
            raise RuntimeError("a test fails")

    names: list[str] = []
    with pytest.raises(RuntimeError, match="a test fails"):
        fail()
    name, _, _ = names[0].rpartition("-")
    assert name not in there()


def _listen(network: Network, name: str, stack: contextlib.ExitStack) -> str:
    """The port of a server on that machine."""
    command = [*network.prefix(name), sys.executable, "-c", _LISTEN, network.address(name)]
    server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(server.kill)
    assert server.stdout is not None
    return server.stdout.readline().strip()
