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
