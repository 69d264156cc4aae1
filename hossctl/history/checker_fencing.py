"""Who wrote with which epoch or term: a fenced epoch, or a term after which another began, changes nothing
more.

Each shard has its own order. Epochs are judged at the end of the walk, because a history may tell only later
to which worker an epoch belongs."""

from hossctl.history.checker_judgement import Findings, Promise
from hossctl.history.events import Event

_EVERY_SHARD = -1
_MOVER = "hoss-rebalance"  # under this name the dispatcher makes moves


class FencingChecker:
    """Who wrote what with which epoch or term, in the order of each shard."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._owners: dict[int, str] = {}  # epoch -> worker
        # (shard, worker or "" where only the epoch is known, epoch, line, whether it is a grant)
        self._marks: list[tuple[int, str, int, int, bool]] = []
        self._terms: dict[int, tuple[int, int]] = {}  # shard -> highest term, its line
        # (worker or "", epoch, line, whether the mover must not have done it, what it is then)
        self._reserved: list[tuple[str, int, int, bool, str]] = []

    def on_change(self, event: Event, line: int) -> None:
        """A change of a shard, made with an epoch or a term."""
        shard, epoch, term = event["shard"], event.get("epoch", 0), event.get("term")
        if epoch and (event.get("reserved") or event.get("committed") or event.get("accounts")):
            self._marks.append((shard, event.get("worker", ""), epoch, line, False))
        if term is not None:
            every, here = self._terms.get(_EVERY_SHARD, (0, 0)), self._terms.get(shard, (0, 0))
            highest, granted = max(every, here)
            self._findings.judged(Promise.FENCING)
            if term < highest:
                text = f"shard {shard} was changed in term {term} after term {highest} had begun"
                self._findings.violated(Promise.FENCING, text, granted, line)
            self._terms[shard] = max(here, (term, line))

    def on_reserved(self, event: Event, line: int, *, moves: bool, text: str) -> None:
        """A pod was reserved in a way that is a violation (`text`) where the mover did it, or with `moves`
        False, where anybody else did."""
        if epoch := event.get("epoch", 0):
            self._reserved.append((event.get("worker", ""), epoch, line, moves, text))

    def on_grant(self, event: Event, line: int) -> None:
        """An epoch or a term was granted, or an epoch is fenced."""
        shard = event.get("shard", _EVERY_SHARD)
        if event["event"] == "term":
            self._terms[shard] = max(self._terms.get(shard, (0, 0)), (event["term"], line))
            return
        worker, epoch = event["worker"], event["epoch"]
        if event["event"] == "granted":
            self._owners[epoch] = worker
        if event.get("exact", True):
            # A fenced epoch may not write; the one after it is the lowest that may.
            lowest = epoch + 1 if event["event"] == "fenced" else epoch
            self._marks.append((shard, worker, lowest, line, True))

    def finish(self) -> None:
        """Judge every change that was made with an epoch."""
        for name, epoch, line, moves, text in self._reserved:
            worker = name or self._owners.get(epoch, "")
            if worker:
                self._findings.judged(Promise.ONE_NODE)
                if (worker == _MOVER) is moves:
                    self._findings.violated(Promise.ONE_NODE, f"{text} ({worker})", line)
        highest: dict[tuple[int, str], tuple[int, int]] = {}
        for shard, name, epoch, line, grant in self._marks:
            worker = name or self._owners.get(epoch, "")
            if not worker:
                self._findings.unjudged(Promise.FENCING, "the worker of an epoch is not in the history")
                continue
            here = highest.get((shard, worker), (0, 0))
            if not grant:
                self._findings.judged(Promise.FENCING)
                lowest, since = max(here, highest.get((_EVERY_SHARD, worker), (0, 0)))
                if epoch < lowest:
                    text = (
                        f"worker {worker} placed pods on shard {shard} with epoch {epoch}, and only "
                        f"{lowest} and later were allowed"
                    )
                    self._findings.violated(Promise.FENCING, text, since, line)
            highest[shard, worker] = max(here, (epoch, line))
