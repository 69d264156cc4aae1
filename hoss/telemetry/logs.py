"""Logs, configured once per process by its composition root.

One event per decision batch, fields and not prose. HOSS_LOG=console (default on a terminal) or json.
"""

import logging
import os
import sys
from typing import TextIO, cast

from hoss.imports import without
from hoss.log_output import LogOutput

# It would print exceptions in colours, which come to it as text here.
with without("rich"):
    import structlog

STYLES = ("console", "json")


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
    if style not in STYLES:
        logger().warning("log_style_unknown", HOSS_LOG=style, known=STYLES, used="json")


Logger = structlog.typing.FilteringBoundLogger


def logger() -> Logger:
    """A logger; call it with an event name in snake_case and fields."""
    log: Logger = structlog.get_logger()
    return log
