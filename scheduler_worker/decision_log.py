"""The latest decisions: proposals and their verdicts as they were sent. Nothing is computed for a pod before
a client asks for it."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hoss.telemetry import Logger
from hoss.telemetry.context import trace_fields
from hoss.v1.common_pb2 import Decision
from hoss.v1.resolver_pb2 import ProposalBatch, Verdict, VerdictBatch
from hoss.v1.workerlink_pb2 import DecisionAnswer, DecisionQuestion
from hoss.wire.columns import NONE_U32, U32, decode
from hoss.wire.uids import UID_BYTES

_BOUND = (Verdict.COMMITTED, Verdict.DUPLICATE)

_MOST_PODS = 100_000  # some 40 bytes each


class _Decided(NamedTuple):
    proposal: ProposalBatch
    verdict: VerdictBatch
    at_unix_ms: int


class DecisionLog:
    """One worker's decisions on its latest pods, up to `most_pods`."""

    def __init__(self, worker: str, *, most_pods: int = _MOST_PODS) -> None:
        self._worker = worker
        self._most_pods = most_pods
        self._latest: deque[_Decided] = deque()
        self._pods = 0

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, proposal: ProposalBatch, verdict: VerdictBatch, now: float) -> None:
        """Remember a decision at Unix time `now`. The messages must not change any more."""
        for part, answer in ((proposal, verdict), *zip(proposal.parts, verdict.parts, strict=False)):
            self._latest.append(_Decided(part, answer, int(now * 1000)))
            self._pods += len(part.uids) // UID_BYTES
        while self._pods > self._most_pods:
            self._pods -= len(self._latest.popleft().proposal.uids) // UID_BYTES

    def answer(self, question: DecisionQuestion) -> DecisionAnswer:
        """The remembered decisions on a pod."""
        return DecisionAnswer(id=question.id, decisions=self._of(question.uid))

    def _of(self, uid: bytes) -> Iterator[Decision]:
        for proposal, verdict, at_unix_ms in self._latest:
            position = _position(proposal.uids, uid)
            if position is None or position >= len(verdict.verdicts):
                continue
            row = position * proposal.candidates
            candidates = decode(proposal.nodes, U32, name="nodes")[row : row + proposal.candidates].tolist()
            code = verdict.verdicts[position]
            yield Decision(
                worker=self._worker,
                at_unix_ms=at_unix_ms,
                shard=proposal.shard,
                snapshot_seq=proposal.snapshot_seq,
                candidates=[node for node in candidates if node != NONE_U32],
                verdict=Verdict.Name(Verdict.ValueType(code)),
                node=int(decode(verdict.nodes, U32, name="nodes")[position]),
                seq=verdict.seq if code == Verdict.COMMITTED else 0,
                traceparent=proposal.traceparent,
            )


def log_decision(log: Logger, worker: str, proposal: ProposalBatch, verdict: VerdictBatch) -> None:
    """Log one line for a decided batch: at debug if all pods are bound, at info with the refusals by code."""
    parts = (verdict, *verdict.parts)
    pods = sum(len(part.verdicts) for part in parts)
    bound = sum(part.verdicts.count(code) for part in parts for code in _BOUND)
    refusals = {} if bound == pods else _refusals(parts)
    (log.info if refusals else log.debug)(
        "decided",
        worker=worker,
        batch=proposal.batch_id,
        shard=proposal.shard,
        snapshot_seq=proposal.snapshot_seq,
        seq=verdict.seq,
        pods=pods,
        refused=pods - bound,
        refusals=refusals,
        **trace_fields(proposal.traceparent),
    )


def _refusals(parts: Iterable[VerdictBatch]) -> dict[str, int]:
    codes = Counter(code for part in parts for code in part.verdicts if code not in _BOUND)
    return {Verdict.Name(Verdict.ValueType(code)): count for code, count in sorted(codes.items())}


def _position(uids: bytes, uid: bytes) -> int | None:
    """Where a UID stands in a column of them."""
    at = uids.find(uid)
    while at >= 0 and at % UID_BYTES:
        at = uids.find(uid, at + 1)
    return at // UID_BYTES if at >= 0 else None
