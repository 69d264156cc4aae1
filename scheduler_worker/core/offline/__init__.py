"""Scheduling in a cluster snapshot, for explanations and comparisons."""
