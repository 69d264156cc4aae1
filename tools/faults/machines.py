"""Networks of namespaces on this machine: each service gets a machine of its own, and a switch between them
that can drop what one machine sends to another, or make a line slow and lossy.

Whoever makes a network removes it: it is gone after the `with` block, whatever happened in it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache

from hoss.errors import HossError

_PREFIX = "hossf"
# A line that is slow and loses packets. netem where the kernel has it; else a bucket that is too small, which
# drops what comes while it is full.
_NETEM = ("netem", "delay", "60ms", "20ms", "loss", "3%")
_BUCKET = ("tbf", "rate", "256kbit", "burst", "2k", "limit", "4k")
_MOST_MACHINES = 60


@cache
def no_network() -> str:
    """Why there can be no namespaces here; "" where there can."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH (Debian: apt-get install iproute2)"
    name = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other")
            _run("ip", "-n", name, "rule", "add", "from", "10.0.0.1/32", "to", "10.0.0.2/32", "blackhole")
        finally:
            _run("ip", "netns", "del", name)
    except HossError as exc:
        return f"no network namespaces on this machine: {exc}"
    return ""


class Network:
    """Machines and the switch between them. Machine 0 is this one: clients and Redis are on it."""

    def __init__(self) -> None:
        number = os.getpid()
        self._subnet = f"10.{100 + number // 250 % 100}.{number % 250}"
        self._name = f"{_PREFIX}-{number}"
        self._machines: dict[str, int] = {}  # by the name of what runs on it
        self._cut: list[tuple[str, ...]] = []
        self._slow: dict[str, str] = {}  # the kind of queue, by device

    @classmethod
    @contextlib.contextmanager
    def opened(cls, names: Sequence[str]) -> "Iterator[Network]":
        """A network with a machine for each name, and this machine as `here`."""
        network = cls()
        try:
            network._build(names)
            yield network
        finally:
            network._remove()

    def address(self, name: str) -> str:
        """The IP address of a machine."""
        return f"{self._subnet}.{4 * self._machines[name] + 2}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """What begins a command that is to run on that machine."""
        return ("ip", "netns", "exec", self._namespace(self._machines[name]))

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """Packets from one to the other are dropped silently, from now on."""
        for sender, receiver in ((one, other), (other, one))[: 1 + both_ways]:
            rule = ("from", f"{self.address(sender)}/32", "to", f"{self.address(receiver)}/32", "blackhole")
            _run("ip", "-n", self._switch, "rule", "add", *rule)
            self._cut.append(rule)

    def slow(self, name: str) -> str:
        """The line to a machine becomes slow and lossy. Returns how."""
        device = self._port(self._machines[name])
        for queue in (_NETEM, _BUCKET):
            with contextlib.suppress(HossError):
                _run("tc", "-n", self._switch, "qdisc", "replace", "dev", device, "root", *queue)
                self._slow[device] = queue[0]
                return " ".join(queue)
        raise HossError("this kernel has neither netem nor tbf")

    def dropped(self) -> int:
        """How many packets slow lines have dropped."""
        shown = [_run("tc", "-n", self._switch, "-s", "qdisc", "show", "dev", each) for each in self._slow]
        return sum(int(text.split("(dropped ")[1].split(",")[0]) for text in shown)

    def heal(self) -> None:
        """Every line is whole again."""
        for rule in self._cut:
            _run("ip", "-n", self._switch, "rule", "del", *rule)
        for device in self._slow:
            _run("tc", "-n", self._switch, "qdisc", "del", "dev", device, "root")
        self._cut.clear()
        self._slow.clear()

    @property
    def _switch(self) -> str:
        return f"{self._name}-s"

    @property
    def _own(self) -> str:
        """The device of this machine."""
        return f"{_PREFIX}{os.getpid()}"

    def _namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _port(self, number: int) -> str:
        return f"p{number}"

    def _build(self, names: Sequence[str]) -> None:
        if len(names) > _MOST_MACHINES:
            raise HossError(f"a network has at most {_MOST_MACHINES} machines")
        _run("ip", "netns", "add", self._switch)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run("ip", "netns", "exec", self._switch, "sh", "-c", forward)
        for number, name in enumerate(("here", *names)):
            self._machines[name] = number
            self._connect(number)

    def _connect(self, number: int) -> None:
        """A machine, and its line to the switch. Machine 0 is this one, whose other routes stay."""
        switch, port, own = self._switch, self._port(number), self._own
        gateway, address = (f"{self._subnet}.{4 * number + side}" for side in (1, 2))
        inside: tuple[str, ...] = ("ip",)
        if number:
            _run("ip", "netns", "add", self._namespace(number))
            inside = ("ip", "-n", self._namespace(number))
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0",
                 "netns", self._namespace(number))  # fmt: skip
            _run(*inside, "link", "set", "lo", "up")
        else:
            _run("ip", "link", "add", own, "type", "veth", "peer", "name", port, "netns", switch)
        device = "eth0" if number else own
        _run("ip", "-n", switch, "address", "add", f"{gateway}/30", "dev", port)
        _run("ip", "-n", switch, "link", "set", port, "up")
        _run(*inside, "address", "add", f"{address}/30", "dev", device)
        _run(*inside, "link", "set", device, "up")
        _run(*inside, "route", "add", f"{self._subnet}.0/24", "via", gateway)

    def _remove(self) -> None:
        """Whatever is there of it. A line goes with the namespace of its end."""
        names = [self._namespace(number) for number in self._machines.values() if number]
        with contextlib.suppress(HossError):
            _run("ip", "link", "del", self._own)
        for name in (*names, self._switch):
            with contextlib.suppress(HossError):
                _run("ip", "netns", "del", name)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ip and tc
    if done.returncode:
        raise HossError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
