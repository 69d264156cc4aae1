"""Explains where a pod would be placed, why, and with which scores."""
