"""Cores are dealt to those who serve and to the load."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bench import cores


@pytest.mark.parametrize(
    ("given", "serving", "loading"),
    [([0], {0}, {0}), ([3, 1], {1, 3}, {1, 3}), ([0, 1, 2], {0, 1, 2}, {0, 1, 2}), ([7, 0, 5, 4], {0, 4}, {5, 7})],
)
def test_load_has_cores_of_its_own_where_there_are_enough(
    given: list[int], serving: set[int], loading: set[int]
) -> None:
    assert cores.dealt(given) == (serving, loading)


def test_what_makes_the_load_runs_beside_what_serves() -> None:
    program = (
        "import os; from tests.bench import cores; own = os.sched_getaffinity(0); cores.serve_on_few()\n"
        "served = os.sched_getaffinity(0)\n"
        "with cores.loading(): load = os.sched_getaffinity(0)\n"
        "assert os.sched_getaffinity(0) == served and (served, load) == cores.dealt([*own]), (served, load)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_load_of_who_dealt_nothing_keeps_all_cores() -> None:
    own = os.sched_getaffinity(0)
    with cores.loading():
        assert os.sched_getaffinity(0) == own
