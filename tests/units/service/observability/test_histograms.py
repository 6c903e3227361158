"""Histograms that count plain integers, compared with those of prometheus_client."""

from __future__ import annotations

import math
import random

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from service.observability.histograms import Histogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)
LABELS = ("call", "model")


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Returns the value of each sample by name and labels, as it is rendered."""
    text = prometheus.generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_histogram_renders_what_that_of_prometheus_client_renders() -> None:
    ours = CollectorRegistry()
    theirs = CollectorRegistry()
    histogram = Histogram("seconds", "Time", LABELS, BOUNDS, ours)
    oracle = prometheus.Histogram("seconds", "Time", LABELS, registry=theirs, buckets=BOUNDS)
    numbers = random.Random(5)
    values = [*BOUNDS, 0.0, 2.0, math.nextafter(0.1, 0), math.nextafter(0.1, 1)]
    values += [10 ** numbers.uniform(-4, 1) for _ in range(100)]
    for number, value in enumerate(values):
        labels = ("rank", "a") if number % 3 else ("retrieve", "")
        histogram.observe(value, labels)
        oracle.labels(*labels).observe(value)
        if number == 50:
            histogram.flush()
    histogram.flush()
    rendered = samples(ours)
    expected = samples(theirs)
    assert rendered.keys() == expected.keys()
    for key, value in expected.items():
        assert math.isclose(rendered[key], value), key
