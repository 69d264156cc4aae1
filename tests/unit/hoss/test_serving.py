"""What every service process shares."""

import gc

import orjson

from hoss import serving
from hoss.kube.reflector import PAGE

_OBJECTS_IN_A_POD = 95  # of a ReplicaSet with one container, by gc.get_count


async def _nothing() -> None:
    """A service that ends at once."""


def test_a_service_parses_two_pages_of_pods_without_a_pass_of_the_collector(monkeypatch):
    """The reflector has two pages at most: the next comes while one is handled. They are no garbage, and to
    go through them took half of the time of parsing them."""
    monkeypatch.setattr(serving, "_allow_connections", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    before, generations = gc.get_threshold(), []

    def collects(phase: str, info: dict[str, int]) -> None:
        generations.append((phase, info["generation"]))

    try:
        serving.run(_nothing)
        page = orjson.dumps([[{}] * (_OBJECTS_IN_A_POD - 1)] * PAGE)
        gc.collect()
        gc.callbacks.append(collects)
        pages = [orjson.loads(page), orjson.loads(page)]
        gc.callbacks.remove(collects)
    finally:
        gc.set_threshold(*before)
    assert len(pages) == 2
    assert not generations
