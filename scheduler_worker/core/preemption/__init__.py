"""Preemption: the search for victims, and preemption in a running worker."""
