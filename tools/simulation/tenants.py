"""Judges what a dispatcher with few places accepts of clients that are limited to a tenant.

It shares no code with the dispatcher: what it knows is the history. A pod surely waits that was acknowledged,
that nobody has asked to delete, and that never had a reservation. So no more such pods than may wait are
there when a submission is acknowledged. Of one tenant there are no more than the part of the queue within
which nobody's share counts, as its share is less than that where other tenants have pods."""

import asyncio
from collections.abc import Iterator

from hossctl.history.events import Event
from tools.simulation import plan as p
from tools.simulation.clients import SimulatedClients, is_beyond_share
from tools.simulation.plan import Act

SHARES_COUNT_FROM = 0.8  # of the pods that may wait, as docs/operations/failures.md says of slow_from
_COUNTED_SECONDS = 0.5  # after which a dispatcher has counted who waits again


async def complaints_about_room(clients: SimulatedClients, now: float) -> list[str]:
    """Once a tenant's jobs are deleted, a job of it is not refused for the tenant's share any more. Called
    when faults are over. `now`: seconds of the plan's acts."""
    for name in clients.jobs_of_tenants():
        await clients.ask_until_gone(Act(now, p.DELETE, name))
    await asyncio.sleep(_COUNTED_SECONDS)
    options = {"replicas": 1, "cpu": 50, "tenant": p.TENANT}
    answer = await clients.ask_until_answered(Act(now, p.SUBMIT, f"{p.TENANT}-with-room", options=options))
    if is_beyond_share(answer):
        return [f"a tenant without pods is refused for its share: {answer}"]
    return []


def more_than_may_wait(events: list[Event], most_waiting: int) -> Iterator[str]:
    """A sentence for each acknowledgement after which too many pods wait, of a tenant or of all."""
    deleted = {uid for event in events if event["event"] == "delete" for uid in event["uids"]}
    sent: dict[str, list[str]] = {}  # UIDs by request
    held_to_share: set[str] = set()  # sent when another tenant had pods that stay
    others_have_pods = False
    waiting: set[str] = set()
    over: set[str] = set()  # had a reservation, or may be deleted
    for event in events:
        if event["event"] == "submit":
            uids = sent[event["request"]] = [uid for pods in event["pods"] for uid in pods["uids"]]
            if others_have_pods and _is_of_tenant(event["request"]):
                held_to_share.update(uids)
        elif event["event"] == "delete":
            over.update(event["uids"])
        elif event["event"] == "ledger":
            over.update(row["uid"] for row in event.get("reserved", ()))
        elif event["event"] == "acknowledged" and event["request"] in sent:
            uids = sent[event["request"]]
            waiting.update(uids)
            others_have_pods |= not _is_of_tenant(event["request"]) and not deleted.issuperset(uids)
            surely = waiting - over
            if len(surely) > most_waiting:
                yield f"{len(surely)} pods wait after {event['request']}, and {most_waiting} may"
            if (mine := len(surely & held_to_share)) > SHARES_COUNT_FROM * most_waiting:
                yield f"{mine} pods of one tenant wait after {event['request']}, of {most_waiting} that may"


def _is_of_tenant(request: str) -> bool:
    return request.startswith(f"{p.SUBMIT} {p.TENANT}-")
