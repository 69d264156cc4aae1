"""The pure part of Kubernetes mode: what objects of the API server mean for pods and nodes."""
