"""Benchmarks: how fast the platform is, and what several schedulers do without it."""
