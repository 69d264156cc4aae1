"""Judges the bindings of every scheduler by the ledger: what fits is reserved before it is allowed.

A pod that holds a reservation on the node passes by it: so do HOSS's own bindings, and a question that is asked again. Any other
is reserved under a lease like what workers propose, and confirmed by whoever sees the pod on its node; where its binding comes
to nothing the lease ends it. A binding that cannot be judged is neither allowed nor denied: that raises, and the
webhook's failurePolicy decides.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.model.fields import Object
from hoss.v1 import common_pb2
from hoss.wire.columns import NONE_U32, decode_uids, uid_from_text
from resolver.core.binding_review import (
    EXEMPT,
    STANDING,
    Answer,
    Review,
    amounts_row,
    answer_of,
    no_such_pod,
    obstacle,
    proposal_for,
    standing_elsewhere,
    unknown_node,
    unknown_resource,
    unreadable,
)
from resolver.core.values import Decision, Proposal, Verdict
from resolver.demands import Demand, Demands
from resolver.ledger.port import Ledger
from resolver.nodes import shard_of
from resolver.pod_source import PodSource
from resolver.together import Together

_ATTEMPTS = 3  # at a decision under an epoch that holds; it is lost only where the ledger is


class _Standing(NamedTuple):
    """Where a pod holds a reservation; NONE_U32: nowhere."""

    shard: int
    node: int


class BindingGuard:
    """`name`: as what it is known to the ledger; every guard has one of its own. `problem` says why nothing can be decided now, or
    nothing. Bindings in the exempt namespaces are allowed unseen."""

    def __init__(
        self,
        ledger: Ledger,
        decide: Callable[[int, Proposal], Awaitable[Decision]],
        pods: PodSource,
        *,
        name: str,
        exempt: Collection[str] = (),
        problem: Callable[[], str] = str,
    ) -> None:
        self._ledger = ledger
        self._decide = decide
        self._pods = pods
        self._name = name
        self._exempt = frozenset(exempt)
        self._problem = problem
        self._standing = Together(self._look_up)
        self._demands = Demands()
        self._epoch = 0
        self._granting = asyncio.Lock()
        self._schema: list[str] = []
        self._indexes: dict[str, int] = {}
        self._accounted: set[str] = set()  # nodes all of whose pods were found in the ledger
        self._ledger_epoch = ""  # of the ledger that the three above are of
        self.counters: Counter[str] = Counter()  # guard_<verdict>

    async def judge(self, review: Review) -> Answer:
        """The answer to one question. Raises LedgerUnavailable and TransportError when there is none."""
        answer = await self._judge(review)
        self.counters[f"guard_{answer.verdict}"] += 1
        return answer

    async def _judge(self, review: Review) -> Answer:
        if review.namespace in self._exempt:
            return EXEMPT
        if problem := self._problem():
            raise LedgerUnavailable(problem)
        node = await self._index(review.node)
        return unknown_node(review) if node is None else await self._judge_at(review, node)

    async def _judge_at(self, review: Review, node: int) -> Answer:
        pod = self._pods.at_hand(review.namespace, review.pod, review.pod_uid)
        # Where the pod is known, and the only shard is asked to reserve, the same script finds what it holds already.
        if pod is not None and self._ledger.shards == 1 and not review.dry_run:
            return await self._judge_pod(review, pod, node)
        if review.pod_uid and (standing := await self._by_reservation(review, review.pod_uid, node)):
            return standing
        pod = pod or await self._pods.find(review.namespace, review.pod, review.pod_uid)
        if pod is None:
            return no_such_pod(review)
        if not review.pod_uid and (standing := await self._by_reservation(review, _uid_of(pod), node)):
            return standing
        return await self._judge_pod(review, pod, node)

    async def _judge_pod(self, review: Review, pod: Object, node: int) -> Answer:
        """By what the pod asks for."""
        if blocked := obstacle(review, pod):
            return blocked
        try:
            demand = self._demands.of(pod, review.namespace)
        except InvalidInput as exc:
            return unreadable(review, exc)
        await self._check_account(review.node)
        return await self._reserve(review, _uid_of(pod), node, demand)

    async def _check_account(self, node: str) -> None:
        """Once for each node: nodes come into a new ledger before the pods that stand on them do, and then seem empty. Raises
        LedgerUnavailable while that is so."""
        if node in self._accounted:
            return
        pods = await self._pods.on_node(node)
        missing = sum(standing.node == NONE_U32 for standing in await self._look_up(pods)) if pods else 0
        if missing:
            raise LedgerUnavailable(
                f"{missing} of the {len(pods)} pods on node {node} are not in the ledger (yet): is a dispatcher running?"
            )
        self._accounted.add(node)

    async def _by_reservation(self, review: Review, uid: bytes, node: int) -> Answer | None:
        """By what the pod holds already; None: nothing."""
        standing = await self._standing.ask(uid)
        if standing.node == NONE_U32:
            return None
        if standing.node == node:
            return STANDING
        return standing_elsewhere(review, await self._name_of(standing))

    async def _look_up(self, uids: Sequence[bytes]) -> list[_Standing]:
        """On every shard: a script sees the reservations of its own shard only."""
        standing = [_Standing(0, NONE_U32)] * len(uids)
        for shard, records in enumerate(await self._records(uids)):
            for position in np.flatnonzero(records["node"] != NONE_U32).tolist():
                standing[position] = _Standing(shard, int(records["node"][position]))
        return standing

    async def _records(self, uids: Sequence[bytes]) -> list[NDArray[Any]]:
        column = decode_uids(b"".join(uids))
        return await asyncio.gather(*(self._ledger.lookup(shard, column) for shard in range(self._ledger.shards)))

    async def _reserve(self, review: Review, uid: bytes, node: int, demand: Demand) -> Answer:
        spec = demand.spec
        row, missing = amounts_row(spec, self._schema)
        if missing:  # unless a node that came since has it
            self._schema = await self._ledger.schema()
            row, missing = amounts_row(spec, self._schema)
        if missing:
            return unknown_resource(review, missing, dict(spec.requests)[missing])
        shard = shard_of(review.node, self._ledger.shards)
        for _ in range(_ATTEMPTS):
            epoch = self._epoch or await self._granted(self._epoch)
            proposal = proposal_for(
                uid,
                node,
                row,
                spec=spec,
                group=demand.group,
                guard=self._name,
                epoch=epoch,
                dry_run=review.dry_run,
                shards=self._ledger.shards,
            )
            decision = await self._decide(shard, proposal)
            verdict, where = int(decision.verdicts[0]), int(decision.nodes[0])
            if verdict == Verdict.DUPLICATE and where != node:
                return standing_elsewhere(review, await self._name_of(_Standing(shard, where)))
            if verdict == Verdict.COMMITTED and (other := await self._withdrawn(uid, shard)):
                return standing_elsewhere(review, await self._name_of(other))
            if verdict != Verdict.STALE_EPOCH:
                return answer_of(review, decision, self._schema)
            await self._granted(epoch)
        raise LedgerUnavailable("the ledger forgets guards faster than they register; try again")

    async def _withdrawn(self, uid: bytes, shard: int) -> _Standing | None:
        """Of two bindings of one pod, judged in the same moment on different shards, at least one sees the other's reservation after its
        own is made, and gives its own back: where the other one is. None: there is no other, and ours stands."""
        if self._ledger.shards == 1:
            return None
        found = await self._records([uid])
        nodes = [int(records["node"][0]) for records in found]
        other = next((at for at, held in enumerate(nodes) if at != shard and held != NONE_U32), None)
        if other is None:
            return None
        await self._ledger.withdraw(shard, decode_uids(uid), found[shard]["seq"])
        return _Standing(other, nodes[other])

    async def _granted(self, lost: int) -> int:
        """A new epoch instead of the one that was lost."""
        async with self._granting:
            if self._epoch == lost:
                self._epoch = await self._ledger.grant(self._name)
            return self._epoch

    async def _index(self, name: str) -> int | None:
        """By what index the ledger knows a node; None: it never did. Of another ledger than before nothing holds."""
        if self._ledger_epoch != self._ledger.epoch:
            self._indexes, self._accounted, self._ledger_epoch = {}, set(), self._ledger.epoch
            self._schema = await self._ledger.schema()
        index = self._indexes.get(name)
        if index is None:
            (index,) = (await self._ledger.node_indexes(shard_of(name, self._ledger.shards), [name])).tolist()
            if index == NONE_U32:
                return None
            self._indexes[name] = index
        return index

    async def _name_of(self, standing: _Standing) -> str:
        """Reads the whole shard: for what hardly ever happens."""
        spec = (await self._ledger.snapshot(standing.shard)).specs.get(standing.node)
        return common_pb2.NodeSpec.FromString(spec).name if spec else f"number {standing.node}, which is gone,"


def _uid_of(pod: Object) -> bytes:
    return uid_from_text(str(pod["metadata"]["uid"]))
