"""Plugins that look at accelerator cards and claimed devices, and what sharing cards leaves of them."""
