"""The generated reference is current; alerts, dashboard and the page about alerts use metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from docs.make_reference import DEPLOY, ROOT, generated
from offloader.settings.layered import SettingsFile
from offloader.telemetry.recorder import METRICS

ALERTS = (ROOT / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
#: Of Prometheus itself, or given by whoever scrapes.
LABELS_OF_PROMETHEUS = {"instance", "le"}
#: What a histogram is asked for by.
SUFFIXES = ("_bucket", "_sum", "_count")


def queries() -> Iterator[tuple[str, str]]:
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", []))


def metric_of(name: str) -> str:
    for suffix in SUFFIXES:
        if name.endswith(suffix) and METRICS.get(name.removesuffix(suffix), METRICS["streams"]).kind == "histogram":
            return name.removesuffix(suffix)
    return name


@pytest.mark.slow
def test_generated_reference_is_up_to_date() -> None:
    texts = generated()
    assert len(texts) == 6
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "run ./dev reference"


@pytest.mark.slow
@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_query_names_metrics_labels_and_kinds_that_exist(where: str, query: str) -> None:
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


def test_every_alert_is_explained_with_the_severity_it_has() -> None:
    rows = re.findall(r"^\| `(Offloader\w+)` \| (\w+) \|", ALERTS, re.M)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
    assert {rule["labels"]["severity"] for rule in RULES} == {"page", "ticket"}
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        known = {label for name in re.findall(r"offloader_(\w+)", rule["expr"]) for label in METRICS[name].labels}
        assert named <= known | LABELS_OF_PROMETHEUS


def test_thresholds_that_follow_a_setting_have_its_default() -> None:
    """A number in parentheses after a setting's name, in the rules and in what explains them."""
    values = {row["name"]: row["value"] for row in (each.as_json() for each in SettingsFile().values_of("").values())}
    short = {name.partition(".")[2]: value for name, value in values.items()}
    text = ALERTS + (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
    named = re.findall(r"`?([a-z_]+(?:\.[a-z_]+)?)`?,? \(?(\d+(?:ms|[smhd]|[KMGT]?i?B)?)\)", text)
    named = [(name, number) for name, number in named if name in values or name in short]
    assert len(named) >= 10
    for name, number in named:
        assert number == f"{values.get(name, short.get(name))}".removesuffix(".0"), name


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
