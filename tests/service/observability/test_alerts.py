"""Alerts and documentation name metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from service.observability.metrics import Metrics

ROOT = Path(__file__).parents[3]
yaml: Any = import_module("yaml")


def served_names() -> set[str]:
    """Every metric on the page of a service that has answered nothing yet."""
    return set(re.findall(r"^# TYPE (rowcast_\w+)", Metrics().render().decode(), re.MULTILINE))


def alerts() -> list[Any]:
    (group,) = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"]
    return [rule for rule in group["rules"] if "alert" in rule]


def test_alerts_and_their_tests_name_metrics_that_are_served() -> None:
    named = re.findall(
        r"\browcast_[a-z_]+\b",
        (ROOT / "deploy/alerts.yaml").read_text() + (ROOT / "deploy/alerts_test.yaml").read_text(),
    )
    assert set(named) <= served_names()


def test_docs_name_metrics_that_are_served_and_all_of_them() -> None:
    operating = re.findall(r"`[^`]*?(rowcast_(?!client)[a-z_]+)", (ROOT / "docs/how-to/runbook.md").read_text())
    assert set(operating) <= served_names()
    reference = re.findall(r"^\| `(rowcast_\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE)
    assert set(reference) == served_names()


def test_every_alert_is_tested_and_has_its_row_in_the_docs() -> None:
    names = {alert["alert"] for alert in alerts()}
    rows = re.findall(r'^\| <a id="(\w+)"></a>(\w+) \|', (ROOT / "docs/how-to/runbook.md").read_text(), re.MULTILINE)
    assert set(rows) == {(name.lower(), name) for name in names}
    for alert in alerts():
        assert alert["annotations"]["runbook_url"] == f"docs/how-to/runbook.md#{alert['alert'].lower()}"
    tests = yaml.safe_load((ROOT / "deploy/alerts_test.yaml").read_text())["tests"]
    assert {case["alertname"] for test in tests for case in test["alert_rule_test"]} == names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Prometheus")
def test_alerts_fire_when_they_should_and_only_then() -> None:
    command = ["promtool", "test", "rules", str(ROOT / "deploy/alerts_test.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
