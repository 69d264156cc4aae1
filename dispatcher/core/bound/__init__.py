"""Pods after their placement: outcomes of workers, evictions, disruption budgets and nominations."""
