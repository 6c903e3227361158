"""Metrics of several workers as those of one service."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from service.generations.figures import GenerationFigures
from service.generations.switch import Switch
from service.metrics import Metrics
from service.workers import families
from service.workers.families import Family, Totals, collect, merged, read, rendered, told_last, written


def page(*registries: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a scrape of workers with these registries reads."""
    told = {worker: read(written(collect(each))) for worker, each in enumerate(registries)}
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(rendered(merged(told)).decode())
        for sample in family.samples
    }


def test_counters_and_histograms_of_workers_are_summed_by_labels() -> None:
    one, two = Metrics(), Metrics()
    one.answered("http", "rank", "OK", 0.003)
    two.answered("http", "rank", "OK", 0.3)
    two.answered("grpc", "rank", "OK", 0.3)
    found = page(one.registry, two.registry)
    labels = (("call", "rank"), ("code", "OK"))
    assert found["rowcast_requests_total", (*labels, ("door", "http"))] == 2
    assert found["rowcast_requests_total", (*labels, ("door", "grpc"))] == 1
    http = (("call", "rank"), ("door", "http"))
    assert found["rowcast_request_seconds_count", http] == 2
    assert found["rowcast_request_seconds_sum", http] == pytest.approx(0.303)
    assert found["rowcast_request_seconds_bucket", (*http, ("le", "0.005"))] == 1
    assert found["rowcast_request_seconds_bucket", (*http, ("le", "+Inf"))] == 2


def test_gauges_are_summed_least_largest_or_told_by_worker() -> None:
    one, two = Metrics(), Metrics()
    one.ready.set(1)
    two.ready.set(0)
    one.in_flight.set_function(lambda: 2)
    two.in_flight.set_function(lambda: 3)
    two.versions([("m", 4, "available")])
    found = page(one.registry, two.registry)
    assert found["rowcast_ready", ()] == 0
    assert found["rowcast_in_flight", ()] == 5
    assert found["rowcast_version", (("model", "m"), ("state", "available"), ("version", "4"))] == 1
    assert found["process_open_fds", (("worker", "0"),)] > 0
    assert found["process_open_fds", (("worker", "1"),)] > 0


def test_every_gauge_of_ours_has_a_rule() -> None:
    ruled = families.SUMMED | families.LEAST | families.LARGEST
    metrics = Metrics()
    metrics.certificates(dict)
    registry = metrics.registry
    registry.register(GenerationFigures(Switch()))
    gauges = {each.name for each in collect(registry) if not each.added and each.name.startswith("rowcast_")}
    assert gauges == {each for each in ruled if each.startswith("rowcast_")}


def test_gauge_without_a_rule_is_told_by_worker() -> None:
    registry = CollectorRegistry()
    Gauge("rowcast_new", "New", ["a"], registry=registry).labels("b").set(4)
    assert page(registry, registry) == {("rowcast_new", (("a", "b"), ("worker", each))): 4 for each in "01"}


def counted(path: Path, *amounts: float) -> float:
    """What a new process of a worker tells after each of its counts; returns the last."""
    registry = CollectorRegistry()
    counter = Counter("rowcast_calls", "Calls", ["code"], registry=registry)
    totals = Totals(path, registry)
    value = 0.0
    for amount in amounts:
        counter.labels("OK").inc(amount)
        value = value_of(totals.tell())
    return value


def value_of(told: list[Family]) -> float:
    return next(
        value for each in told for name, labels, value in each.samples if (name, labels) == ("rowcast_calls_total", OK)
    )


OK = {"code": "OK"}


def test_totals_of_a_worker_go_on_over_its_processes(tmp_path: Path) -> None:
    path = tmp_path / "0.told"
    assert counted(path, 3, 4) == 7
    assert counted(path, 2) == 9
    assert value_of(told_last(path)) == 9
    assert counted(path, 1, 0) == 10


def test_totals_that_nobody_was_told_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "0.told"
    assert told_last(path) == []
    registry = CollectorRegistry()
    counter = Counter("rowcast_calls", "Calls", registry=registry)
    totals = Totals(path, registry)
    counter.inc(5)
    totals.tell()
    counter.inc(5)
    (kept,) = (each for each in told_last(path))
    assert kept.samples[0] == ("rowcast_calls_total", {}, 5.0)


def test_gauges_are_not_kept_for_the_next_process(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    Gauge("rowcast_in_flight", "Now", registry=registry).set(3)
    Totals(tmp_path / "told", registry).tell()
    assert told_last(tmp_path / "told") == []


def test_counters_that_cannot_be_kept_are_told_all_the_same_and_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    counter = Counter("rowcast_calls", "Calls", ("code",), registry=registry)
    totals = Totals(tmp_path / "gone" / "told", registry)
    for count in (1.0, 2.0):
        counter.labels("OK").inc()
        assert value_of(totals.tell()) == count
    assert [record.message for record in caplog.records] == ["counters_unwritable"]
