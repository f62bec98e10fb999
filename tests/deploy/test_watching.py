"""The dashboard and the alerts ask for nothing that the server does not export."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tenure.observe.metric_table import METRICS, Kind, MetricRow

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
SELECTOR = re.compile(r"\b(tenure_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def questions() -> Iterator[tuple[str, str]]:
    """Every expression, and where it stands."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


QUESTIONS = list(questions())


def exported(name: str) -> tuple[MetricRow, set[str]]:
    """The figure that a series belongs to, and the labels of the series."""
    for ending, more in (("_bucket", {"le"}), ("_sum", set()), ("_count", set())):
        figure = METRICS.get(name.removesuffix(ending))
        if name.endswith(ending) and figure is not None and figure.kind is Kind.HISTOGRAM:
            return figure, {*figure.labels, *more}
    figure = METRICS[name]
    assert figure.kind is not Kind.HISTOGRAM, f"{name} has no series of its own"
    return figure, set(figure.labels)


@pytest.mark.parametrize(("place", "expression"), QUESTIONS, ids=[place for place, _ in QUESTIONS])
def test_what_is_asked_for_is_exported(place: str, expression: str) -> None:
    known: set[str] = set()
    found = SELECTOR.findall(expression)
    assert found
    for name, matchers in found:
        figure, labels = exported(name)
        known |= labels
        assert set(MATCHER.findall(matchers)) <= labels, f"{place}: labels of {name}"
        if figure.kind is Kind.COUNTER or name != figure.name:
            assert re.search(rf"(rate|increase)\({name}\b", expression), f"{place}: {name} only grows"
    for grouping in GROUPING.findall(expression):
        assert {label.strip() for label in grouping.split(",")} <= known, f"{place}: grouped by {grouping}"


def test_texts_name_labels_that_the_answer_has() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = GROUPING.findall(target["expr"])
            kept = {label.strip() for part in grouped for label in part.split(",")}
            assert not used or used <= (kept or {"model", "engine"}), panel["title"]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
            kept = {label.strip() for part in GROUPING.findall(rule["expr"]) for label in part.split(",")}
            assert used <= (kept or {"model", "engine"}), rule["alert"]


def test_all_that_the_server_promises_can_be_seen() -> None:
    """Each figure is on the dashboard or in an alert, but for those that say the same in another form."""
    seen = {exported(name)[0].name for _, expression in QUESTIONS for name, _ in SELECTOR.findall(expression)}
    elsewhere = {
        *("tenure_build_info", "tenure_requests_arrived_total", "tenure_slots", "tenure_prompt_tokens_total"),
        *("tenure_request_prompt_tokens", "tenure_request_output_tokens", "tenure_items_finished_total"),
        *("tenure_decode_seconds", "tenure_inference_seconds", "tenure_unmatched_messages_total"),
    }
    assert set(METRICS) - seen == elsewhere


def test_the_dashboard_can_be_imported() -> None:
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used == variables == {"datasource", "model"}
    definition = DASHBOARD["templating"]["list"][1]["definition"]
    assert definition == "label_values(tenure_engine_up, model)"
