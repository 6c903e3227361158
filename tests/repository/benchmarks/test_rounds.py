"""What is judged of blocks of load: ratios of contestants, and overloads."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.load import Responses
from benchmarks.overload import Overload, Probes
from benchmarks.rounds import Rounds, block_of


def responses(statuses: list[float], latency_s: float = 0.1) -> Responses:
    count = len(statuses)
    return Responses(np.zeros(count), np.full(count, latency_s), np.array(statuses), 1.0, 0.01)


def test_rounds_compare_round_by_round() -> None:
    rounds = Rounds(1.0)
    for mine, theirs in ((10, 5), (30, 10), (20, 20)):
        for name, count in (("mine", mine), ("theirs", theirs)):
            rounds.add(name, 8, block_of(responses([200.0] * count), cpu_s=1.0))
    assert rounds.block("mine", 8).per_s == 20
    assert rounds.ratio("mine", "theirs", 8) == 2.0


def test_overload_problems_name_what_must_not_happen() -> None:
    probes = Probes([0.01])
    assert Overload(2, 20, responses([200, 429, 429, 504]), 429, probes, 2, 0.1).problems() == []
    assert Overload(2, 20, responses([200, 429]), 429, probes, math.nan, 0.1).problems() == []
    # A call whose deadline passed in gRPC may have been computed; it was not rejected.
    assert Overload(2, 20, responses([200, 8, 4]), 8, probes, 2, 0.1).problems() == []
    assert Overload(2, 20, responses([200, 8, 1]), 8, probes, 1, 4.2).problems() == []
    filled = Overload(2, 4, responses([200, 8, 1]), 8, probes, 1, 4.2).problems()
    assert filled == [
        "requests ended with [1], not with a rejection",
        "recovered after more than 2 s",
    ]
    wrong = Overload(2, 20, responses([429, -1]), 429, Probes([0.01], failed=1), 2, 9.0).problems()
    assert len(wrong) == 5
