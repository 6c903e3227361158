"""Checks that alerts, the dashboard and the documentation name metrics that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from service.observability import derived_metrics, metrics
from service.workers import supervisor_metrics

ROOT = Path(__file__).parents[3]
LABELS = {
    **{
        f"rowcast_{name}_total": labels
        for name, (_, labels) in (metrics.COUNTERS | supervisor_metrics.COUNTERS).items()
    },
    **{
        f"rowcast_{name}": labels
        for name, (_, labels, _) in (metrics.HISTOGRAMS | metrics.GAUGES).items()
    },
    **{f"rowcast_{name}": labels for name, (_, labels) in derived_metrics.DERIVED.items()},
}
yaml: Any = import_module("yaml")


def served_names() -> set[str]:
    """Returns every metric that a service exposes before its first request."""
    supervisor = supervisor_metrics.SupervisorMetrics()
    texts = metrics.Metrics().render() + supervisor.render([])
    supervisor.close()
    return set(re.findall(r"^# TYPE (rowcast_\w+)", texts.decode(), re.MULTILINE))


def dashboard() -> Any:
    return json.loads((ROOT / "deploy/grafana/rowcast.json").read_text())


def metrics_of(expression: str) -> set[str]:
    """Returns the metrics that a query names, histograms without the suffixes of their series."""
    return {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in re.findall(r"\browcast_\w+", expression)
    }


def alerts() -> list[Any]:
    (group,) = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"]
    return [rule for rule in group["rules"] if "alert" in rule]


def test_alerts_and_their_tests_name_metrics_that_are_served() -> None:
    rules = (ROOT / "deploy/alerts.yaml").read_text() + (
        ROOT / "deploy/alerts_test.yaml"
    ).read_text()
    assert metrics_of(rules) <= served_names()


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: panel["title"])
def test_panel_queries_metrics_and_labels_that_are_served_and_names_alerts_that_exist(
    panel: Any,
) -> None:
    for query in panel["targets"]:
        named = metrics_of(query["expr"])
        assert named <= set(LABELS)
        selected = re.findall(r"(\w+) ?(?:=~|!=|=)", query["expr"])
        grouped = re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query["expr"])))
        known = {"job", "instance", "le"} | {label for name in named for label in LABELS[name]}
        assert "ALERTS" in query["expr"] or {*selected, *grouped} <= known
        assert set(re.findall(r"{{(\w+)}}", query["legendFormat"])) <= {*grouped, "instance"}
    assert set(re.findall(r"Rowcast\w+", panel["description"])) <= {
        alert["alert"] for alert in alerts()
    }


def test_compose_starts_prometheus_and_grafana_with_these_files() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    files = [
        (Path(source), Path(target))
        for name in ("prometheus", "grafana")
        for source, target in (volume.split(":")[:2] for volume in services[name]["volumes"])
        if source.startswith(".")
    ]
    assert all((ROOT / "deploy" / source).is_file() for source, _ in files)
    mounted = {source.name: target for source, target in files}
    (provider,) = yaml.safe_load((ROOT / "deploy/grafana/dashboards.yaml").read_text())["providers"]
    assert mounted["rowcast.json"].parent == Path(provider["options"]["path"])
    scraping = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())
    assert mounted["prometheus.yaml"].parent / scraping["rule_files"][0] == mounted["alerts.yaml"]
    assert [scrape_config["job_name"] for scrape_config in scraping["scrape_configs"]] == [
        "rowcast"
    ]


def test_docs_name_metrics_that_are_served_and_all_of_them() -> None:
    operating = re.findall(
        r"`[^`]*?(rowcast_(?!client)[a-z_]+)", (ROOT / "docs/how-to/runbook.md").read_text()
    )
    assert set(operating) <= served_names()
    reference = re.findall(
        r"^- `(rowcast_\w+)`", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE
    )
    assert set(reference) == served_names()


def test_every_alert_is_tested_and_has_its_row_in_the_docs() -> None:
    names = {alert["alert"] for alert in alerts()}
    rows = re.findall(
        r'^\| <a id="(\w+)"></a>(\w+) \|',
        (ROOT / "docs/how-to/runbook.md").read_text(),
        re.MULTILINE,
    )
    assert set(rows) == {(name.lower(), name) for name in names}
    tests = yaml.safe_load((ROOT / "deploy/alerts_test.yaml").read_text())["tests"]
    assert {case["alertname"] for test in tests for case in test["alert_rule_test"]} == names


def test_alerts_link_to_their_rows_in_the_copy_of_the_docs_that_an_operator_names() -> None:
    guide = (ROOT / "deploy/README.md").read_text()
    (command,) = re.findall(r"^ {4}(sed .*alerts\.yaml) > alerts\.yaml$", guide, re.MULTILINE)
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, check=True, capture_output=True, text=True
    )
    (group,) = yaml.safe_load(done.stdout)["groups"]
    rules = [rule for rule in group["rules"] if "alert" in rule]

    assert {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules} == {
        rule[
            "alert"
        ]: f"https://docs.shop.example/rowcast/how-to/runbook.html#{rule['alert'].lower()}"
        for rule in alerts()
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Prometheus")
def test_alerts_fire_when_they_should_and_only_then() -> None:
    command = ["promtool", "test", "rules", str(ROOT / "deploy/alerts_test.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
