"""Which labels a worker may register with: policies send pods by them, so a worker that lies gets pods it should not."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from hoss.errors import InvalidInput


class LabelAllowances:
    """Values by label by pattern of names. Without any, workers are trusted."""

    def __init__(self, by_pattern: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        self._by_pattern = by_pattern

    def check(self, name: str, labels: Mapping[str, str]) -> None:
        """Raises InvalidInput where a worker of this name may not have these labels."""
        if not self._by_pattern:
            return
        pattern = next((pattern for pattern in self._by_pattern if fnmatchcase(name, pattern)), None)
        if pattern is None:
            told = ", ".join(self._by_pattern)
            raise InvalidInput(
                f"{name!r} matches none of the dispatcher's worker_labels ({told}); add it there", where="register.name"
            )
        allowed = self._by_pattern[pattern]
        for key, value in labels.items():
            if value not in allowed.get(key, ()):
                values = " or ".join(f"{key}={v}" for v in allowed.get(key, ())) or f"no {key} at all"
                raise InvalidInput(
                    f"{key}={value} is not {name}'s to claim: the dispatcher's worker_labels[{pattern}] allow {values}",
                    where="register.labels",
                )
