"""A scheduler of your own: pods go to the nodes with the most free cpu, as many to each as evens them out."""

import sys

import numpy as np

from hoss.sdk import NO_NODE, NodeSnapshot, PlacementBatch, main

CPU = 0  # row of snapshot.resources


class EmptiestFirst:
    """Equal pods are placed together. A pod never waits for another one."""

    def place(self, batch: PlacementBatch, snapshot: NodeSnapshot, budget: float) -> np.ndarray:
        """One node index a pod, or NO_NODE."""
        free = snapshot.free
        nodes = np.full(batch.pods, NO_NODE)
        for run in batch.runs:
            asked = np.flatnonzero(run.request)
            room = (free[asked] // run.request[asked, None]).min(axis=0)
            room = np.where(run.admitted, np.clip(room, 0, run.count), 0)
            chosen = self.choose(room, free[CPU], int(run.request[CPU]), run.count)
            nodes[run.first : run.first + len(chosen)] = chosen
            free -= run.request[:, None] * np.bincount(chosen, minlength=len(room))
        return nodes

    def choose(self, room: np.ndarray, cpu: np.ndarray, request: int, count: int) -> np.ndarray:
        """The `count` best places: the k-th further pod of a node finds k requests less cpu there."""
        best = np.argsort(-cpu * (room > 0))[:count]  # no run takes more nodes than it has pods
        places = np.repeat(best, room[best])
        taken = np.arange(len(places)) - np.repeat(np.cumsum(room[best]) - room[best], room[best])
        return places[np.argsort(request * taken - cpu[places], kind="stable")[:count]]


if __name__ == "__main__":
    sys.exit(main(EmptiestFirst()))
