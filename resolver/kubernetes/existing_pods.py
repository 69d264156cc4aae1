"""Kubernetes mode's two calls: reservations for pods that exist on their nodes, and bindings of reserved
pods."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hoss.errors import InvalidInput, LedgerUnavailable
from hoss.model.devices import BINDING_SECONDS, HeldClaim
from hoss.model.pod import PodGroup
from hoss.model.resources import MAX_AMOUNT
from hoss.model.volumes import PodVolumes
from hoss.v1 import resolver_pb2 as pb
from hoss.wire.columns import NONE_U32, U8, U32, Uids, decode, decode_uids
from hoss.wire.convert_rules import definition_of, group_defined, is_unreviewed, unreviewed_definition
from hoss.wire.uids import uid_text
from resolver.core.kubernetes.binding_review import BindResult, Bound
from resolver.core.values import MAX_BATCH_PODS, Proposal, Verdict, Writer
from resolver.ledger.port import Ledger, lookup_on_shards
from resolver.messages.parts import check_kind
from resolver.messages.proposals import group_of

if TYPE_CHECKING:
    from resolver.kubernetes.binder import Binder

_MOVES = 3  # a pod that is somewhere else each time is being moved by another writer


class ExistingPodReservations:
    """Serves UpsertPods and Bind. `binder`: None if this resolver has no API server. `reviews_bindings`: it
    serves the binding webhook, so pods without a reservation passed that by."""

    def __init__(self, ledger: Ledger, binder: "Binder | None", *, reviews_bindings: bool = False) -> None:
        self._ledger = ledger
        self._binder = binder
        self._reviews_bindings = reviews_bindings

    async def upsert(self, request: pb.UpsertPodsRequest) -> pb.UpsertPodsReply:
        """Reserve for existing pods. A different reservation on the same node is replaced in one step. Raises
        InvalidInput or LedgerUnavailable; then some pods may be done, and the call may be repeated."""
        uids = decode_uids(request.pods.uids)
        nodes = decode(request.pods.nodes, U32, name="nodes", rows=len(uids))
        kinds = decode(request.pods.kinds, U32, name="kinds", rows=len(uids))
        _check_size(len(uids))
        if len(uids) and int(kinds.max()) >= len(request.kinds):
            raise InvalidInput(f"{int(kinds.max())} where there are {len(request.kinds)}", where="pods.kinds")
        for kind in request.kinds:
            check_kind(kind)
        schema = await self._ledger.schema(
            list(dict.fromkeys(a.resource for k in request.kinds for a in k.requests))
        )
        known, renamed = await self._compare_names(request, nodes)
        verdicts = np.where(renamed, Verdict.NODE_GONE, 0).astype(np.uint8)
        writer = Writer(worker=request.writer, epoch=request.epoch)
        unreviewed = b""
        if self._reviews_bindings:
            held, definitions = await asyncio.gather(self._held(uids), self._definitions(uids))
            unreviewed = bytes(
                not is_held or is_unreviewed(definition)
                for is_held, definition in zip(held.tolist(), definitions, strict=True)
            )
            marked = unreviewed if request.keep_unreviewed else bytes(len(uids))
            kinds = _kinds_as_reserved(request, kinds, definitions, marked)
        await self._release_on_other_shards(uids, nodes, writer)
        for shard in range(self._ledger.shards):
            rows = np.flatnonzero((nodes % self._ledger.shards == shard) & ~renamed)
            for _ in range(_MOVES if len(rows) else 0):
                proposal = _proposal(
                    request, uids[rows], nodes[rows], kinds[rows], schema, known=known[shard]
                )
                verdicts[rows], misplaced = await self._commit(shard, proposal)
                rows = rows[misplaced]
                if not len(rows):
                    break
                await self._ledger.release(shard, uids[rows], writer)
            else:
                if len(rows):
                    raise LedgerUnavailable(f"{len(rows)} pods are being moved by somebody else; ask again")
        return pb.UpsertPodsReply(verdicts=verdicts.tobytes(), unreviewed=unreviewed)

    async def _held(self, uids: Uids) -> NDArray[np.bool_]:
        """Which pods hold a reservation, on whichever shard."""
        found = await lookup_on_shards(self._ledger, uids)
        held: NDArray[np.bool_] = np.any([records["node"] != NONE_U32 for records in found], axis=0)
        return held

    async def _definitions(self, uids: Uids) -> list[bytes]:
        """Of the group of each pod's reservation; b"": it has no reservation, or no group."""
        of_shards = await asyncio.gather(
            *(self._ledger.definitions(shard, uids) for shard in range(self._ledger.shards))
        )
        return [next(filter(None, found), b"") for found in zip(*of_shards, strict=True)]

    async def _compare_names(
        self, request: pb.UpsertPodsRequest, nodes: NDArray[np.uint32]
    ) -> tuple[list[int], NDArray[np.bool_]]:
        """By shard, the seq up to which the nodes' indexes are right; and which pods name an index that
        belongs to another node by now."""
        names, shards = {node.index: node.name for node in request.node_names}, self._ledger.shards
        known, other = [MAX_AMOUNT] * shards, []
        for shard in {index % shards for index in names}:
            known[shard] = await self._ledger.seq(shard)  # first: a node that comes after this is refused
            here = [index for index in names if index % shards == shard]
            found = await self._ledger.node_indexes(shard, [names[index] for index in here])
            other += [index for index, now in zip(here, found.tolist(), strict=True) if index != now]
        renamed: NDArray[np.bool_] = np.isin(nodes, other)
        return known, renamed

    async def bind(self, request: pb.BindRequest) -> pb.BindReply:
        """Bind pods that are reserved and whose victims have ended. Raises InvalidInput or LedgerUnavailable;
        then nothing was bound."""
        if self._binder is None:
            raise InvalidInput("this resolver was started without --kubeconfig or --in-cluster", where="Bind")
        from resolver.kubernetes.binder import BindingRequest  # noqa: PLC0415 - Kubernetes mode has it

        uids = decode_uids(request.uids)
        nodes = decode(request.nodes, U32, name="nodes", rows=len(uids))
        names = {node.index: node.name for node in request.node_names}
        _check_size(len(uids))
        if len(request.pods) != len(uids) or not set(nodes.tolist()) <= names.keys():
            raise InvalidInput(
                f"does not name all of {len(uids)} pods, and their nodes", where="pods, node_names"
            )
        if len(request.claim_versions) not in (0, len(uids)):
            raise InvalidInput(f"is not of {len(uids)} pods", where="claim_versions")
        reserved, nominated = await self._reserved(uids, nodes)
        missing = [
            Bound(BindResult.VICTIMS if waits else BindResult.UNRESERVED) for waits in nominated.tolist()
        ]
        reserved &= ~nominated
        steps = decode(request.volumes, U8, name="volumes", rows=len(uids)) if request.volumes else None
        volumes = {} if steps is None else await self._volumes(uids, nodes, steps, reserved)
        devices = await self._devices(request, uids, nodes, reserved)
        versions = [dict(of_pod.versions) for of_pod in request.claim_versions] or [{}] * len(uids)
        requests = [
            BindingRequest(
                request.pods[i], uid_text(uids[i].tobytes()), names[int(nodes[i])], *volumes.get(i, ())
            )._replace(**devices.get(i, {}), versions=versions[i])
            for i in np.flatnonzero(reserved).tolist()
        ]
        answers = iter(await self._binder.bind(requests))
        bound = [
            next(answers) if here else instead
            for here, instead in zip(reserved.tolist(), missing, strict=True)
        ]
        texts = [b.text for b in bound]
        return pb.BindReply(
            results=np.array([b.result for b in bound], U8).tobytes(), texts=texts if any(texts) else []
        )

    async def release(
        self, shard: int, uids: Uids, writer: Writer, *, as_of: int | None = None
    ) -> tuple[int, int]:
        """Release what the pods hold on the shard; how many were released. Others may get their devices then,
        so what was begun to write these into claims is ended first. The second number: how many pods keep
        what they hold, because the API server did not say that it is. `as_of`: see `Ledger.release`. Raises
        LedgerUnavailable."""
        kept = np.zeros(len(uids), np.bool_)
        if self._binder is not None:
            definitions = await self._ledger.definitions(shard, uids)
            groups = {definition: group_defined(definition) for definition in set(definitions) if definition}
            held = {
                uid.tobytes(): groups[definition].held_claims
                for uid, definition in zip(uids, definitions, strict=True)
                if definition and groups[definition].held_claims
            }
            if held:
                held_up = await self._binder.end_claims(
                    {uid_text(uid): claims for uid, claims in held.items()}
                )
                kept = np.array([uid_text(uid.tobytes()) in held_up for uid in uids], np.bool_)
        return await self._ledger.release(shard, uids[~kept], writer, as_of=as_of), int(kept.sum())

    async def _volumes(
        self, uids: Uids, nodes: NDArray[np.uint32], steps: NDArray[np.uint8], reserved: NDArray[np.bool_]
    ) -> dict[int, tuple[PodVolumes, bool, bool]]:
        """By row, the volumes of the pods for which there is a step, with what was chosen for them; and
        whether that is to be undone, and was written before."""
        found: dict[int, tuple[PodVolumes, bool, bool]] = {}
        groups = await self._groups(uids, nodes, reserved & (steps != pb.VOLUMES_BOUND_ALREADY))
        for row, group in groups.items():
            volumes = None if group is None else group.volumes
            undo, written = steps[row] == pb.VOLUMES_UNDO, steps[row] == pb.VOLUMES_CHECK
            found[row] = volumes or PodVolumes(), bool(undo), bool(written)
        return found

    async def _devices(
        self, request: pb.BindRequest, uids: Uids, nodes: NDArray[np.uint32], reserved: NDArray[np.bool_]
    ) -> dict[int, dict[str, Any]]:
        """By row, the resource claims of the pods that have any, with what was chosen for them."""
        if not request.resource_claims:
            return {}
        if len(request.resource_claims) != len(uids):
            raise InvalidInput(f"is not of {len(uids)} pods", where="resource_claims")
        names = [tuple(of_pod.names) for of_pod in request.resource_claims]
        claiming = np.array([bool(of_pod) for of_pod in names], np.bool_)
        epoch = self._ledger.epoch
        groups = await self._groups(uids, nodes, reserved & claiming)
        found: dict[int, dict[str, Any]] = {}
        for row, group in groups.items():
            chosen = {} if group is None else {held.name: held for held in group.held_claims}
            made = (held.name for held in chosen.values() if held.mappings)
            found[row] = {
                "ready_seconds": request.resource_claims[row].ready_seconds or BINDING_SECONDS,
                "claims": tuple(dict.fromkeys((*names[row], *made))),
                "chosen": chosen,
                "is_current": lambda: self._ledger.epoch == epoch,
            }
        return found

    async def _groups(
        self, uids: Uids, nodes: NDArray[np.uint32], wanted: NDArray[np.bool_]
    ) -> dict[int, PodGroup | None]:
        """By row, the groups of the wanted pods, with all that was chosen for them; None: the ledger has
        none."""
        found: dict[int, PodGroup | None] = {}
        for shard in np.unique(nodes[wanted] % self._ledger.shards).tolist():
            rows = np.flatnonzero(wanted & (nodes % self._ledger.shards == shard))
            definitions = await self._ledger.definitions(shard, uids[rows])
            for row, definition in zip(rows.tolist(), definitions, strict=True):
                found[row] = group_defined(definition) if definition else None
        return found

    async def _reserved(
        self, uids: Uids, nodes: NDArray[np.uint32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which pods are reserved on these very nodes, and for which of them victims are still there. To bind
        any other pod, or one of these, would lead to overcommitment."""
        found, nominated = np.full(len(uids), NONE_U32, U32), np.zeros(len(uids), np.bool_)
        for shard in np.unique(nodes % self._ledger.shards).tolist():
            rows = np.flatnonzero(nodes % self._ledger.shards == shard)
            found[rows] = (await self._ledger.lookup(shard, uids[rows]))["node"]
            nominated[rows] = await self._ledger.nominated(shard, uids[rows])
        here: NDArray[np.bool_] = found == nodes
        return here, nominated & here

    async def _commit(self, shard: int, proposal: Proposal) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """The verdicts, and which pods are reserved on another node of the shard. Confirms the other pods."""
        (decision,) = await self._ledger.commit(shard, [proposal])
        duplicates = np.flatnonzero(decision.verdicts == Verdict.DUPLICATE)
        misplaced = np.zeros(len(proposal), np.bool_)
        misplaced[duplicates] = decision.nodes[duplicates] != proposal.nodes[duplicates, 0]
        seqs = np.append(decision.duplicate_seqs[~misplaced[duplicates]], np.uint64(decision.seq))
        await self._ledger.confirm(shard, np.unique(seqs[seqs != 0]).astype(np.uint64), proposal.writer)
        return decision.verdicts, misplaced

    async def _release_on_other_shards(self, uids: Uids, nodes: NDArray[np.uint32], writer: Writer) -> None:
        """Release what the pods hold on other shards, because a script sees its own shard only."""
        for shard in range(self._ledger.shards if self._ledger.shards > 1 else 0):
            others = uids[nodes % self._ledger.shards != shard]
            if len(others):
                held = (await self._ledger.lookup(shard, others))["node"] != NONE_U32
                if held.any():
                    await self._ledger.release(shard, others[held], writer)


def _kinds_as_reserved(
    request: pb.UpsertPodsRequest, kinds: NDArray[np.uint32], definitions: Sequence[bytes], marked: bytes
) -> NDArray[np.uint32]:
    """The pods' kinds, with the devices that their reservations hold, and as unreviewed where `marked`. The
    webhook reserved the devices; who tells of the pod does not know them, and the API server's record of them
    may reach workers later than the pod."""
    kept: dict[tuple[int, tuple[HeldClaim, ...], int], int] = {}
    numbers: NDArray[np.uint32] = kinds.copy()
    for row, (definition, mark) in enumerate(zip(definitions, marked, strict=True)):
        held = group_defined(definition).held_claims if definition else ()
        if not held and not mark:
            continue
        key = int(kinds[row]), held, mark
        if key not in kept:
            kept[key] = len(request.kinds)
            kind = request.kinds.add()
            kind.CopyFrom(request.kinds[key[0]])
            if held:
                kind.group = definition_of(replace(group_defined(kind.group), held_claims=held))
            if mark:
                kind.group = unreviewed_definition(kind.group)
        numbers[row] = kept[key]
    return numbers


def _check_size(pods: int) -> None:
    if pods > MAX_BATCH_PODS:
        raise InvalidInput(f"{pods} pods; {MAX_BATCH_PODS} at most are asked for at once", where="uids")


def _proposal(
    request: pb.UpsertPodsRequest,
    uids: Uids,
    nodes: NDArray[np.uint32],
    kinds: NDArray[np.uint32],
    schema: Sequence[str],
    *,
    known: int,
) -> Proposal:
    used, slots = np.unique(kinds, return_inverse=True)
    place = {resource: at for at, resource in enumerate(schema)}
    requests = np.zeros((len(used), len(schema)), np.int64)
    asked = [request.kinds[number] for number in used.tolist()]
    for slot, kind in enumerate(asked):
        for amount in kind.requests:
            requests[slot, place[amount.resource]] = amount.amount
    devices = np.array([(kind.cards, kind.card_milli) for kind in asked], np.uint16)
    return Proposal(
        worker=request.writer,
        epoch=request.epoch,
        snapshot_seq=known,
        uids=uids,
        slots=slots.astype(np.uint16),
        nodes=nodes.reshape(-1, 1).astype(np.uint32),
        requests=requests,
        priorities=np.array([kind.priority for kind in asked], np.int32),
        attempts=np.zeros(len(used), np.uint16),
        devices=devices if devices[:, 0].any() else None,
        unchecked=True,
        existing=True,
        groups=tuple(group_of(kind.group) if kind.group else None for kind in asked),
    )
