"""The room of a running platform as it is used, and plans of moves for it."""
