"""Benchmarks that users run: throughput, GPU allocation, and HOSS beside kube-scheduler at a real API
server."""
