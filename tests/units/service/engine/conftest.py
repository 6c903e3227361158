"""The clock of the steps of recommendations."""

from __future__ import annotations

import pytest

from service.engine.retrieval import rank
from tests.units.service.engine.served import StepClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    clock = StepClock()
    monkeypatch.setattr(rank, "time", clock)
    return clock
