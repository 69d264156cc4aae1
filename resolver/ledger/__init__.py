"""The ledger: its port, the scripts in Redis and the store that runs them, and a ledger in memory."""
