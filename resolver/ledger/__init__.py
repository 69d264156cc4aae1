"""The ledger in Redis: scripts and the store that runs them."""
