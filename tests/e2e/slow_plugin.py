"""A plugin of another package that takes its time, installed as such packages are: workers find it by its
entry point."""

import os
from pathlib import Path

import pytest

_SOURCE = '''
"""Scores nothing, slowly."""

import time

from scheduler_worker.core.framework.extension_points import ScorePlugin


class Slow(ScorePlugin):
    name = "Slow"

    def __init__(self, milliseconds=0):
        self._seconds = milliseconds / 1000

    def score(self, pod, nodes):
        time.sleep(self._seconds)
        return None
'''

_DOCUMENT = """\
apiVersion: hoss.dev/v1alpha1
kind: WorkerConfig
profile: slow
profiles:
  - name: slow
    plugins:
      - name: NodeResourcesFit
      - {{name: Slow, args: {{milliseconds: {milliseconds}}}}}
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package where processes started from now on find it."""
    site = directory / "site"
    metadata = site / "slow_scheduling-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "slow_scheduling.py").write_text(_SOURCE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-scheduling\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hoss.plugins]\nSlow = slow_scheduling:Slow\n")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    )


def document(directory: Path, milliseconds: float) -> Path:
    """A worker's configuration with the plugin: each look at nodes takes so long."""
    path = directory / f"slow-{milliseconds:g}.yaml"
    path.write_text(_DOCUMENT.format(milliseconds=milliseconds))
    return path
