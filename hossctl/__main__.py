"""The `hoss` command."""

import sys

from typer.main import get_command

from hossctl.cli import EXIT_FAILED, app, report


def main() -> None:
    """Run one command and exit with its code."""
    command = get_command(app)
    try:
        command(prog_name="hoss")
    except Exception as exc:  # noqa: BLE001 - the last resort: a person gets a sentence, not a traceback
        report(exc)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
