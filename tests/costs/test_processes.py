"""CPU seconds of processes that come and go."""

from __future__ import annotations

from tests.costs.processes import Stopwatch


def test_seconds_of_a_process_that_nobody_waited_for_stay_counted() -> None:
    message = iter([10.0, 15.0, 3.0, 4.0, 4.0])
    stopwatch = Stopwatch(lambda: next(message))
    assert [stopwatch.seconds() for _ in range(4)] == [15.0, 15.0, 16.0, 16.0]
