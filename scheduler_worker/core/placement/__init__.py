"""Choosing nodes: rankings, runs of equal pods, sampled scoring, ties, diagnosis."""
