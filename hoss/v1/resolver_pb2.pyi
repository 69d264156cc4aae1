from hoss.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    COMMITTED: _ClassVar[Verdict]
    DUPLICATE: _ClassVar[Verdict]
    CONFLICT_RESOURCE: _ClassVar[Verdict]
    CONFLICT_PORT: _ClassVar[Verdict]
    CONFLICT_DEVICE: _ClassVar[Verdict]
    CONFLICT_TOPOLOGY: _ClassVar[Verdict]
    NODE_GONE: _ClassVar[Verdict]
    NODE_UNSCHEDULABLE: _ClassVar[Verdict]
    STALE_EPOCH: _ClassVar[Verdict]
    GANG_ABORTED: _ClassVar[Verdict]
    CONFLICT_VERSION: _ClassVar[Verdict]
    OLD_COPY: _ClassVar[Verdict]

class ReservationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESERVATION_NONE: _ClassVar[ReservationState]
    RESERVATION_PREPARED: _ClassVar[ReservationState]
    RESERVATION_ASSUMED: _ClassVar[ReservationState]
    RESERVATION_CONFIRMED: _ClassVar[ReservationState]
    RESERVATION_TERMINATING: _ClassVar[ReservationState]
    RESERVATION_PRE_BINDING: _ClassVar[ReservationState]

class MoveStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_STEP_UNSPECIFIED: _ClassVar[MoveStep]
    MOVE_RESERVE: _ClassVar[MoveStep]
    MOVE_CONFIRM: _ClassVar[MoveStep]
    MOVE_UNDO: _ClassVar[MoveStep]
    MOVE_RENEW: _ClassVar[MoveStep]

class MoveResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_RESULT_UNSPECIFIED: _ClassVar[MoveResult]
    MOVED: _ClassVar[MoveResult]
    TARGET_GONE: _ClassVar[MoveResult]
    SOURCE_CHANGED: _ClassVar[MoveResult]
    MOVER_FENCED: _ClassVar[MoveResult]

class BindResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BIND_UNKNOWN: _ClassVar[BindResult]
    BIND_DONE: _ClassVar[BindResult]
    BIND_ELSEWHERE: _ClassVar[BindResult]
    BIND_REFUSED: _ClassVar[BindResult]
    BIND_UNRESERVED: _ClassVar[BindResult]
    BIND_WAITS: _ClassVar[BindResult]
    BIND_VICTIMS: _ClassVar[BindResult]

class VolumeStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOLUMES_BOUND_ALREADY: _ClassVar[VolumeStep]
    VOLUMES_BIND: _ClassVar[VolumeStep]
    VOLUMES_UNDO: _ClassVar[VolumeStep]
    VOLUMES_CHECK: _ClassVar[VolumeStep]
VERDICT_UNSPECIFIED: Verdict
COMMITTED: Verdict
DUPLICATE: Verdict
CONFLICT_RESOURCE: Verdict
CONFLICT_PORT: Verdict
CONFLICT_DEVICE: Verdict
CONFLICT_TOPOLOGY: Verdict
NODE_GONE: Verdict
NODE_UNSCHEDULABLE: Verdict
STALE_EPOCH: Verdict
GANG_ABORTED: Verdict
CONFLICT_VERSION: Verdict
OLD_COPY: Verdict
RESERVATION_NONE: ReservationState
RESERVATION_PREPARED: ReservationState
RESERVATION_ASSUMED: ReservationState
RESERVATION_CONFIRMED: ReservationState
RESERVATION_TERMINATING: ReservationState
RESERVATION_PRE_BINDING: ReservationState
MOVE_STEP_UNSPECIFIED: MoveStep
MOVE_RESERVE: MoveStep
MOVE_CONFIRM: MoveStep
MOVE_UNDO: MoveStep
MOVE_RENEW: MoveStep
MOVE_RESULT_UNSPECIFIED: MoveResult
MOVED: MoveResult
TARGET_GONE: MoveResult
SOURCE_CHANGED: MoveResult
MOVER_FENCED: MoveResult
BIND_UNKNOWN: BindResult
BIND_DONE: BindResult
BIND_ELSEWHERE: BindResult
BIND_REFUSED: BindResult
BIND_UNRESERVED: BindResult
BIND_WAITS: BindResult
BIND_VICTIMS: BindResult
VOLUMES_BOUND_ALREADY: VolumeStep
VOLUMES_BIND: VolumeStep
VOLUMES_UNDO: VolumeStep
VOLUMES_CHECK: VolumeStep

