"""Files to begin with: a plugin, an algorithm, a scheduler of one's own. Each passes the check as it is."""

import re

from hoss.errors import InvalidInput, quoted

_PLUGIN = '''"""{title}: a plugin of HOSS. docs/plugins.md says what else a plugin may have."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hoss.model.selectors import NodeSelectorTerm, Requirement
from scheduler_worker.core.framework.extension_points import (
    Demand,
    FilterPlugin,
    Mask,
    NodeView,
    Reads,
    ScorePlugin,
)


class {title}(FilterPlugin, ScorePlugin):
    """Keeps pods off nodes with a label, and prefers the nodes with the most free cpu."""

    name = "{title}"
    reason = "node(s) were not for {title}"  # shown for pods that fit nowhere
    filter_reads = Reads.SPECS  # and not what is requested: asked once for pods that differ only in amounts

    def __init__(self, label: str = "example.com/avoid") -> None:  # arguments of the profile
        self._avoided = NodeSelectorTerm((Requirement(label, "Exists", ()),))

    def filter(self, pod: Demand, nodes: NodeView) -> Mask:
        """Which of the nodes pass: (n,) of bool. None would mean all."""
        return ~nodes.matches(self._avoided)

    def score(self, pod: Demand, nodes: NodeView) -> NDArray[Any]:
        """Whole numbers from 0 to 100, one a node. None would mean no opinion."""
        cpu = nodes.allocatable[0]
        free = np.clip(cpu - nodes.requested[0], 0, None)
        shares: NDArray[np.int64] = 100 * free // np.maximum(cpu, 1)
        return shares
'''

_PRE_BIND = '''"""{title}: a plugin of HOSS. docs/plugins.md says what else a plugin may have."""

import numpy as np

from hoss.wire.uids import uid_text
from scheduler_worker.core.framework.extension_points import PreBindPlugin, ReservedBatch, Unready


class {title}(PreBindPlugin):
    """Gives each pod one of a few places in a list, before it is bound."""

    name = "{title}"

    def __init__(self, places: int = 1000) -> None:  # arguments of the profile
        self._places = places
        self._taken: set[str] = set()

    def pre_bind(self, pods: ReservedBatch) -> Unready:
        """Called in a thread of its own, and perhaps again for the same pod. None would mean that all are
        ready."""
        full = np.zeros(len(pods.uids), np.bool_)
        for i, uid in enumerate(pods.uids):
            pod = uid_text(uid.tobytes())
            if pod not in self._taken and len(self._taken) >= self._places:
                full[i] = True
            else:
                self._taken.add(pod)
        return Unready("no place was free for {title}", full)

    def unreserve(self, pods: ReservedBatch) -> None:
        """These pods are not bound after all, whether they were prepared or not."""
        self._taken.difference_update(uid_text(uid.tobytes()) for uid in pods.uids)
'''

_ALGORITHM = '''"""{title}: an algorithm in HOSS's workers and studies. See docs/tutorials/algorithm.md."""

import numpy as np
from numpy.typing import NDArray

from hoss.sdk import NO_NODE, NodeSnapshot, PlacementBatch


class {title}:
    """Each pod goes to the node with the most free cpu."""

    def place(self, batch: PlacementBatch, snapshot: NodeSnapshot, budget: float) -> NDArray[np.int64]:
        """One node index a pod, or NO_NODE: (pods,)."""
        nodes, free = np.full(batch.pods, NO_NODE, np.int64), snapshot.free
        for run in batch.runs:
            asked = run.request > 0
            for pod in range(run.first, run.first + run.count):
                fits = run.admitted & (free[asked] >= run.request[asked, None]).all(axis=0)
                if not fits.any():
                    break
                nodes[pod] = np.where(fits, free[0], -1).argmax()  # row 0 is cpu
                free[:, nodes[pod]] -= run.request
        return nodes
'''

_SCHEDULER = (
    _ALGORITHM.replace(
        "an algorithm in HOSS's workers and studies. See docs/tutorials/algorithm.md",
        "a scheduler beside HOSS's workers. See docs/tutorials/scheduler.md",
    )
    .replace("import numpy", "import sys\n\nimport numpy")
    .replace("PlacementBatch\n\n", "PlacementBatch, main\n\n")
    + """

if __name__ == "__main__":
    sys.exit(main({title}()))
"""
)

TEMPLATES = {"plugin": _PLUGIN, "pre-bind": _PRE_BIND, "algorithm": _ALGORITHM, "scheduler": _SCHEDULER}

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def written_template(kind: str, name: str) -> tuple[str, str]:
    """The file's name and its text. Raises InvalidInput for another kind, or a name that no module has."""
    if kind not in TEMPLATES:
        raise InvalidInput(f"is {quoted(kind)}; it is one of {', '.join(TEMPLATES)}", where="KIND")
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"is {quoted(name)}; write it as green-energy or green_energy", where="NAME")
    words = re.split(r"[-_]", name)
    title = "".join(word.capitalize() for word in words)
    return f"{'_'.join(words)}.py", TEMPLATES[kind].replace("{title}", title)
