"""Node affinity that is required during execution too: the annotation that asks for it."""

from enum import Enum

from hoss.errors import InvalidInput
from hoss.model.fields import Object, mapping, text

ANNOTATION = "hoss.dev/required-during-execution"


class DuringExecution(str, Enum):
    """What becomes of a bound pod whose node stops matching its nodeSelector or required node affinity."""

    IGNORE = ""  # as in Kubernetes
    REPORT = "report"
    EVICT = "evict"


def during_execution(word: str, where: str) -> DuringExecution:
    """Raises InvalidInput for a word that is none."""
    try:
        return DuringExecution(word)
    except ValueError:
        raise InvalidInput(f"is {word!r}; allowed: report, evict", where=where) from None


def read_during_execution(metadata: Object, path: str) -> DuringExecution:
    """What a pod's metadata asks for. Raises InvalidInput."""
    annotations = mapping(metadata, "annotations", path)
    where = f"{path}.annotations"
    return during_execution(text(annotations, ANNOTATION, where), f"{where}[{ANNOTATION}]")
