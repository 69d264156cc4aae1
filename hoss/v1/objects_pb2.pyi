from hoss.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Namespace(_message.Message):
    __slots__ = ("name", "labels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedCompositeFieldContainer[_common_pb2.Label]
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[_common_pb2.Label, _Mapping]]] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ("namespace", "name", "selector")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    selector: _containers.RepeatedCompositeFieldContainer[_common_pb2.Label]
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., selector: _Optional[_Iterable[_Union[_common_pb2.Label, _Mapping]]] = ...) -> None: ...

class Threshold(_message.Message):
    __slots__ = ("value", "percent")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    value: int
    percent: bool
    def __init__(self, value: _Optional[int] = ..., percent: bool = ...) -> None: ...

class PodDisruptionBudget(_message.Message):
    __slots__ = ("namespace", "name", "selector", "min_available", "max_unavailable")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    MIN_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    selector: _common_pb2.LabelSelector
    min_available: Threshold
    max_unavailable: Threshold
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., selector: _Optional[_Union[_common_pb2.LabelSelector, _Mapping]] = ..., min_available: _Optional[_Union[Threshold, _Mapping]] = ..., max_unavailable: _Optional[_Union[Threshold, _Mapping]] = ...) -> None: ...

class PriorityClass(_message.Message):
    __slots__ = ("name", "value", "never_preempts", "global_default")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NEVER_PREEMPTS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    never_preempts: bool
    global_default: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ..., never_preempts: bool = ..., global_default: bool = ...) -> None: ...

class ClusterObject(_message.Message):
    __slots__ = ("namespace", "service", "budget", "priority_class")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    service: Service
    budget: PodDisruptionBudget
    priority_class: PriorityClass
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., service: _Optional[_Union[Service, _Mapping]] = ..., budget: _Optional[_Union[PodDisruptionBudget, _Mapping]] = ..., priority_class: _Optional[_Union[PriorityClass, _Mapping]] = ...) -> None: ...

class Surroundings(_message.Message):
    __slots__ = ("version", "namespaces", "services")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    version: int
    namespaces: _containers.RepeatedCompositeFieldContainer[Namespace]
    services: _containers.RepeatedCompositeFieldContainer[Service]
    def __init__(self, version: _Optional[int] = ..., namespaces: _Optional[_Iterable[_Union[Namespace, _Mapping]]] = ..., services: _Optional[_Iterable[_Union[Service, _Mapping]]] = ...) -> None: ...

class ClaimReference(_message.Message):
    __slots__ = ("namespace", "name", "uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class CsiVolume(_message.Message):
    __slots__ = ("driver", "handle")
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    driver: str
    handle: str
    def __init__(self, driver: _Optional[str] = ..., handle: _Optional[str] = ...) -> None: ...

class PersistentVolume(_message.Message):
    __slots__ = ("name", "labels", "storage_class", "capacity_bytes", "access_modes", "mode", "attributes_class", "phase", "deleting", "claim", "node_affinity", "csi", "in_tree", "untranslatable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CLASS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_MODES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_CLASS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DELETING_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    NODE_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    CSI_FIELD_NUMBER: _ClassVar[int]
    IN_TREE_FIELD_NUMBER: _ClassVar[int]
    UNTRANSLATABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedCompositeFieldContainer[_common_pb2.Label]
    storage_class: str
    capacity_bytes: int
    access_modes: _containers.RepeatedScalarFieldContainer[str]
    mode: str
    attributes_class: str
    phase: str
    deleting: bool
    claim: ClaimReference
    node_affinity: _common_pb2.NodeSelector
    csi: CsiVolume
    in_tree: str
    untranslatable: str
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[_common_pb2.Label, _Mapping]]] = ..., storage_class: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., access_modes: _Optional[_Iterable[str]] = ..., mode: _Optional[str] = ..., attributes_class: _Optional[str] = ..., phase: _Optional[str] = ..., deleting: bool = ..., claim: _Optional[_Union[ClaimReference, _Mapping]] = ..., node_affinity: _Optional[_Union[_common_pb2.NodeSelector, _Mapping]] = ..., csi: _Optional[_Union[CsiVolume, _Mapping]] = ..., in_tree: _Optional[str] = ..., untranslatable: _Optional[str] = ...) -> None: ...

class PersistentVolumeClaim(_message.Message):
    __slots__ = ("namespace", "name", "uid", "storage_class", "request_bytes", "access_modes", "mode", "attributes_class", "selector", "volume_name", "bind_completed", "phase", "deleting", "selected_node", "controller_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CLASS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_MODES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_CLASS_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    VOLUME_NAME_FIELD_NUMBER: _ClassVar[int]
    BIND_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DELETING_FIELD_NUMBER: _ClassVar[int]
    SELECTED_NODE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    storage_class: str
    request_bytes: int
    access_modes: _containers.RepeatedScalarFieldContainer[str]
    mode: str
    attributes_class: str
    selector: _common_pb2.LabelSelector
    volume_name: str
    bind_completed: bool
    phase: str
    deleting: bool
    selected_node: str
    controller_uid: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., storage_class: _Optional[str] = ..., request_bytes: _Optional[int] = ..., access_modes: _Optional[_Iterable[str]] = ..., mode: _Optional[str] = ..., attributes_class: _Optional[str] = ..., selector: _Optional[_Union[_common_pb2.LabelSelector, _Mapping]] = ..., volume_name: _Optional[str] = ..., bind_completed: bool = ..., phase: _Optional[str] = ..., deleting: bool = ..., selected_node: _Optional[str] = ..., controller_uid: _Optional[str] = ...) -> None: ...

