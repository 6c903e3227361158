"""Native libraries end the process on some inputs, which therefore never reach them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.hostile import native_inputs

OUTCOMES = {"served", "InvalidInput"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, set[str]]:
    """The outcomes of all inputs, by name."""
    program = subprocess.run(
        [sys.executable, "-m", native_inputs.__name__], capture_output=True, text=True, check=False
    )
    outcomes = defaultdict[str, set[str]](set)
    last = ""
    for line in program.stdout.splitlines():
        last, outcome = json.loads(line)
        if outcome != "began":
            outcomes[last].add(outcome)
    assert program.returncode == 0, f"{last} ended the process: {program.stderr[-500:]}"
    return outcomes


def test_inputs_that_end_the_process_reach_no_library(outcomes: dict[str, set[str]]) -> None:
    for number in native_inputs.NUMBERS:
        is_searchable = number in native_inputs.SEARCHABLE
        for distance in native_inputs.DISTANCES:
            query_outcome = "InvalidInput"
            vector_outcome = "InvalidIndex"
            if is_searchable:
                query_outcome = vector_outcome = "served"
            assert outcomes.pop(f"query {number} {distance}") == {query_outcome}
            assert outcomes.pop(f"vector {number} {distance}") == {vector_outcome}
    assert outcomes.pop("longest vectors") == {"served"}
    assert outcomes.pop("no query") == {"served"}
    assert {outcome for of_input in outcomes.values() for outcome in of_input} == OUTCOMES
