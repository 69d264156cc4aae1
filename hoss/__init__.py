"""HOSS: many schedulers, one ledger. This package is the ground floor that the services share."""

from importlib.metadata import version

__version__ = version("hoss")
