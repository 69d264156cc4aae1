"""The plugins that come with HOSS, one a module."""