class ProposalBatch(_message.Message):
    __slots__ = ("worker", "epoch", "batch_id", "shard", "snapshot_seq", "resources", "uids", "slots", "candidates", "nodes", "requests", "priorities", "attempts", "devices", "unchecked", "groups", "slot_groups", "gang_minimum", "parts", "seen", "firsts", "places", "victim_uids", "victim_counts", "victims_must_go", "criteria", "displace_gap", "sending", "pre_bind", "traceparent")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SEQ_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SLOT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    GANG_MINIMUM_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    VICTIM_UIDS_FIELD_NUMBER: _ClassVar[int]
    VICTIM_COUNTS_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_MUST_GO_FIELD_NUMBER: _ClassVar[int]
    CRITERIA_FIELD_NUMBER: _ClassVar[int]
    DISPLACE_GAP_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    PRE_BIND_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    epoch: int
    batch_id: int
    shard: int
    snapshot_seq: int
    resources: int
    uids: bytes
    slots: bytes
    candidates: int
    nodes: bytes
    requests: bytes
    priorities: bytes
    attempts: bytes
    devices: bytes
    unchecked: bool
    groups: _containers.RepeatedScalarFieldContainer[bytes]
    slot_groups: bytes
    gang_minimum: int
    parts: _containers.RepeatedCompositeFieldContainer[ProposalBatch]
    seen: bytes
    firsts: bytes
    places: bytes
    victim_uids: bytes
    victim_counts: bytes
    victims_must_go: bool
    criteria: _common_pb2.Criteria
    displace_gap: int
    sending: int
    pre_bind: bool
    traceparent: str
    def __init__(self, worker: _Optional[str] = ..., epoch: _Optional[int] = ..., batch_id: _Optional[int] = ..., shard: _Optional[int] = ..., snapshot_seq: _Optional[int] = ..., resources: _Optional[int] = ..., uids: _Optional[bytes] = ..., slots: _Optional[bytes] = ..., candidates: _Optional[int] = ..., nodes: _Optional[bytes] = ..., requests: _Optional[bytes] = ..., priorities: _Optional[bytes] = ..., attempts: _Optional[bytes] = ..., devices: _Optional[bytes] = ..., unchecked: bool = ..., groups: _Optional[_Iterable[bytes]] = ..., slot_groups: _Optional[bytes] = ..., gang_minimum: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[ProposalBatch, _Mapping]]] = ..., seen: _Optional[bytes] = ..., firsts: _Optional[bytes] = ..., places: _Optional[bytes] = ..., victim_uids: _Optional[bytes] = ..., victim_counts: _Optional[bytes] = ..., victims_must_go: bool = ..., criteria: _Optional[_Union[_common_pb2.Criteria, str]] = ..., displace_gap: _Optional[int] = ..., sending: _Optional[int] = ..., pre_bind: bool = ..., traceparent: _Optional[str] = ...) -> None: ...

