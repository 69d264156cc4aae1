"""What names, labels and resource names may look like, after apimachinery's validation."""

import re
from functools import lru_cache

from hoss.errors import InvalidInput
from hoss.model.fields import Object, mapping, wrong_type
from hoss.model.pod import Pairs

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

_MAX_LABEL = 63
_MAX_SUBDOMAIN = 253


@lru_cache(maxsize=4096)
def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _MAX_SUBDOMAIN and _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= _MAX_LABEL and _QUALIFIED_PART.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _is_label_value(value: str) -> bool:
    return not value or (len(value) <= _MAX_LABEL and _QUALIFIED_PART.fullmatch(value) is not None)


def check_key(key: object, path: str) -> str:
    """The key of a label or taint, or a resource's name: an optional DNS prefix and a slash, then 63 characters at most."""
    if not isinstance(key, str):
        raise wrong_type(key, "a string", path)
    if not _is_qualified(key):
        raise InvalidInput(
            f"{key!r} is no valid key: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or "
            "digit, with an optional prefix as in example.com/name",
            where=path,
        )
    return key


def check_label_value(value: object, path: str) -> str:
    """The value of a label: empty or at most 63 letters, digits, - _ and dots."""
    if not isinstance(value, str):
        raise wrong_type(value, "a string", path)
    if not _is_label_value(value):
        raise InvalidInput(
            f"{value!r} is no valid label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a "
            "letter or digit",
            where=path,
        )
    return value


def check_name(name: str, path: str) -> str:
    """The name of an object: a DNS subdomain."""
    if len(name) > _MAX_SUBDOMAIN or not _DNS_SUBDOMAIN.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is no valid name: at most 253 lower-case letters, digits, '-' and '.', beginning and ending with a "
            "letter or digit",
            where=path,
        )
    return name


def check_namespace(name: str, path: str) -> str:
    """The name of a namespace: a DNS label."""
    if len(name) > _MAX_LABEL or not _DNS_LABEL.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is no valid namespace: at most 63 lower-case letters, digits and '-', beginning and ending with a "
            "letter or digit",
            where=path,
        )
    return name


def read_labels(parent: Object, key: str, path: str) -> Pairs:
    """A mapping of labels, checked and sorted by key."""
    labels = mapping(parent, key, path)
    if not labels:
        return ()
    place = f"{path}.{key}"
    return tuple(sorted((check_key(k, place), check_label_value(v, f"{place}[{k}]")) for k, v in labels.items()))
