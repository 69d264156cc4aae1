"""The pure half of the binding webhook and the binder: what is judged, and what the API server is sent."""
