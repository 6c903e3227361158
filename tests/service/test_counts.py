"""Counters, against prometheus_client's own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest

from service.counts import Counts
from service.workers import families

SEEN = st.lists(st.tuples(st.sampled_from(["a", "b", 'c"\n']), st.sampled_from([0, 1, 7, 1 << 40])))


@settings(max_examples=50, deadline=None)
@given(SEEN)
def test_counts_are_told_as_the_librarys_own(seen: list[tuple[str, int]]) -> None:
    registry, own = CollectorRegistry(), CollectorRegistry()
    theirs = Counter("seen", "Seen", ["call"], registry=registry)
    ours = Counts("seen", "Seen", ("call",))
    own.register(ours)
    for label, count in seen:
        theirs.labels(label).inc(count)
        ours.add((label,), count)

    def told(page: bytes) -> list[str]:
        return [line for line in page.decode().splitlines() if "_created" not in line]  # of which ours tell nothing

    assert told(generate_latest(own)) == told(generate_latest(registry))
    (one,), (other,) = families.collect(own), families.collect(registry)
    assert (one.name, one.type, one.documentation) == (other.name, other.type, other.documentation)
