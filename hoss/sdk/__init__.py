"""A scheduler of your own beside those of HOSS: one class with `place`, and `main`. See docs/tutorials."""

from hoss.model.placing import NO_NODE, NodeSnapshot, PlacementAlgorithm, PlacementBatch, PlacementRun
from hoss.sdk.running import main, running

__all__ = [
    "NO_NODE",
    "NodeSnapshot",
    "PlacementAlgorithm",
    "PlacementBatch",
    "PlacementRun",
    "main",
    "running",
]
