"""Talking to a Kubernetes API server in raw JSON: connections, lists, watches. Nothing here knows what HOSS
does with objects."""
