"""Pod UIDs: 16 bytes, of which a set's pods share the first 12."""

import random
import uuid

from hoss.errors import ColumnError, quoted

UID_BYTES = 16
UID_PREFIX_BYTES = 12


def uid_text(uid: bytes) -> str:
    """The usual spelling of a 16-byte UID: 8-4-4-4-12 hexadecimal digits."""
    h = uid.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def random_uid_text(rng: random.Random) -> str:
    """A new random UID (UUID version 4)."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def uid_from_text(text: str) -> bytes:
    """The 16 bytes of a UID as Kubernetes spells it. Raises ColumnError for anything else."""
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != UID_BYTES:
        raise ColumnError(
            f"{quoted(text)} is no UID: 32 hexadecimal digits, usually written 8-4-4-4-12", where="uid"
        )
    return raw
