"""Checks plugins, algorithms and schedulers of others on generated clusters, before any worker runs them."""
