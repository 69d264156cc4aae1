"""The webhook's certificate and who vouches for it: made and renewed here, or given in files; in either case taken up while we run.

Made: a Secret of the cluster holds one state that all resolvers serve by. Whoever looks first when something is due renews it; a
write that lost the race is dropped, and its author reads what won. A new authority is made known to the API server, beside the old
one, before a certificate is issued by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hoss.certificates import KeyPair, issue, new_authority, validity

_AUTHORITY_LIFETIME = timedelta(days=3650)
_PEM_END = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a Secret holds. `trusted`: PEM, the authority's certificate first, then those of earlier ones that still count."""

    authority_key: bytes
    trusted: bytes
    serving: KeyPair
    hosts: tuple[str, ...]

    @property
    def authority(self) -> KeyPair:
        """The one that issues."""
        return KeyPair(authorities(self.trusted)[0], self.authority_key)


def renewed(
    held: Certificates | None, hosts: Sequence[str], lifetime: timedelta, *, now: datetime, published: bytes
) -> Certificates:
    """What to serve by from now on: `held` itself where nothing is due.

    Certificates are renewed when a third of their `lifetime` is left, authorities when less is left than a certificate lives.
    `published`: the authorities that the API server trusts now. Compared by identity: `held` comes back unless something is due.
    """
    standing = [pem for pem in authorities(held.trusted) if validity(pem)[1] > now] if held else []
    if held is None or not standing:
        authority = _authority(now)
        serving = issue(authority, hosts, now=now, lifetime=lifetime)
        return Certificates(authority.key, authority.certificate, serving, tuple(hosts))
    if validity(standing[0])[1] - now < lifetime:
        authority = _authority(now)  # which issues nothing before the API server has heard of it
        return replace(held, authority_key=authority.key, trusted=authority.certificate + b"".join(standing))
    due = validity(held.serving.certificate)[1] - now < lifetime / 3 or held.hosts != tuple(hosts)
    by_an_earlier_one = validity(standing[0])[0] > validity(held.serving.certificate)[0]
    known = len(standing) == 1 or standing[0] in published
    if known and (due or by_an_earlier_one):
        serving = issue(held.authority, hosts, now=now, lifetime=lifetime)
        return replace(held, serving=serving, hosts=tuple(hosts), trusted=b"".join(standing))
    return held


def _authority(now: datetime) -> KeyPair:
    return new_authority("hoss binding guard", now=now, lifetime=_AUTHORITY_LIFETIME)


def authorities(trusted: bytes) -> list[bytes]:
    """The certificates of a bundle, each PEM."""
    return [part + _PEM_END for part in trusted.split(_PEM_END) if part.strip()]
