"""What pods in the ledger hold beside their room: claims to volumes, disks, and devices.

The view is built from a snapshot of each shard and the feed entries after it. It has every pod that was
committed up to `seen` of the shard. With that the ledger can tell whether a judgement knew all that it relied
on (docs/adr/0057-volumes.md). Pods without volumes and devices are passed over, so the view is as large as
what is held, and an entry ends with the last pod that holds it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from hoss.model.devices import Allocation, DeviceId
from hoss.model.pod import PodGroup
from hoss.model.quantity import Quantity
from hoss.wire.columns import U32, decode
from hoss.wire.convert_rules import group_defined
from resolver.core.values import FeedEntry, GroupRun, Snapshot

ClaimKey = tuple[str, str]  # namespace, name
KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")


class DeviceUse(NamedTuple):
    """A claim that has a device. Others may have it as well if they all share it. `consumed`: what it takes
    of each capacity then, maybe in several parts."""

    claim: ClaimKey
    shared: bool
    consumed: tuple[tuple[str, Quantity], ...] = ()


def device_uses(claim: ClaimKey, allocation: Allocation) -> dict[DeviceId, DeviceUse]:
    """By device, how the claim has it. What only looks at a device does not have it."""
    found: dict[DeviceId, DeviceUse] = {}
    for result in allocation.results:
        if not result.admin_access:
            before = found[result.id].consumed if result.id in found else ()
            found[result.id] = DeviceUse(claim, result.shared, before + result.consumed)
    return found


class ClaimChoice(NamedTuple):
    """What a claim got when a pod was placed: a volume, or ("") one that is provisioned for the node."""

    volume: str
    node: int


class _Assumed(NamedTuple):
    """A pod that the ledger has not decided about."""

    group: PodGroup
    definition: bytes
    node: int


class HeldView:
    """`seqs`: by shard, the seq up to which it is known; None: a snapshot is needed. `labels`: of nodes, as
    far as somebody has noted them since the node last changed."""

    def __init__(self, shards: int) -> None:
        self.seqs: list[int | None] = [None] * shards
        self.labels: dict[int, Mapping[str, str]] = {}
        self._shards = shards
        self._prepared: list[set[int]] = [
            set() for _ in range(shards)
        ]  # commits whose pods are not shown yet
        self._pods: dict[int, Counter[bytes]] = {}  # by node: how many pods of which group hold anything
        self._mounted: dict[ClaimKey, Counter[ClaimChoice]] = {}
        self._devices: dict[DeviceId, Counter[DeviceUse]] = {}
        self._assumed: list[_Assumed] = []

    def __len__(self) -> int:
        """The number of claims and devices that are held."""
        return len(self._mounted) + len(self._devices)

    @property
    def seen(self) -> tuple[int, ...]:
        """By shard, the seq up to which all placements are known. Pods of a prepared commit are shown
        later."""
        return tuple(
            min(prepared) - 1 if prepared else seq or 0
            for seq, prepared in zip(self.seqs, self._prepared, strict=True)
        )

    def replace(self, shard: int, snapshot: Snapshot) -> None:
        """The shard is as the snapshot says."""
        self.labels = {node: of for node, of in self.labels.items() if node % self._shards != shard}
        for node in [node for node in self._pods if node % self._shards == shard]:
            for definition, pods in list(self._pods[node].items()):
                self._count(group_defined(definition), definition, node, -pods)
        self._apply_runs(snapshot.runs)
        self.seqs[shard], self._prepared[shard] = snapshot.seq, set(snapshot.prepared)

    def apply(self, shard: int, entries: Iterable[FeedEntry]) -> None:
        """Take in the entries of the feed that follow `seqs`."""
        for entry in entries:
            self._apply_runs(entry.runs)
            for node in (*(index for index, _ in entry.specs), *entry.removed):
                self.labels.pop(node, None)
            if entry.prepared:
                self._prepared[shard].add(entry.seq)
            self._prepared[shard].difference_update(entry.ended)
            self.seqs[shard] = entry.seq

    @property
    def has_assumed(self) -> bool:
        """Whether pods count that the ledger has not decided about."""
        return bool(self._assumed)

    def assume(self, definition: bytes, node: int) -> None:
        """Count a pod of this group on the node as well, until `forget_assumed`."""
        assumed = _Assumed(group_defined(definition), definition, node)
        self._assumed.append(assumed)
        self._count(*assumed, 1)

    def forget_assumed(self) -> None:
        """The ledger has decided: from now on the feed says who holds what."""
        for assumed in self._assumed:
            self._count(*assumed, -1)
        self._assumed.clear()

    def users(self, claim: ClaimKey) -> int:
        """How many pods mount the claim."""
        return self._mounted[claim].total() if claim in self._mounted else 0

    def choices(self, claim: ClaimKey) -> Iterable[ClaimChoice]:
        """What the claim gets by the pods that were placed with it before it was bound."""
        return [choice for choice in self._mounted.get(claim, ()) if choice.volume or choice.node >= 0]

    def groups_on(self, node: int) -> Iterator[PodGroup]:
        """The groups of the node's pods that hold anything."""
        return map(group_defined, self._pods.get(node, ()))

    def uses(self, device: DeviceId) -> Iterable[DeviceUse]:
        """The claims that have the device."""
        return self._devices.get(device, ())

    def _apply_runs(self, runs: Iterable[GroupRun]) -> None:
        for run in runs:
            group = group_defined(run.definition)
            if group.volumes is not None or group.held_claims:
                for node in decode(run.nodes, U32, name="nodes").tolist():
                    self._count(group, run.definition, node, -1 if run.gone else 1)

    def _count(self, group: PodGroup, definition: bytes, node: int, pods: int) -> None:
        _add(self._pods, node, definition, pods)
        for mount in () if group.volumes is None else group.volumes.claims:
            choice = ClaimChoice(mount.volume, node if mount.provisioned else -1)
            _add(self._mounted, (group.namespace, mount.claim), choice, pods)
        for held in group.held_claims:
            for device, use in device_uses((held.namespace, held.name), held.allocation).items():
                _add(self._devices, device, use, pods)


def _add(table: dict[KeyT, Counter[ItemT]], key: KeyT, item: ItemT, count: int) -> None:
    """Count so many more of the item. Nothing is kept of what is not there."""
    of_key = table.setdefault(key, Counter())
    of_key[item] += count
    if not of_key[item]:
        del of_key[item]
    if not of_key:
        del table[key]
