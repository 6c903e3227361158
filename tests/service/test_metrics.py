"""Metrics of one service, apart from those of another in the same process."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from bundle import native
from service.metrics import Metrics
from tests.service.metric_names import served

ROOT = Path(__file__).parents[2]


def test_two_services_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.answered("http", "rank", "OK", 0.01)
    assert one.registry.get_sample_value("rowcast_requests_total", {"door": "http", "call": "rank", "code": "OK"}) == 1
    assert b'rowcast_requests_total{call="rank",code="OK"' in one.render()
    assert b'rowcast_requests_total{call="rank",code="OK"' not in other.render()


def test_build_is_told_with_the_product_and_the_format_version() -> None:
    page = Metrics().render().decode()
    rows = "numpy" if native.MISSING else "compiled"
    assert f'rowcast_build_info{{format="3",product="{version("rowcast")}",rows="{rows}"}} 1.0' in page


def test_versions_that_are_gone_are_no_longer_told() -> None:
    metrics = Metrics()
    metrics.versions([("m", 1, "available"), ("m", 2, "loading")])
    metrics.versions([("m", 2, "available")])
    page = metrics.render().decode()
    assert 'rowcast_version{model="m",state="available",version="2"} 1.0' in page
    assert 'version="1"' not in page


def test_rare_failures_are_told_before_there_is_one_so_that_the_first_is_an_increase() -> None:
    metrics = Metrics()
    metrics.loaded("m", "available", 0.1)
    bug = {"door": "grpc", "call": "rank", "code": "INTERNAL"}
    assert metrics.registry.get_sample_value("rowcast_requests_total", bug) == 0
    assert metrics.registry.get_sample_value("rowcast_loads_total", {"model": "m", "outcome": "damaged"}) == 0


def test_durations_are_told_as_prometheus_clients_own_histogram_tells_them() -> None:
    metrics, registry = Metrics(), CollectorRegistry()
    buckets = [float(line.split('le="')[1].split('"')[0]) for line in _told(metrics)]
    own = Histogram(
        "rowcast_phase_seconds", "Time of one phase of a call", ("call", "phase"), registry=registry, buckets=buckets
    )
    own.labels("rank", "search").observe(0.0)
    for seconds, calls in ((0.00002, 1), (0.00021, 3), (0.5, 1), (99.0, 2)):
        metrics.phase("rank", "search", seconds, calls)
        for _ in range(calls):
            own.labels("rank", "search").observe(seconds)
    expected = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    assert [line for line in metrics.render().decode().splitlines() if "rowcast_phase" in line] == expected


def test_every_metric_is_told_in_the_docs_and_no_other() -> None:
    told = set(re.findall(r"\browcast_(?!client|dot)[a-z_]+", (ROOT / "docs" / "operating.md").read_text()))
    assert told == served()


def _told(metrics: Metrics) -> list[str]:
    metrics.phase("rank", "search", 0.0)
    return [line for line in metrics.render().decode().splitlines() if line.startswith("rowcast_phase_seconds_bucket")]
