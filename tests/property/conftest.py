"""Property tests share their machine with real servers: an example that takes long is no failure."""

from hypothesis import settings

settings.register_profile("hoss", deadline=None)
settings.load_profile("hoss")
