from hoss.v1 import common_pb2 as _common_pb2
from hoss.v1 import objects_pb2 as _objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutcomeCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[OutcomeCode]
    OUTCOME_BOUND: _ClassVar[OutcomeCode]
    OUTCOME_UNSCHEDULABLE: _ClassVar[OutcomeCode]
    OUTCOME_CONFLICT: _ClassVar[OutcomeCode]
    OUTCOME_RETURNED: _ClassVar[OutcomeCode]
    OUTCOME_INVALID: _ClassVar[OutcomeCode]
    OUTCOME_FENCED: _ClassVar[OutcomeCode]
    OUTCOME_UNRESERVED: _ClassVar[OutcomeCode]
OUTCOME_UNSPECIFIED: OutcomeCode
OUTCOME_BOUND: OutcomeCode
OUTCOME_UNSCHEDULABLE: OutcomeCode
OUTCOME_CONFLICT: OutcomeCode
OUTCOME_RETURNED: OutcomeCode
OUTCOME_INVALID: OutcomeCode
OUTCOME_FENCED: OutcomeCode
OUTCOME_UNRESERVED: OutcomeCode

class WorkerMessage(_message.Message):
    __slots__ = ("register", "heartbeat", "outcomes", "view", "leave", "preemption", "decisions")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: Heartbeat
    outcomes: Outcomes
    view: CacheView
    leave: Leave
    preemption: PreemptionQuestion
    decisions: DecisionAnswer
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., outcomes: _Optional[_Union[Outcomes, _Mapping]] = ..., view: _Optional[_Union[CacheView, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., preemption: _Optional[_Union[PreemptionQuestion, _Mapping]] = ..., decisions: _Optional[_Union[DecisionAnswer, _Mapping]] = ...) -> None: ...

class DispatcherMessage(_message.Message):
    __slots__ = ("welcome", "work", "view", "drain", "preemption", "surroundings", "recall", "storage", "decisions", "preference")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    SURROUNDINGS_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    work: WorkBatch
    view: ViewRequest
    drain: Drain
    preemption: PreemptionAnswer
    surroundings: _objects_pb2.Surroundings
    recall: Recall
    storage: _objects_pb2.StorageChanges
    decisions: DecisionQuestion
    preference: Preference
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., work: _Optional[_Union[WorkBatch, _Mapping]] = ..., view: _Optional[_Union[ViewRequest, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., preemption: _Optional[_Union[PreemptionAnswer, _Mapping]] = ..., surroundings: _Optional[_Union[_objects_pb2.Surroundings, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ..., storage: _Optional[_Union[_objects_pb2.StorageChanges, _Mapping]] = ..., decisions: _Optional[_Union[DecisionQuestion, _Mapping]] = ..., preference: _Optional[_Union[Preference, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("name", "labels", "incarnation", "window", "protocol", "profile", "bind_seconds", "packs")
    class BindSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    BIND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PACKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedCompositeFieldContainer[_common_pb2.Label]
    incarnation: int
    window: int
    protocol: int
    profile: str
    bind_seconds: _containers.ScalarMap[str, float]
    packs: bool
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[_common_pb2.Label, _Mapping]]] = ..., incarnation: _Optional[int] = ..., window: _Optional[int] = ..., protocol: _Optional[int] = ..., profile: _Optional[str] = ..., bind_seconds: _Optional[_Mapping[str, float]] = ..., packs: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "heartbeat_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    heartbeat_ms: int
    def __init__(self, epoch: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("busy_seconds", "micros_per_pod", "backlog", "ready", "conflicts", "proposed", "cost_classes", "cost_micros", "first_micros", "seen_micros", "refusal_winners", "refusal_verdicts", "refusal_counts", "refusing_nodes", "refusal_seqs_behind", "refusal_ages_ms", "synchronisation", "lags", "fill_seconds", "failing", "working_seconds", "clock_seconds")
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MICROS_PER_POD_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    COST_CLASSES_FIELD_NUMBER: _ClassVar[int]
    COST_MICROS_FIELD_NUMBER: _ClassVar[int]
    FIRST_MICROS_FIELD_NUMBER: _ClassVar[int]
    SEEN_MICROS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_WINNERS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    REFUSING_NODES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_SEQS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_AGES_MS_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONISATION_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    FILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    WORKING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    busy_seconds: float
    micros_per_pod: float
    backlog: int
    ready: bool
    conflicts: int
    proposed: int
    cost_classes: bytes
    cost_micros: bytes
    first_micros: float
    seen_micros: float
    refusal_winners: bytes
    refusal_verdicts: bytes
    refusal_counts: bytes
    refusing_nodes: bytes
    refusal_seqs_behind: bytes
    refusal_ages_ms: bytes
    synchronisation: str
    lags: _containers.RepeatedCompositeFieldContainer[_common_pb2.ShardLag]
    fill_seconds: float
    failing: str
    working_seconds: float
    clock_seconds: float
    def __init__(self, busy_seconds: _Optional[float] = ..., micros_per_pod: _Optional[float] = ..., backlog: _Optional[int] = ..., ready: bool = ..., conflicts: _Optional[int] = ..., proposed: _Optional[int] = ..., cost_classes: _Optional[bytes] = ..., cost_micros: _Optional[bytes] = ..., first_micros: _Optional[float] = ..., seen_micros: _Optional[float] = ..., refusal_winners: _Optional[bytes] = ..., refusal_verdicts: _Optional[bytes] = ..., refusal_counts: _Optional[bytes] = ..., refusing_nodes: _Optional[bytes] = ..., refusal_seqs_behind: _Optional[bytes] = ..., refusal_ages_ms: _Optional[bytes] = ..., synchronisation: _Optional[str] = ..., lags: _Optional[_Iterable[_Union[_common_pb2.ShardLag, _Mapping]]] = ..., fill_seconds: _Optional[float] = ..., failing: _Optional[str] = ..., working_seconds: _Optional[float] = ..., clock_seconds: _Optional[float] = ...) -> None: ...

class Preference(_message.Message):
    __slots__ = ("overlap", "number", "shares")
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    overlap: str
    number: int
    shares: int
    def __init__(self, overlap: _Optional[str] = ..., number: _Optional[int] = ..., shares: _Optional[int] = ...) -> None: ...

class ClassDefinition(_message.Message):
    __slots__ = ("id", "spec")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    id: int
    spec: _common_pb2.PodSpec
    def __init__(self, id: _Optional[int] = ..., spec: _Optional[_Union[_common_pb2.PodSpec, _Mapping]] = ...) -> None: ...

class WorkBatch(_message.Message):
    __slots__ = ("batch_id", "classes", "forgotten_classes", "run_classes", "run_counts", "uids", "run_attempts", "gang_minimum", "gang", "scope", "lowest_priority", "traceparent", "conflicts")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_CLASSES_FIELD_NUMBER: _ClassVar[int]
    RUN_CLASSES_FIELD_NUMBER: _ClassVar[int]
    RUN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    RUN_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    GANG_MINIMUM_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LOWEST_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    classes: _containers.RepeatedCompositeFieldContainer[ClassDefinition]
    forgotten_classes: _containers.RepeatedScalarFieldContainer[int]
    run_classes: bytes
    run_counts: bytes
    uids: bytes
    run_attempts: bytes
    gang_minimum: int
    gang: str
    scope: _common_pb2.NodeScope
    lowest_priority: int
    traceparent: str
    conflicts: _common_pb2.ConflictRule
    def __init__(self, batch_id: _Optional[int] = ..., classes: _Optional[_Iterable[_Union[ClassDefinition, _Mapping]]] = ..., forgotten_classes: _Optional[_Iterable[int]] = ..., run_classes: _Optional[bytes] = ..., run_counts: _Optional[bytes] = ..., uids: _Optional[bytes] = ..., run_attempts: _Optional[bytes] = ..., gang_minimum: _Optional[int] = ..., gang: _Optional[str] = ..., scope: _Optional[_Union[_common_pb2.NodeScope, _Mapping]] = ..., lowest_priority: _Optional[int] = ..., traceparent: _Optional[str] = ..., conflicts: _Optional[_Union[_common_pb2.ConflictRule, _Mapping]] = ...) -> None: ...

class Outcomes(_message.Message):
    __slots__ = ("batch_id", "positions", "codes", "nodes", "reasons", "reason_texts", "commits", "refused_by", "seen", "leaving_ms", "deciding_seconds", "committing_seconds", "refused")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXTS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_BY_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    LEAVING_MS_FIELD_NUMBER: _ClassVar[int]
    DECIDING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMITTING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    positions: bytes
    codes: bytes
    nodes: bytes
    reasons: bytes
    reason_texts: _containers.RepeatedScalarFieldContainer[str]
    commits: _containers.RepeatedCompositeFieldContainer[CommitRef]
    refused_by: _containers.RepeatedCompositeFieldContainer[RefusedBy]
    seen: _containers.RepeatedCompositeFieldContainer[CommitRef]
    leaving_ms: bytes
    deciding_seconds: float
    committing_seconds: float
    refused: bytes
    def __init__(self, batch_id: _Optional[int] = ..., positions: _Optional[bytes] = ..., codes: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., reasons: _Optional[bytes] = ..., reason_texts: _Optional[_Iterable[str]] = ..., commits: _Optional[_Iterable[_Union[CommitRef, _Mapping]]] = ..., refused_by: _Optional[_Iterable[_Union[RefusedBy, _Mapping]]] = ..., seen: _Optional[_Iterable[_Union[CommitRef, _Mapping]]] = ..., leaving_ms: _Optional[bytes] = ..., deciding_seconds: _Optional[float] = ..., committing_seconds: _Optional[float] = ..., refused: _Optional[bytes] = ...) -> None: ...

class RefusedBy(_message.Message):
    __slots__ = ("plugins", "failed")
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    plugins: _containers.RepeatedScalarFieldContainer[str]
    failed: bool
    def __init__(self, plugins: _Optional[_Iterable[str]] = ..., failed: bool = ...) -> None: ...

class CommitRef(_message.Message):
    __slots__ = ("shard", "seq")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    shard: int
    seq: int
    def __init__(self, shard: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class ViewRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class CacheView(_message.Message):
    __slots__ = ("id", "shards", "idle")
    ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    shards: _containers.RepeatedCompositeFieldContainer[ShardView]
    idle: bool
    def __init__(self, id: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[ShardView, _Mapping]]] = ..., idle: bool = ...) -> None: ...

class ShardView(_message.Message):
    __slots__ = ("shard", "seq", "digest")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    seq: int
    digest: int
    def __init__(self, shard: _Optional[int] = ..., seq: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("batch_ids", "pods")
    BATCH_IDS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    batch_ids: _containers.RepeatedScalarFieldContainer[int]
    pods: int
    def __init__(self, batch_ids: _Optional[_Iterable[int]] = ..., pods: _Optional[int] = ...) -> None: ...

class PreemptionQuestion(_message.Message):
    __slots__ = ("id", "priority", "nodes", "limit", "uid")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    id: int
    priority: int
    nodes: bytes
    limit: int
    uid: bytes
    def __init__(self, id: _Optional[int] = ..., priority: _Optional[int] = ..., nodes: _Optional[bytes] = ..., limit: _Optional[int] = ..., uid: _Optional[bytes] = ...) -> None: ...

class PreemptionAnswer(_message.Message):
    __slots__ = ("id", "nodes_seen", "uids", "nodes", "classes", "since_ms", "grace_ms", "class_specs", "budgets", "seen", "held")
    ID_FIELD_NUMBER: _ClassVar[int]
    NODES_SEEN_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    CLASS_SPECS_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    id: int
    nodes_seen: int
    uids: bytes
    nodes: bytes
    classes: bytes
    since_ms: bytes
    grace_ms: bytes
    class_specs: _containers.RepeatedScalarFieldContainer[bytes]
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    seen: _containers.RepeatedCompositeFieldContainer[CommitRef]
    held: str
    def __init__(self, id: _Optional[int] = ..., nodes_seen: _Optional[int] = ..., uids: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., classes: _Optional[bytes] = ..., since_ms: _Optional[bytes] = ..., grace_ms: _Optional[bytes] = ..., class_specs: _Optional[_Iterable[bytes]] = ..., budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ..., seen: _Optional[_Iterable[_Union[CommitRef, _Mapping]]] = ..., held: _Optional[str] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("namespace", "selector", "allowed")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    selector: _common_pb2.LabelSelector
    allowed: int
    def __init__(self, namespace: _Optional[str] = ..., selector: _Optional[_Union[_common_pb2.LabelSelector, _Mapping]] = ..., allowed: _Optional[int] = ...) -> None: ...

class DecisionQuestion(_message.Message):
    __slots__ = ("id", "uid")
    ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    id: int
    uid: bytes
    def __init__(self, id: _Optional[int] = ..., uid: _Optional[bytes] = ...) -> None: ...

class DecisionAnswer(_message.Message):
    __slots__ = ("id", "decisions")
    ID_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    id: int
    decisions: _containers.RepeatedCompositeFieldContainer[_common_pb2.Decision]
    def __init__(self, id: _Optional[int] = ..., decisions: _Optional[_Iterable[_Union[_common_pb2.Decision, _Mapping]]] = ...) -> None: ...
