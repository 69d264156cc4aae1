"""Where the synchronous command line meets the asynchronous clients."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_async(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a command's coroutine on an event loop of its own, on uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(main)
    result: ResultT = uvloop.run(main)
    return result
