from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Criteria(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CRITERIA_FIT: _ClassVar[Criteria]
    CRITERIA_VERSION: _ClassVar[Criteria]
    CRITERIA_STRICT: _ClassVar[Criteria]
CRITERIA_FIT: Criteria
CRITERIA_VERSION: Criteria
CRITERIA_STRICT: Criteria

class Label(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ShardLag(_message.Message):
    __slots__ = ("shard", "seqs", "seconds")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    seqs: int
    seconds: float
    def __init__(self, shard: _Optional[int] = ..., seqs: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Amount(_message.Message):
    __slots__ = ("resource", "amount")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    resource: str
    amount: int
    def __init__(self, resource: _Optional[str] = ..., amount: _Optional[int] = ...) -> None: ...

class Toleration(_message.Message):
    __slots__ = ("key", "operator", "value", "effect", "toleration_seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    TOLERATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    value: str
    effect: str
    toleration_seconds: int
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ..., toleration_seconds: _Optional[int] = ...) -> None: ...

class Taint(_message.Message):
    __slots__ = ("key", "value", "effect", "time_added_unix_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    TIME_ADDED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    effect: str
    time_added_unix_ms: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ..., time_added_unix_ms: _Optional[int] = ...) -> None: ...

class Requirement(_message.Message):
    __slots__ = ("key", "operator", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeSelectorTerm(_message.Message):
    __slots__ = ("match_expressions", "match_fields")
    MATCH_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELDS_FIELD_NUMBER: _ClassVar[int]
    match_expressions: _containers.RepeatedCompositeFieldContainer[Requirement]
    match_fields: _containers.RepeatedCompositeFieldContainer[Requirement]
    def __init__(self, match_expressions: _Optional[_Iterable[_Union[Requirement, _Mapping]]] = ..., match_fields: _Optional[_Iterable[_Union[Requirement, _Mapping]]] = ...) -> None: ...

class NodeSelector(_message.Message):
    __slots__ = ("terms",)
    TERMS_FIELD_NUMBER: _ClassVar[int]
    terms: _containers.RepeatedCompositeFieldContainer[NodeSelectorTerm]
    def __init__(self, terms: _Optional[_Iterable[_Union[NodeSelectorTerm, _Mapping]]] = ...) -> None: ...

class PreferredTerm(_message.Message):
    __slots__ = ("weight", "term")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    weight: int
    term: NodeSelectorTerm
    def __init__(self, weight: _Optional[int] = ..., term: _Optional[_Union[NodeSelectorTerm, _Mapping]] = ...) -> None: ...

class HostPort(_message.Message):
    __slots__ = ("host_ip", "protocol", "port")
    HOST_IP_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host_ip: str
    protocol: str
    port: int
    def __init__(self, host_ip: _Optional[str] = ..., protocol: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class DeviceRequest(_message.Message):
    __slots__ = ("count", "milli")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MILLI_FIELD_NUMBER: _ClassVar[int]
    count: int
    milli: int
    def __init__(self, count: _Optional[int] = ..., milli: _Optional[int] = ...) -> None: ...

class LabelSelector(_message.Message):
    __slots__ = ("requirements",)
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    requirements: _containers.RepeatedCompositeFieldContainer[Requirement]
    def __init__(self, requirements: _Optional[_Iterable[_Union[Requirement, _Mapping]]] = ...) -> None: ...

class PodAffinityTerm(_message.Message):
    __slots__ = ("topology_key", "selector", "namespaces", "namespace_selector")
    TOPOLOGY_KEY_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    topology_key: str
    selector: LabelSelector
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    namespace_selector: LabelSelector
    def __init__(self, topology_key: _Optional[str] = ..., selector: _Optional[_Union[LabelSelector, _Mapping]] = ..., namespaces: _Optional[_Iterable[str]] = ..., namespace_selector: _Optional[_Union[LabelSelector, _Mapping]] = ...) -> None: ...

class WeightedPodTerm(_message.Message):
    __slots__ = ("weight", "term")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    weight: int
    term: PodAffinityTerm
    def __init__(self, weight: _Optional[int] = ..., term: _Optional[_Union[PodAffinityTerm, _Mapping]] = ...) -> None: ...

class PodAffinity(_message.Message):
    __slots__ = ("required", "preferred", "anti_required", "anti_preferred")
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    ANTI_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    ANTI_PREFERRED_FIELD_NUMBER: _ClassVar[int]
    required: _containers.RepeatedCompositeFieldContainer[PodAffinityTerm]
    preferred: _containers.RepeatedCompositeFieldContainer[WeightedPodTerm]
    anti_required: _containers.RepeatedCompositeFieldContainer[PodAffinityTerm]
    anti_preferred: _containers.RepeatedCompositeFieldContainer[WeightedPodTerm]
    def __init__(self, required: _Optional[_Iterable[_Union[PodAffinityTerm, _Mapping]]] = ..., preferred: _Optional[_Iterable[_Union[WeightedPodTerm, _Mapping]]] = ..., anti_required: _Optional[_Iterable[_Union[PodAffinityTerm, _Mapping]]] = ..., anti_preferred: _Optional[_Iterable[_Union[WeightedPodTerm, _Mapping]]] = ...) -> None: ...

class SpreadConstraint(_message.Message):
    __slots__ = ("max_skew", "topology_key", "selector", "schedule_anyway", "min_domains", "ignore_node_affinity", "honor_taints")
    MAX_SKEW_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_KEY_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ANYWAY_FIELD_NUMBER: _ClassVar[int]
    MIN_DOMAINS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_NODE_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    HONOR_TAINTS_FIELD_NUMBER: _ClassVar[int]
    max_skew: int
    topology_key: str
    selector: LabelSelector
    schedule_anyway: bool
    min_domains: int
    ignore_node_affinity: bool
    honor_taints: bool
    def __init__(self, max_skew: _Optional[int] = ..., topology_key: _Optional[str] = ..., selector: _Optional[_Union[LabelSelector, _Mapping]] = ..., schedule_anyway: bool = ..., min_domains: _Optional[int] = ..., ignore_node_affinity: bool = ..., honor_taints: bool = ...) -> None: ...

class CpuAndMemory(_message.Message):
    __slots__ = ("cpu_milli", "memory_bytes")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_bytes: int
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class PodSpec(_message.Message):
    __slots__ = ("namespace", "labels", "priority", "requests", "nonzero_cpu_milli", "nonzero_memory_bytes", "node_name", "node_selector", "required_node_affinity", "preferred_node_affinity", "tolerations", "host_ports", "devices", "pending_nonzero", "pod_affinity", "spread", "default_spread", "images", "image_containers", "scheduling_gates", "never_preempts", "volumes", "claims", "required_features")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NONZERO_CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    NONZERO_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_NODE_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_NODE_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    HOST_PORTS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PENDING_NONZERO_FIELD_NUMBER: _ClassVar[int]
    POD_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SPREAD_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_GATES_FIELD_NUMBER: _ClassVar[int]
    NEVER_PREEMPTS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    priority: int
    requests: _containers.RepeatedCompositeFieldContainer[Amount]
    nonzero_cpu_milli: int
    nonzero_memory_bytes: int
    node_name: str
    node_selector: _containers.RepeatedCompositeFieldContainer[Label]
    required_node_affinity: NodeSelector
    preferred_node_affinity: _containers.RepeatedCompositeFieldContainer[PreferredTerm]
    tolerations: _containers.RepeatedCompositeFieldContainer[Toleration]
    host_ports: _containers.RepeatedCompositeFieldContainer[HostPort]
    devices: DeviceRequest
    pending_nonzero: CpuAndMemory
    pod_affinity: PodAffinity
    spread: _containers.RepeatedCompositeFieldContainer[SpreadConstraint]
    default_spread: LabelSelector
    images: _containers.RepeatedScalarFieldContainer[str]
    image_containers: int
    scheduling_gates: _containers.RepeatedScalarFieldContainer[str]
    never_preempts: bool
    volumes: PodVolumes
    claims: PodClaims
    required_features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., priority: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[Amount, _Mapping]]] = ..., nonzero_cpu_milli: _Optional[int] = ..., nonzero_memory_bytes: _Optional[int] = ..., node_name: _Optional[str] = ..., node_selector: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., required_node_affinity: _Optional[_Union[NodeSelector, _Mapping]] = ..., preferred_node_affinity: _Optional[_Iterable[_Union[PreferredTerm, _Mapping]]] = ..., tolerations: _Optional[_Iterable[_Union[Toleration, _Mapping]]] = ..., host_ports: _Optional[_Iterable[_Union[HostPort, _Mapping]]] = ..., devices: _Optional[_Union[DeviceRequest, _Mapping]] = ..., pending_nonzero: _Optional[_Union[CpuAndMemory, _Mapping]] = ..., pod_affinity: _Optional[_Union[PodAffinity, _Mapping]] = ..., spread: _Optional[_Iterable[_Union[SpreadConstraint, _Mapping]]] = ..., default_spread: _Optional[_Union[LabelSelector, _Mapping]] = ..., images: _Optional[_Iterable[str]] = ..., image_containers: _Optional[int] = ..., scheduling_gates: _Optional[_Iterable[str]] = ..., never_preempts: bool = ..., volumes: _Optional[_Union[PodVolumes, _Mapping]] = ..., claims: _Optional[_Union[PodClaims, _Mapping]] = ..., required_features: _Optional[_Iterable[str]] = ...) -> None: ...

class ClaimUse(_message.Message):
    __slots__ = ("claim", "from_template", "not_needed")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    FROM_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    NOT_NEEDED_FIELD_NUMBER: _ClassVar[int]
    claim: str
    from_template: bool
    not_needed: bool
    def __init__(self, claim: _Optional[str] = ..., from_template: bool = ..., not_needed: bool = ...) -> None: ...

class ExtendedRequest(_message.Message):
    __slots__ = ("position", "resource", "count")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    position: int
    resource: str
    count: int
    def __init__(self, position: _Optional[int] = ..., resource: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ContainerRequests(_message.Message):
    __slots__ = ("name", "position", "requests", "initial")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    position: int
    requests: _containers.RepeatedCompositeFieldContainer[ExtendedRequest]
    initial: bool
    def __init__(self, name: _Optional[str] = ..., position: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[ExtendedRequest, _Mapping]]] = ..., initial: bool = ...) -> None: ...

class PodClaims(_message.Message):
    __slots__ = ("pod", "uid", "uses", "containers")
    POD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    pod: str
    uid: str
    uses: _containers.RepeatedCompositeFieldContainer[ClaimUse]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerRequests]
    def __init__(self, pod: _Optional[str] = ..., uid: _Optional[str] = ..., uses: _Optional[_Iterable[_Union[ClaimUse, _Mapping]]] = ..., containers: _Optional[_Iterable[_Union[ContainerRequests, _Mapping]]] = ...) -> None: ...

