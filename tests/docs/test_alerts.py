"""Alert rules and the dashboard use metrics that exist; the page explains every rule."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from offloader.telemetry.recorder import METRICS
from tests.docs.test_tables import code, page, table
from tests.docs.worlds import ROOT

DEPLOY = ROOT / "deploy"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PANELS = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
#: Of Prometheus itself, or given by the scraper.
LABELS_OF_PROMETHEUS = {"instance", "le"}


def metric_of(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and METRICS.get(name.removesuffix(suffix), METRICS["streams"]).kind == "histogram":
            return name.removesuffix(suffix)
    return name


def check_query(where: str, query: str) -> None:
    used = re.findall(r"offloader_(\w+)(?:\{([^}]*)\})?(\[)?", query)
    assert used, where
    labels: set[str] = set()
    for name, matchers, ranged in used:
        metric = METRICS[metric_of(name)]
        labels |= set(metric.labels)
        matched = {found[0] for found in re.findall(r"(\w+)\s*(=~|!~|!=|=)\s*\"", matchers)}
        assert matched <= set(metric.labels), f"{where}: {name}"
        # rates are of what only grows, and what only grows is looked at by its rate; of a gauge the highest may count
        is_highest = bool(ranged) and f"max_over_time(offloader_{name}" in query
        assert is_highest or bool(ranged) == (metric.kind != "gauge"), f"{where}: {name}"
    for grouped in re.findall(r"\b(?:by|ignoring) \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= labels | LABELS_OF_PROMETHEUS, where
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing), where


def test_queries_name_metrics_labels_and_kinds_that_exist() -> None:
    for rule in RULES:
        check_query(rule["alert"], rule["expr"])
    for panel in PANELS:
        for target in panel.get("targets", []):
            check_query(panel["title"], target["expr"])


def test_alerts_page_has_every_rule_with_its_severity() -> None:
    rows = [(code(row[0])[0], row[1]) for row in table(page("how-to/alerts.md"), "alert")]
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
    assert {rule["labels"]["severity"] for rule in RULES} == {"page", "ticket"}
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        known = {label for name in re.findall(r"offloader_(\w+)", rule["expr"]) for label in METRICS[name].labels}
        assert named <= known | LABELS_OF_PROMETHEUS


def test_dashboard_panels_do_not_overlap_and_have_descriptions() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"], panel["title"]
