"""Plugins that look at what a node says of itself: labels, taints, name, features, images."""
