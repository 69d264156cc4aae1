"""The command line in one process, with a dispatcher and a resolver that remember what they were told."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients_in_memory import DispatcherInMemory, ResolverInMemory
from typer.testing import CliRunner

from hoss.v1 import common_pb2, dispatcher_pb2, resolver_pb2
from hossctl.cli import app


@dataclass
class Hoss:
    """`hoss(...)` runs a command and returns its result: exit_code, stdout, stderr."""

    dispatcher: DispatcherInMemory
    resolver: ResolverInMemory
    run: Callable[..., Any]

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        return self.run(*arguments, stdin=stdin)


@pytest.fixture
def hoss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hoss:
    """Commands against clients in memory, in a home that is empty."""
    dispatcher, resolver = DispatcherInMemory(), ResolverInMemory()
    monkeypatch.setenv("HOSS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOSS_DISPATCHER", "127.0.0.1:1")
    monkeypatch.setenv("HOSS_RESOLVER", "127.0.0.1:1")
    monkeypatch.setattr("hoss.client.dispatcher.DispatcherClient", lambda _addresses, **_: dispatcher)
    monkeypatch.setattr("hoss.client.resolver.ResolverClient", lambda _addresses, **_: resolver)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, list(arguments), input=stdin, prog_name="hoss")

    return Hoss(dispatcher, resolver, run)


@pytest.fixture
def a_pod() -> Callable[..., dispatcher_pb2.PodInfo]:
    """A builder of pods as the dispatcher lists them."""

    def build(name: str, phase: int = dispatcher_pb2.BOUND, **fields: Any) -> dispatcher_pb2.PodInfo:
        fields = {"namespace": "default", "uid": name.encode().ljust(16, b"\1"), **fields}
        return dispatcher_pb2.PodInfo(name=name, phase=phase, **fields)

    return build


@pytest.fixture
def a_node() -> Callable[..., resolver_pb2.NodeInfo]:
    """A builder of nodes as the resolver lists them; amounts by resource."""

    def build(
        name: str, allocatable: dict[str, int], requested: dict[str, int], cards: list[int] | None = None
    ) -> Any:
        spec = common_pb2.NodeSpec(name=name, cards=len(cards or []))
        for resource, amount in allocatable.items():
            spec.allocatable.add(resource=resource, amount=amount)
        node = resolver_pb2.NodeInfo(spec=spec, cards_used_milli=cards or [])
        for resource, amount in requested.items():
            node.requested.add(resource=resource, amount=amount)
        return node

    return build
