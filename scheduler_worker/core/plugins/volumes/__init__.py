"""Plugins that look at volumes: what can be bound, attached or reached where."""
