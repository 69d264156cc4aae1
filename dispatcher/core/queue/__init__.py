"""Waiting pods: the active queue, backoff, queueing hints, tenants and back pressure."""
