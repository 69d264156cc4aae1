"""How a worker decides: its view of the cluster, plugins, placement, preemption; no input or output."""
