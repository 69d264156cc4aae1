"""Benchmarks of single parts, for developers of HOSS."""
