"""Settings for all tests. `--hypothesis-profile=soak` searches at random and far longer."""

from hypothesis import settings

settings.register_profile("soak", max_examples=5_000, deadline=None, database=None, derandomize=False)