class PodGroup(_message.Message):
    __slots__ = ("namespace", "labels", "affinity", "host_ports", "spread", "excess", "tolerates_cordon", "volumes", "reserved_names", "claims_devices", "held_claims", "unreviewed")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    HOST_PORTS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    EXCESS_FIELD_NUMBER: _ClassVar[int]
    TOLERATES_CORDON_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_NAMES_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_DEVICES_FIELD_NUMBER: _ClassVar[int]
    HELD_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    UNREVIEWED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    labels: _containers.RepeatedCompositeFieldContainer[_common_pb2.Label]
    affinity: _common_pb2.PodAffinity
    host_ports: _containers.RepeatedCompositeFieldContainer[_common_pb2.HostPort]
    spread: _containers.RepeatedCompositeFieldContainer[_common_pb2.SpreadConstraint]
    excess: _common_pb2.CpuAndMemory
    tolerates_cordon: bool
    volumes: _common_pb2.PodVolumes
    reserved_names: _containers.RepeatedScalarFieldContainer[str]
    claims_devices: bool
    held_claims: _containers.RepeatedCompositeFieldContainer[_common_pb2.HeldClaim]
    unreviewed: bool
    def __init__(self, namespace: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[_common_pb2.Label, _Mapping]]] = ..., affinity: _Optional[_Union[_common_pb2.PodAffinity, _Mapping]] = ..., host_ports: _Optional[_Iterable[_Union[_common_pb2.HostPort, _Mapping]]] = ..., spread: _Optional[_Iterable[_Union[_common_pb2.SpreadConstraint, _Mapping]]] = ..., excess: _Optional[_Union[_common_pb2.CpuAndMemory, _Mapping]] = ..., tolerates_cordon: bool = ..., volumes: _Optional[_Union[_common_pb2.PodVolumes, _Mapping]] = ..., reserved_names: _Optional[_Iterable[str]] = ..., claims_devices: bool = ..., held_claims: _Optional[_Iterable[_Union[_common_pb2.HeldClaim, _Mapping]]] = ..., unreviewed: bool = ...) -> None: ...

class VerdictBatch(_message.Message):
    __slots__ = ("batch_id", "shard", "seq", "verdicts", "nodes", "conflicts", "fresh", "unavailable", "retry_after_ms", "invalid", "duplicate_seqs", "as_of_seq", "parts", "awaits", "evidence")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    INVALID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_SEQS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_SEQ_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    AWAITS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    shard: int
    seq: int
    verdicts: bytes
    nodes: bytes
    conflicts: _containers.RepeatedCompositeFieldContainer[Conflict]
    fresh: Accounts
    unavailable: str
    retry_after_ms: int
    invalid: str
    duplicate_seqs: bytes
    as_of_seq: int
    parts: _containers.RepeatedCompositeFieldContainer[VerdictBatch]
    awaits: _containers.RepeatedCompositeFieldContainer[ShardPosition]
    evidence: bytes
    def __init__(self, batch_id: _Optional[int] = ..., shard: _Optional[int] = ..., seq: _Optional[int] = ..., verdicts: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., conflicts: _Optional[_Iterable[_Union[Conflict, _Mapping]]] = ..., fresh: _Optional[_Union[Accounts, _Mapping]] = ..., unavailable: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., invalid: _Optional[str] = ..., duplicate_seqs: _Optional[bytes] = ..., as_of_seq: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[VerdictBatch, _Mapping]]] = ..., awaits: _Optional[_Iterable[_Union[ShardPosition, _Mapping]]] = ..., evidence: _Optional[bytes] = ...) -> None: ...

class Conflict(_message.Message):
    __slots__ = ("position", "node", "resource", "asked", "free")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    position: int
    node: int
    resource: int
    asked: int
    free: int
    def __init__(self, position: _Optional[int] = ..., node: _Optional[int] = ..., resource: _Optional[int] = ..., asked: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class Accounts(_message.Message):
    __slots__ = ("resources", "indexes", "records", "card_indexes", "cards")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CARD_INDEXES_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    resources: int
    indexes: bytes
    records: bytes
    card_indexes: bytes
    cards: bytes
    def __init__(self, resources: _Optional[int] = ..., indexes: _Optional[bytes] = ..., records: _Optional[bytes] = ..., card_indexes: _Optional[bytes] = ..., cards: _Optional[bytes] = ...) -> None: ...

class FeedRequest(_message.Message):
    __slots__ = ("subscriber", "resume", "ledger_epoch", "as_of_now")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AS_OF_NOW_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    resume: _containers.RepeatedCompositeFieldContainer[ShardPosition]
    ledger_epoch: str
    as_of_now: bool
    def __init__(self, subscriber: _Optional[str] = ..., resume: _Optional[_Iterable[_Union[ShardPosition, _Mapping]]] = ..., ledger_epoch: _Optional[str] = ..., as_of_now: bool = ...) -> None: ...

class ShardPosition(_message.Message):
    __slots__ = ("shard", "seq", "nonce")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    shard: int
    seq: int
    nonce: str
    def __init__(self, shard: _Optional[int] = ..., seq: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class FeedMessage(_message.Message):
    __slots__ = ("shard", "shards", "seq", "previous_seq", "snapshot", "accounts", "nodes", "schema", "ledger_epoch", "released", "groups", "evictions", "holds", "ended_holds", "worker_epoch", "nonce", "went_back")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SEQ_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_HOLDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WENT_BACK_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    seq: int
    previous_seq: int
    snapshot: bool
    accounts: Accounts
    nodes: _containers.RepeatedCompositeFieldContainer[NodeEntry]
    schema: _containers.RepeatedScalarFieldContainer[str]
    ledger_epoch: str
    released: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupRun]
    evictions: _containers.RepeatedCompositeFieldContainer[Eviction]
    holds: _containers.RepeatedScalarFieldContainer[int]
    ended_holds: _containers.RepeatedScalarFieldContainer[int]
    worker_epoch: int
    nonce: str
    went_back: bool
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ..., seq: _Optional[int] = ..., previous_seq: _Optional[int] = ..., snapshot: bool = ..., accounts: _Optional[_Union[Accounts, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeEntry, _Mapping]]] = ..., schema: _Optional[_Iterable[str]] = ..., ledger_epoch: _Optional[str] = ..., released: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupRun, _Mapping]]] = ..., evictions: _Optional[_Iterable[_Union[Eviction, _Mapping]]] = ..., holds: _Optional[_Iterable[int]] = ..., ended_holds: _Optional[_Iterable[int]] = ..., worker_epoch: _Optional[int] = ..., nonce: _Optional[str] = ..., went_back: bool = ...) -> None: ...

