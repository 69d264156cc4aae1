"""The context of a span, as messages and gRPC metadata carry it: W3C Trace Context.

Ids and times of spans come from the machine itself and not from the host (hoss.host): no service decides
anything by them."""

import contextlib
import random
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import grpc.aio

HEADER = "traceparent"

_outgoing: ContextVar[str] = ContextVar("traceparent", default="")


class TraceContext(NamedTuple):
    """`kept`: the trace was chosen, so its spans are exported whatever happens in them."""

    trace_id: int
    span_id: int
    kept: bool

    def child(self) -> "TraceContext":
        """A new span of the same trace."""
        return self._replace(span_id=new_span_id())

    def __str__(self) -> str:
        """As a traceparent."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.kept):02x}"


def now_ns() -> int:
    """Unix nanoseconds, for the beginning and the end of a span."""
    return time.time_ns()


def new_span_id() -> int:
    """Random, never 0."""
    return random.getrandbits(64) or 1


def new_trace(*, kept: bool) -> TraceContext:
    """The first span of a new trace."""
    return TraceContext(random.getrandbits(128) or 1, new_span_id(), kept)


def read_traceparent(text: str) -> TraceContext | None:
    """None for text that is no traceparent: it counts as absent (W3C Trace Context, 4.3)."""
    parts = text.split("-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2] or parts[0] == "ff":
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    return TraceContext(trace_id, span_id, bool(flags & 1)) if trace_id and span_id else None


def trace_fields(traceparent: str) -> dict[str, str]:
    """Fields for a log line about this span, by OpenTelemetry's names; none without a traceparent."""
    parts = traceparent.split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) == 4 else {}


@contextlib.contextmanager
def calls_belong_to(traceparent: str) -> Iterator[None]:
    """Calls made within the block carry this context (see `metadata`)."""
    token = _outgoing.set(traceparent)
    try:
        yield
    finally:
        _outgoing.reset(token)


def metadata() -> tuple[tuple[str, str], ...] | None:
    """Metadata for a call made here; None outside of `calls_belong_to`."""
    traceparent = _outgoing.get()
    return ((HEADER, traceparent),) if traceparent else None


def context_of(call: "grpc.aio.ServicerContext[Any, Any]") -> TraceContext | None:
    """The context in the metadata of a call."""
    found = next((value for key, value in call.invocation_metadata() or () if key == HEADER), "")
    return read_traceparent(found if isinstance(found, str) else found.decode("ascii", "replace"))
