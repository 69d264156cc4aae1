"""Which of the free room pods can use, for the dashboard: measured for viewers, and kept for an hour.

A measure reads every pod and reservation, so it costs the platform more than a sample. It begins when
somebody opens the page, and is repeated until nobody has looked for an hour. Measuring takes a twentieth of
the time at most, a fifth while viewers ask for new labels. Labels, pools and points are bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hoss.errors import HossError, InvalidInput
from hoss.model.resources import WHOLE_CARD_MILLI, written_amount
from hoss.tasks import end_tasks
from hoss.telemetry import logger
from hossctl.console import Document
from hossctl.dashboard.history import HOUR_MS

# For each of these labels, "" for one pool of all nodes, its document as hossctl/rebalance/room.py has it,
# with MOST_POOLS at most: the name of each node is a label, and to measure thousands of pools takes minutes.
Measure = Callable[[Sequence[str]], Awaitable[dict[str, Document]]]

REST_SECONDS = 10.0  # between two measures while somebody looks
AWAY_REST_SECONDS = 60.0  # and afterwards
LOOKED_SECONDS = 15.0  # pages ask every two seconds; a tab in the background asks less often
KEPT_SECONDS = 3600.0  # for so long after the last look a label is measured
LEAST_REST, LEAST_REST_BEFORE_NEW = 20, 4  # times what the last measure took; before one of a new label
FIRST_WAIT_SECONDS = 2.0  # the first viewer waits so long for the first measure

MOST_LABELS = 4
MOST_POOLS = 32  # the largest; the others are in no list and have no points
MOST_POINTS = 360
MOST_WAITING = 20  # jobs that wait, in the list
_LONGEST_LABEL = 317  # of Kubernetes: a prefix of 253, a slash, a name of 63
_CARDS = "cards"


class FragmentationHistory:
    """`page` answers a viewer, and `keep_up` is called every second. `close` at the end."""

    def __init__(
        self, measure: Measure, *, clock: Callable[[], float], unix_clock: Callable[[], float]
    ) -> None:
        self._measure = measure
        self._clock = clock
        self._unix_clock = unix_clock
        self._labels: dict[str, _Label] = {}  # the one that was asked for last is the last
        self._measuring: asyncio.Task[None] | None = None
        self._began = 0.0
        self._ended: float | None = None  # when the last measure did
        self._took = 0.0  # the last one that succeeded: one that waited for a service is no measure of cost
        self._problem = ""

    async def page(self, label: str, pool: str, resource: str) -> dict[str, Any]:
        """The last measure, with the points of one pool and resource. `pool` "": the largest one. Raises
        InvalidInput."""
        if len(label) > _LONGEST_LABEL:
            raise InvalidInput(f"is longer than {_LONGEST_LABEL} characters", where="label")
        of_label = self._labels.pop(label, None) or _Label()
        self._labels[label] = of_label
        of_label.asked = self._clock()
        while len(self._labels) > MOST_LABELS:
            del self._labels[next(iter(self._labels))]
        self.keep_up()
        if not of_label.document and self._measuring is not None:
            await asyncio.wait((self._measuring,), timeout=FIRST_WAIT_SECONDS)
        return {
            "label": label,
            "measuring": self._measuring_seconds(),
            "problem": self._problem,
            "took": round(self._took, 2),
            "rest": self._rest(),
            **of_label.page(pool, resource),
        }

    def keep_up(self) -> None:
        """Begin a measure if one is due: one at a time, and of all labels at once."""
        now = self._clock()
        for label in [name for name, kept in self._labels.items() if now - kept.asked > KEPT_SECONDS]:
            del self._labels[label]
        if not self._labels or (self._measuring is not None and not self._measuring.done()):
            return
        new = any(not kept.tried for kept in self._labels.values())
        rest = self._took * LEAST_REST_BEFORE_NEW if new else self._rest()
        if self._ended is None or now - self._ended >= rest:
            self._measuring = asyncio.ensure_future(self._look(tuple(self._labels)))

    async def close(self) -> None:
        """End what is being measured."""
        if self._measuring is not None:
            await end_tasks((self._measuring,))

    def _measuring_seconds(self) -> int | None:
        """How long the present measure has taken, in whole tens, so that pages are not drawn anew for it."""
        if self._measuring is None or self._measuring.done():
            return None
        return int((self._clock() - self._began) // 10 * 10)

    def _rest(self) -> float:
        looked = max((kept.asked for kept in self._labels.values()), default=0.0)
        rest = REST_SECONDS if self._clock() - looked <= LOOKED_SECONDS else AWAY_REST_SECONDS
        return max(rest, self._took * LEAST_REST)

    async def _look(self, labels: tuple[str, ...]) -> None:
        self._began = self._clock()
        try:
            measured = await self._measure(labels)
        except HossError as exc:
            self._problem = str(exc)
        except Exception as exc:  # noqa: BLE001 - shown and logged; the next measure is the retry
            logger().error("dashboard_measure_failed", error=str(exc), exc_info=exc)
            self._problem = f"the measure failed; the dashboard's log says more: {exc}"
        else:
            self._problem = ""
            self._took = self._clock() - self._began
            at_ms = int(self._unix_clock() * 1000)
            for label, document in measured.items():
                if label in self._labels:
                    self._labels[label].take(document, at_ms)
        finally:
            for label in labels:
                if label in self._labels:
                    self._labels[label].tried = True
            self._ended = self._clock()


class _Label:
    """The pools that one label makes: the last measure, and the points of each pool."""

    def __init__(self) -> None:
        self.asked = 0.0
        self.tried = False
        self.at_ms = 0
        self.document: Document = {}
        self._points: dict[str, deque[tuple[int, int, dict[str, tuple[int, int, int]]]]] = {}

    def take(self, document: Document, at_ms: int) -> None:
        """Keep this measure, as the last one and as a point of each pool."""
        pools = sorted(document["pools"], key=lambda pool: (-pool["nodes"], pool["name"]))
        self.at_ms = at_ms
        self.document = {**document, "pools": pools}
        for pool in self.document["pools"]:
            amounts = {
                row["resource"]: (row["allocatable"], row["free"], row["usable"]) for row in _resources(pool)
            }
            points = self._points.setdefault(pool["name"], deque(maxlen=MOST_POINTS))
            points.append((at_ms, pool["emptiable"], amounts))
        for name, points in list(self._points.items()):
            while points and at_ms - points[0][0] > HOUR_MS:
                points.popleft()
            if not points or (len(self._points) > 2 * MOST_POOLS and points[-1][0] != at_ms):
                del self._points[name]

    def page(self, pool: str, resource: str) -> dict[str, Any]:
        """What a viewer sees. `points`: of each `[at, allocatable, free, usable, emptiable nodes]`."""
        pools = self.document.get("pools", [])
        chosen = next((found for found in pools if found["name"] == pool), pools[0] if pools else None)
        rows = [] if chosen is None else _resources(chosen)
        offered = [row["resource"] for row in rows]
        shown = resource if resource in offered else next(iter(offered), "")
        kept = () if chosen is None else self._points[chosen["name"]]
        return {
            "at": self.at_ms,
            "pool": "" if chosen is None else chosen["name"],
            "resource": shown,
            "resources": offered,
            "more": self.document.get("morePools", 0),
            "pools": [
                {
                    "name": found["name"],
                    "nodes": found["nodes"],
                    "emptiable": found["emptiable"],
                    "resources": [_written(row) for row in _resources(found)],
                }
                for found in pools
            ],
            "stranded": [] if chosen is None else [_stranded(entry) for entry in chosen["stranded"]],
            "cards": None if chosen is None else chosen["cards"],
            "waiting": self.document.get("waiting", [])[:MOST_WAITING],
            "points": [
                (at, *amounts[shown], emptiable) for at, emptiable, amounts in kept if shown in amounts
            ],
        }


def _resources(pool: Document) -> list[Document]:
    """The resources of a pool, with its cards as one: what FGD's measure calls fragments is not usable."""
    rows: list[Document] = list(pool["resources"])
    cards = pool["cards"]
    if cards is not None:
        free, waiting = cards["freeMilli"], cards["fragmentsOfWaitingMilli"]
        rows.append(
            {
                "resource": _CARDS,
                "allocatable": cards["cards"] * WHOLE_CARD_MILLI,
                "free": free,
                "usable": max(free - cards["fragmentsMilli"], 0),
                "usableByWaiting": None if waiting is None else max(free - waiting, 0),
            }
        )
    return rows


def _written(row: Document) -> Document:
    """A row for people: shares, and amounts as text. A share without a whole is null."""
    allocatable, free, waiting = row["allocatable"], row["free"], row["usableByWaiting"]
    name = row["resource"]
    return {
        "resource": name,
        "allocatable": _amount(name, allocatable),
        "free": _amount(name, free),
        "freeShare": _share(free, allocatable),
        "usable": _amount(name, row["usable"]),
        "usableShare": _share(row["usable"], free),
        "byWaiting": None if waiting is None else _amount(name, waiting),
        "byWaitingShare": None if waiting is None else _share(waiting, free),
    }


def _stranded(entry: Document) -> Document:
    return {**entry, "amount": _amount(entry["resource"], entry["amount"])}


def _amount(resource: str, amount: int) -> str:
    return f"{amount / WHOLE_CARD_MILLI:g}" if resource == _CARDS else written_amount(resource, amount)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
