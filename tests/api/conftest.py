"""The server that tests of embeddings ask; those that change it make their own."""

import pytest

from tests.api.generation_rig import Rig
from tests.api.pooling_rig import pooling_rig


@pytest.fixture(scope="session")
def embedder() -> Rig:
    return pooling_rig()


@pytest.fixture
def rig(embedder: Rig) -> Rig:
    """A server of one embedding model, of which nothing has been asked yet."""
    embedder.engine.submitted.clear()
    return embedder
