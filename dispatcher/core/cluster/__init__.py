"""Node state and cluster objects (namespaces, services, disruption budgets, priority classes)."""
