"""Scheduler workers: membership, the batches that each worker has, and what its heartbeats report."""
