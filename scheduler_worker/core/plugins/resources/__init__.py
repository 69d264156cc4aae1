"""Plugins that look at the amounts that are free: whether a pod fits, and how well."""
