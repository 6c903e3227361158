"""What the reference model is called with: ids as rows or keys, weights, defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.format import manifest
from export.errors import UsageError, VerificationFailed
from export.front_end.calls import Call
from export.verify.reference_inputs import Reference, default_column
from tests.id_graphs import cast_ids, computed_ids
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.traced_features import dense, embedded
from tests.units.export.verify.small_reference import AGE, ROWS, USER, job_of, reference_of

BAGS = Column(
    np.array([0, 99, 2, 4]), np.array([0, 3, 3, 4]), np.array([0.5, 0.25, 2, 1], np.float32)
)
EXAMPLES = {
    "user": Column(np.array([3, 12, 0])),
    "seen": BAGS,
    "age": Column(np.array([0.5, 1.5, 2.5], np.float32)),
}


def given(reference: Reference, name: str) -> tuple[list[Any], list[int] | None, list[Any] | None]:
    """Returns one input as the model takes it."""
    values, offsets, weights = reference.inputs.columns[name]
    return (
        values.tolist(),
        None if offsets is None else offsets.tolist(),
        None if weights is None else weights.tolist(),
    )


def test_ids_become_rows_and_weights_inputs_of_their_own(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, EXAMPLES, 3)
    assert reference.inputs.n == 3
    assert list(reference.inputs.columns) == ["age", "seen", "seen_weights", "user"]
    assert given(reference, "user") == ([3, 12, 0], None, None)
    # A bag leaves unknown ids out, and their weights.
    assert given(reference, "seen") == ([0, 2, 4], [0, 2, 2, 3], [0.5, 2, 1])
    assert given(reference, "seen_weights") == ([0.5, 2, 1], [0, 2, 2, 3], [0.5, 2, 1])
    assert given(reference, "age") == ([0.5, 1.5, 2.5], None, None)
    assert reference.inputs.padding == {}
    assert reference.inputs.keyed == frozenset()
    assert reference.inputs.read_rows is reference.read_rows


def test_weights_that_were_not_sent_are_ones(tmp_path: Path) -> None:
    bags = Column(np.array([1, 99, 2]), np.array([0, 2, 3, 3]))
    reference = reference_of(tmp_path, EXAMPLES | {"seen": bags}, 3)
    assert given(reference, "seen_weights") == ([1, 1], [0, 1, 2, 2], [1, 1])

    left_out = {"user": Column(np.array([3, 4]))}
    default = {"seen": {"default": {"ids": [5, 6], "weights": [0.5, 2.0]}}, "age": {"default": 7.5}}
    reference = reference_of(tmp_path / "defaults", left_out, 2, features=default)
    assert given(reference, "seen") == ([5, 6, 5, 6], None, [0.5, 2, 0.5, 2])
    assert given(reference, "age") == ([7.5, 7.5], None, None)


@pytest.mark.parametrize(
    ("spec", "ids", "rows"),
    [
        # The model itself knows what becomes of them; the recipe states it.
        (embedded("user", "users", unknown=manifest.Unknown(rule="row", row=4)), [3, 12], [3, 12]),
        (USER, [3, 12, -1], [3, 5, 5]),
    ],
)
def test_unknown_ids_that_read_a_row_are_that_row(
    tmp_path: Path, spec: Any, ids: list[int], rows: list[int]
) -> None:
    stated = {} if spec.has_unknown else {"user": {"unknown": {"rule": "row", "row": 5}}}
    examples = {"user": Column(np.array(ids))}
    reference = reference_of(tmp_path, examples, len(ids), (spec,), features=stated)
    assert given(reference, "user")[0] == rows


def test_unknown_ids_of_a_bag_that_read_a_row_stay_in_it(tmp_path: Path) -> None:
    stated = {"seen": {"unknown": {"rule": "row", "row": 9}}}
    reference = reference_of(tmp_path, EXAMPLES, 3, features=stated)
    assert given(reference, "seen") == ([0, 9, 2, 4], [0, 3, 3, 4], [0.5, 0.25, 2, 1])


NAMES: dict[str, Any] = {
    "vocabularies": {"names": {"file": "names.txt", "dtype": "int64"}},
    "features": {"user": {"ids": {"kind": "vocabulary", "vocabulary": "names", "first_row": 1}}},
}


def test_ids_become_rows_by_the_rule_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("70\n50\n90\n")
    examples = EXAMPLES | {"user": Column(np.array([90, 8, 70]))}
    reference = reference_of(tmp_path, examples, 3, **NAMES)
    assert given(reference, "user")[0] == [3, ROWS, 1]  # no row


def test_ids_of_the_models_own_rule_are_given_as_they_were_sent(tmp_path: Path) -> None:
    spec = embedded("user", "users", ids=computed_ids(("AddV2", 1)))
    reference = reference_of(tmp_path, {"user": Column(np.array([3, 12, 0]))}, 3, (spec,))
    assert given(reference, "user") == ([3, 12, 0], None, None)


def test_numbers_that_the_model_casts_to_rows_are_given_as_they_were_sent(tmp_path: Path) -> None:
    hours = np.array([3.5, 2.25], np.float32)
    (tmp_path / "names.txt").write_text("70\n50\n90\n")
    rounded = cast_ids("float32", "int64", "Floor")
    user = replace(embedded("user", "users", ids_dtype="float32", ids=rounded), has_rule=False)
    reference = reference_of(tmp_path, {"user": Column(hours)}, 2, (user,))
    assert given(reference, "user") == ([3.5, 2.25], None, None)

    # By a rule of the recipe the model takes rows.
    examples = {"user": Column(np.array([90, 50]))}
    reference = reference_of(tmp_path, examples, 2, (user,), **NAMES)
    assert given(reference, "user")[0] == [3, 2]


def test_ids_that_are_numbers_too_are_rows_only_by_a_rule_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("7\n5\n9\n")
    readers = (USER, dense("number", "int64", (), inputs=("user",)))
    examples = {"user": Column(np.array([9, 5]))}
    assert given(reference_of(tmp_path, examples, 2, readers), "user") == ([9, 5], None, None)
    stated = reference_of(tmp_path, examples, 2, readers, **NAMES)
    assert given(stated, "user")[0] == [3, 2]


def test_inputs_that_no_feature_reads_are_zeros_or_nothing(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, EXAMPLES, 3)
    towers = dict(reference.model.towers)
    towers["second"] = replace(towers["second"], call=Call("", ("user", "unread", "unread_ids")))
    reference = replace(reference, model=replace(reference.model, towers=towers))
    assert given(reference, "unread") == ([0.0] * 18, None, None)
    assert given(reference, "unread_ids") == ([], None, None)


def test_padding_of_an_input_is_that_of_its_feature(tmp_path: Path) -> None:
    padded = embedded("seen", "movies", kind="bag", combiner="sum", padding=-1, ids_max=3)
    examples = {name: EXAMPLES[name] for name in ("user", "age")}
    examples["seen"] = Column(np.array([1, 2, 3]), np.array([0, 3, 3, 3]))
    reference = reference_of(tmp_path, examples, 3, (USER, padded, AGE))
    assert reference.inputs.padding == {"seen": -1}


def test_ids_that_the_bundle_finds_elsewhere_than_the_rule_are_named(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("70\n50\n90\n")
    examples = {"user": Column(np.array([90, 50, 70]))}
    reference = reference_of(tmp_path, examples, 3, (USER,), **NAMES)
    (tmp_path / "names.txt").write_text("50\n70\n90\n")
    with pytest.raises(VerificationFailed) as failure:
        _ = reference.inputs
    assert str(failure.value) == (
        "feature 'user': id 50 is row 2 in the bundle and row 1 by the recipe's rule (vocabulary) "
        "in TensorFlow; 2 of 3 differ"
    )


def test_ids_outside_the_table_reach_the_model_as_they_were_sent(
    tmp_path: Path,
) -> None:
    examples = {"user": Column(np.array([-1, ROWS, ROWS - 1, 0]))}
    reference = reference_of(tmp_path, examples, 4, (USER,))
    assert given(reference, "user")[0] == [-1, ROWS, ROWS - 1, 0]


KEYS = np.array([70, 30, 90, 10, 20, 40, 50, 60, 80, 1 << 31], np.int64)
KEYED: dict[str, Any] = {
    "tables": {"users": {"dump": "dump"}},
    "features": {"user": {"ids": {"kind": "keyed"}}},
}


def dumped(directory: Path, ids: list[int], dtype: str = "int64") -> Reference:
    sok_dump(directory / "dump", "users", KEYS, np.zeros((ROWS, 2), np.float32))
    inputs = job_of().model_dump()["inputs"] | {"user": {"dtype": dtype}}
    examples = {"user": Column(np.array(ids))}
    return reference_of(directory, examples, len(ids), (USER,), inputs=inputs, **KEYED)


def test_ids_of_a_dumped_table_are_its_keys(tmp_path: Path) -> None:
    reference = dumped(tmp_path, [90, 8, 70, 90, 1 << 31])
    assert given(reference, "user")[0] == [90, -1, 70, 90, 1 << 31]
    assert reference.inputs.keyed == {"users"}
    assert dumped(tmp_path / "known", [90, 70]).inputs.columns["user"].values.tolist() == [90, 70]


def test_keys_that_do_not_fit_the_dtype_of_their_input_are_rejected(tmp_path: Path) -> None:
    column = dumped(tmp_path / "small", [90, 8], dtype="int32").inputs.columns["user"]
    assert column.values.tolist() == [90, -1]
    with pytest.raises(UsageError, match=r"inputs\.user\.dtype is int32, which key 2147483648 of"):
        _ = dumped(tmp_path, [90, 1 << 31], dtype="int32").inputs


def test_keys_that_the_bundle_finds_elsewhere_than_the_dump_are_named(tmp_path: Path) -> None:
    reference = dumped(tmp_path, [90, 30])
    moved = KEYS[[1, 0, *range(2, ROWS)]]
    sok_dump(tmp_path / "dump", "users", moved, np.zeros((ROWS, 2), np.float32))
    with pytest.raises(VerificationFailed) as failure:
        _ = reference.inputs
    assert str(failure.value) == (
        "feature 'user': id 30 is row 1 in the bundle and row 0 of the dump; 1 of 2 differ"
    )


@pytest.mark.parametrize(
    ("default", "values", "weights"),
    [
        (3, [3, 3], None),
        ([1, 2], [1, 2, 1, 2], None),
        ("x", ["x", "x"], None),
        ([], [], None),
        ({"ids": [4], "weights": [0.5]}, [4, 4], [0.5, 0.5]),
    ],
)
def test_default_column_holds_the_default_of_the_recipe_for_each_example(
    default: Any, values: list[Any], weights: list[float] | None
) -> None:
    column = default_column("user", job_of(features={"user": {"default": default}}), 2)
    assert column.values.tolist() == values
    assert column.offsets is None
    assert (None if column.weights is None else column.weights.tolist()) == weights
    if values and isinstance(values[0], str):
        assert column.values.dtype == object


def test_converted_tables_are_those_that_a_tower_reads(tmp_path: Path) -> None:
    reference = replace(
        reference_of(tmp_path, EXAMPLES, 3), converted=frozenset({"movies", "users", "others"})
    )
    assert reference.converted_tables("first") == ["users"]
    assert reference.converted_tables("second") == ["movies", "users"]
    assert replace(reference, converted=frozenset()).converted_tables("second") == []
