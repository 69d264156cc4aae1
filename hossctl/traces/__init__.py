"""Recorded clusters: what published traces say of nodes and pods, and when these came and went."""
