"""Plugins that look at what a pod says of itself and of other pods: gates, ports, affinity, spreading."""
