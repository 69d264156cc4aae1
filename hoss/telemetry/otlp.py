"""What traces and metrics have in common as OTLP's JSON (opentelemetry-proto, "OTLP/JSON").

OTLP over HTTP needs nothing but the standard library; over gRPC it would take generated code for the same bytes.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from hoss import version

Json = dict[str, Any]


def resource_of(service: str, instance: str = "") -> dict[str, str]:
    """What this process is, by OpenTelemetry's names. `instance`: this process unless given."""
    return {
        "service.name": f"hoss-{service}",
        "service.instance.id": instance or f"{socket.gethostname()}-{os.getpid()}",
        "service.version": version(),
    }


def event_template(name: str, at_ns: int, common: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """The encoding of an event of which there are thousands alike, to be filled in with `%` by the values of `own`, names -> kinds of
    values: stringValue (of characters that JSON need not escape), intValue, or arrayValue, whose values stand as `int_values` writes
    them. A hundredth of what it takes to encode attribute by attribute."""
    constant = orjson.dumps(attributes_json(common)).decode()[1:-1].replace("%", "%%")
    varying = [
        f'{{"key":"{key}","value":{{"{kind}":' + ('{"values":[%s]}' if kind == "arrayValue" else '"%s"') + "}}"
        for key, kind in own.items()
    ]
    attributes = ",".join([*varying, constant] if constant else varying)
    return f'{{"timeUnixNano":"{at_ns}","name":"{name}","attributes":[{attributes}]}}'


def int_values(numbers: Iterable[int]) -> str:
    """The inside of an arrayValue."""
    return ",".join([f'{{"intValue":"{number}"}}' for number in numbers])


def attributes_json(attributes: Mapping[str, Any]) -> list[Json]:
    """As KeyValue messages."""
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> Json:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(part) for part in value]}}
