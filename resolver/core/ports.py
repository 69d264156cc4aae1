"""Ports of nodes that pods hold, in the ledger's form.

A *claim* is 12 bytes: `<u16 port, u8 protocol, u8 0>` and 8 bytes for the address: zeros for every address, else a digest
of the text. As in kube-scheduler addresses are compared as they are written, and `::` is an address like others.
"""

import hashlib

from hoss.model.pod import HostPort

CLAIM_BYTES = 12

_PROTOCOLS = ("TCP", "UDP", "SCTP")
_EVERY_ADDRESS = bytes(8)

Claim = bytes


def claim_of(port: HostPort) -> Claim:
    """The port as a claim. Raises ValueError for a protocol that is none of Kubernetes' three."""
    address = _EVERY_ADDRESS
    if port.host_ip not in ("", "0.0.0.0"):  # noqa: S104 - Kubernetes' word, nothing is bound here
        address = hashlib.blake2b(port.host_ip.encode(), digest_size=8).digest()
    return port.port.to_bytes(2, "little") + bytes((_PROTOCOLS.index(port.protocol), 0)) + address


def clash(one: Claim, other: Claim) -> bool:
    """The same port and protocol, and the same address or either of them every address."""
    return one[:4] == other[:4] and (one[4:] == other[4:] or _EVERY_ADDRESS in (one[4:], other[4:]))


def port_number(claim: Claim) -> int:
    """The number of the port."""
    return int.from_bytes(claim[:2], "little")


def port_text(claim: Claim) -> str:
    """Number and protocol, as people write them."""
    return f"{port_number(claim)}/{_PROTOCOLS[claim[2]]}"
