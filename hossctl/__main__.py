"""The `hoss` command."""

import contextlib
import io
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any


def main() -> None:
    """Run one `hoss` command and exit with its code."""
    with _ended_by_interrupts():
        from typer.main import get_command  # noqa: PLC0415 - Ctrl-C may come meanwhile

        from hossctl.cli import app  # noqa: PLC0415
    run(get_command(app), "hoss")


def run(command: Callable[..., Any], name: str) -> None:
    """Run one command and exit with its code. SIGTERM ends it as Ctrl-C does, so that a benchmark or demo
    leaves no process behind."""
    with _ended_by_interrupts():
        from hoss import quieten_grpc  # noqa: PLC0415
        from hossctl import cli  # noqa: PLC0415
    signal.signal(signal.SIGTERM, cli.end)
    write_whole()
    quieten_grpc()  # commands import it when they run
    try:
        command(prog_name=name)
    except (KeyboardInterrupt, SystemExit) as exc:
        code = cli.EXIT_INTERRUPTED if isinstance(exc, KeyboardInterrupt) else exc.code
        if code not in (cli.EXIT_INTERRUPTED, cli.EXIT_TERMINATED):
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from hossctl.local.process import kill_children  # noqa: PLC0415 - only after a signal

        kill_children()  # the signal may have come between the start of a process and its registration
        sys.exit(code)
    except Exception as exc:  # noqa: BLE001 - people get a sentence, not a traceback
        cli.report(exc)
        sys.exit(cli.exit_code(exc))
    finally:
        cli.flush_output()


@contextlib.contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Ctrl-C ends the process at once and without a word during the block, in which nothing is begun yet.
    Imports take long enough to be interrupted, and a traceback of them tells a user nothing."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, as of a shell's background jobs, or somebody else's
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def write_whole() -> None:
    """Buffer stdout by lines where PYTHONUNBUFFERED, which containers set, turns buffering off.

    Without a buffer, Python drops the rest of a write that SIGSTOP or SIGCONT has cut short. The document
    then ends in its middle, with exit code 0."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and isinstance(out.buffer, io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115 - a descriptor, until the process ends
            out.fileno(), "w", buffering=1, encoding=out.encoding, errors=out.errors, closefd=False
        )


if __name__ == "__main__":
    main()
