"""The text of `server-timing`."""

from __future__ import annotations

from service.wire.timings import timing_of


def test_timing_of_phases_is_milliseconds_in_their_order() -> None:
    phases = {"queue": 0.000123, "lookup": 0.0450006, "compute": 0.0}
    assert timing_of(phases) == "queue;dur=0.123, lookup;dur=45.001, compute;dur=0.000"


def test_timing_of_no_phase_is_empty() -> None:
    assert timing_of({}) == ""
