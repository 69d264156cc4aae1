"""The `hoss` command."""

import io
import signal
import sys
from types import FrameType

from typer.main import get_command

from hossctl.cli import EXIT_FAILED, app, report

_TERMINATED = 128 + signal.SIGTERM


class _Terminated(SystemExit):
    """The command was asked to end."""


def main() -> None:
    """Run one command and exit with its code.

    SIGTERM ends it as Ctrl-C does, so that a benchmark or demo leaves none of the processes behind that it has started.
    """
    signal.signal(signal.SIGTERM, _end)
    write_whole()
    command = get_command(app)
    try:
        command(prog_name="hoss")
    except _Terminated:
        from hossctl.process import kill_children  # noqa: PLC0415 - all other commands start sooner without it

        kill_children()  # one that was being started when the signal came, and that nobody knows of yet
        raise
    except Exception as exc:  # noqa: BLE001 - the last resort: a person gets a sentence, not a traceback
        report(exc)
        sys.exit(EXIT_FAILED)


def write_whole() -> None:
    """Buffer stdout line by line where PYTHONUNBUFFERED, as containers set it, asks for no buffer at all: Python then forgets what
    a pipe has not taken when a stop or a continuation cuts a write short, and the document ends in its middle with exit code 0."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and isinstance(out.buffer, io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115 - a descriptor, until the process ends
            out.fileno(), "w", buffering=1, encoding=out.encoding, errors=out.errors, closefd=False
        )


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # asked once more, it would leave its clearing up half done
    raise _Terminated(_TERMINATED)


if __name__ == "__main__":
    main()
