"""Examples that are made where a recipe names none: what they hold, by the features of a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from export.front_end.outside_ids import OutsideIds
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.verify.examples import without_signs
from export.verify.synthetic_examples import make_examples
from tests.id_graphs import bucket_ids, cast_ids, computed_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import dense, embedded

COUNT = 48
ROWS = 10
TABLES = {"t": TableFacts("t", "t", ROWS, 2)}
KEYS = {"names": np.array(["ann", "bob", "cid", "dot"], object), "numbers": np.array([-7, 5, 9])}


def example_values(
    spec: FeatureSpec | DenseSpec, ids: Any = None, **entry: Any
) -> tuple[Column, dict[str, Any]]:
    """Makes examples of one feature that follows a rule; returns its column, and all columns."""
    model = ModelSpec(tables=TABLES, features={"f": spec}, towers={})
    if isinstance(spec, DenseSpec):
        page: manifest.Feature = manifest.DenseFeature(kind="dense", role="context")
    else:
        rule = {} if ids is None else {"ids": ids}
        page = manifest.EmbeddedFeature(
            kind=spec.entry.kind,
            table="t",
            role="context",
            combiner=spec.entry.combiner,
            length=spec.entry.length,
            **rule,
            **entry,
        )
    columns = make_examples(model, {"f": page}, KEYS, COUNT).columns
    return columns["f"], dict(columns)


def sizes(column: Column) -> list[int]:
    assert column.offsets is not None
    assert column.offsets[-1] == len(column.values)
    lengths: list[int] = np.diff(column.offsets).tolist()
    return lengths


@pytest.mark.parametrize(
    ("dtype", "ids", "known_ids"),
    [
        ("int64", None, set(range(ROWS))),
        ("string", vocabulary_ids("names"), {"ann", "bob", "cid", "dot"}),
        ("int64", vocabulary_ids("numbers", "int64", first_row=7), {-7, 5, 9}),
        # The other keys would be rows behind the table.
        ("int64", vocabulary_ids("numbers", "int64", first_row=8), {-7, 5}),
        ("int64", vocabulary_ids("numbers", "int64", is_complete=True), {-7, 5, 9}),
    ],
)
def test_made_ids_are_all_known_and_all_that_are_known(
    dtype: str, ids: Any, known_ids: set[Any]
) -> None:
    column, _ = example_values(embedded("f", "t", ids_dtype=dtype), ids)
    assert column.offsets is None
    assert set(column.values.tolist()) == known_ids


def test_made_ids_of_a_hash_are_integers_or_their_texts() -> None:
    rule = hash_ids(ROWS)
    integers, _ = example_values(embedded("f", "t"), rule)
    assert integers.values.min() >= 0
    assert 1 << 38 < integers.values.max() < 1 << 40
    small, _ = example_values(embedded("f", "t", ids_dtype="int32"), rule)
    assert 1 << 29 < small.values.max() < 1 << 31
    texts, _ = example_values(embedded("f", "t", ids_dtype="string"), rule)
    assert all(isinstance(text, str) and text.isdigit() for text in texts.values)


def test_made_ids_of_a_remainder_reach_beyond_the_table() -> None:
    rule = computed_ids(("FloorMod", ROWS))
    column, _ = example_values(embedded("f", "t", ids=rule), rule)
    assert column.values.max() > 1 << 32
    plain = computed_ids(("AddV2", 4))
    column, _ = example_values(embedded("f", "t", ids=plain), plain)
    assert {(number + 4) for number in column.values.tolist()} <= set(range(ROWS))


def test_made_numbers_fall_into_every_bucket() -> None:
    boundaries = (-1.0, 0.0, 1.0, 2.0)
    column, _ = example_values(embedded("f", "t", ids_dtype="float32"), bucket_ids(boundaries))
    assert column.values.dtype == np.float32
    assert set(np.searchsorted(boundaries, column.values, side="right")) == {0, 1, 2, 3, 4}


def test_made_bags_hold_up_to_five_ids_some_of_them_twice() -> None:
    bag = embedded("f", "t", kind="bag", encoding="ragged", combiner="mean")
    column, _ = example_values(bag)
    assert sizes(column) == [0, 1, 2, 3, 4, 5] * (COUNT // 6)
    assert column.offsets is not None
    assert column.weights is None
    starts = column.offsets[:-1][np.diff(column.offsets) > 1]
    twice = column.values[starts] == column.values[starts + 1]
    assert twice[::2].all()
    assert not twice[1::2].all()


@pytest.mark.parametrize(("encoding", "zeros"), [("ragged", True), ("dense", False)])
def test_made_weights_are_positive_or_zero_where_a_zero_leaves_the_id_out(
    encoding: Any, zeros: bool
) -> None:
    spec = embedded("f", "t", kind="bag", encoding=encoding, combiner="sum", weights="w", ids_max=4)
    column, columns = example_values(spec, weighted=True)
    assert set(columns) == {"f"}
    assert column.weights is not None
    left_out = [*range(0, column.weights.size, 7)] if zeros else []
    assert np.flatnonzero(column.weights == 0).tolist() == left_out
    present = column.weights[column.weights != 0]
    assert 0.25 <= present.min() < 0.5
    assert 1.5 < present.max() < 2


def test_made_sequences_are_shorter_and_longer_than_their_length() -> None:
    ragged = embedded("f", "t", kind="sequence", encoding="ragged", length=3)
    assert sizes(example_values(ragged)[0]) == [0, 1, 2, 3, 4, 5] * (COUNT // 6)
    fixed = embedded("f", "t", kind="sequence", length=3)
    assert sizes(example_values(fixed)[0]) == [3] * COUNT


def test_made_bags_of_a_dense_input_fill_all_places_unless_there_is_padding() -> None:
    filled = embedded("f", "t", kind="bag", combiner="sum", ids_max=4)
    assert sizes(example_values(filled)[0]) == [4] * COUNT
    padded = embedded("f", "t", kind="bag", combiner="sum", ids_max=2, padding=-1)
    assert sizes(example_values(padded, padding=-1)[0]) == [0, 1, 2] * (COUNT // 3)


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (dense("f", "int64", (2,)), {0, 1}),
        (dense("f", "int32", (2,), below=3), {0, 1, 2}),
    ],
)
def test_made_integers_are_rows_of_the_table_that_they_index_or_zero_and_one(
    spec: DenseSpec, values: set[int]
) -> None:
    column, _ = example_values(spec)
    assert column.values.shape == (2 * COUNT,)
    assert set(column.values.tolist()) == values


def test_made_numbers_are_the_same_in_every_run() -> None:
    column, _ = example_values(dense("f", "float32", (2,)))
    drawn = np.random.default_rng(0).standard_normal(2 * COUNT).astype(np.float32)
    np.testing.assert_array_equal(column.values, drawn)


@pytest.mark.parametrize(
    ("rounding", "rounded"), [(None, np.trunc), ("Floor", np.floor), ("Ceil", np.ceil)]
)
def test_made_numbers_that_are_cast_to_ids_are_between_these(
    rounding: str | None, rounded: Any
) -> None:
    rule = cast_ids("float32", "int64", rounding)
    column, _ = example_values(embedded("f", "t", ids=rule, ids_dtype="float32"), rule)
    assert column.values.dtype == np.float32
    assert set(rounded(column.values).tolist()) == set(range(ROWS))
    assert (column.values != rounded(column.values)).any()


def test_made_integers_fall_into_every_bucket() -> None:
    column, _ = example_values(embedded("f", "t", ids_dtype="int32"), bucket_ids((-1.0, 3.0)))
    assert column.values.dtype == np.int64
    assert set(np.digitize(column.values, (-1, 3))) == {0, 1, 2}


@pytest.mark.parametrize(
    ("computed", "known_ids"),
    [
        (computed_ids(("Mul", 3)), {0, 1, 2, 3}),
        (computed_ids(("AddV2", 4)), set(range(-4, 6))),
        (computed_ids(("AddV2", -500)), set(range(500, 510))),
        (computed_ids(("AddV2", 40_000)), set(range(-40_000, -39_990))),
        (computed_ids(("Sub", 1 << 30)), set(range(1 << 30, (1 << 30) + 10))),
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_made_ids_of_which_no_row_is_computed_are_replaced_by_others(
    computed: manifest.GraphIds, known_ids: set[int], dtype: str
) -> None:
    column, _ = example_values(embedded("f", "t", ids=computed, ids_dtype=dtype), computed)
    assert set(column.values.tolist()) <= known_ids
    assert column.values.size == COUNT
    assert len(set(column.values.tolist())) >= 2


def test_made_ids_of_which_only_large_ones_have_rows_are_replaced_by_those() -> None:
    computed = computed_ids(("FloorDiv", 1 << 27), ("AddV2", -5))
    spec = embedded("f", "t", ids=computed, ids_dtype="int32")
    column, _ = example_values(spec, computed)
    assert 5 << 27 <= column.values.min() < column.values.max() < 1 << 31


def test_made_numbers_of_which_no_row_is_computed_are_replaced_by_others() -> None:
    builder = GraphBuilder("float32", cast_ids("float32", "int64", "Floor"))
    builder.compute("Mul", builder.last, builder.constant(3))
    computed = builder.graph()
    column, _ = example_values(embedded("f", "t", ids=computed, ids_dtype="float32"), computed)
    assert set(np.floor(column.values).tolist()) == {0, 1, 2, 3}


def test_made_ids_stay_where_a_rule_finds_no_row_for_any() -> None:
    computed = computed_ids(("Maximum", ROWS))
    column, _ = example_values(embedded("f", "t", ids=computed), computed)
    assert 0 <= column.values.min() < ROWS < column.values.max()


def test_made_texts_of_characters_are_joined_without_spaces() -> None:
    words = vocabulary_ids("names")
    by_character = manifest.TextIds(split="characters", ids=words)
    column, _ = example_values(
        embedded("f", "t", kind="bag", combiner="mean", ids=by_character, ids_dtype="string"),
        by_character,
    )
    assert column.values[::8].tolist() == [""] * (COUNT // 8)
    assert not any(" " in text for text in column.values)


def test_made_integers_that_are_cast_to_other_integers_are_rows() -> None:
    rule = cast_ids("int64", "int32")
    column, _ = example_values(embedded("f", "t", ids=rule), rule)
    assert set(column.values.tolist()) == set(range(ROWS))


def columns_of(*specs: FeatureSpec | DenseSpec) -> dict[str, Column]:
    """Makes examples of features that may read one input."""
    model = ModelSpec(tables=TABLES, features={spec.name: spec for spec in specs}, towers={})
    pages = {spec.name: spec.entry for spec in specs}
    return dict(make_examples(model, pages, KEYS, COUNT).columns)


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((3,), 3), ((2, 2), 4)])
def test_made_ids_that_are_numbers_too_are_as_many_as_these_and_below_their_limit(
    shape: tuple[int, ...], size: int
) -> None:
    bag = embedded("ids", "t", kind="bag", combiner="sum", inputs=("x",), ids_max=7)
    for below, limit in ((None, ROWS), (6, 6), (99, ROWS)):
        read = dense("numbers", "int64", shape, below=below, inputs=("x",))
        column = columns_of(bag, read)["x"]
        assert sizes(column) == [size] * COUNT
        assert set(column.values.tolist()) == set(range(limit))


@pytest.mark.parametrize(("longest", "most"), [(3, 3), (20, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_made_bags_that_a_tower_reads_hold_what_it_pads(
    longest: int, most: int, weighted: bool
) -> None:
    bag = dense("f", "int64", (longest,), take="padded", below=4)
    spec = replace(bag, weights="w") if weighted else bag
    column = columns_of(spec)["f"]
    assert sizes(column) == [*range(most + 1)] * (COUNT // (most + 1))
    assert set(column.values.tolist()) == {0, 1, 2, 3}
    assert (column.weights is not None) == weighted
    if column.weights is not None:
        assert column.weights.shape == column.values.shape
        assert 0.25 <= column.weights.min() < column.weights.max() <= 2


def test_made_bags_that_are_looked_up_too_are_no_longer_than_what_a_tower_pads() -> None:
    bag = embedded("ids", "t", kind="bag", combiner="sum", encoding="ragged", inputs=("x",))
    padded = dense("padded", "int64", (2,), take="padded", inputs=("x",))
    column = columns_of(bag, padded)["x"]
    assert sizes(column) == [0, 1, 2, 2, 2, 2] * (COUNT // 6)
    assert set(column.values.tolist()) == set(range(ROWS))


def test_made_values_of_which_only_the_lengths_are_read_are_bags() -> None:
    column = columns_of(dense("f", "int32", (), take="lengths"))["f"]
    assert sizes(column) == [0, 1, 2, 3, 4, 5] * (COUNT // 6)
    assert column.values.min() >= 0
    assert 1 << 38 < column.values.max() < 1 << 40


def test_made_ids_of_a_cross_are_one_of_each_input() -> None:
    keys = (manifest.CrossKey(dtype="int64"), manifest.CrossKey(dtype="string"))
    rule = manifest.CrossedIds(buckets=ROWS, keys=keys)
    cross = embedded("f", "t", ids=rule, inputs=("x", "y"), kind="bag", combiner="sum")
    columns = columns_of(cross)
    assert sizes(columns["x"]) == sizes(columns["y"]) == [1] * COUNT
    assert 1 << 29 < columns["x"].values.max() < 1 << 31
    assert all(isinstance(text, str) and text.isdigit() for text in columns["y"].values)


def test_made_values_of_several_inputs_lead_to_rows() -> None:
    """A vocabulary of the first input fails on other keys; another feature reads the second."""
    builder = GraphBuilder("int64")
    table = manifest.LookupTable(vocabulary="numbers", is_complete=True)
    position = builder.positions(0, table)
    twice = builder.compute("Mul", builder.input("int64", 1), builder.constant(2))
    builder.compute("AddV2", twice, position)
    keys = (manifest.CrossKey(dtype="int64"), manifest.CrossKey(dtype="int64"))
    rule = manifest.JoinedIds(keys=keys, ids=builder.graph())
    columns = columns_of(embedded("f", "t", ids=rule, inputs=("x", "y")), embedded("y", "t"))
    assert set(columns["x"].values.tolist()) == {-7, 5, 9}
    positions = np.searchsorted([-7, 5, 9], columns["x"].values)
    assert (positions + 2 * columns["y"].values).max() < ROWS
    assert columns["y"].values.max() > 1


def test_made_numbers_are_around_zero_and_positive_without_signs() -> None:
    spec = dense("f", "float32", (3,))
    column, columns = example_values(spec)
    assert column.values.shape == (3 * COUNT,)
    assert abs(float(column.values.mean())) < 0.3
    assert 0.7 < float(column.values.std()) < 1.3

    model = ModelSpec(tables=TABLES, features={"f": spec}, towers={})
    page = manifest.DenseFeature(kind="dense", role="context")
    examples = make_examples(model, {"f": page}, KEYS, COUNT)
    positive = without_signs(examples, model)
    np.testing.assert_array_equal(positive.columns["f"].values, np.abs(columns["f"].values))


def test_made_texts_have_up_to_seven_words_of_the_vocabulary_and_others() -> None:
    words = vocabulary_ids("names")
    rule = manifest.TextIds(split="whitespace", ids=words)
    column, _ = example_values(
        embedded("f", "t", kind="bag", combiner="mean", ids=rule, ids_dtype="string"), rule
    )
    texts = [text.split() for text in column.values]
    assert [len(text) for text in texts] == list(range(8)) * (COUNT // 8)
    assert {word for text in texts for word in text} == {"x", "X!", "ann", "bob", "cid", "dot"}


def test_made_ids_of_a_hash_that_are_numbers_too_are_below_their_limit() -> None:
    bag = embedded(
        "ids",
        "t",
        kind="bag",
        combiner="sum",
        inputs=("x",),
        ids=hash_ids(ROWS),
    )
    read = dense("numbers", "int64", (2,), below=6, inputs=("x",))
    assert set(columns_of(bag, read)["x"].values.tolist()) == set(range(6))


NEAREST = OutsideIds(from_end=True, outcome="nearest")


@pytest.mark.parametrize(
    ("spec", "entry", "unknown"),
    [
        (embedded("f", "t"), {}, {10, -1, 15, -11}),
        (embedded("f", "t"), {"unknown": manifest.Unknown(rule="row", row=3)}, {10, -1, 15, -11}),
        (embedded("f", "t"), {"unknown": manifest.Unknown(rule="refuse")}, set()),
        (
            embedded("f", "t", outside=NEAREST),
            {"unknown": manifest.Unknown(rule="refuse")},
            {10, -1, 15, -11},
        ),
        (embedded("f", "t"), {"ids": hash_ids(ROWS)}, set()),
        (embedded("f", "t"), {"ids": vocabulary_ids("numbers", "int64")}, {10, 1009}),
        (
            embedded("f", "t"),
            {"ids": vocabulary_ids("numbers", "int64", is_complete=True)},
            set(),
        ),
        (
            embedded("f", "t", ids_dtype="string"),
            {"ids": vocabulary_ids("names")},
            {"unknown", "UNKNOWN 2", "?"},
        ),
        (
            embedded("f", "t", kind="bag", combiner="sum", padding=-1, ids_max=4),
            {"padding": -1},
            {10, 15, -11},
        ),
        (dense("f", "int64", (), below=4), {}, set()),
        (dense("f", "int64", (), below=4, outside="zeros"), {}, {4, -1, 9, -5}),
        (dense("f", "int64", ()), {}, set()),
    ],
)
def test_some_made_ids_are_in_no_table_where_the_feature_takes_them(
    spec: FeatureSpec | DenseSpec, entry: dict[str, Any], unknown: set[Any]
) -> None:
    model = ModelSpec(tables=TABLES, features={"f": spec}, towers={})
    page = spec.entry.model_copy(update=entry)
    column = make_examples(model, {"f": page}, KEYS, COUNT).columns["f"]
    mixed = make_examples(model, {"f": page}, KEYS, COUNT, unknown_ids=True).columns["f"]
    differs = column.values != mixed.values
    assert set(mixed.values[differs].tolist()) == unknown
    assert differs.sum() <= column.values.size / 7 + 1
