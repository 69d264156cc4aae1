"""What the ledger says of itself: the order of its changes, the accounts of its nodes, and lists of its
reservations. Each is judged against what the changes before make of it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hossctl.history.checker_judgement import Findings, Promise
from hossctl.history.checker_room import (
    PREPARED,
    TERMINATING,
    HeldPod,
    NodeFacts,
    NodeLoad,
    amounts_text,
    nonzero,
    offered,
    shortages,
)
from hossctl.history.events import Event


@dataclass(slots=True)
class _Account:
    """What the ledger itself says of a node."""

    shard: int
    requested: Mapping[str, int]
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class _ShardList:
    """The reservations of one shard after one change, as they were listed."""

    line: int
    shard: int
    seq: int
    rows: list[HeldPod]


class AccountChecker:
    """`nodes`, `held` (by UID and shard) and `loads` are what the changes make of the ledger; they belong to
    the caller. `name` says of a UID which pod it is, and `read` makes a reservation of a
    listed row, its shard and its line."""

    def __init__(
        self,
        findings: Findings,
        nodes: Mapping[str, NodeFacts],
        held: Mapping[str, Mapping[int, HeldPod]],
        loads: Mapping[str, NodeLoad],
        *,
        name: Callable[[str], str],
        read: Callable[[Event, int, int], HeldPod],
        sees_reservations: bool,
    ) -> None:
        self._findings = findings
        self._nodes = nodes
        self._held = held
        self._loads = loads
        self._name = name
        self._read = read
        self._sees_reservations = sees_reservations
        self._accounts: dict[str, _Account] = {}
        self._seqs: dict[int, int] = {}
        self._seq_lines: dict[int, int] = {}
        self._lists: list[_ShardList] = []  # not compared yet
        self.final_rows: list[HeldPod] | None = None  # at the end, if the history lists them

    def knows(self, shard: int) -> bool:
        """Whether a change of the shard was seen."""
        return shard in self._seq_lines

    def forget_node(self, name: str) -> None:
        """A node was removed."""
        self._accounts.pop(name, None)

    def missing(self, shard: int, told: Iterable[str]) -> list[str]:
        """The nodes of the shard that have accounts and are not among these."""
        known = {name for name, account in self._accounts.items() if account.shard == shard}
        return sorted(known.difference(told))

    def on_accounts(self, event: Event, line: int) -> None:
        """What the ledger says of its nodes: it never grows beyond what is allocatable, and is the sum of the
        reservations."""
        for row in event.get("accounts", ()):
            name, requested = row["node"], row["requested"]
            before = self._accounts.get(name)
            given = row.get("allocatable")
            node = NodeFacts(name, line, given) if given is not None else self._nodes.get(name)
            self._accounts[name] = _Account(event["shard"], requested, line)
            if self._sees_reservations:
                self._judge_sum(name, requested, self._loads[name].requested, line)
            if node is None:
                self._findings.unjudged(Promise.NO_OVERCOMMIT, "the node was never described")
                continue
            over = {
                resource: (amount, most)
                for resource, amount in requested.items()
                if (most := offered(node, resource)) is not None and amount > most
            }
            if over and (event.get("snapshot") or row.get("excused")):
                why = "more is requested than allocatable, and how it came to that is not in the history"
                self._findings.unjudged(Promise.NO_OVERCOMMIT, why)
                continue
            self._findings.judged(Promise.NO_OVERCOMMIT)
            for resource, (amount, most) in sorted(over.items()):
                had = before.requested.get(resource, 0) if before else 0
                if amount > had:  # a node that shrank may be over what it offers, and gets nothing more
                    text = (
                        f"node {name}: the ledger's account went from {had} to {amount} of {resource}, "
                        f"and {most} are allocatable"
                    )
                    lines = (before.line if before else 0, node.line, line)
                    self._findings.violated(Promise.NO_OVERCOMMIT, text, *lines)

    def _judge_sum(self, name: str, said: Mapping[str, int], held: Mapping[str, int], *lines: int) -> None:
        """`said` by the account of a node, and `held` by its reservations."""
        self._findings.judged(Promise.AGREEMENT)
        if nonzero(held) != nonzero(said):
            text = (
                f"node {name}: the ledger's account is {amounts_text(said)}, and its reservations sum up to"
                f" {amounts_text(held)}"
            )
            self._findings.violated(Promise.AGREEMENT, text, *lines)

    def advance(self, event: Event, line: int) -> None:
        """Sequence numbers rise by one; a snapshot may begin anew, and a repair may leave a gap."""
        if "shard" not in event or "seq" not in event:
            return
        shard, seq = event["shard"], event["seq"]
        last = self._seqs.get(shard)
        previous = event.get("previous", seq - 1)
        if last is not None and not event.get("snapshot") and not event.get("repair"):
            self._findings.judged(Promise.AGREEMENT)
            # One change may be told in several lines, as of nodes that come together.
            if last not in (previous, seq):
                kind = "went back" if seq < last else "has a gap"
                text = f"shard {shard} {kind}: change {seq} follows {last}"
                self._findings.violated(Promise.AGREEMENT, text, self._seq_lines[shard], line)
        self._seqs[shard] = seq
        self._seq_lines[shard] = line

    def on_reservations(self, event: Event, line: int) -> None:
        """A list of the reservations: of the shards in `seqs` exact as of those changes, of others taken
        while they changed."""
        seqs = {int(shard): seq for shard, seq in event["seqs"].items()}
        rows: dict[int, list[HeldPod]] = {shard: [] for shard in seqs}
        seen: dict[str, HeldPod] = {}
        for row in event["rows"]:
            pod = self._read(row, row.get("shard", 0), line)
            rows.setdefault(pod.shard, []).append(pod)
            other = seen.get(pod.uid)
            if other is None or other.state == PREPARED:
                seen[pod.uid] = pod
            elif pod.state != PREPARED and pod.node != other.node:
                if {pod.shard, other.shard} <= seqs.keys():
                    text = f"{self._name(pod.uid)} is reserved on {other.node} and on {pod.node}"
                    self._findings.violated(Promise.ONE_NODE, text, line)
                else:
                    self._findings.unjudged(Promise.ONE_NODE, "listed twice while reservations changed")
        self._findings.judged(Promise.ONE_NODE, len(seen))
        if event.get("final"):
            self.final_rows = [pod for pods in rows.values() for pod in pods]
        moving = rows.keys() - seqs.keys()
        why = "a list of reservations that was taken while they changed"
        self._findings.unjudged(Promise.AGREEMENT, why, len(moving))
        self._lists += [_ShardList(line, shard, seq, rows[shard]) for shard, seq in seqs.items()]
        for shard in seqs:
            self.settle_lists(shard, line)

    def settle_lists(self, shard: int, line: int) -> None:
        """Compare lists with the changes, where both are of the same moment."""
        known = self._seqs.get(shard, -1)
        for listed in [each for each in self._lists if each.shard == shard and each.seq <= known]:
            self._lists.remove(listed)
            if listed.seq < known:
                why = "a list of reservations that is older than the changes before it"
                self._findings.unjudged(Promise.AGREEMENT, why)
            elif self._sees_reservations:
                model = {uid: pod for uid, held in self._held.items() if (pod := held.get(shard))}
                by_uid = {pod.uid: pod for pod in listed.rows}
                self.compare(model, by_uid, line, f"the list of line {listed.line}, shard {shard},")
            elif self._accounts:
                self._compare_accounts(listed, line)

    def compare(
        self, model: Mapping[str, HeldPod], listed: Mapping[str, HeldPod], line: int, what: str
    ) -> None:
        self._findings.judged(Promise.AGREEMENT, len(model.keys() | listed.keys()))
        for uid in sorted(model.keys() | listed.keys()):
            here, there = model.get(uid), listed.get(uid)
            before = here.node if here else "nowhere"
            after = there.node if there else "nowhere"
            if before != after:
                text = f"{self._name(uid)}: {what} has it on {after}, and by the changes it is on {before}"
                self._findings.violated(
                    Promise.AGREEMENT, text, here.line if here else 0, there.line if there else 0, line
                )

    def _compare_accounts(self, listed: _ShardList, line: int) -> None:
        loads: dict[str, NodeLoad] = defaultdict(NodeLoad)
        for pod in listed.rows:
            loads[pod.node].add(pod)
        here = {name for name, account in self._accounts.items() if account.shard == listed.shard}
        for name in sorted(loads.keys() | here):
            account = self._accounts.get(name)
            if name in self._nodes:  # accounts do not tell of cards
                self._findings.judged(Promise.NO_OVERCOMMIT)
                cards = range(self._nodes[name].cards)
                leaving = [pod for pod in listed.rows if pod.node == name and pod.state == TERMINATING]
                for text in shortages(self._nodes[name], loads[name].without(leaving), (), cards):
                    found = f"node {name}: {text}"
                    self._findings.violated(Promise.NO_OVERCOMMIT, found, listed.line, line)
            said = account.requested if account else {}
            lines = (account.line if account else 0, listed.line, line)
            self._judge_sum(name, said, loads[name].requested, *lines)

    def finish(self) -> None:
        """Judge what needs the whole history."""
        why = "a list of reservations that the changes do not reach"
        self._findings.unjudged(Promise.AGREEMENT, why, len(self._lists))
