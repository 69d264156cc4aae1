"""The checker of histories: it recomputes accounts and fates from a history alone.

It shares no code with the services, not even their model, and uses the standard library only. So a mistake in
the services' idea of a promise is not repeated here. A verdict is a value: `Judgement` lists every violation
with the lines that show it, counts what was judged, and says what could not be.

Each event goes to one of three parts: `checker_pods` (clients and watchers), `checker_ledger` (changes of the
ledger), `checker_end` (final states)."""

from collections.abc import Callable, Iterable

from hossctl.history.checker_end import EndChecker
from hossctl.history.checker_judgement import Findings, Judgement
from hossctl.history.checker_pods import PodChecker
from hossctl.history.events import Event, verified

_Take = Callable[[Event, int], None]


def check(events: Iterable[Event]) -> Judgement:
    """Judge a history. Raises BadHistory for one that is not well-formed."""
    findings = Findings()
    pods, end = None, None
    takers: dict[str, tuple[_Take, ...]] = {}
    for line, event in verified(events):
        findings.walk_to(event["at"])
        if pods is None or end is None:
            pods = PodChecker(findings, event["sees"])
            end = EndChecker(findings, event["sees"], pods)
            takers = _takers(pods, end)
        for take in takers[event["event"]]:
            take(event, line)
    if pods is not None and end is not None:
        pods.ledger.finish()
        pods.finish()
        end.finish()
    return findings.judgement


def _takers(pods: PodChecker, end: EndChecker) -> dict[str, tuple[_Take, ...]]:
    ledger = pods.ledger
    return {
        "begin": (),
        "gap": (pods.on_gap, end.on_gap),
        "fault": (end.on_quiet,),
        "quiet": (end.on_quiet,),
        "submit": (pods.on_submit,),
        **dict.fromkeys(("delete", "ungate", "resize", "retry"), (pods.on_operation,)),
        **dict.fromkeys(("acknowledged", "refused", "unknown"), (pods.on_answer,)),
        "accepted": (pods.on_accepted,),
        "foreign": (pods.on_foreign,),
        "moving": (pods.on_moving,),
        "watch": (pods.on_watch,),
        "told": (pods.on_told,),
        "unwatch": (pods.on_unwatch,),
        "node": (ledger.on_node,),
        "node-removed": (ledger.on_node_removed,),
        "ledger": (pods.see_reserved, ledger.on_ledger),
        **dict.fromkeys(("granted", "fenced", "term"), (ledger.on_epoch,)),
        "reservations": (pods.see_reserved, ledger.accounts.on_reservations),
        **dict.fromkeys(("table", "journal", "workers", "cache", "digest"), (end.on_state,)),
    }
