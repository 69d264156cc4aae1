from hoss.v1 import common_pb2 as _common_pb2
from hoss.v1 import objects_pb2 as _objects_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PodPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POD_PHASE_UNSPECIFIED: _ClassVar[PodPhase]
    QUEUED: _ClassVar[PodPhase]
    SCHEDULING: _ClassVar[PodPhase]
    BOUND: _ClassVar[PodPhase]
    UNSCHEDULABLE: _ClassVar[PodPhase]
    BACKOFF: _ClassVar[PodPhase]
    FAILED: _ClassVar[PodPhase]
    DELETED: _ClassVar[PodPhase]

class RebalanceAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REBALANCE_STATUS: _ClassVar[RebalanceAction]
    REBALANCE_START: _ClassVar[RebalanceAction]
    REBALANCE_PAUSE: _ClassVar[RebalanceAction]
    REBALANCE_RESUME: _ClassVar[RebalanceAction]
    REBALANCE_UNDO: _ClassVar[RebalanceAction]
POD_PHASE_UNSPECIFIED: PodPhase
QUEUED: PodPhase
SCHEDULING: PodPhase
BOUND: PodPhase
UNSCHEDULABLE: PodPhase
BACKOFF: PodPhase
FAILED: PodPhase
DELETED: PodPhase
REBALANCE_STATUS: RebalanceAction
REBALANCE_START: RebalanceAction
REBALANCE_PAUSE: RebalanceAction
REBALANCE_RESUME: RebalanceAction
REBALANCE_UNDO: RebalanceAction

class PodTemplate(_message.Message):
    __slots__ = ("spec", "scheduler_name", "priority_class_name", "qos_class", "owner_kind", "required_during_execution", "termination_grace_seconds", "limits", "movable")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_NAME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    QOS_CLASS_FIELD_NUMBER: _ClassVar[int]
    OWNER_KIND_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_DURING_EXECUTION_FIELD_NUMBER: _ClassVar[int]
    TERMINATION_GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.PodSpec
    scheduler_name: str
    priority_class_name: str
    qos_class: str
    owner_kind: str
    required_during_execution: str
    termination_grace_seconds: int
    limits: _containers.RepeatedCompositeFieldContainer[_common_pb2.Amount]
    movable: str
    def __init__(self, spec: _Optional[_Union[_common_pb2.PodSpec, _Mapping]] = ..., scheduler_name: _Optional[str] = ..., priority_class_name: _Optional[str] = ..., qos_class: _Optional[str] = ..., owner_kind: _Optional[str] = ..., required_during_execution: _Optional[str] = ..., termination_grace_seconds: _Optional[int] = ..., limits: _Optional[_Iterable[_Union[_common_pb2.Amount, _Mapping]]] = ..., movable: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "template", "replicas", "min_available", "gang")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MIN_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    name: str
    template: int
    replicas: int
    min_available: int
    gang: int
    def __init__(self, name: _Optional[str] = ..., template: _Optional[int] = ..., replicas: _Optional[int] = ..., min_available: _Optional[int] = ..., gang: _Optional[int] = ...) -> None: ...

class Gang(_message.Message):
    __slots__ = ("namespace", "name", "min_available")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    min_available: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., min_available: _Optional[int] = ...) -> None: ...

