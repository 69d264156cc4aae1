"""The node cache: the ledger's accounts, this worker's assumptions, and both as columns."""
