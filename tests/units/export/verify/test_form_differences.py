"""Outputs of a form for hostile numbers beside the SavedModel's: which differ, and which are
tolerated with a note.
"""

from __future__ import annotations

import numpy as np
import pytest

from export.verify.form_differences import ComparedOutputs, Tolerated
from export.verify.hostile_examples import HostileExamples

NAN = float("nan")
LARGE = 2.0**64


@pytest.mark.parametrize(
    ("number", "expected", "result", "rounding", "differs", "note"),
    [
        (3.0, 1.0, 1.0 + 1.9e-5, 0.0, False, ""),
        (3.0, 1.0, 1.0 + 2.1e-5, 0.0, True, ""),
        (3.0, 1.0, 1.0 + 2.1e-5, 1e-6, False, ""),
        (3.0, 1.0, 1.1, 1e-6, True, ""),
        (3.0, 1.0, NAN, 0.0, True, "NaN or an infinity of 3 in input 'x', where"),
        (3.0, NAN, 1.0, 0.0, False, "a number for 3 in input 'x', of which"),
        (3.0, NAN, NAN, 0.0, False, ""),
        (LARGE, 1.0, 2.0, 0.0, False, "another number than the trained model for 1.8"),
        (LARGE, 1.0, NAN, 0.0, False, "NaN or an infinity of 1.8"),
        (LARGE, NAN, 1.0, 0.0, False, ""),
    ],
)
def test_output_for_a_hostile_number_differs_or_is_noted(
    number: float, expected: float, result: float, rounding: float, differs: bool, note: str
) -> None:
    numbers = np.array([[number]])
    compared = ComparedOutputs(
        HostileExamples({"x": numbers}, {"x": numbers}),
        {"score": np.array([[expected]])},
        {"score": np.array([[result]])},
    )
    tolerated = Tolerated()
    spread = {"score": np.array([[rounding]])}
    differences = compared.differences({"score": np.zeros(1)}, None, spread)
    assert bool(tolerated.add(compared, differences).any()) == differs
    notes = tolerated.notes()
    assert bool(notes) == bool(note), notes
    assert all(note in said for said in notes)


def test_note_names_the_smallest_number_of_all_batches() -> None:
    tolerated = Tolerated()
    for values in ([7.0, 9.0], [5.0, 8.0], [6.0, 6.5]):
        numbers = np.array(values)[:, np.newaxis]
        examples = HostileExamples({"x": numbers}, {"x": numbers})
        compared = ComparedOutputs(
            examples, {"score": np.ones((2, 1))}, {"score": np.full((2, 1), np.nan)}
        )
        tolerated.add(compared, np.zeros(2))
    (note,) = tolerated.notes()
    assert "of 5 in input 'x'" in note
