"""Paths of objects at an API server: the only place that puts names into them.

Names come from people: the API server checks those of objects, but not every name by which an object refers
to another, such as that of a pod's owner or claim. A name must never lead elsewhere than to an object of its
collection. Quoting alone does not do it: the API server splits a path into its parts after it has decoded it,
and proxies resolve `..`, quoted or not. So a name that Kubernetes allows nobody is never asked for: `KubeApi`
answers that there is no such object. As for client-go, it is one with `/` or `%`, or is `.` or `..`.

Pure, because cores build paths, too."""

import re
from urllib.parse import quote, unquote

# `quote` takes 2 us, and a path is built for each pod that is bound.
_unquoted = re.compile(r"[A-Za-z0-9._-]+").fullmatch
_NOBODYS_PARTS = ("", ".", "..")
_NOBODYS_CHARACTERS = "/%"


def object_path(collection: str, *names: str) -> str:
    """Of an object, or of a part of one, below a list: `object_path("/api/v1/namespaces", namespace, "pods",
    pod, "status")`. A list within a namespace is such a part, too."""
    return "/".join((collection, *(n if _unquoted(n) else quote(n, safe="") for n in names)))


def pod_path(namespace: str, name: str, *part: str) -> str:
    """Of a pod, or a part of it, such as "binding"."""
    return object_path("/api/v1/namespaces", namespace, "pods", name, *part)


def nobodys_name(path: str) -> str | None:
    """The name in a path that no object of Kubernetes can have; None: it has none such."""
    # Most paths have nothing of the kind, and one is asked for each pod.
    if "%" not in path and "/." not in path and "//" not in path and not path.endswith("/"):
        return None
    for part in path.split("/")[1:]:
        name = unquote(part)
        if name in _NOBODYS_PARTS or any(character in name for character in _NOBODYS_CHARACTERS):
            return name
    return None
