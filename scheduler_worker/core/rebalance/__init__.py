"""Fragmentation of a cluster: how much of the free room pods can use, and which moves of pods would help."""
