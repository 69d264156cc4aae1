"""What one term of a dispatcher has for the dashboard: looks, pods' stories, nodes, and what may be done to workers and nodes."""

import asyncio
import contextlib
from typing import Any

from dispatcher.answers import Answers
from dispatcher.candidate import Term
from dispatcher.core import messages as m
from dispatcher.dashboard.board import Board
from dispatcher.dashboard.nodes import NodeTable
from dispatcher.dashboard.picture import Observer
from dispatcher.dashboard.stories import Stories
from dispatcher.nodes import NodeNames
from dispatcher.runtime import Runtime
from dispatcher.service import OPERATOR_STATES
from hoss.client.feed import Subscription
from hoss.client.resolver import ResolverClient
from hoss.errors import InvalidInput, LedgerUnavailable, NotFound
from hoss.telemetry import logger

LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 3.0  # for the nodes; then a look goes without news of them, and says so


class Desk:
    """`run` takes looks while somebody wants them; everything else answers once."""

    def __init__(self, runtime: Runtime, names: NodeNames, term: Term, resolver: ResolverClient) -> None:
        self._runtime = runtime
        self._term = term
        self._resolver = resolver
        answers = Answers(runtime, names, term)
        self._nodes = NodeTable()
        self._feed = Subscription(resolver, "dashboard", self._nodes.apply)
        self._observer = Observer(runtime, answers, self._nodes)
        self._stories = Stories(runtime, answers)

    async def run(self, board: Board) -> None:
        """Show a look a second on the board while it has viewers, until cancelled."""
        reading: asyncio.Task[None] | None = None
        try:
            while True:
                await board.viewed()
                if reading is None or reading.done():
                    reading = asyncio.ensure_future(self._feed.catch_up())
                # The first look waits for the nodes, later ones go on without.
                await asyncio.wait((reading,), timeout=PATIENCE_SECONDS)
                late = not reading.done()
                if not late:
                    reading.result()
                board.show(
                    self._observer.look(
                        nodes_problem="the resolver does not answer: nodes are shown as they were" if late else ""
                    )
                )
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if reading is not None:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading

    def pods(self, asked: str) -> dict[str, Any]:
        """See Stories.find. Raises InvalidInput for an empty name."""
        if not asked.strip():
            raise InvalidInput("is empty; give a pod's name, or namespace/name", where="name")
        return self._stories.find(asked)

    def node(self, name: str) -> dict[str, Any]:
        """One node in numbers. Raises NotFound."""
        node = self._nodes.node(name)
        if node is None:
            raise NotFound(f"there is no node {name!r}")
        return node

    def set_worker_state(self, name: str, state: str) -> dict[str, Any]:
        """What `hoss cordon`, `uncordon` and `drain worker` do. Raises NotFound, InvalidInput and LedgerUnavailable."""
        self._require_certain()
        if state not in OPERATOR_STATES:
            raise InvalidInput(f"{state!r} is none of {', '.join(OPERATOR_STATES)}", where="state")
        worker = self._runtime.machine.members.get(name)
        if worker is None:
            raise NotFound(f"there is no worker {name!r}")
        self._runtime.tell(m.StateWanted(name, OPERATOR_STATES[state]))
        logger().info("dashboard_action", worker=name, state=state)
        return {"name": name, "state": worker.state.value}

    async def cordon_node(self, name: str, unschedulable: bool) -> dict[str, Any]:
        """What `hoss cordon` and `uncordon node` do. Raises NotFound, LedgerUnavailable and TransportError."""
        self._require_certain()
        reply = await self._resolver.cordon_node(name, unschedulable)
        logger().info("dashboard_action", node=name, unschedulable=unschedulable)
        return {"name": name, "unschedulable": reply.node.unschedulable}

    def _require_certain(self) -> None:
        if not self._term.certain():
            raise LedgerUnavailable("the lease could not be renewed in time: nothing is changed until Redis answers")
