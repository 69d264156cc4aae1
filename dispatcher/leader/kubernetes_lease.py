"""Leader election with a coordination.k8s.io Lease, in front of the store's lease, whose term fences writes.

The leader holds both leases, so two stores cannot name two leaders. The Lease shows the leader to the
cluster, and a dispatcher that cannot reach the API server loses it. A Lease has expired when it has not
changed for its duration on our own monotonic clock. Its timestamps are never compared, because clocks of
machines differ."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from dispatcher.leader.leadership import LeaseValidity
from dispatcher.leader.lease import Granted, Lease, LeaseHeld
from hoss.errors import LedgerUnavailable, TransportError
from hoss.host import THIS_HOST
from hoss.kube.api import KubeApi, Object
from hoss.kube.paths import object_path
from hoss.telemetry import logger

_RENEWALS_PER_LEASE = 3
_POLLS_PER_LEASE = 10  # of a standby; the interval delays a takeover
_CONFLICTS = (404, 409)  # another dispatcher was faster, or the Lease was deleted


class _Version(NamedTuple):
    """A version of the Lease, and since when (monotonic) it is the latest."""

    version: str
    since: float


class KubernetesLease:
    """A dispatcher.leader.lease.Lease. The `fencing` lease decides, and its length is that of both."""

    def __init__(
        self,
        api: KubeApi,
        name: str,
        fencing: Lease,
        *,
        duration_seconds: int,
        clock: Callable[[], float] = THIS_HOST.monotonic,
        utc_now: Callable[[], datetime] = THIS_HOST.utc_now,
    ) -> None:
        """`name` with its namespace: "kube-system/hoss"."""
        namespace, _, self._name = name.partition("/")
        self._path = object_path("/apis/coordination.k8s.io/v1/namespaces", namespace, "leases")
        self._api = api
        self._fencing = fencing
        self._duration_seconds = duration_seconds
        self._clock = clock
        self._utc_now = utc_now
        self._latest = _Version("", clock())
        self._validity: LeaseValidity | None = None  # of the Lease; None: we do not hold it
        self._address = ""
        self._refused: LeaseHeld | None = None  # at the last poll
        self._poll_at = 0.0
        self._renewed_at = 0.0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        return self._fencing.seconds

    async def acquire(self, address: str) -> Granted | LeaseHeld:
        requested_at = self._clock()
        if self._refused is None or requested_at >= self._poll_at:
            self._validity, self._address = None, address
            self._poll_at = requested_at + self._duration_seconds / _POLLS_PER_LEASE
            self._refused = await self._take(requested_at)
        if self._refused is not None:
            return self._refused
        answer = await self._fencing.acquire(address)
        if isinstance(answer, Granted):
            logger().info("lease_taken", lease=self._name, term=answer.term)
        else:
            self._refused = answer
        return answer

    async def _take(self, requested_at: float) -> LeaseHeld | None:
        """Take the Lease if it is free. Returns its holder; None: we hold it."""
        found = await self._read()
        holder = _holder(found)
        if found is not None and holder not in ("", self._address) and not self._expired(found):
            return LeaseHeld(0, holder)
        if not await self._write(found, self._address):
            return LeaseHeld(0, holder)
        self._held(requested_at)
        return None

    async def renew(self, term: int, address: str) -> bool:
        """Renews the Lease in the background: a slow API server does not delay the renewal in the store."""
        now = self._clock()
        if self._renewing is None and now - self._renewed_at > self._duration_seconds / _RENEWALS_PER_LEASE:
            self._renewing = asyncio.ensure_future(self._renew())
            self._renewing.add_done_callback(self._renewing_done)
        if self._validity is None:
            self._refused = None
            return False
        if not self._validity.valid(now):
            # Not renewed in the store either: a dispatcher that reaches the API server shall get both.
            raise LedgerUnavailable(
                f"the Lease {self._name} could not be renewed; the API server does not answer in time"
            )
        return await self._fencing.renew(term, address)

    async def release(self, term: int) -> None:
        try:
            await self._fencing.release(term)
        finally:
            if self._renewing is not None:
                self._renewing.cancel()
            self._validity, self._refused = None, None
            found = await self._read()
            if found is not None and _holder(found) == self._address:
                await self._write(found, "")

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await self._fencing.close()
        await self._api.close()

    async def _renew(self) -> None:
        requested_at = self._clock()
        try:
            found = await self._read()
            if _holder(found) not in ("", self._address):
                logger().warning("lease_lost", lease=self._name, holder=_holder(found))
                self._validity = None
            elif await self._write(found, self._address):
                self._held(requested_at)
        except LedgerUnavailable as exc:
            logger().warning("lease_not_renewed", lease=self._name, error=str(exc))

    def _renewing_done(self, _task: "asyncio.Task[None]") -> None:
        self._renewing = None

    def _held(self, requested_at: float) -> None:
        self._renewed_at = requested_at
        if self._validity is None:
            self._validity = LeaseValidity(self._duration_seconds, requested_at)
        self._validity.renewed(requested_at)

    def _expired(self, found: Object) -> bool:
        """Whether the Lease has not changed for its duration."""
        version = found["metadata"]["resourceVersion"]
        if version != self._latest.version:
            self._latest = _Version(version, self._clock())
        length = found.get("spec", {}).get("leaseDurationSeconds") or self._duration_seconds
        return self._clock() - self._latest.since > length

    async def _read(self) -> Object | None:
        return await self._ask("GET", object_path(self._path, self._name), None)

    async def _write(self, found: Object | None, holder: str) -> bool:
        """False: the Lease has changed since it was read."""
        now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (found or {}).get("spec", {})
        same = found is not None and _holder(found) == holder
        spec: Object = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._duration_seconds if holder else 1,
            "acquireTime": before.get("acquireTime", now) if same else now,
            "renewTime": now,
            "leaseTransitions": before.get("leaseTransitions", 0) + (found is not None and not same),
        }
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        if found is None:
            return await self._ask("POST", self._path, {**kind, "metadata": {"name": self._name}}) is not None
        body = {**kind, "metadata": found["metadata"]}
        return await self._ask("PUT", object_path(self._path, self._name), body) is not None

    async def _ask(self, method: str, path: str, body: Object | None) -> Object | None:
        """The Lease; None if it does not exist, or has changed since it was read."""
        try:
            reply = await self._api.send(
                method, path, body, timeout_seconds=self._duration_seconds / _RENEWALS_PER_LEASE
            )
            found: Object | None = reply.json() if reply.done else None
        except TransportError as exc:
            raise LedgerUnavailable(str(exc)) from exc
        if found is not None:
            return found
        if reply.status in _CONFLICTS and not (method == "POST" and reply.status == 404):  # no such namespace
            return None
        raise LedgerUnavailable(
            f"the API server answers {method} {path} with {reply.status}: {reply.message}"
        )


def _holder(lease: Object | None) -> str:
    return str((lease or {}).get("spec", {}).get("holderIdentity") or "")
