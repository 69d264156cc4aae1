"""Instruments for developers of HOSS: generated reference pages, benchmarks of single parts, peers. Not
installed."""