class Eviction(_message.Message):
    __slots__ = ("uid", "node", "victim_uids")
    UID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VICTIM_UIDS_FIELD_NUMBER: _ClassVar[int]
    uid: bytes
    node: int
    victim_uids: bytes
    def __init__(self, uid: _Optional[bytes] = ..., node: _Optional[int] = ..., victim_uids: _Optional[bytes] = ...) -> None: ...

class GroupRun(_message.Message):
    __slots__ = ("group", "nodes", "gone")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    nodes: bytes
    gone: bool
    def __init__(self, group: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., gone: bool = ...) -> None: ...

class NodeEntry(_message.Message):
    __slots__ = ("index", "spec", "removed")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    index: int
    spec: _common_pb2.NodeSpec
    removed: bool
    def __init__(self, index: _Optional[int] = ..., spec: _Optional[_Union[_common_pb2.NodeSpec, _Mapping]] = ..., removed: bool = ...) -> None: ...

class UpsertNodesRequest(_message.Message):
    __slots__ = ("nodes", "term", "ledger_epoch")
    NODES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeSpec]
    term: int
    ledger_epoch: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[_common_pb2.NodeSpec, _Mapping]]] = ..., term: _Optional[int] = ..., ledger_epoch: _Optional[str] = ...) -> None: ...

class UpsertNodesReply(_message.Message):
    __slots__ = ("indexes", "overcommitted")
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    OVERCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    overcommitted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, indexes: _Optional[_Iterable[int]] = ..., overcommitted: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveNodesRequest(_message.Message):
    __slots__ = ("names", "term", "ledger_epoch")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    term: int
    ledger_epoch: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ..., ledger_epoch: _Optional[str] = ...) -> None: ...

class RemoveNodesReply(_message.Message):
    __slots__ = ("released_uids", "not_found")
    RELEASED_UIDS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    released_uids: bytes
    not_found: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, released_uids: _Optional[bytes] = ..., not_found: _Optional[_Iterable[str]] = ...) -> None: ...

class CordonNodeRequest(_message.Message):
    __slots__ = ("name", "unschedulable", "term")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    name: str
    unschedulable: bool
    term: int
    def __init__(self, name: _Optional[str] = ..., unschedulable: bool = ..., term: _Optional[int] = ...) -> None: ...

