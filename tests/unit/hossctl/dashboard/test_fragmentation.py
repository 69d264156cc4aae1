"""Fragmentation as the dashboard keeps it: when it is measured, for how long, and within which bounds."""

import asyncio

import pytest

from hoss.errors import InvalidInput, TransportError
from hossctl.dashboard import fragmentation as f

HOUR = 3600.0


def pool(name: str, nodes: int = 1, free: int = 4000, cards=None) -> dict:
    cpu = {"resource": "cpu", "allocatable": 8000, "free": free, "usable": 1000, "usableByWaiting": None}
    return {
        "name": name,
        "nodes": nodes,
        "emptiable": 1,
        "resources": [cpu],
        "stranded": [{"resource": "cpu", "beside": "memory", "amount": 500, "nodes": 1}],
        "cards": cards,
    }


class Platform:
    """A clock, and a measure of one pool, "all", that a test may hold, fail or replace."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pools = [pool("all")]
        self.measured: list[tuple[str, ...]] = []
        self.failing: Exception | None = None
        self.takes = 0.0
        self.go = asyncio.Event()
        self.go.set()
        self.history = f.FragmentationHistory(
            self.measure, clock=lambda: self.now, unix_clock=lambda: self.now
        )

    async def measure(self, labels):
        self.measured.append(tuple(labels))
        await self.go.wait()
        self.now += self.takes
        if self.failing is not None:
            raise self.failing
        document = {"pools": self.pools[: f.MOST_POOLS], "morePools": len(self.pools[f.MOST_POOLS :])}
        return {label: {"kind": "Fragmentation", "waiting": [], **document} for label in labels}

    async def page(self, label: str = "", pool: str = "", resource: str = "") -> dict:
        return await self.history.page(label, pool, resource)

    async def after(self, seconds: float) -> None:
        """Let time pass, with what happens every second happening at its end."""
        self.now += seconds
        self.history.keep_up()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_nothing_is_measured_before_somebody_looks():
    platform = Platform()
    await platform.after(HOUR)
    assert platform.measured == []


async def test_the_first_viewer_gets_a_measure_with_shares_and_amounts_for_people():
    page = await Platform().page()
    (row,) = page["pools"][0]["resources"]
    assert (row["free"], row["freeShare"], row["usable"], row["usableShare"]) == ("4", 0.5, "1", 0.25)
    assert row["byWaiting"] is None
    assert page["points"] == [(1_000_000, 8000, 4000, 1000, 1)]
    assert page["stranded"] == [{"resource": "cpu", "beside": "memory", "amount": "500m", "nodes": 1}]


async def test_what_no_usual_pod_can_use_of_the_cards_is_free_and_not_usable():
    platform = Platform()
    cards = {"cards": 4, "freeMilli": 2500, "fragmentsMilli": 1000, "fragmentsOfWaitingMilli": 3000}
    platform.pools = [pool("all", cards=cards)]
    page = await platform.page(resource="cards")
    row = page["pools"][0]["resources"][-1]
    assert (row["resource"], row["allocatable"], row["free"], row["usable"]) == ("cards", "4", "2.5", "1.5")
    assert row["byWaiting"] == "0"
    assert page["points"][0][1:4] == (4000, 2500, 1500)


async def test_it_is_measured_again_while_somebody_looks_then_less_often_then_no_more():
    platform = Platform()
    await platform.page()
    await platform.after(f.REST_SECONDS - 1)
    assert len(platform.measured) == 1
    await platform.after(1)
    assert len(platform.measured) == 2
    await platform.after(f.REST_SECONDS + 6)  # nobody has asked for longer than a page waits
    assert len(platform.measured) == 2
    await platform.after(f.AWAY_REST_SECONDS)
    assert len(platform.measured) == 3
    await platform.after(f.KEPT_SECONDS)
    assert len(platform.measured) == 3
    page = await platform.page()
    assert len(page["points"]) == 1  # those before are forgotten


async def test_a_dear_measure_takes_a_twentieth_of_the_time_at_most():
    platform = Platform()
    platform.takes = 3.0
    await platform.page()
    for _ in range(59):
        await platform.after(1)
        await platform.page()
    assert len(platform.measured) == 1
    await platform.after(1)
    assert len(platform.measured) == 2


async def test_a_failure_is_told_beside_what_was_measured_and_the_next_measure_clears_it():
    platform = Platform()
    await platform.page()
    platform.failing = TransportError("resolver cannot be reached")
    platform.takes = 100.0  # until it was given up: no reason to rest for half an hour
    await platform.after(f.REST_SECONDS)
    page = await platform.page()
    assert page["problem"] == "resolver cannot be reached"
    assert page["at"] == 1_000_000
    assert page["points"]
    platform.failing, platform.takes = None, 0.0
    await platform.after(f.REST_SECONDS)
    assert (await platform.page())["problem"] == ""


async def test_a_fault_of_the_measure_itself_is_told_and_ends_nothing():
    platform = Platform()
    platform.failing = ZeroDivisionError("of ours")
    assert "of ours" in (await platform.page())["problem"]
    platform.failing = None
    await platform.after(f.REST_SECONDS)
    assert (await platform.page())["pools"]


async def test_a_measure_that_takes_long_is_told_and_no_second_one_begins(monkeypatch):
    monkeypatch.setattr(f, "FIRST_WAIT_SECONDS", 0.0)
    platform = Platform()
    platform.go.clear()
    assert (await platform.page())["measuring"] == 0
    await platform.after(25)
    page = await platform.page()
    assert (page["measuring"], page["at"]) == (20, 0)
    assert len(platform.measured) == 1
    await platform.history.close()


async def test_labels_are_measured_together_and_only_the_last_few_that_were_asked_for():
    platform = Platform()
    for number in range(f.MOST_LABELS + 1):
        await platform.page(f"label-{number}")
    await platform.after(f.REST_SECONDS)
    assert platform.measured[-1] == tuple(f"label-{number}" for number in range(1, f.MOST_LABELS + 1))


async def test_a_label_longer_than_any_is_refused():
    with pytest.raises(InvalidInput, match="label: is longer than 317 characters"):
        await Platform().page("x" * 318)


async def test_pools_that_come_and_go_leave_bounded_points():
    platform = Platform()
    for turn in range(10):
        platform.pools = [pool(f"{turn}-{number}", nodes=99 - number) for number in range(f.MOST_POOLS + 5)]
        await platform.page()
        await platform.after(f.REST_SECONDS)
    page = await platform.page()
    assert page["more"] == 5
    assert len(page["pools"]) == f.MOST_POOLS
    assert page["pool"] == "9-0"  # the largest
    (of_label,) = platform.history._labels.values()
    assert len(of_label._points) <= 3 * f.MOST_POOLS


async def test_a_pool_or_resource_that_is_not_there_is_answered_with_one_that_is():
    platform = Platform()
    platform.pools = [pool("a", nodes=3), pool("b")]
    assert (await platform.page(pool="b"))["pool"] == "b"
    page = await platform.page(pool="gone", resource="cards")
    assert (page["pool"], page["resource"]) == ("a", "cpu")
