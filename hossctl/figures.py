"""Medians, percentiles, rates, and how durations are written in reports."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones; 0.0 of nothing."""
    import numpy as np  # noqa: PLC0415 - it takes long to import, and most commands write durations alone

    return float(np.median(values)) if len(values) else 0.0


def percentiles(values: "NDArray[Any]", *levels: float) -> list[float]:
    """The values below which `levels` per cent lie, linearly interpolated; zeros of nothing."""
    import numpy as np  # noqa: PLC0415 - see `median`

    if not len(values):
        return [0.0] * len(levels)
    return [float(v) for v in np.percentile(values, levels)]


def per_second(count: float, seconds: float) -> float:
    """A rate; 0.0 where no time has passed."""
    return count / seconds if seconds > 0 else 0.0


def share(part: float, whole: float) -> float:
    """`part` of `whole` as a fraction; 0.0 of nothing."""
    return part / whole if whole else 0.0


def camel(thing: object, *names: str, digits: int | None = None) -> dict[str, Any]:
    """Attributes of an object by their names in camel case, numbers rounded to so many digits."""
    found = {}
    for name in names:
        value, (first, *others) = getattr(thing, name), name.split("_")
        key = first + "".join(word.capitalize() for word in others)
        found[key] = value if digits is None else round(value, digits)
    return found


def written_duration(seconds: float) -> str:
    """A duration to two significant units: 340ms, 12s, 5m3s, 2h10m, 3d4h."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    whole = int(seconds)
    for size, unit, smaller_size, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit}{rest}{smaller}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def written_since(unix_ms: float) -> str:
    """The time since a moment in Unix milliseconds, as a duration; 0ms for a moment that is still to come."""
    return written_duration(max(0.0, time.time() - unix_ms / 1000))