class PodList(_message.Message):
    __slots__ = ("names", "templates", "uids", "gangs")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    GANGS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    templates: bytes
    uids: bytes
    gangs: bytes
    def __init__(self, names: _Optional[_Iterable[str]] = ..., templates: _Optional[bytes] = ..., uids: _Optional[bytes] = ..., gangs: _Optional[bytes] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("request_id", "templates", "jobs", "pods", "gangs", "traceparent", "submitted_by")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    GANGS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_BY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    templates: _containers.RepeatedCompositeFieldContainer[PodTemplate]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    pods: PodList
    gangs: _containers.RepeatedCompositeFieldContainer[Gang]
    traceparent: str
    submitted_by: str
    def __init__(self, request_id: _Optional[str] = ..., templates: _Optional[_Iterable[_Union[PodTemplate, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., pods: _Optional[_Union[PodList, _Mapping]] = ..., gangs: _Optional[_Iterable[_Union[Gang, _Mapping]]] = ..., traceparent: _Optional[str] = ..., submitted_by: _Optional[str] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("request_id", "accepted_pods", "sets", "revision")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PODS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    accepted_pods: int
    sets: _containers.RepeatedCompositeFieldContainer[PodSet]
    revision: int
    def __init__(self, request_id: _Optional[str] = ..., accepted_pods: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[PodSet, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class PodSet(_message.Message):
    __slots__ = ("namespace", "name", "uid_prefix", "count")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid_prefix: bytes
    count: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid_prefix: _Optional[bytes] = ..., count: _Optional[int] = ...) -> None: ...

class PodInfo(_message.Message):
    __slots__ = ("uid", "namespace", "name", "job", "phase", "node", "worker", "attempts", "reason", "submitted_unix_ms", "phase_since_unix_ms", "template", "rule", "queue", "faults", "nominated_node", "eviction", "decisions", "steps", "steps_since_unix_ms", "unmovable", "gang", "gang_lacks")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    NOMINATED_NODE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    UNMOVABLE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    GANG_LACKS_FIELD_NUMBER: _ClassVar[int]
    uid: bytes
    namespace: str
    name: str
    job: str
    phase: PodPhase
    node: str
    worker: str
    attempts: int
    reason: str
    submitted_unix_ms: int
    phase_since_unix_ms: int
    template: PodTemplate
    rule: str
    queue: QueueStanding
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    nominated_node: str
    eviction: str
    decisions: _containers.RepeatedCompositeFieldContainer[_common_pb2.Decision]
    steps: _containers.RepeatedCompositeFieldContainer[PodStep]
    steps_since_unix_ms: int
    unmovable: str
    gang: str
    gang_lacks: int
    def __init__(self, uid: _Optional[bytes] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[str] = ..., phase: _Optional[_Union[PodPhase, str]] = ..., node: _Optional[str] = ..., worker: _Optional[str] = ..., attempts: _Optional[int] = ..., reason: _Optional[str] = ..., submitted_unix_ms: _Optional[int] = ..., phase_since_unix_ms: _Optional[int] = ..., template: _Optional[_Union[PodTemplate, _Mapping]] = ..., rule: _Optional[str] = ..., queue: _Optional[_Union[QueueStanding, _Mapping]] = ..., faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ..., nominated_node: _Optional[str] = ..., eviction: _Optional[str] = ..., decisions: _Optional[_Iterable[_Union[_common_pb2.Decision, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[PodStep, _Mapping]]] = ..., steps_since_unix_ms: _Optional[int] = ..., unmovable: _Optional[str] = ..., gang: _Optional[str] = ..., gang_lacks: _Optional[int] = ...) -> None: ...

class PodStep(_message.Message):
    __slots__ = ("at_unix_ms", "phase", "event", "worker", "node", "reason")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    phase: PodPhase
    event: str
    worker: str
    node: str
    reason: str
    def __init__(self, at_unix_ms: _Optional[int] = ..., phase: _Optional[_Union[PodPhase, str]] = ..., event: _Optional[str] = ..., worker: _Optional[str] = ..., node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class JobStep(_message.Message):
    __slots__ = ("phase", "event", "pods", "first_unix_ms", "last_unix_ms")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    phase: PodPhase
    event: str
    pods: int
    first_unix_ms: int
    last_unix_ms: int
    def __init__(self, phase: _Optional[_Union[PodPhase, str]] = ..., event: _Optional[str] = ..., pods: _Optional[int] = ..., first_unix_ms: _Optional[int] = ..., last_unix_ms: _Optional[int] = ...) -> None: ...

class WorkerStep(_message.Message):
    __slots__ = ("at_unix_ms", "state", "epoch", "text")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    state: str
    epoch: int
    text: str
    def __init__(self, at_unix_ms: _Optional[int] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("at_unix_ms", "worker", "text", "final")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    worker: str
    text: str
    final: bool
    def __init__(self, at_unix_ms: _Optional[int] = ..., worker: _Optional[str] = ..., text: _Optional[str] = ..., final: bool = ...) -> None: ...

class QueueStanding(_message.Message):
    __slots__ = ("name", "since_unix_ms", "not_before_unix_ms", "at_latest_unix_ms", "refused_by", "behind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    AT_LATEST_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_BY_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    since_unix_ms: int
    not_before_unix_ms: int
    at_latest_unix_ms: int
    refused_by: _containers.RepeatedScalarFieldContainer[str]
    behind: str
    def __init__(self, name: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., not_before_unix_ms: _Optional[int] = ..., at_latest_unix_ms: _Optional[int] = ..., refused_by: _Optional[_Iterable[str]] = ..., behind: _Optional[str] = ...) -> None: ...

class GetPodRequest(_message.Message):
    __slots__ = ("namespace", "name", "uid", "queue", "decisions", "steps")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: bytes
    queue: bool
    decisions: bool
    steps: bool
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[bytes] = ..., queue: bool = ..., decisions: bool = ..., steps: bool = ...) -> None: ...

class ListPodsRequest(_message.Message):
    __slots__ = ("namespace", "job", "phases", "node", "label_selector", "limit", "page_token", "templates", "name", "unplaceable")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNPLACEABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    job: str
    phases: _containers.RepeatedScalarFieldContainer[PodPhase]
    node: str
    label_selector: str
    limit: int
    page_token: str
    templates: bool
    name: str
    unplaceable: bool
    def __init__(self, namespace: _Optional[str] = ..., job: _Optional[str] = ..., phases: _Optional[_Iterable[_Union[PodPhase, str]]] = ..., node: _Optional[str] = ..., label_selector: _Optional[str] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ..., templates: bool = ..., name: _Optional[str] = ..., unplaceable: bool = ...) -> None: ...

class ListPodsReply(_message.Message):
    __slots__ = ("pods", "next_page_token")
    PODS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pods: _containers.RepeatedCompositeFieldContainer[PodInfo]
    next_page_token: str
    def __init__(self, pods: _Optional[_Iterable[_Union[PodInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("namespace", "name", "kind", "replicas", "bound", "queued", "unschedulable", "failed", "deleted", "submitted_unix_ms", "min_available", "gang", "steps", "steps_since_unix_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    kind: str
    replicas: int
    bound: int
    queued: int
    unschedulable: int
    failed: int
    deleted: int
    submitted_unix_ms: int
    min_available: int
    gang: str
    steps: _containers.RepeatedCompositeFieldContainer[JobStep]
    steps_since_unix_ms: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., replicas: _Optional[int] = ..., bound: _Optional[int] = ..., queued: _Optional[int] = ..., unschedulable: _Optional[int] = ..., failed: _Optional[int] = ..., deleted: _Optional[int] = ..., submitted_unix_ms: _Optional[int] = ..., min_available: _Optional[int] = ..., gang: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[JobStep, _Mapping]]] = ..., steps_since_unix_ms: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("namespace", "name", "steps", "limit", "page_token", "name_prefix")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    steps: bool
    limit: int
    page_token: str
    name_prefix: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., steps: bool = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ..., name_prefix: _Optional[str] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PodSummaryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PodSummary(_message.Message):
    __slots__ = ("pods_by_phase", "pending")
    class PodsByPhaseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PODS_BY_PHASE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    pods_by_phase: _containers.ScalarMap[str, int]
    pending: _containers.RepeatedCompositeFieldContainer[PendingPods]
    def __init__(self, pods_by_phase: _Optional[_Mapping[str, int]] = ..., pending: _Optional[_Iterable[_Union[PendingPods, _Mapping]]] = ...) -> None: ...

class PendingPods(_message.Message):
    __slots__ = ("reason", "pods", "example")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    pods: int
    example: str
    def __init__(self, reason: _Optional[str] = ..., pods: _Optional[int] = ..., example: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("since_revision", "states")
    SINCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    since_revision: int
    states: bool
    def __init__(self, since_revision: _Optional[int] = ..., states: bool = ...) -> None: ...

class WatchBatch(_message.Message):
    __slots__ = ("revision", "uids", "phases", "nodes", "reasons", "reason_texts", "node_names", "states_end")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXTS_FIELD_NUMBER: _ClassVar[int]
    NODE_NAMES_FIELD_NUMBER: _ClassVar[int]
    STATES_END_FIELD_NUMBER: _ClassVar[int]
    revision: int
    uids: bytes
    phases: bytes
    nodes: bytes
    reasons: bytes
    reason_texts: _containers.RepeatedScalarFieldContainer[str]
    node_names: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeName]
    states_end: bool
    def __init__(self, revision: _Optional[int] = ..., uids: _Optional[bytes] = ..., phases: _Optional[bytes] = ..., nodes: _Optional[bytes] = ..., reasons: _Optional[bytes] = ..., reason_texts: _Optional[_Iterable[str]] = ..., node_names: _Optional[_Iterable[_Union[_common_pb2.NodeName, _Mapping]]] = ..., states_end: bool = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("namespace", "pods", "jobs", "uids")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pods: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    uids: bytes
    def __init__(self, namespace: _Optional[str] = ..., pods: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ..., uids: _Optional[bytes] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("deleted_pods", "not_found")
    DELETED_PODS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    deleted_pods: int
    not_found: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, deleted_pods: _Optional[int] = ..., not_found: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveGatesRequest(_message.Message):
    __slots__ = ("namespace", "pods", "jobs", "uids", "gates")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pods: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    uids: bytes
    gates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., pods: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ..., uids: _Optional[bytes] = ..., gates: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveGatesReply(_message.Message):
    __slots__ = ("changed_pods", "queued_pods", "not_found")
    CHANGED_PODS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PODS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    changed_pods: int
    queued_pods: int
    not_found: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changed_pods: _Optional[int] = ..., queued_pods: _Optional[int] = ..., not_found: _Optional[_Iterable[str]] = ...) -> None: ...

class RetryRequest(_message.Message):
    __slots__ = ("namespace", "pods", "jobs", "uids", "every")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    UIDS_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pods: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    uids: bytes
    every: bool
    def __init__(self, namespace: _Optional[str] = ..., pods: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[str]] = ..., uids: _Optional[bytes] = ..., every: bool = ...) -> None: ...

class RetryReply(_message.Message):
    __slots__ = ("retried_pods", "not_found")
    RETRIED_PODS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    retried_pods: int
    not_found: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, retried_pods: _Optional[int] = ..., not_found: _Optional[_Iterable[str]] = ...) -> None: ...

class ApplyObjectsRequest(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ClusterObject]
    def __init__(self, objects: _Optional[_Iterable[_Union[_objects_pb2.ClusterObject, _Mapping]]] = ...) -> None: ...

class ApplyObjectsReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, results: _Optional[_Iterable[str]] = ...) -> None: ...

class ObjectRef(_message.Message):
    __slots__ = ("kind", "namespace", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteObjectsRequest(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ...) -> None: ...

class DeleteObjectsReply(_message.Message):
    __slots__ = ("not_found",)
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    not_found: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    def __init__(self, not_found: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ...) -> None: ...

class ListObjectsRequest(_message.Message):
    __slots__ = ("kind", "namespace", "limit", "page_token")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    limit: int
    page_token: str
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListObjectsReply(_message.Message):
    __slots__ = ("objects", "next_page_token", "budgets")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[_objects_pb2.ClusterObject]
    next_page_token: str
    budgets: _containers.RepeatedCompositeFieldContainer[BudgetStatus]
    def __init__(self, objects: _Optional[_Iterable[_Union[_objects_pb2.ClusterObject, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., budgets: _Optional[_Iterable[_Union[BudgetStatus, _Mapping]]] = ...) -> None: ...

class ListStorageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BudgetStatus(_message.Message):
    __slots__ = ("expected_pods", "current_healthy", "desired_healthy", "disruptions_allowed")
    EXPECTED_PODS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_HEALTHY_FIELD_NUMBER: _ClassVar[int]
    DESIRED_HEALTHY_FIELD_NUMBER: _ClassVar[int]
    DISRUPTIONS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    expected_pods: int
    current_healthy: int
    desired_healthy: int
    disruptions_allowed: int
    def __init__(self, expected_pods: _Optional[int] = ..., current_healthy: _Optional[int] = ..., desired_healthy: _Optional[int] = ..., disruptions_allowed: _Optional[int] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("name", "labels", "state", "epoch", "outstanding", "window", "bound", "conflicts", "unschedulable", "busy_seconds", "last_seen_ms_ago", "micros_per_pod", "estimated_micros", "waiting_micros", "proposed", "pods_per_second", "busy_share", "incarnation", "state_since_unix_ms", "returned", "synchronisation", "lags", "fill_seconds", "steps", "distrusted_until_unix_ms", "failing", "profile")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    MICROS_PER_POD_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_MICROS_FIELD_NUMBER: _ClassVar[int]
    WAITING_MICROS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    PODS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONISATION_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    FILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DISTRUSTED_UNTIL_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedCompositeFieldContainer[_common_pb2.Label]
    state: str
    epoch: int
    outstanding: int
    window: int
    bound: int
    conflicts: int
    unschedulable: int
    busy_seconds: float
    last_seen_ms_ago: int
    micros_per_pod: float
    estimated_micros: int
    waiting_micros: int
    proposed: int
    pods_per_second: float
    busy_share: float
    incarnation: int
    state_since_unix_ms: int
    returned: int
    synchronisation: str
    lags: _containers.RepeatedCompositeFieldContainer[_common_pb2.ShardLag]
    fill_seconds: float
    steps: _containers.RepeatedCompositeFieldContainer[WorkerStep]
    distrusted_until_unix_ms: int
    failing: str
    profile: str
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[_common_pb2.Label, _Mapping]]] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., outstanding: _Optional[int] = ..., window: _Optional[int] = ..., bound: _Optional[int] = ..., conflicts: _Optional[int] = ..., unschedulable: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., last_seen_ms_ago: _Optional[int] = ..., micros_per_pod: _Optional[float] = ..., estimated_micros: _Optional[int] = ..., waiting_micros: _Optional[int] = ..., proposed: _Optional[int] = ..., pods_per_second: _Optional[float] = ..., busy_share: _Optional[float] = ..., incarnation: _Optional[int] = ..., state_since_unix_ms: _Optional[int] = ..., returned: _Optional[int] = ..., synchronisation: _Optional[str] = ..., lags: _Optional[_Iterable[_Union[_common_pb2.ShardLag, _Mapping]]] = ..., fill_seconds: _Optional[float] = ..., steps: _Optional[_Iterable[_Union[WorkerStep, _Mapping]]] = ..., distrusted_until_unix_ms: _Optional[int] = ..., failing: _Optional[str] = ..., profile: _Optional[str] = ...) -> None: ...

class TenantInfo(_message.Message):
    __slots__ = ("name", "weight", "share", "resource", "queued", "scheduling", "bound", "unschedulable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    share: float
    resource: str
    queued: int
    scheduling: int
    bound: int
    unschedulable: int
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., share: _Optional[float] = ..., resource: _Optional[str] = ..., queued: _Optional[int] = ..., scheduling: _Optional[int] = ..., bound: _Optional[int] = ..., unschedulable: _Optional[int] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("limit", "page_token")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    limit: int
    page_token: str
    def __init__(self, limit: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTenantsReply(_message.Message):
    __slots__ = ("tenants", "next_page_token")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantInfo]
    next_page_token: str
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("steps", "limit", "page_token")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    steps: bool
    limit: int
    page_token: str
    def __init__(self, steps: bool = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListWorkersReply(_message.Message):
    __slots__ = ("workers", "next_page_token")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    next_page_token: str
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WorkTimelineRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class WorkTimeline(_message.Message):
    __slots__ = ("last", "workers", "worker", "sent_ms", "answered_ms", "queued_ms", "deciding_micros", "committing_micros", "bound", "others")
    LAST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SENT_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_MS_FIELD_NUMBER: _ClassVar[int]
    DECIDING_MICROS_FIELD_NUMBER: _ClassVar[int]
    COMMITTING_MICROS_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    last: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    worker: bytes
    sent_ms: bytes
    answered_ms: bytes
    queued_ms: bytes
    deciding_micros: bytes
    committing_micros: bytes
    bound: bytes
    others: bytes
    def __init__(self, last: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., worker: _Optional[bytes] = ..., sent_ms: _Optional[bytes] = ..., answered_ms: _Optional[bytes] = ..., queued_ms: _Optional[bytes] = ..., deciding_micros: _Optional[bytes] = ..., committing_micros: _Optional[bytes] = ..., bound: _Optional[bytes] = ..., others: _Optional[bytes] = ...) -> None: ...

class SetWorkerStateRequest(_message.Message):
    __slots__ = ("name", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class SetWorkerStateReply(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerInfo
    def __init__(self, worker: _Optional[_Union[WorkerInfo, _Mapping]] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Policy(_message.Message):
    __slots__ = ("yaml", "version", "if_version", "name", "source", "since_unix_ms", "warnings", "refusal")
    YAML_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    yaml: str
    version: int
    if_version: int
    name: str
    source: str
    since_unix_ms: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    refusal: PolicyRefusal
    def __init__(self, yaml: _Optional[str] = ..., version: _Optional[int] = ..., if_version: _Optional[int] = ..., name: _Optional[str] = ..., source: _Optional[str] = ..., since_unix_ms: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., refusal: _Optional[_Union[PolicyRefusal, _Mapping]] = ...) -> None: ...

class PolicyRefusal(_message.Message):
    __slots__ = ("source", "at_unix_ms", "reason")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    source: str
    at_unix_ms: int
    reason: str
    def __init__(self, source: _Optional[str] = ..., at_unix_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SetPolicyReply(_message.Message):
    __slots__ = ("version", "warnings")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    version: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class TestPolicyRequest(_message.Message):
    __slots__ = ("templates", "yaml")
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    YAML_FIELD_NUMBER: _ClassVar[int]
    templates: _containers.RepeatedCompositeFieldContainer[PodTemplate]
    yaml: str
    def __init__(self, templates: _Optional[_Iterable[_Union[PodTemplate, _Mapping]]] = ..., yaml: _Optional[str] = ...) -> None: ...

class TestPolicyReply(_message.Message):
    __slots__ = ("trials", "version", "warnings")
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    trials: _containers.RepeatedCompositeFieldContainer[PolicyTrial]
    version: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, trials: _Optional[_Iterable[_Union[PolicyTrial, _Mapping]]] = ..., version: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class PolicyTrial(_message.Message):
    __slots__ = ("rule", "worker", "reason", "rules", "workers", "scope", "conflicts")
    RULE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    worker: str
    reason: str
    rules: _containers.RepeatedCompositeFieldContainer[RuleTrial]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerTrial]
    scope: _common_pb2.NodeScope
    conflicts: _common_pb2.ConflictRule
    def __init__(self, rule: _Optional[str] = ..., worker: _Optional[str] = ..., reason: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[RuleTrial, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerTrial, _Mapping]]] = ..., scope: _Optional[_Union[_common_pb2.NodeScope, _Mapping]] = ..., conflicts: _Optional[_Union[_common_pb2.ConflictRule, _Mapping]] = ...) -> None: ...

class RuleTrial(_message.Message):
    __slots__ = ("rule", "matches", "reason")
    RULE_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rule: str
    matches: bool
    reason: str
    def __init__(self, rule: _Optional[str] = ..., matches: bool = ..., reason: _Optional[str] = ...) -> None: ...

class WorkerTrial(_message.Message):
    __slots__ = ("worker", "eligible", "reason", "outstanding", "work_ms")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    WORK_MS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    eligible: bool
    reason: str
    outstanding: int
    work_ms: float
    def __init__(self, worker: _Optional[str] = ..., eligible: bool = ..., reason: _Optional[str] = ..., outstanding: _Optional[int] = ..., work_ms: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DispatcherStatus(_message.Message):
    __slots__ = ("version", "pods_by_phase", "jobs", "revision", "uptime_ms", "problems", "counters", "term", "address", "policy", "steering", "phases")
    class PodsByPhaseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PODS_BY_PHASE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    version: str
    pods_by_phase: _containers.ScalarMap[str, int]
    jobs: int
    revision: int
    uptime_ms: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    counters: _containers.ScalarMap[str, int]
    term: int
    address: str
    policy: Policy
    steering: Steering
    phases: _containers.RepeatedCompositeFieldContainer[PhaseTimes]
    def __init__(self, version: _Optional[str] = ..., pods_by_phase: _Optional[_Mapping[str, int]] = ..., jobs: _Optional[int] = ..., revision: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., counters: _Optional[_Mapping[str, int]] = ..., term: _Optional[int] = ..., address: _Optional[str] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., steering: _Optional[_Union[Steering, _Mapping]] = ..., phases: _Optional[_Iterable[_Union[PhaseTimes, _Mapping]]] = ...) -> None: ...

class PhaseTimes(_message.Message):
    __slots__ = ("phase", "bounds_seconds", "counts")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    bounds_seconds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, phase: _Optional[str] = ..., bounds_seconds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class SteerRequest(_message.Message):
    __slots__ = ("overlap", "workers")
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    overlap: str
    workers: str
    def __init__(self, overlap: _Optional[str] = ..., workers: _Optional[str] = ...) -> None: ...

class Steering(_message.Message):
    __slots__ = ("overlap", "workers", "overlap_fixed", "workers_fixed", "since_unix_ms", "reason", "steps")
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIXED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIXED_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    overlap: str
    workers: int
    overlap_fixed: bool
    workers_fixed: bool
    since_unix_ms: int
    reason: str
    steps: _containers.RepeatedCompositeFieldContainer[SteeringStep]
    def __init__(self, overlap: _Optional[str] = ..., workers: _Optional[int] = ..., overlap_fixed: bool = ..., workers_fixed: bool = ..., since_unix_ms: _Optional[int] = ..., reason: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[SteeringStep, _Mapping]]] = ...) -> None: ...

class SteeringStep(_message.Message):
    __slots__ = ("at_unix_ms", "overlap", "workers", "reason")
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_unix_ms: int
    overlap: str
    workers: int
    reason: str
    def __init__(self, at_unix_ms: _Optional[int] = ..., overlap: _Optional[str] = ..., workers: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ConflictsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Conflicts(_message.Message):
    __slots__ = ("pairs", "nodes", "seqs_behind", "ages_ms", "steering", "proposed", "refused")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SEQS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    AGES_MS_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[ConflictPair]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeConflicts]
    seqs_behind: _containers.RepeatedScalarFieldContainer[int]
    ages_ms: _containers.RepeatedScalarFieldContainer[int]
    steering: Steering
    proposed: int
    refused: int
    def __init__(self, pairs: _Optional[_Iterable[_Union[ConflictPair, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeConflicts, _Mapping]]] = ..., seqs_behind: _Optional[_Iterable[int]] = ..., ages_ms: _Optional[_Iterable[int]] = ..., steering: _Optional[_Union[Steering, _Mapping]] = ..., proposed: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class ConflictPair(_message.Message):
    __slots__ = ("loser", "winner", "reason", "pods")
    LOSER_FIELD_NUMBER: _ClassVar[int]
    WINNER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    loser: str
    winner: str
    reason: str
    pods: int
    def __init__(self, loser: _Optional[str] = ..., winner: _Optional[str] = ..., reason: _Optional[str] = ..., pods: _Optional[int] = ...) -> None: ...

class NodeConflicts(_message.Message):
    __slots__ = ("node", "pods")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    node: str
    pods: int
    def __init__(self, node: _Optional[str] = ..., pods: _Optional[int] = ...) -> None: ...

class DispatcherAuditRequest(_message.Message):
    __slots__ = ("timeout_ms", "limit", "page_token")
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    limit: int
    page_token: str
    def __init__(self, timeout_ms: _Optional[int] = ..., limit: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class DispatcherAuditReply(_message.Message):
    __slots__ = ("views", "bound_uids", "bound_nodes", "broken_gangs", "reports", "next_page_token")
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    BOUND_UIDS_FIELD_NUMBER: _ClassVar[int]
    BOUND_NODES_FIELD_NUMBER: _ClassVar[int]
    BROKEN_GANGS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    views: _containers.RepeatedCompositeFieldContainer[WorkerView]
    bound_uids: bytes
    bound_nodes: bytes
    broken_gangs: _containers.RepeatedCompositeFieldContainer[BrokenGang]
    reports: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, views: _Optional[_Iterable[_Union[WorkerView, _Mapping]]] = ..., bound_uids: _Optional[bytes] = ..., bound_nodes: _Optional[bytes] = ..., broken_gangs: _Optional[_Iterable[_Union[BrokenGang, _Mapping]]] = ..., reports: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class BrokenGang(_message.Message):
    __slots__ = ("namespace", "name", "bound", "needed", "complete_before")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    bound: int
    needed: int
    complete_before: bool
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., bound: _Optional[int] = ..., needed: _Optional[int] = ..., complete_before: bool = ...) -> None: ...

class WorkerView(_message.Message):
    __slots__ = ("worker", "shard", "seq", "digest", "idle")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    shard: int
    seq: int
    digest: int
    idle: bool
    def __init__(self, worker: _Optional[str] = ..., shard: _Optional[int] = ..., seq: _Optional[int] = ..., digest: _Optional[int] = ..., idle: bool = ...) -> None: ...

class RebalanceController(_message.Message):
    __slots__ = ("id", "text", "paused", "moves_last_hour", "moves_per_hour", "moves_last_day", "goals", "heard_unix_ms", "leaving", "preemption_wait_seconds", "preemption_wait_up_to_priority", "considered_hold")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    MOVES_LAST_HOUR_FIELD_NUMBER: _ClassVar[int]
    MOVES_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    MOVES_LAST_DAY_FIELD_NUMBER: _ClassVar[int]
    GOALS_FIELD_NUMBER: _ClassVar[int]
    HEARD_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_WAIT_UP_TO_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_HOLD_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    paused: bool
    moves_last_hour: int
    moves_per_hour: int
    moves_last_day: int
    goals: _containers.RepeatedScalarFieldContainer[str]
    heard_unix_ms: int
    leaving: bool
    preemption_wait_seconds: float
    preemption_wait_up_to_priority: int
    considered_hold: int
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., paused: bool = ..., moves_last_hour: _Optional[int] = ..., moves_per_hour: _Optional[int] = ..., moves_last_day: _Optional[int] = ..., goals: _Optional[_Iterable[str]] = ..., heard_unix_ms: _Optional[int] = ..., leaving: bool = ..., preemption_wait_seconds: _Optional[float] = ..., preemption_wait_up_to_priority: _Optional[int] = ..., considered_hold: _Optional[int] = ...) -> None: ...

class RebalanceMove(_message.Message):
    __slots__ = ("pod", "source", "target")
    POD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    pod: str
    source: str
    target: str
    def __init__(self, pod: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class RebalanceRequest(_message.Message):
    __slots__ = ("action", "moves", "seen", "moves_per_second", "purpose", "controller", "previous")
    class SeenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    MOVES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    action: RebalanceAction
    moves: _containers.RepeatedCompositeFieldContainer[RebalanceMove]
    seen: _containers.ScalarMap[int, int]
    moves_per_second: float
    purpose: str
    controller: str
    previous: bool
    def __init__(self, action: _Optional[_Union[RebalanceAction, str]] = ..., moves: _Optional[_Iterable[_Union[RebalanceMove, _Mapping]]] = ..., seen: _Optional[_Mapping[int, int]] = ..., moves_per_second: _Optional[float] = ..., purpose: _Optional[str] = ..., controller: _Optional[str] = ..., previous: bool = ...) -> None: ...

class MoveStatus(_message.Message):
    __slots__ = ("pod", "source", "target", "state", "text", "successor")
    POD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    pod: str
    source: str
    target: str
    state: str
    text: str
    successor: str
    def __init__(self, pod: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., state: _Optional[str] = ..., text: _Optional[str] = ..., successor: _Optional[str] = ...) -> None: ...

class RebalanceStatus(_message.Message):
    __slots__ = ("state", "reason", "purpose", "moved", "refused", "waiting", "moves", "begun_by", "controller", "evicted", "preemption_hold", "undo")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    BEGUN_BY_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_HOLD_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    purpose: str
    moved: int
    refused: int
    waiting: int
    moves: _containers.RepeatedCompositeFieldContainer[MoveStatus]
    begun_by: str
    controller: RebalanceController
    evicted: int
    preemption_hold: int
    undo: bool
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., purpose: _Optional[str] = ..., moved: _Optional[int] = ..., refused: _Optional[int] = ..., waiting: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[MoveStatus, _Mapping]]] = ..., begun_by: _Optional[str] = ..., controller: _Optional[_Union[RebalanceController, _Mapping]] = ..., evicted: _Optional[int] = ..., preemption_hold: _Optional[int] = ..., undo: bool = ...) -> None: ...