class DeviceAmount(_message.Message):
    __slots__ = ("name", "amount")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    amount: str
    def __init__(self, name: _Optional[str] = ..., amount: _Optional[str] = ...) -> None: ...

class HeldDevice(_message.Message):
    __slots__ = ("request", "driver", "pool", "device", "shared", "consumed", "admin_access", "binding_conditions", "binding_failure_conditions")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ACCESS_FIELD_NUMBER: _ClassVar[int]
    BINDING_CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    BINDING_FAILURE_CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    request: str
    driver: str
    pool: str
    device: str
    shared: bool
    consumed: _containers.RepeatedCompositeFieldContainer[DeviceAmount]
    admin_access: bool
    binding_conditions: _containers.RepeatedScalarFieldContainer[str]
    binding_failure_conditions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[str] = ..., driver: _Optional[str] = ..., pool: _Optional[str] = ..., device: _Optional[str] = ..., shared: bool = ..., consumed: _Optional[_Iterable[_Union[DeviceAmount, _Mapping]]] = ..., admin_access: bool = ..., binding_conditions: _Optional[_Iterable[str]] = ..., binding_failure_conditions: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldClaim(_message.Message):
    __slots__ = ("namespace", "name", "devices", "nodes", "mappings")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MAPPINGS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    devices: _containers.RepeatedCompositeFieldContainer[HeldDevice]
    nodes: NodeSelector
    mappings: _containers.RepeatedCompositeFieldContainer[RequestMapping]
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[HeldDevice, _Mapping]]] = ..., nodes: _Optional[_Union[NodeSelector, _Mapping]] = ..., mappings: _Optional[_Iterable[_Union[RequestMapping, _Mapping]]] = ...) -> None: ...

