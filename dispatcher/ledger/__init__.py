"""The ledger as the dispatcher uses it: its client, the nodes of its feed, and rebuilding a lost ledger."""