class StorageClass(_message.Message):
    __slots__ = ("name", "provisioner", "waits_for_consumer", "allowed_topologies")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROVISIONER_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOPOLOGIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    provisioner: str
    waits_for_consumer: bool
    allowed_topologies: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeSelectorTerm]
    def __init__(self, name: _Optional[str] = ..., provisioner: _Optional[str] = ..., waits_for_consumer: bool = ..., allowed_topologies: _Optional[_Iterable[_Union[_common_pb2.NodeSelectorTerm, _Mapping]]] = ...) -> None: ...

class CsiNode(_message.Message):
    __slots__ = ("name", "limits", "migrated")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MIGRATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    limits: _containers.RepeatedCompositeFieldContainer[_common_pb2.Amount]
    migrated: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[_common_pb2.Amount, _Mapping]]] = ..., migrated: _Optional[_Iterable[str]] = ...) -> None: ...

class CsiDriver(_message.Message):
    __slots__ = ("name", "reports_capacity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPORTS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    reports_capacity: bool
    def __init__(self, name: _Optional[str] = ..., reports_capacity: bool = ...) -> None: ...

class CsiStorageCapacity(_message.Message):
    __slots__ = ("namespace", "name", "storage_class", "nodes", "largest_bytes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CLASS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    storage_class: str
    nodes: _common_pb2.LabelSelector
    largest_bytes: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., storage_class: _Optional[str] = ..., nodes: _Optional[_Union[_common_pb2.LabelSelector, _Mapping]] = ..., largest_bytes: _Optional[int] = ...) -> None: ...

class VolumeAttachment(_message.Message):
    __slots__ = ("name", "node", "attacher", "volume_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ATTACHER_FIELD_NUMBER: _ClassVar[int]
    VOLUME_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    node: str
    attacher: str
    volume_name: str
    def __init__(self, name: _Optional[str] = ..., node: _Optional[str] = ..., attacher: _Optional[str] = ..., volume_name: _Optional[str] = ...) -> None: ...

class DeviceManifest(_message.Message):
    __slots__ = ("kind", "namespace", "name", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    name: str
    text: bytes
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., text: _Optional[bytes] = ...) -> None: ...

class NominatedPod(_message.Message):
    __slots__ = ("namespace", "name", "node", "priority", "requests")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    node: str
    priority: int
    requests: _containers.RepeatedCompositeFieldContainer[_common_pb2.Amount]
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., node: _Optional[str] = ..., priority: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[_common_pb2.Amount, _Mapping]]] = ...) -> None: ...

class StorageObject(_message.Message):
    __slots__ = ("volume", "claim", "storage_class", "csi_node", "csi_driver", "capacity", "attachment", "device", "nominated_pod")
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    STORAGE_CLASS_FIELD_NUMBER: _ClassVar[int]
    CSI_NODE_FIELD_NUMBER: _ClassVar[int]
    CSI_DRIVER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NOMINATED_POD_FIELD_NUMBER: _ClassVar[int]
    volume: PersistentVolume
    claim: PersistentVolumeClaim
    storage_class: StorageClass
    csi_node: CsiNode
    csi_driver: CsiDriver
    capacity: CsiStorageCapacity
    attachment: VolumeAttachment
    device: DeviceManifest
    nominated_pod: NominatedPod
    def __init__(self, volume: _Optional[_Union[PersistentVolume, _Mapping]] = ..., claim: _Optional[_Union[PersistentVolumeClaim, _Mapping]] = ..., storage_class: _Optional[_Union[StorageClass, _Mapping]] = ..., csi_node: _Optional[_Union[CsiNode, _Mapping]] = ..., csi_driver: _Optional[_Union[CsiDriver, _Mapping]] = ..., capacity: _Optional[_Union[CsiStorageCapacity, _Mapping]] = ..., attachment: _Optional[_Union[VolumeAttachment, _Mapping]] = ..., device: _Optional[_Union[DeviceManifest, _Mapping]] = ..., nominated_pod: _Optional[_Union[NominatedPod, _Mapping]] = ...) -> None: ...

class StorageKey(_message.Message):
    __slots__ = ("kind", "namespace", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class StorageChanges(_message.Message):
    __slots__ = ("objects", "gone", "complete", "continued")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[StorageObject]
    gone: _containers.RepeatedCompositeFieldContainer[StorageKey]
    complete: bool
    continued: bool
    def __init__(self, objects: _Optional[_Iterable[_Union[StorageObject, _Mapping]]] = ..., gone: _Optional[_Iterable[_Union[StorageKey, _Mapping]]] = ..., complete: bool = ..., continued: bool = ...) -> None: ...
