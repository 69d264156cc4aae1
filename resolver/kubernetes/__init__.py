"""Kubernetes mode: the binding webhook, the binder, and reservations of existing pods."""
