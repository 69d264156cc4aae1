"""The rules of the ledger as pure code: what the scripts must agree with."""
