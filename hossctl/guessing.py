"""What somebody who mistyped a word may have meant."""

from collections.abc import Sequence
from difflib import get_close_matches

_LIKENESS = 0.7  # of difflib: a letter or two of a short word


def did_you_mean(written: str, choices: Sequence[str]) -> str:
    """The end of a sentence that names the likeliest choice; empty where none is like it."""
    likely = get_close_matches(written, choices, n=1, cutoff=_LIKENESS)
    return f"; did you mean {likely[0]!r}?" if likely else ""
