"""What Redis says of its errors, in words for people."""

# Redis refuses whatever writes while its append-only file or snapshot cannot be written, and says why as errno's text.
_REFUSES_TO_WRITE = "MISCONF"
_DISK_TROUBLES = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error")


def words(error: BaseException) -> str:
    """The error in one line; of a disk that Redis cannot write to, also what to do."""
    said = " ".join(str(error).split())
    if _REFUSES_TO_WRITE not in said:
        return said
    trouble = next((trouble for trouble in _DISK_TROUBLES if trouble in said), "its log says why")
    return f"Redis cannot write to its disk: {trouble}; mend that, and all goes on by itself"
