"""Rebalancing before preemption: pods that fit nowhere wait for moves, for a bounded time, before they evict
less urgent pods.

It is on while a rebalance controller says with each of its reports that its policy wants it, and that it may
make moves now. The first question for victims of a class then begins a *hold*: the pods of that class get no
victims, and wait as unschedulable ones, so that the controller finds them. A hold ends when the controller
has looked at it, when its time is over, or when the controller may move nothing more or is gone. Then the
class preempts; only when it has asked for no victims for a while a new hold may begin. So pods do not wait
for moves twice in a row, however long they were queued meanwhile.

A hold that has ended is forgotten when its class asks no more. Times are monotonic seconds."""

from dataclasses import dataclass, field

REPORT_LASTS_SECONDS = 5.0  # a controller reports every second
PREEMPTS_SECONDS = 60.0  # from the last question after a hold
ASKS_NO_MORE_SECONDS = 3600.0  # after a hold without a question: longer than pods are queued
MOST_HOLDS = 1_000  # classes; those beyond preempt at once


@dataclass(slots=True)
class _Hold:
    number: int
    until: float  # the end of the hold; it may come earlier
    told: bool = False  # that it has ended
    forgotten: float = float("inf")  # when nothing is known of it any more


@dataclass(slots=True)
class PreemptionHolds:
    """The holds by class id."""

    wait_seconds: float = 0.0  # as the controller last said; 0: no holds
    up_to_priority: int = 0
    _heard_until: float = field(default=float("-inf"), init=False)
    _last_number: int = field(default=0, init=False)
    _holds: dict[int, _Hold] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._holds)

    def report(self, wait_seconds: float, up_to_priority: int, considered: int, now: float) -> None:
        """What a controller says: for how long pods are to wait for its moves (0: it may make none now), up
        to which priority, and up to which hold it has looked for moves."""
        self.wait_seconds, self.up_to_priority = wait_seconds, up_to_priority
        self._heard_until = now + REPORT_LASTS_SECONDS
        for hold in self._holds.values():
            if hold.number <= considered or not wait_seconds:
                hold.until = min(hold.until, now)

    def holds(self, class_id: int, priority: int, now: float, now_ms: int) -> bool:
        """Whether pods of this class, which ask for victims, get none yet. `now_ms`: the Unix time, by which
        holds are numbered, so that another dispatcher's numbers are higher."""
        hold = self._holds.get(class_id)
        if hold is not None and now >= hold.until:
            hold.forgotten = now + PREEMPTS_SECONDS
            return False
        if hold is not None:
            return True
        wanted = self.wait_seconds > 0 and now < self._heard_until and priority <= self.up_to_priority
        if not wanted or not self._has_place():
            return False
        self._last_number = max(self._last_number + 1, now_ms)
        self._holds[class_id] = _Hold(self._last_number, now + self.wait_seconds)
        return True

    def _has_place(self) -> bool:
        """Whether there is a place for one more hold. One that has ended makes it."""
        if len(self._holds) >= MOST_HOLDS:
            over = next((class_id for class_id, hold in self._holds.items() if hold.told), None)
            if over is None:
                return False
            del self._holds[over]
        return True

    def ended(self, now: float) -> list[int]:
        """The classes whose hold has ended since the last call: their pods may be tried again."""
        found = []
        if now >= self._heard_until:  # the controller is gone
            for hold in self._holds.values():
                hold.until = min(hold.until, now)
        for class_id, hold in list(self._holds.items()):
            if now >= hold.until and not hold.told:
                hold.told = True
                hold.forgotten = min(hold.forgotten, now + ASKS_NO_MORE_SECONDS)
                found.append(class_id)
            elif now >= hold.forgotten:
                del self._holds[class_id]
        return found

    def going_on(self, now: float) -> dict[int, int]:
        """The numbers of the holds that have not ended, by class."""
        return {class_id: hold.number for class_id, hold in self._holds.items() if now < hold.until}
