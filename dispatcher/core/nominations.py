"""Pods whose claim on a node stands while those that had to go for them are still leaving (nominatedNodeName).

In the table they are BOUND, for they hold their reservation like any bound pod, and the room can be nobody else's. Only
what is told of them waits. Here victims leave when their grace period is over. Where kubelets run them, nominations end by word:
of who went for whom (`heard`), and of each victim's end (`gone`).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.podtable import Phase, PodTable, Rows


class Nominations:
    """A few pods at any time, by row. What became of a pod otherwise, deleted or evicted itself, ends it."""

    def __init__(self, pods: PodTable, *, by_word: bool = False) -> None:
        self._pods = pods
        self._by_word = by_word
        self._due: dict[int, tuple[float, bytes]] = {}  # and the UID: rows are given to others
        self._victims: dict[bytes, set[bytes]] = {}  # by word: UIDs of those that still leave, by their preemptor's

    def add(self, rows: Rows, leaving_ms: NDArray[np.uint32], now: float) -> None:
        """For each pod, how long its victims may still be there; 0: nobody is."""
        for i in np.flatnonzero(leaving_ms).tolist():
            row = int(rows[i])
            self._due[row] = (now + int(leaving_ms[i]) / 1000, self._pods.uid[row].tobytes())

    def found_reserved(self, rows: Rows, now: float) -> None:
        """Their worker was lost before it could say whether anybody leaves for them. By word: it is asked who went."""
        if self._by_word:
            self.add(rows, np.ones(len(rows), np.uint32), now)

    def among(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these pods wait for others to leave: (n,)."""
        if not self._due:
            return np.zeros(len(rows), np.bool_)
        return np.array([self.waits(row) for row in rows.tolist()], np.bool_)

    def waits(self, row: int) -> bool:
        """Whether the pod is bound and others that went for it are not gone yet."""
        found = self._due.get(row)
        return found is not None and self._pods.phase[row] == Phase.BOUND and found[1] == self._pods.uid[row].tobytes()

    def heard(self, preemptor: bytes, victim: bytes) -> None:
        """By word: one that has to go for another, by their UIDs."""
        self._victims.setdefault(preemptor, set()).add(victim)

    def leaving_for(self, preemptor: bytes) -> bool:
        """By word: whether pods that had to go for the one with this UID are there still."""
        return bool(self._victims.get(preemptor))

    def without_word(self, row: int) -> bool:
        """By word: whether the pod waits, and nobody has been heard of that had to go for it."""
        return self.waits(row) and self._due[row][1] not in self._victims

    def nobody_went(self, row: int) -> None:
        """By word: it waits for nobody; all that happened in the moment of its commit has been heard."""
        self._victims.setdefault(self._due[row][1], set())

    def gone(self, uids: Iterable[bytes]) -> None:
        """By word: these pods are there no more."""
        if not self._victims:
            return
        for uid in uids:
            self._victims.pop(uid, None)
            for leaving in self._victims.values():
                leaving.discard(uid)

    def take_due(self, now: float) -> Rows:
        """Pods that wait no longer, from now on."""
        if not self._due:
            return np.empty(0, np.uint32)
        for row in [row for row in self._due if not self.waits(row)]:
            self.left(row)
        due = [row for row, (when, uid) in self._due.items() if self._over(when, uid, now)]
        for row in due:
            self.left(row)
        return np.array(due, np.uint32)

    def _over(self, when: float, uid: bytes, now: float) -> bool:
        return self._victims.get(uid) == set() if self._by_word else when <= now

    def left(self, row: int) -> None:
        """All that went for this pod are gone."""
        _, uid = self._due.pop(row, (0.0, b""))
        self._victims.pop(uid, None)
