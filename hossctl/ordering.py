"""--sort-by: documents in the order of what stands at a path of each."""

from collections.abc import Sequence
from typing import Any

from hoss.errors import InvalidInput
from hossctl.console import Document
from hossctl.jsonpath import read_path

_WHERE = "--sort-by"


def sorted_by(documents: Sequence[Document], path: str) -> list[Document]:
    """Ascending: nothing first, then numbers, then texts; equal ones as they were. `path`: `.attempts`, `{.requested.cpu}`.

    Raises InvalidInput for what is no path, and for one that leads to nothing in any of the documents.
    """
    read = read_path(path.strip().removeprefix("{").removesuffix("}"), where=_WHERE)
    found = [read.values(document) for document in documents]
    if documents and not any(found):
        fields = ", ".join(f".{name}" for name in documents[0] if name != "kind")
        raise InvalidInput(f"{path!r} is in none of them; there are {fields}", where=_WHERE)
    keyed = sorted(zip(map(_key, found), range(len(documents)), strict=True))
    return [documents[position] for _, position in keyed]


def _key(values: list[Any]) -> tuple[int, float, str]:
    if not values or values[0] is None:
        return (0, 0.0, "")
    value = values[0]
    return (1, float(value), "") if isinstance(value, (bool, int, float)) else (2, 0.0, str(value))
