"""The profile of fuzz tests is that of property tests (HOSS_TESTS), with more examples: see
fuzz/inputs.py."""

from property.profiles import load_profile

load_profile()
