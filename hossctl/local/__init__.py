"""The platform on this machine: processes, ports, Redis, a Kubernetes control plane, the binding webhook."""
