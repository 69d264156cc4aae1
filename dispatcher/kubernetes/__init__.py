"""Kubernetes mode: informers, binder, evictor, event recorder, and the audit of kubelet rejections."""