class CordonNodeReply(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: _common_pb2.NodeSpec
    def __init__(self, node: _Optional[_Union[_common_pb2.NodeSpec, _Mapping]] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("names", "label_selector", "limit", "page_token")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    label_selector: str
    limit: int
    page_token: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., label_selector: _Optional[str] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("index", "spec", "requested", "cards_used_milli", "quarantine")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    CARDS_USED_MILLI_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    index: int
    spec: _common_pb2.NodeSpec
    requested: _containers.RepeatedCompositeFieldContainer[_common_pb2.Amount]
    cards_used_milli: _containers.RepeatedScalarFieldContainer[int]
    quarantine: Quarantine
    def __init__(self, index: _Optional[int] = ..., spec: _Optional[_Union[_common_pb2.NodeSpec, _Mapping]] = ..., requested: _Optional[_Iterable[_Union[_common_pb2.Amount, _Mapping]]] = ..., cards_used_milli: _Optional[_Iterable[int]] = ..., quarantine: _Optional[_Union[Quarantine, _Mapping]] = ...) -> None: ...

class Quarantine(_message.Message):
    __slots__ = ("reason", "since_unix_ms", "until_unix_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    since_unix_ms: int
    until_unix_ms: int
    def __init__(self, reason: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., until_unix_ms: _Optional[int] = ...) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes", "next_page_token")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    next_page_token: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GrantEpochRequest(_message.Message):
    __slots__ = ("worker", "term", "ledger_epoch", "journal_write")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_WRITE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    term: int
    ledger_epoch: str
    journal_write: int
    def __init__(self, worker: _Optional[str] = ..., term: _Optional[int] = ..., ledger_epoch: _Optional[str] = ..., journal_write: _Optional[int] = ...) -> None: ...

class GrantEpochReply(_message.Message):
    __slots__ = ("epoch", "ledger_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    ledger_epoch: str
    def __init__(self, epoch: _Optional[int] = ..., ledger_epoch: _Optional[str] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("uids",)
    UIDS_FIELD_NUMBER: _ClassVar[int]
    uids: bytes
    def __init__(self, uids: _Optional[bytes] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("nodes", "seqs", "epochs", "states", "ledger_epoch", "other_pods", "other_nodes")
    NODES_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OTHER_PODS_FIELD_NUMBER: _ClassVar[int]
    OTHER_NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: bytes
    seqs: bytes
    epochs: bytes
    states: bytes
    ledger_epoch: str
    other_pods: bytes
    other_nodes: bytes
    def __init__(self, nodes: _Optional[bytes] = ..., seqs: _Optional[bytes] = ..., epochs: _Optional[bytes] = ..., states: _Optional[bytes] = ..., ledger_epoch: _Optional[str] = ..., other_pods: _Optional[bytes] = ..., other_nodes: _Optional[bytes] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("commits", "term", "journal_write")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_WRITE_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[ShardCommits]
    term: int
    journal_write: int
    def __init__(self, commits: _Optional[_Iterable[_Union[ShardCommits, _Mapping]]] = ..., term: _Optional[int] = ..., journal_write: _Optional[int] = ...) -> None: ...

class ShardCommits(_message.Message):
    __slots__ = ("shard", "seqs")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    seqs: bytes
    def __init__(self, shard: _Optional[int] = ..., seqs: _Optional[bytes] = ...) -> None: ...

class ConfirmReply(_message.Message):
    __slots__ = ("confirmed",)
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    confirmed: int
    def __init__(self, confirmed: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("uids", "nodes", "term", "as_of", "journal_write", "ledger_epoch")
    UIDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_WRITE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    uids: bytes
    nodes: bytes
    term: int
    as_of: _containers.RepeatedCompositeFieldContainer[ShardPosition]
    journal_write: int
    ledger_epoch: str
    def __init__(self, uids: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., term: _Optional[int] = ..., as_of: _Optional[_Iterable[_Union[ShardPosition, _Mapping]]] = ..., journal_write: _Optional[int] = ..., ledger_epoch: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("step", "worker", "epoch", "term", "journal_write", "ledger_epoch", "uids", "nodes", "seen", "seqs", "sources", "source_seqs", "successors", "at_once", "reserved_names")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_WRITE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEQS_FIELD_NUMBER: _ClassVar[int]
    SUCCESSORS_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_NAMES_FIELD_NUMBER: _ClassVar[int]
    step: MoveStep
    worker: str
    epoch: int
    term: int
    journal_write: int
    ledger_epoch: str
    uids: bytes
    nodes: bytes
    seen: bytes
    seqs: bytes
    sources: bytes
    source_seqs: bytes
    successors: bytes
    at_once: bool
    reserved_names: _containers.RepeatedCompositeFieldContainer[ReservedNames]
    def __init__(self, step: _Optional[_Union[MoveStep, str]] = ..., worker: _Optional[str] = ..., epoch: _Optional[int] = ..., term: _Optional[int] = ..., journal_write: _Optional[int] = ..., ledger_epoch: _Optional[str] = ..., uids: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., seen: _Optional[bytes] = ..., seqs: _Optional[bytes] = ..., sources: _Optional[bytes] = ..., source_seqs: _Optional[bytes] = ..., successors: _Optional[bytes] = ..., at_once: bool = ..., reserved_names: _Optional[_Iterable[_Union[ReservedNames, _Mapping]]] = ...) -> None: ...

class ReservedNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class MoveReply(_message.Message):
    __slots__ = ("verdicts", "seqs", "sources", "source_seqs", "results")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEQS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: bytes
    seqs: bytes
    sources: bytes
    source_seqs: bytes
    results: bytes
    def __init__(self, verdicts: _Optional[bytes] = ..., seqs: _Optional[bytes] = ..., sources: _Optional[bytes] = ..., source_seqs: _Optional[bytes] = ..., results: _Optional[bytes] = ...) -> None: ...

class ListReservationsRequest(_message.Message):
    __slots__ = ("shard", "all_shards", "details")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ALL_SHARDS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    all_shards: bool
    details: bool
    def __init__(self, shard: _Optional[int] = ..., all_shards: bool = ..., details: bool = ...) -> None: ...

class ReservationChunk(_message.Message):
    __slots__ = ("shard", "uids", "nodes", "seqs", "epochs", "priorities", "attempts", "card_masks", "card_millis", "resources", "requests", "assumed", "schema", "node_names", "assumed_since_ms", "lease_ends_ms", "states", "workers", "seq", "nonce", "groups")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CARD_MASKS_FIELD_NUMBER: _ClassVar[int]
    CARD_MILLIS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDS_MS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    uids: bytes
    nodes: bytes
    seqs: bytes
    epochs: bytes
    priorities: bytes
    attempts: bytes
    card_masks: bytes
    card_millis: bytes
    resources: int
    requests: bytes
    assumed: bytes
    schema: _containers.RepeatedScalarFieldContainer[str]
    node_names: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeName]
    assumed_since_ms: bytes
    lease_ends_ms: bytes
    states: bytes
    workers: _containers.RepeatedCompositeFieldContainer[WorkerEpoch]
    seq: int
    nonce: str
    groups: bytes
    def __init__(self, shard: _Optional[int] = ..., uids: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., seqs: _Optional[bytes] = ..., epochs: _Optional[bytes] = ..., priorities: _Optional[bytes] = ..., attempts: _Optional[bytes] = ..., card_masks: _Optional[bytes] = ..., card_millis: _Optional[bytes] = ..., resources: _Optional[int] = ..., requests: _Optional[bytes] = ..., assumed: _Optional[bytes] = ..., schema: _Optional[_Iterable[str]] = ..., node_names: _Optional[_Iterable[_Union[_common_pb2.NodeName, _Mapping]]] = ..., assumed_since_ms: _Optional[bytes] = ..., lease_ends_ms: _Optional[bytes] = ..., states: _Optional[bytes] = ..., workers: _Optional[_Iterable[_Union[WorkerEpoch, _Mapping]]] = ..., seq: _Optional[int] = ..., nonce: _Optional[str] = ..., groups: _Optional[bytes] = ...) -> None: ...

class WorkerEpoch(_message.Message):
    __slots__ = ("epoch", "worker")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    worker: str
    def __init__(self, epoch: _Optional[int] = ..., worker: _Optional[str] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Violation(_message.Message):
    __slots__ = ("invariant", "node", "pod_uid", "text")
    INVARIANT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    invariant: int
    node: str
    pod_uid: str
    text: str
    def __init__(self, invariant: _Optional[int] = ..., node: _Optional[str] = ..., pod_uid: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("violations", "nodes", "reservations", "digests", "reports")
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedCompositeFieldContainer[Violation]
    nodes: int
    reservations: int
    digests: _containers.RepeatedCompositeFieldContainer[ShardDigest]
    reports: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, violations: _Optional[_Iterable[_Union[Violation, _Mapping]]] = ..., nodes: _Optional[int] = ..., reservations: _Optional[int] = ..., digests: _Optional[_Iterable[_Union[ShardDigest, _Mapping]]] = ..., reports: _Optional[_Iterable[str]] = ...) -> None: ...

class ShardDigest(_message.Message):
    __slots__ = ("shard", "seq", "digest")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    seq: int
    digest: int
    def __init__(self, shard: _Optional[int] = ..., seq: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class AnnounceRebuildRequest(_message.Message):
    __slots__ = ("waits_for",)
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    waits_for: str
    def __init__(self, waits_for: _Optional[str] = ...) -> None: ...

class AnnounceRebuildReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResolverStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResolverStatus(_message.Message):
    __slots__ = ("version", "ledger_epoch", "shards", "serving", "problem", "nodes", "reservations", "counters", "redis", "recovering", "standing", "events", "quarantined", "dispatcher_term", "journal_term", "journal_write")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RedisEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    REDIS_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    DISPATCHER_TERM_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_TERM_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_WRITE_FIELD_NUMBER: _ClassVar[int]
    version: str
    ledger_epoch: str
    shards: int
    serving: bool
    problem: str
    nodes: int
    reservations: int
    counters: _containers.ScalarMap[str, int]
    redis: _containers.ScalarMap[str, str]
    recovering: bool
    standing: str
    events: _containers.RepeatedCompositeFieldContainer[NodeEvent]
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    dispatcher_term: int
    journal_term: int
    journal_write: int
    def __init__(self, version: _Optional[str] = ..., ledger_epoch: _Optional[str] = ..., shards: _Optional[int] = ..., serving: bool = ..., problem: _Optional[str] = ..., nodes: _Optional[int] = ..., reservations: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., redis: _Optional[_Mapping[str, str]] = ..., recovering: bool = ..., standing: _Optional[str] = ..., events: _Optional[_Iterable[_Union[NodeEvent, _Mapping]]] = ..., quarantined: _Optional[_Iterable[str]] = ..., dispatcher_term: _Optional[int] = ..., journal_term: _Optional[int] = ..., journal_write: _Optional[int] = ...) -> None: ...

class RepairRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RepairReply(_message.Message):
    __slots__ = ("changes", "remaining")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedScalarFieldContainer[str]
    remaining: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changes: _Optional[_Iterable[str]] = ..., remaining: _Optional[_Iterable[str]] = ...) -> None: ...

class DumpLedgerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LedgerPart(_message.Message):
    __slots__ = ("head", "nodes", "kinds", "pods")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    head: LedgerHead
    nodes: _containers.RepeatedCompositeFieldContainer[NodeEntry]
    kinds: _containers.RepeatedCompositeFieldContainer[PodKind]
    pods: PodColumns
    def __init__(self, head: _Optional[_Union[LedgerHead, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeEntry, _Mapping]]] = ..., kinds: _Optional[_Iterable[_Union[PodKind, _Mapping]]] = ..., pods: _Optional[_Union[PodColumns, _Mapping]] = ...) -> None: ...

class LedgerHead(_message.Message):
    __slots__ = ("ledger_epoch", "shards", "schema", "replaces", "as_kept", "operator", "only_empty", "term")
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    AS_KEPT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ONLY_EMPTY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ledger_epoch: str
    shards: int
    schema: _containers.RepeatedScalarFieldContainer[str]
    replaces: str
    as_kept: bool
    operator: bool
    only_empty: bool
    term: int
    def __init__(self, ledger_epoch: _Optional[str] = ..., shards: _Optional[int] = ..., schema: _Optional[_Iterable[str]] = ..., replaces: _Optional[str] = ..., as_kept: bool = ..., operator: bool = ..., only_empty: bool = ..., term: _Optional[int] = ...) -> None: ...

class PodKind(_message.Message):
    __slots__ = ("requests", "priority", "cards", "card_milli", "group")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    CARD_MILLI_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[_common_pb2.Amount]
    priority: int
    cards: int
    card_milli: int
    group: bytes
    def __init__(self, requests: _Optional[_Iterable[_Union[_common_pb2.Amount, _Mapping]]] = ..., priority: _Optional[int] = ..., cards: _Optional[int] = ..., card_milli: _Optional[int] = ..., group: _Optional[bytes] = ...) -> None: ...

class PodColumns(_message.Message):
    __slots__ = ("uids", "nodes", "kinds", "card_masks", "assumed", "attempts", "epochs")
    UIDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    CARD_MASKS_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    uids: bytes
    nodes: bytes
    kinds: bytes
    card_masks: bytes
    assumed: bytes
    attempts: bytes
    epochs: bytes
    def __init__(self, uids: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., card_masks: _Optional[bytes] = ..., assumed: _Optional[bytes] = ..., attempts: _Optional[bytes] = ..., epochs: _Optional[bytes] = ...) -> None: ...

class RebuildReply(_message.Message):
    __slots__ = ("ledger_epoch", "nodes", "reservations", "unplaced_uids", "overcommitted")
    LEDGER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    UNPLACED_UIDS_FIELD_NUMBER: _ClassVar[int]
    OVERCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    ledger_epoch: str
    nodes: int
    reservations: int
    unplaced_uids: bytes
    overcommitted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ledger_epoch: _Optional[str] = ..., nodes: _Optional[int] = ..., reservations: _Optional[int] = ..., unplaced_uids: _Optional[bytes] = ..., overcommitted: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeEvent(_message.Message):
    __slots__ = ("unix_ms", "node", "text")
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    unix_ms: int
    node: str
    text: str
    def __init__(self, unix_ms: _Optional[int] = ..., node: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class UpsertPodsRequest(_message.Message):
    __slots__ = ("writer", "epoch", "kinds", "pods", "node_names", "keep_unreviewed")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNREVIEWED_FIELD_NUMBER: _ClassVar[int]
    writer: str
    epoch: int
    kinds: _containers.RepeatedCompositeFieldContainer[PodKind]
    pods: PodColumns
    node_names: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeName]
    keep_unreviewed: bool
    def __init__(self, writer: _Optional[str] = ..., epoch: _Optional[int] = ..., kinds: _Optional[_Iterable[_Union[PodKind, _Mapping]]] = ..., pods: _Optional[_Union[PodColumns, _Mapping]] = ..., node_names: _Optional[_Iterable[_Union[_common_pb2.NodeName, _Mapping]]] = ..., keep_unreviewed: bool = ...) -> None: ...

class UpsertPodsReply(_message.Message):
    __slots__ = ("verdicts", "unreviewed")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    UNREVIEWED_FIELD_NUMBER: _ClassVar[int]
    verdicts: bytes
    unreviewed: bytes
    def __init__(self, verdicts: _Optional[bytes] = ..., unreviewed: _Optional[bytes] = ...) -> None: ...

class BindRequest(_message.Message):
    __slots__ = ("uids", "nodes", "pods", "node_names", "volumes", "resource_claims", "claim_versions")
    UIDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    CLAIM_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    uids: bytes
    nodes: bytes
    pods: _containers.RepeatedScalarFieldContainer[str]
    node_names: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeName]
    volumes: bytes
    resource_claims: _containers.RepeatedCompositeFieldContainer[ResourceClaimNames]
    claim_versions: _containers.RepeatedCompositeFieldContainer[ClaimVersions]
    def __init__(self, uids: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., pods: _Optional[_Iterable[str]] = ..., node_names: _Optional[_Iterable[_Union[_common_pb2.NodeName, _Mapping]]] = ..., volumes: _Optional[bytes] = ..., resource_claims: _Optional[_Iterable[_Union[ResourceClaimNames, _Mapping]]] = ..., claim_versions: _Optional[_Iterable[_Union[ClaimVersions, _Mapping]]] = ...) -> None: ...

class ClaimVersions(_message.Message):
    __slots__ = ("versions",)
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.ScalarMap[str, str]
    def __init__(self, versions: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ResourceClaimNames(_message.Message):
    __slots__ = ("names", "ready_seconds")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    READY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    ready_seconds: float
    def __init__(self, names: _Optional[_Iterable[str]] = ..., ready_seconds: _Optional[float] = ...) -> None: ...

class BindReply(_message.Message):
    __slots__ = ("results", "texts")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    results: bytes
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, results: _Optional[bytes] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...
