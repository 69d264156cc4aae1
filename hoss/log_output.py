"""Where log lines go: a stream that may be full, closed or gone, which is no reason for a service to end."""

import contextlib
from typing import TextIO


class LogOutput:
    """Lines that cannot be written are dropped: there is nobody left to be told. Those after them are tried again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """All of `text`, or as much as there is room for."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        with contextlib.suppress(OSError):
            self._stream.flush()
