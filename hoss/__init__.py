"""HOSS: many schedulers, one ledger. This package is the ground floor that the services share."""

from functools import cache


@cache
def version() -> str:
    """Which version of HOSS this is."""
    from importlib.metadata import version as installed  # noqa: PLC0415 - few ask, and it takes longer than all of typer

    return installed("hoss")
