"""An algorithm of your own: scipy's assignment solver places a whole batch at the least total cost."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from hoss.sdk import NO_NODE, NodeSnapshot, PlacementBatch, PlacementRun

IMPOSSIBLE = 1e6
COLUMNS = 4000  # places that the solver sees at once: its time grows with pods times places


class Assignment:
    """Pods and nodes that match in shape: a place costs how unevenly it leaves cpu and memory free."""

    def place(self, batch: PlacementBatch, snapshot: NodeSnapshot, budget: float) -> np.ndarray:
        """One node index a pod, or NO_NODE. A round gives each node one pod at most, so no node overfills."""
        nodes, free = np.full(batch.pods, NO_NODE), snapshot.free
        run_of = np.repeat(np.arange(len(batch.runs)), [run.count for run in batch.runs])
        left = np.arange(batch.pods)
        while len(left):
            cost = np.array([self.cost(run, free, snapshot.allocatable) for run in batch.runs])
            offered = np.argsort(cost.min(axis=0), kind="stable")[: max(1, COLUMNS // len(batch.runs))]
            pods, places = linear_sum_assignment(cost[np.ix_(run_of[left], offered)])
            chosen = offered[places]
            good = cost[run_of[left[pods]], chosen] < IMPOSSIBLE
            placed, chosen = left[pods[good]], chosen[good]
            if not len(placed):
                break
            nodes[placed] = chosen
            for pod, node in zip(placed, chosen, strict=True):
                free[:, node] -= batch.runs[run_of[pod]].request
            left = np.setdiff1d(left, placed)
        return nodes

    def cost(self, run: PlacementRun, free: np.ndarray, allocatable: np.ndarray) -> np.ndarray:
        """Of one more pod of the run on each node: (nodes,)."""
        after = free - run.request[:, None]
        fits = run.admitted & (after >= 0)[run.request > 0].all(axis=0)
        cpu, memory = after[:2] / np.maximum(allocatable[:2], 1)
        return np.where(fits, np.abs(cpu - memory) + 0.1 * (cpu + memory), IMPOSSIBLE)
