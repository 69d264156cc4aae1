"""What went wrong in plugins from outside, until it is taken to be told."""

from scheduler_worker.core.diagnosis import Diagnosis
from scheduler_worker.core.guard import PluginFailed

_MOST_KNOWN = 100


class Failures:
    """Each kind of failure once."""

    def __init__(self) -> None:
        self._by_text: dict[str, PluginFailed | None] = {}  # None: taken

    def note(self, failure: PluginFailed) -> Diagnosis:
        """This went wrong; returns what is to be said of the pods that it kept from being placed."""
        self._by_text.setdefault(str(failure), failure)
        return Diagnosis(str(failure), frozenset())

    def take(self) -> list[PluginFailed]:
        """What went wrong since the last time and never before."""
        taken = [failure for failure in self._by_text.values() if failure is not None]
        if taken:
            self._by_text = dict.fromkeys(self._by_text)
            if len(self._by_text) > _MOST_KNOWN:
                self._by_text.clear()  # their texts differ each time; better told twice than remembered for ever
        return taken
