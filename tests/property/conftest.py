"""Property tests share their machine with real servers: an example that takes long, or is long in the making, is no failure.

Who works on HOSS has other examples with every run. Continuous integration has the same for the same code: its run is about a change.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "hoss", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("hoss")
