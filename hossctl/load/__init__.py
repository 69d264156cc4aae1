"""Loads: nodes, generated pods, their placement on a platform, and the reports."""
