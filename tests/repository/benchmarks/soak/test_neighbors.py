"""Honest clients beside hostile ones, a round of each."""

from __future__ import annotations

import pytest

from benchmarks.soak.neighbors import HOSTILE_CLIENTS
from tests.repository.benchmarks.conftest import printed_by

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_responses_beside_every_hostile_client_are_those_alone() -> None:
    *phases, end = printed_by("benchmarks.soak.neighbors", "--seconds", "0.5").splitlines()
    names = [client.__name__ for client in HOSTILE_CLIENTS]
    assert [line[:26].strip() for line in phases] == ["alone", *names, "alone again"]
    assert end == "soak: passed"
    for line in phases[1:-1]:
        assert "hostile: {}" not in line
