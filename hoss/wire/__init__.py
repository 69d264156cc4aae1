"""Packed columns and the conversion between the model and hoss.v1 messages."""
