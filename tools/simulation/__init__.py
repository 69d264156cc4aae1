"""Whole platforms in one process, on virtual time: real services, a real Redis driven step by step, faults by
seed, and an independent judge. A failing seed replays exactly."""
