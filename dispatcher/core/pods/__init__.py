"""Pods as columns: the pod table, pod sets, templates, gangs, faults and pod history."""
