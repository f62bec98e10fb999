"""What a server tells of itself is chosen with flags; what cannot be done is said before it starts."""

import sys

import pytest

from tenure.cli.observability_flags import ObserveOptions, report_config
from tenure.config import ReportConfig
from tenure.errors import CallerError, ResourceError


def test_by_default_nothing_is_told_but_the_end_of_a_request() -> None:
    assert report_config(ObserveOptions()) == ReportConfig(log_bodies=0, traces_endpoint="")


def test_what_callers_send_is_logged_where_that_is_asked_for_and_no_more_of_it_than_that() -> None:
    assert report_config(ObserveOptions(max_log_len=10)).log_bodies == 0
    assert report_config(ObserveOptions(enable_log_requests=True, max_log_len=10)).log_bodies == 10


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://collector/mine", "https://collector/mine"),
    ],
)
def test_spans_go_where_the_flag_says(given: str, taken: str) -> None:
    assert report_config(ObserveOptions(otlp_traces_endpoint=given)).traces_endpoint == taken


@pytest.mark.parametrize("given", ["localhost:4317", "grpc://localhost:4317", "http://", "nonsense"])
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(CallerError, match="--otlp-traces-endpoint"):
        report_config(ObserveOptions(otlp_traces_endpoint=given))


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("opentelemetry"):
                raise ModuleNotFoundError(name)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ResourceError, match=r"pip install 'tenure\[otel\]'"):
        report_config(ObserveOptions(otlp_traces_endpoint="http://localhost:4318"))
