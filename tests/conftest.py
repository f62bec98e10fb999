"""Settings for all tests. `--hypothesis-profile=soak` searches at random and far longer."""

from hypothesis import settings

# On a busy machine an example may take long.
settings.register_profile("ci", deadline=None)
settings.load_profile("ci")
settings.register_profile("soak", max_examples=5_000, deadline=None, database=None, derandomize=False)
