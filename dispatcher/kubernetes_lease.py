"""Leader election as a cluster knows it, a coordination.k8s.io Lease, in front of the lease whose term fences.

Active is who holds both: the Lease, for all to see, and for a candidate that cannot reach the API server to lose; and the lease in the
store, which gives the term that every write is compared with. So two stores cannot name two leaders. Whether another's Lease has run
out is told by how long it has not changed on our own monotonic clock, never by its times: clocks of machines differ.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

from dispatcher.core.tenure import Tenure
from dispatcher.lease import Granted, Held, Lease
from hoss.errors import LedgerUnavailable, TransportError
from hoss.kube.api import KubeApi, Object
from hoss.telemetry import logger

_RENEWALS_PER_LEASE = 3
_LOOKS_PER_LEASE = 10  # of a standby: what is lost of the Lease's length before it notices
_CONFLICTS = (404, 409)  # somebody was faster, or has deleted it


class _Seen(NamedTuple):
    """A state of the Lease, and since when (monotonic) it has been so."""

    version: str
    since: float


class KubernetesLease:
    """A Lease (dispatcher.lease). `fencing` has the last word, and its length counts for whoever renews."""

    def __init__(
        self,
        api: KubeApi,
        name: str,
        fencing: Lease,
        *,
        duration_seconds: int,
        clock: Callable[[], float] = time.monotonic,
        utc_now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """`name` with its namespace: "kube-system/hoss"."""
        namespace, _, self._name = name.partition("/")
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._api = api
        self._fencing = fencing
        self._duration_seconds = duration_seconds
        self._clock = clock
        self._utc_now = utc_now
        self._seen = _Seen("", clock())
        self._tenure: Tenure | None = None  # of the Lease; None: it is not ours
        self._address = ""
        self._refused: Held | None = None  # as of the last look, and when the next is due
        self._look_at = 0.0
        self._renewed_at = 0.0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        return self._fencing.seconds

    async def acquire(self, address: str) -> Granted | Held:
        asked_at = self._clock()
        if self._refused is None or asked_at >= self._look_at:
            self._tenure, self._address = None, address
            self._look_at = asked_at + self._duration_seconds / _LOOKS_PER_LEASE
            self._refused = await self._take(asked_at)
        if self._refused is not None:
            return self._refused
        answer = await self._fencing.acquire(address)
        if isinstance(answer, Granted):
            logger().info("lease_taken", lease=self._name, term=answer.term)
        else:
            self._refused = answer
        return answer

    async def _take(self, asked_at: float) -> Held | None:
        """Who has the Lease; None: we."""
        found = await self._read()
        holder = _holder(found)
        if found is not None and holder not in ("", self._address) and not self._over(found):
            return Held(0, holder)
        if not await self._write(found, self._address):
            return Held(0, holder)
        self._held(asked_at)
        return None

    async def renew(self, term: int, address: str) -> bool:
        """Beside the store's: a slow API server delays no renewal there."""
        now = self._clock()
        if self._renewing is None and now - self._renewed_at > self._duration_seconds / _RENEWALS_PER_LEASE:
            self._renewing = asyncio.ensure_future(self._renew())
            self._renewing.add_done_callback(self._renewing_done)
        if self._tenure is None:
            self._refused = None
            return False
        if not self._tenure.certain(now):
            # Not renewed in the store either: whoever reaches the API server is to have that too.
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
            self._tenure, self._refused = None, None
            found = await self._read()
            if found is not None and _holder(found) == self._address:
                await self._write(found, "")

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await self._fencing.close()
        await self._api.close()

    async def _renew(self) -> None:
        asked_at = self._clock()
        try:
            found = await self._read()
            if _holder(found) not in ("", self._address):
                logger().warning("lease_lost", lease=self._name, holder=_holder(found))
                self._tenure = None
            elif await self._write(found, self._address):
                self._held(asked_at)
        except LedgerUnavailable as exc:
            logger().warning("lease_not_renewed", lease=self._name, error=str(exc))

    def _renewing_done(self, _task: "asyncio.Task[None]") -> None:
        self._renewing = None

    def _held(self, asked_at: float) -> None:
        self._renewed_at = asked_at
        if self._tenure is None:
            self._tenure = Tenure(self._duration_seconds, asked_at)
        self._tenure.renewed(asked_at)

    def _over(self, found: Object) -> bool:
        """Whether it has not changed for as long as its holder said."""
        version = found["metadata"]["resourceVersion"]
        if version != self._seen.version:
            self._seen = _Seen(version, self._clock())
        length = found.get("spec", {}).get("leaseDurationSeconds") or self._duration_seconds
        return self._clock() - self._seen.since > length

    async def _read(self) -> Object | None:
        return await self._ask("GET", f"{self._path}/{self._name}", None)

    async def _write(self, found: Object | None, holder: str) -> bool:
        """Whether it is so now; False: it was changed by somebody since it was read."""
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
        return await self._ask("PUT", f"{self._path}/{self._name}", body) is not None

    async def _ask(self, method: str, path: str, body: Object | None) -> Object | None:
        """The Lease; None where there is none, or another than the one read."""
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
        raise LedgerUnavailable(f"the API server answers {method} {path} with {reply.status}: {reply.message}")


def _holder(lease: Object | None) -> str:
    return str((lease or {}).get("spec", {}).get("holderIdentity") or "")
