"""One line for each batch that a resolver decided: at debug where all went well, at info where pods were refused, at warning where the batch
was invalid. Under load every other batch has a conflict, so lines above debug are limited; the next
one says how many were left out."""

from collections import Counter
from typing import Any

from hoss.telemetry import Logger
from hoss.telemetry.context import trace_fields
from hoss.v1 import resolver_pb2 as pb

_WELL = (pb.Verdict.COMMITTED, pb.Verdict.DUPLICATE)

_LINES_PER_SECOND = 10.0
_BURST = 20.0


class DecisionLog:
    """Of one resolver."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._allowed = _BURST
        self._asked_at = 0.0
        self._left_out = 0

    def decided(self, batch: pb.ProposalBatch, answer: pb.VerdictBatch, now: float) -> None:
        """This batch has its answer, at monotonic time `now`."""
        parts = (answer, *answer.parts)
        pods = sum(len(part.verdicts) for part in parts)
        refused = pods - sum(part.verdicts.count(code) for part in parts for code in _WELL)
        problem = answer.invalid or answer.unavailable
        if not (refused or answer.invalid):
            tell = self._log.debug  # that the ledger is away was told when it went
        elif self._may_tell(now):
            tell = self._log.warning if answer.invalid else self._log.info
        else:
            return
        told: dict[str, Any] = {"refused": refused, "refusals": _refusals(answer)} if refused else {"refused": 0}
        if problem:
            told["invalid" if answer.invalid else "unavailable"] = problem
        if tell != self._log.debug and self._left_out:
            told["left_out"], self._left_out = self._left_out, 0
        tell(
            "decided",
            worker=batch.worker,
            batch=batch.batch_id,
            shard=batch.shard,
            snapshot_seq=batch.snapshot_seq,
            seq=answer.seq,
            pods=pods,
            **told,
            **trace_fields(batch.traceparent),
        )

    def _may_tell(self, now: float) -> bool:
        self._allowed = min(_BURST, self._allowed + (now - self._asked_at) * _LINES_PER_SECOND)
        self._asked_at = now
        if self._allowed < 1:
            self._left_out += 1
            return False
        self._allowed -= 1
        return True


def _refusals(answer: pb.VerdictBatch) -> dict[str, int]:
    codes = Counter(code for part in (answer, *answer.parts) for code in part.verdicts if code not in _WELL)
    return {pb.Verdict.Name(pb.Verdict.ValueType(code)): count for code, count in sorted(codes.items())}
