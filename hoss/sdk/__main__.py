"""Runs the class of a scheduler by its name: `python -m hoss.sdk module:Class` or `FILE.py:Class`, then the
flags of `hoss.sdk.main`. `hoss bench compare` starts schedulers of one's own by this."""

import sys
from collections.abc import Sequence

from hoss.errors import ConfigError
from hoss.imports import named_object
from hoss.sdk.running import main as run


def main(argv: Sequence[str] | None = None) -> int:
    """Make the class that the first argument names and run it; the exit code."""
    target, *flags = sys.argv[1:] if argv is None else argv
    try:
        algorithm = named_object(target)()
    except Exception as exc:  # noqa: BLE001 - importing and making code of others may raise anything
        problem = str(exc) if isinstance(exc, ConfigError) else f"{target}: {type(exc).__name__}: {exc}"
        print(problem, file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    return run(algorithm, flags)


if __name__ == "__main__":
    sys.exit(main())
