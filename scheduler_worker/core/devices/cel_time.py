"""Durations and points in time in expressions, in nanoseconds (cel-go's Duration and Timestamp)."""

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import NamedTuple
from zoneinfo import ZoneInfo

from scheduler_worker.core.devices.cel_values import CelError, Duration, Timestamp

_SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # the micro sign, as in Go
    "μs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


def parse_duration(text: str) -> Duration:
    """As Go's time.ParseDuration. Raises CelError."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    parts = _PART.findall(unsigned)
    if unsigned != "0" and (not parts or "".join(a + b for a, b in parts) != unsigned):
        raise CelError("type conversion error from 'string' to 'google.protobuf.Duration'")
    total = 0
    for number, unit in parts:
        whole, _, fraction = number.partition(".")
        total += int(whole or "0") * _UNITS[unit] + int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
    return Duration.checked(-total if text.startswith("-") else total)


def parse_timestamp(text: str) -> Timestamp:
    """By RFC 3339. Raises CelError."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise CelError("type conversion error from 'string' to 'google.protobuf.Timestamp'")
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        at = datetime.fromisoformat(match[1] + zone)
    except ValueError:
        raise CelError("type conversion error from 'string' to 'google.protobuf.Timestamp'") from None
    return Timestamp.checked(_seconds(at) * _SECOND + int((match[2] or "").ljust(9, "0")[:9]))


def timestamp_of_seconds(seconds: int) -> Timestamp:
    """Seconds since the epoch."""
    return Timestamp.checked(int(seconds) * _SECOND)


def _seconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(seconds=1)


_NUMBER = re.compile(r"[+-]?[0-9]{1,6}", re.ASCII)
_MINUTE = timedelta(minutes=1)
_CYCLE_YEARS, _CYCLE = 400, timedelta(days=146_097)  # after which the calendar repeats itself


class _Local(NamedTuple):
    """A moment in a time zone. Python knows the years 1 to 9999, and a zone may lead out of them."""

    at: datetime
    years_later: int = 0  # than `at`


def _local(at: Timestamp, zone: str) -> _Local:
    moment = _EPOCH + timedelta(microseconds=int(at) // 1000)
    move = _by_offset(zone) if ":" in zone else _by_name(zone)
    try:
        return _Local(move(moment))
    except OverflowError:
        cycles = 1 if moment.year > _CYCLE_YEARS else -1
    try:
        return _Local(move(moment - cycles * _CYCLE), cycles * _CYCLE_YEARS)
    except OverflowError:  # an offset of years
        raise CelError("timestamp overflow") from None


def _by_offset(zone: str) -> Callable[[datetime], datetime]:
    hours, _, minutes = zone.partition(":")
    for number in (hours, minutes):
        if _NUMBER.fullmatch(number) is None:
            raise CelError(f"strconv.Atoi: parsing {json.dumps(number, ensure_ascii=False)}: invalid syntax")
    offset = int(hours) * 60 + int(minutes) * (-1 if hours.startswith("-") else 1)
    return lambda moment: moment + offset * _MINUTE


def _by_name(zone: str) -> Callable[[datetime], datetime]:
    """By the machine's database of time zones, as kube-scheduler. Workers have it from one image."""
    if zone in ("", "UTC", "Local"):
        return lambda moment: moment
    if ".." in zone or zone[0] in "/\\":
        raise CelError("time: invalid location name")
    try:
        known = ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise CelError(f"unknown time zone {zone}") from None
    return lambda moment: moment.astimezone(known)


# By the name of the method.
FIELDS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
    "getMilliseconds": lambda at: at.microsecond // 1000,
}


def field(name: str) -> Callable[..., int]:
    """A method of timestamps; its argument is a time zone."""
    read, of_year = FIELDS[name], name == "getFullYear"

    def found(at: Timestamp, zone: str = "") -> int:
        local = _local(at, zone)
        return read(local.at) + (local.years_later if of_year else 0)

    return found


# Units of whole durations, by the name of the method.
WHOLE = {
    "getHours": 3600 * _SECOND,
    "getMinutes": 60 * _SECOND,
    "getSeconds": _SECOND,
    "getMilliseconds": 10**6,
}


def whole_units(name: str) -> Callable[[Duration], int]:
    """A method of durations: so many of a unit, rounded towards 0."""
    unit = WHOLE[name]
    return lambda duration: abs(int(duration)) // unit * (1 if duration >= 0 else -1)