class RequestMapping(_message.Message):
    __slots__ = ("container", "resource", "request", "device_class")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    container: str
    resource: str
    request: str
    device_class: str
    def __init__(self, container: _Optional[str] = ..., resource: _Optional[str] = ..., request: _Optional[str] = ..., device_class: _Optional[str] = ...) -> None: ...

class EphemeralOwner(_message.Message):
    __slots__ = ("name", "uid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class ClaimMount(_message.Message):
    __slots__ = ("claim", "owner", "volume", "provisioned")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    PROVISIONED_FIELD_NUMBER: _ClassVar[int]
    claim: str
    owner: EphemeralOwner
    volume: str
    provisioned: bool
    def __init__(self, claim: _Optional[str] = ..., owner: _Optional[_Union[EphemeralOwner, _Mapping]] = ..., volume: _Optional[str] = ..., provisioned: bool = ...) -> None: ...

class InlineDisk(_message.Message):
    __slots__ = ("kind", "names", "read_only", "monitors")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    MONITORS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    names: _containers.RepeatedScalarFieldContainer[str]
    read_only: bool
    monitors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., read_only: bool = ..., monitors: _Optional[_Iterable[str]] = ...) -> None: ...

class PodVolumes(_message.Message):
    __slots__ = ("claims", "disks")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[ClaimMount]
    disks: _containers.RepeatedCompositeFieldContainer[InlineDisk]
    def __init__(self, claims: _Optional[_Iterable[_Union[ClaimMount, _Mapping]]] = ..., disks: _Optional[_Iterable[_Union[InlineDisk, _Mapping]]] = ...) -> None: ...

