"""Settings that every test shares. Fixtures that need servers or Spark are in tests/conftest.py."""

import os

from hypothesis import HealthCheck, settings

# No deadline: no timed assertions in tests. The blob that is printed on failure reproduces the example.
settings.register_profile(
    "default", deadline=None, print_blob=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
