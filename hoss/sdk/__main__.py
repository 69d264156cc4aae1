"""Runs the class of a scheduler by its name: `python -m hoss.sdk FILE.py:Class` or `module:Class`, then the
flags of `hoss.sdk.main`. `hoss bench compare` starts schedulers of one's own by this."""

import sys
from collections.abc import Sequence

from hoss.errors import ConfigError
from hoss.imports import loading, named_object
from hoss.model.placing import PlacementAlgorithm
from hoss.sdk.running import main as run


def main(argv: Sequence[str] | None = None) -> int:
    """Make the class that the first argument names and run it; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or ":" not in arguments[0]:
        usage = "usage: python -m hoss.sdk FILE.py:Class [FLAGS]; --help after it lists them"
        print(usage, file=sys.stderr)  # noqa: T201
        return 2
    target = arguments[0]
    try:
        algorithm = _made(target)
    except Exception as exc:  # noqa: BLE001 - importing and making code of others may raise anything
        problem = exc.text if isinstance(exc, ConfigError) else f"{type(exc).__name__}: {exc}"
        print(f"{target}: {problem}", file=sys.stderr)  # noqa: T201 - for whoever started it
        return 1
    return run(algorithm, arguments[1:])


def _made(target: str) -> PlacementAlgorithm:
    with loading(target):
        made = named_object(target)()
    if not isinstance(made, PlacementAlgorithm):
        raise ConfigError("has no method place(batch, snapshot, budget)")
    return made


if __name__ == "__main__":
    sys.exit(main())