class NodeScope(_message.Message):
    __slots__ = ("rule", "requirements", "required")
    RULE_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    rule: str
    requirements: _containers.RepeatedCompositeFieldContainer[Requirement]
    required: bool
    def __init__(self, rule: _Optional[str] = ..., requirements: _Optional[_Iterable[_Union[Requirement, _Mapping]]] = ..., required: bool = ...) -> None: ...

class NodeImage(_message.Message):
    __slots__ = ("name", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class NodeSpec(_message.Message):
    __slots__ = ("name", "labels", "taints", "unschedulable", "allocatable", "cards", "images", "resource_version", "declared_features")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TAINTS_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATABLE_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    taints: _containers.RepeatedCompositeFieldContainer[Taint]
    unschedulable: bool
    allocatable: _containers.RepeatedCompositeFieldContainer[Amount]
    cards: int
    images: _containers.RepeatedCompositeFieldContainer[NodeImage]
    resource_version: int
    declared_features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., taints: _Optional[_Iterable[_Union[Taint, _Mapping]]] = ..., unschedulable: bool = ..., allocatable: _Optional[_Iterable[_Union[Amount, _Mapping]]] = ..., cards: _Optional[int] = ..., images: _Optional[_Iterable[_Union[NodeImage, _Mapping]]] = ..., resource_version: _Optional[int] = ..., declared_features: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeName(_message.Message):
    __slots__ = ("index", "name")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class ConflictRule(_message.Message):
    __slots__ = ("criteria", "all_or_nothing", "displace_gap")
    CRITERIA_FIELD_NUMBER: _ClassVar[int]
    ALL_OR_NOTHING_FIELD_NUMBER: _ClassVar[int]
    DISPLACE_GAP_FIELD_NUMBER: _ClassVar[int]
    criteria: Criteria
    all_or_nothing: bool
    displace_gap: int
    def __init__(self, criteria: _Optional[_Union[Criteria, str]] = ..., all_or_nothing: bool = ..., displace_gap: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("worker", "at_unix_ms", "shard", "snapshot_seq", "candidates", "candidate_names", "verdict", "node", "node_name", "seq", "traceparent")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SEQ_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_NAMES_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    at_unix_ms: int
    shard: int
    snapshot_seq: int
    candidates: _containers.RepeatedScalarFieldContainer[int]
    candidate_names: _containers.RepeatedScalarFieldContainer[str]
    verdict: str
    node: int
    node_name: str
    seq: int
    traceparent: str
    def __init__(self, worker: _Optional[str] = ..., at_unix_ms: _Optional[int] = ..., shard: _Optional[int] = ..., snapshot_seq: _Optional[int] = ..., candidates: _Optional[_Iterable[int]] = ..., candidate_names: _Optional[_Iterable[str]] = ..., verdict: _Optional[str] = ..., node: _Optional[int] = ..., node_name: _Optional[str] = ..., seq: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...
