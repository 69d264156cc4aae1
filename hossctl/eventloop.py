"""Where the synchronous command line meets the asynchronous clients."""

from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_async(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a command's coroutine on an event loop of its own, on uvloop where it is installed."""
    import asyncio  # noqa: PLC0415 - help and wrong usage need no loop

    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(main)
    result: ResultT = uvloop.run(main)
    return result
