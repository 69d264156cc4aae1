"""Manifests from files and standard input, as commands take them with -f."""

import sys
from pathlib import Path

from hoss.errors import InvalidInput
from hoss.wire.manifests import MAX_MANIFEST_BYTES, Manifest, read_manifest


def read_input(name: str) -> Manifest:
    """The manifest of a file, or of standard input for "-". Raises InvalidInput naming it."""
    where = "stdin" if name == "-" else name
    try:
        # One byte more than is read at the most: enough to be refused for its size.
        data = sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1) if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        raise InvalidInput(f"cannot be read: {exc.strerror}", where=where) from exc
    return read_manifest(data, where=where)
