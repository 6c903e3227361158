"""The part of `make soak` that is no soak of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.__main__ import lose_callers

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_requests_of_callers_that_hang_up_do_not_stay_in_flight(
    small_towers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lose_callers(20, small_towers) == []
    assert "40 callers hung up: 0 requests in flight" in capsys.readouterr().out
