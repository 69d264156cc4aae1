"""Logs, configured once per process by its composition root.

One event per decision batch, fields and not prose. HOSS_LOG=console (default on a terminal) or json. The
stream may be full, closed or gone; a service does not end because of that.
"""

import contextlib
import logging
import os
import sys
from typing import TextIO, cast

from hoss.errors import clipped
from hoss.imports import without

# structlog would print exceptions with rich, in colours; here they come to it as text.
with without("rich"):
    import structlog

STYLES = ("console", "json")

_MOST_CHARACTERS = 500  # of what a library says

Logger = structlog.typing.FilteringBoundLogger


class LogOutput:
    """Drops lines that cannot be written, and tries again with the next."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write all of `text`, or as much as there is room for."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class LibraryLog(logging.Handler):
    """What libraries log, as events of ours. aiohttp and gRPC log a traceback for each request that they
    cannot read. These become one line without it, and ten lines in a second at most."""

    _OF_REQUESTS = ("aiohttp.", "grpc")
    _LINES_PER_SECOND = 10

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._second = 0
        self._lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        fields = {"library": record.name, "text": _shortened(record.getMessage())}
        if not record.name.startswith(self._OF_REQUESTS):
            logger().log(record.levelno, "library_logged", **fields, exc_info=error)
            return
        if int(record.created) != self._second:
            self._second, self._lines = int(record.created), 0
        self._lines += 1
        if self._lines <= self._LINES_PER_SECOND:
            fields["error"] = _said(error) if error is not None else ""
            logger().log(record.levelno, "library_logged", **fields)


def _said(error: BaseException) -> str:
    """Of a request that aiohttp cannot read the kind of error alone: it quotes what was sent, which may be a
    token or a cookie."""
    quotes = type(error).__module__ == "aiohttp.http_exceptions"
    return type(error).__name__ if quotes else _shortened(f"{type(error).__name__}: {error}")


def _shortened(text: str) -> str:
    return clipped(" ".join(text.split()), _MOST_CHARACTERS)


def configure(service: str, *, level: str = "info") -> None:
    """Set up structlog for this process; every event carries the service's name."""
    style = os.environ.get("HOSS_LOG") or ("console" if sys.stderr.isatty() else "json")
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if style == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogOutput(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    root = logging.getLogger()
    if not any(isinstance(handler, LibraryLog) for handler in root.handlers):
        root.addHandler(LibraryLog())
    if style not in STYLES:
        logger().warning("log_style_unknown", HOSS_LOG=style, known=STYLES, used="json")


def logger() -> Logger:
    """A logger; call it with an event name in snake_case and fields."""
    log: Logger = structlog.get_logger()
    return log
