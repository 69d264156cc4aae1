"""The conflict resolver service: the only writer of the ledger."""
