"""Recorded clusters: nodes and pods of published traces, with the times of pods."""
