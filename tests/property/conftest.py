"""Property tests try as many examples as the command that runs them wants."""

from property.profiles import load_profile

load_profile()
