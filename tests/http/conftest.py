"""The access log is on, as it is in a server."""

import logging

import pytest


@pytest.fixture(autouse=True)
def access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure.access")
