"""The soak of changes, with a few histories."""

from __future__ import annotations

import pytest

from benchmarks.soak import changes


def test_histories_of_changes_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert changes.run(6) == 0
    assert "2 histories of a store with ids of int64: all equal" in capsys.readouterr().out
