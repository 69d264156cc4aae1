"""Kubernetes mode: the journal without pods, which the API server keeps.

Workers, faults and the policy are written down as ever. Numbers of attempts are not: they would stay behind when pods go while
nobody looks.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dispatcher.journal import Journal


class PodlessJournal:
    """See dispatcher.journal.Journal."""

    def __init__(self, inner: Journal) -> None:
        self.record = inner.record
        self.delete = inner.delete
        self.ungate = inner.ungate
        self.note_faults = inner.note_faults
        self.remember_worker = inner.remember_worker
        self.put_objects = inner.put_objects
        self.drop_objects = inner.drop_objects
        self.keep_policy = inner.keep_policy
        self.kept_policy = inner.kept_policy
        self.recover = inner.recover
        self.rewrite = inner.rewrite
        self.close = inner.close

    async def note_attempts(self, attempts: Mapping[bytes, NDArray[np.uint16]]) -> None:
        """They are not kept."""

    async def drop(self, key: bytes, prefixes: list[bytes]) -> None:
        """It was never there."""
