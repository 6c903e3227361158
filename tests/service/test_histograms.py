"""Histograms, against prometheus_client's own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from service.histograms import Histograms

BOUNDS = (0.5, 1, 2, 4)
VALUES = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0, 0.25, 0.5, 0.75, 1, 3, 4, 5, 1e9])))


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_histograms_are_told_as_the_librarys_own(values: list[tuple[str, float]]) -> None:
    registry, own = CollectorRegistry(), CollectorRegistry()
    theirs = Histogram("seen", "Seen", ["call"], buckets=BOUNDS, registry=registry)
    ours = Histograms("seen", "Seen", ("call",), BOUNDS)
    own.register(ours)
    for label, value in values:
        theirs.labels(label).observe(value)
        ours.observe((label,), value)

    def told(page: bytes) -> list[str]:
        return sorted(line for line in page.decode().splitlines() if "_created" not in line)

    assert told(generate_latest(own)) == told(generate_latest(registry))


def test_value_observed_several_times_counts_as_often() -> None:
    ours = Histograms("seen", "Seen", ("call",), BOUNDS)
    ours.observe(("a",), 3, times=4)
    (family,) = ours.collect()
    values = {(each.name, each.labels.get("le")): each.value for each in family.samples}
    assert values["seen_count", None] == 4
    assert values["seen_sum", None] == 12
    assert (values["seen_bucket", "2.0"], values["seen_bucket", "4.0"]) == (0, 4)
