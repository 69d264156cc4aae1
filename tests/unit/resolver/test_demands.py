"""What pods ask for, read once for all that are alike."""

from typing import Any

import pytest

from hoss.errors import InvalidInput
from resolver.kubernetes import pod_source
from resolver.kubernetes.pod_source import DemandCache


def _pod(name: str, *, labels: Any = None, cpu: str = "100m", **spec: Any) -> Any:
    mounts = [{"name": f"token-{name}", "mountPath": "/token"}]
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}, "volumeMounts": mounts}
    volumes = [{"name": f"token-{name}", "projected": {}}]
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "labels": labels or {"app": "web"}},
        "spec": {"containers": [container], "volumes": volumes, "hostname": name, **spec},
    }


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever a manifest is read."""
    count: list[int] = []
    read = pod_source.read_pod_template

    def counting(*given: Any, **options: Any) -> Any:
        count.append(1)
        return read(*given, **options)

    monkeypatch.setattr(pod_source, "read_pod_template", counting)
    return count


def test_pods_of_one_controller_are_read_once_though_each_has_volumes_of_its_own(reads: list[int]) -> None:
    known = DemandCache()
    assert known.of(_pod("a"), "default") == known.of(_pod("b"), "default")
    assert len(reads) == 1


@pytest.mark.parametrize(
    "other",
    [
        _pod("b", cpu="200m"),
        _pod("b", labels={"app": "other"}),
        _pod("b", priority=7),
        _pod("b", initContainers=[{"name": "i", "resources": {"requests": {"cpu": "1"}}}]),
        _pod("b", containers=[{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]),
    ],
    ids=["cpu", "labels", "priority", "init containers", "host ports"],
)
def test_pods_that_ask_for_something_else_are_told_apart(other: Any) -> None:
    known = DemandCache()
    assert known.of(_pod("a"), "default") != known.of(other, "default")


def test_the_namespace_is_part_of_the_group() -> None:
    known = DemandCache()
    assert known.of(_pod("a"), "default").group != known.of(_pod("a"), "other").group


def test_what_cannot_be_counted_is_never_kept(reads: list[int]) -> None:
    known = DemandCache()
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"pod.spec.containers\[0\].resources.requests.cpu"):
            known.of(_pod("a", cpu="much"), "default")
    assert len(reads) == 2


def test_what_is_kept_stays_within_bounds(monkeypatch: pytest.MonkeyPatch, reads: list[int]) -> None:
    monkeypatch.setattr(pod_source, "_CACHED", 3)
    known = DemandCache()
    for priority in (*range(5), 4):
        known.of(_pod("a", priority=priority), "default")
    assert len(reads) == 5
