"""Which examples the reference model is run on, and which of its results can be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from export.errors import NotConvertible, UsageError, VerificationFailed
from export.front_end.interface import Results
from export.verify.reference_inputs import Reference
from export.verify.reference_model import finite_results, reference_results
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.verify.small_reference import AGE, USER, FixedResults, reference_of

EXAMPLES = {
    "user": Column(np.array([3, 1, 0, 2])),
    "age": Column(np.array([-0.5, 1.5, -2.5, 0], np.float32)),
}
REAL: dict[str, Any] = {"verify": {"examples": "examples.jsonl"}}


def scores(*values: float) -> Results:
    """Returns results of the two towers, the second of which gives these."""
    return {
        "first": {"vector": np.zeros((len(values), 2), np.float32)},
        "second": {"score": np.array(values, np.float32)},
    }


def model_and_reference(
    directory: Path, *results: Results, **more_sections: Any
) -> tuple[FixedResults, Reference]:
    """Returns a model that gives these results, call after call, and its reference."""
    original = FixedResults(*results, expected=more_sections.pop("expected", None))
    specs = (USER, AGE)
    return original, reference_of(directory, EXAMPLES, 4, specs, original, **more_sections)


def ages(original: FixedResults, call: int) -> list[float]:
    """Returns the numbers that the model was called with."""
    ages: list[float] = original.called[call][1].columns["age"].values.tolist()
    return ages


def test_made_numbers_are_replaced_by_those_that_the_model_expects(tmp_path: Path) -> None:
    expected = {"age": Column(np.array([40, 50, 60, 70], np.float32))}
    original, reference = model_and_reference(
        tmp_path, scores(1, 2, 3, 4), scores(5, 6, 7, 8), expected=expected
    )
    checked, results = finite_results(reference)
    assert [expect_numbers for _, _, expect_numbers in original.called] == [True, False]
    assert ages(original, 0) == [-0.5, 1.5, -2.5, 0]
    assert ages(original, 1) == [40, 50, 60, 70]
    assert checked.examples.columns["age"].values.tolist() == [40, 50, 60, 70]
    assert checked.examples.columns["user"] is EXAMPLES["user"]
    assert results["second"]["score"].tolist() == [5, 6, 7, 8]


def test_examples_of_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    expected = {"age": Column(np.array([40, 50, 60, 70], np.float32))}
    original, reference = model_and_reference(
        tmp_path, scores(1, 2, 3, 4), expected=expected, **REAL
    )
    checked, results = finite_results(reference)
    assert [expect_numbers for _, _, expect_numbers in original.called] == [False]
    assert checked is reference
    assert results["second"]["score"].tolist() == [1, 2, 3, 4]


def test_made_numbers_lose_their_signs_where_the_model_gives_no_numbers(tmp_path: Path) -> None:
    original, reference = model_and_reference(tmp_path, scores(1, np.nan, 3, 4), scores(5, 6, 7, 8))
    checked, results = finite_results(reference)
    assert ages(original, 1) == [0.5, 1.5, 2.5, 0]
    assert checked.examples.columns["age"].values.tolist() == [0.5, 1.5, 2.5, 0]
    assert results["second"]["score"].tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("sections", "calls", "expected_text"),
    [
        (
            {},
            2,
            "synthetic examples do not fit the model: write some that clients would send, and name "
            "their file as verify.examples",
        ),
        (REAL, 1, "verify.examples do not fit the model: correct them"),
    ],
)
def test_examples_that_give_no_numbers_are_rejected(
    tmp_path: Path, sections: dict[str, Any], calls: int, expected_text: str
) -> None:
    infinite = scores(1, 2, -np.inf, np.nan)
    original, reference = model_and_reference(tmp_path, infinite, infinite, **sections)
    with pytest.raises(VerificationFailed) as failure:
        finite_results(reference)
    assert str(failure.value) == (
        "tower 'second', output 'score': example 2 is -inf of the original model itself; the "
        f"{expected_text}"
    )
    assert len(original.called) == calls


def recorded(directory: Path, results: Results, name: str, values: Any) -> None:
    """Compares results with what training recorded of an output."""
    _, reference = model_and_reference(directory, results, **REAL)
    recorded_values = {name: np.array(values, np.float64)}
    finite_results(
        replace(reference, examples=replace(reference.examples, recorded=recorded_values))
    )


@pytest.mark.parametrize("name", ["score", "second.score"])
@pytest.mark.parametrize(
    ("score", "within"),
    [(-0.8982, True), (-0.8978, False), (-1.1018, True), (-1.1022, False), (3, False)],
)
def test_results_may_differ_from_recorded_ones_by_a_share_of_how_these_vary(
    tmp_path: Path, name: str, score: float, within: bool
) -> None:
    """They vary by 1 and reach 1: the root mean square may be 0.05 + 0.001, or 0.102 of one."""
    values = [-1, 1, -1, 1]
    results = scores(-1, 1, score, 1)
    if within:
        recorded(tmp_path, results, name, values)
        return
    with pytest.raises(VerificationFailed, match=r"recorded values vary by 1\), most in example 2"):
        recorded(tmp_path, results, name, values)


def test_recorded_vectors_are_compared_value_by_value(tmp_path: Path) -> None:
    vectors = np.array([[1, -1], [1, -1], [-1, 1], [-1, 1]], np.float32)
    results = scores(1, 2, 3, 4) | {"first": {"vector": vectors}}
    recorded(tmp_path, results, "vector", vectors)
    recorded(tmp_path / "flat", results, "others", [9, 9, 9, 9])
    wrong = vectors.copy()
    wrong[1] = [-1, 1]
    with pytest.raises(
        VerificationFailed,
        match=r"'first', output 'vector': the model with .* by 1 .*, most in example 1: either ids",
    ):
        recorded(tmp_path / "wrong", results, "first.vector", wrong)


def test_recorded_values_of_another_shape_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"verify\.expected\.score: \[4, 2\] values were recorded, tower 'second' gives \[4\]",
    ):
        recorded(tmp_path, scores(1, 2, 3, 4), "score", np.ones((4, 2)))


def test_reference_results_of_one_tower_need_its_inputs_alone(tmp_path: Path) -> None:
    original, reference = model_and_reference(
        tmp_path, {"first": {"vector": np.ones((4, 2), np.float32)}}
    )
    results = reference_results(reference, "first")
    model, inputs, expect_numbers = original.called[0]
    assert (list(model.towers), list(inputs.columns)) == (["first"], ["user"])
    assert not expect_numbers
    assert results["first"]["vector"].tolist() == [[1, 1]] * 4


def test_model_that_gives_another_number_of_results_than_examples_is_rejected(
    tmp_path: Path,
) -> None:
    _, reference = model_and_reference(tmp_path, scores(1, 2, 3))
    with pytest.raises(
        NotConvertible,
        match="tower 'first', output 'vector': the model gives 3 rows for 4 examples; give what",
    ):
        reference_results(reference)


def test_rows_of_a_dumped_table_are_read_by_key(tmp_path: Path) -> None:
    keys = np.array([70, 30, 90, 10, 20, 40, 50, 60, 80, 5], np.int64)
    sok_dump(tmp_path / "dump", "users", keys, np.zeros((10, 2), np.float32))
    original = FixedResults({"second": {"score": np.zeros(2, np.float32)}})
    reference = reference_of(
        tmp_path,
        {"user": Column(np.array([90, 30])), "age": Column(np.zeros(2, np.float32))},
        2,
        (USER, AGE),
        original,
        tables={"users": {"dump": "dump"}},
        features={"user": {"ids": {"kind": "keyed"}}},
    )
    reference_results(reference, "second")
    read = original.called[0][1].read_rows
    # A row holds its own number, from 1 on.
    assert read("users", np.array([5, 7, 70, 90])).tolist() == [[10, 10], [0, 0], [1, 1], [3, 3]]
    assert read("movies", np.array([0, 7])).tolist() == [[1, 1], [8, 8]]
