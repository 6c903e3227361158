"""Features of the sample bundle, looked up as a service does."""

from __future__ import annotations

from itertools import accumulate, chain, combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import DigestMismatch, FeatureError, FormatError, UnknownRejected
from bundle.features.columns import Activation, Column, OutputBlock
from bundle.features.reader import FeatureReader, open_features
from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    IdentityIds,
    IdRule,
    Unknown,
)
from bundle.storage.catalog import read_manifest
from tests.id_graphs import computed_ids
from tests.units.bundle.features.readers import column


@pytest.fixture
def reader(committed_bundle: Path) -> FeatureReader:
    return open_features(committed_bundle, read_manifest(committed_bundle))


def activation_of(reader: FeatureReader, name: str, column: Column | None, n: int) -> Activation:
    return reader.activation(name, {} if column is None else {name: column}, n)


def rows_of(reader: FeatureReader, table: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns all rows of a table, and zeros as the last."""
    rows = reader.tables[table].gather(np.arange(reader.tables[table].rows))
    return np.vstack([rows, np.zeros_like(rows[:1])])


@pytest.mark.parametrize(
    ("name", "table", "column", "rows", "unknown"),
    [
        ("user", "users", column(49, 0, 20, 21, 20), [49, 0, 20, 21, 20], 0),
        ("user", "users", column(1, -1, 50), [1, 3, 3], 2),
        ("name", "users", column("bob", "eve"), [31, -1], 1),
        ("shop", "hours", column(1 << 40, 5, 77, -4), [1, -1, 3, 0], 1),
        (
            "hour",
            "hours",
            Column(np.array([2.0, 0.0], np.float32), np.array([0, 1, 1, 2])),
            [2, 1, 0],
            0,
        ),
        ("hour", "hours", None, [1, 1], 0),
    ],
)
def test_single_reads_the_row_of_each_id_its_default_or_that_of_its_unknown_rule(
    reader: FeatureReader,
    name: str,
    table: str,
    column: Column | None,
    rows: list[int],
    unknown: int,
) -> None:
    activation = activation_of(reader, name, column, len(rows))
    assert (activation.values == rows_of(reader, table)[rows]).all()
    assert activation.unknown == unknown


@pytest.mark.parametrize("ids", [IdentityIds(), computed_ids(("AddV2", -3), ("AddV2", -4))])
def test_negative_rows_count_from_the_end_if_the_feature_requires_it(
    reader: FeatureReader, ids: IdRule
) -> None:
    entry = EmbeddedFeature(kind="single", table="users", role="context", ids=ids, from_end=True)
    ids_sent = np.array([-1, -50, -51, 49, 50]) + (0 if ids.kind == "identity" else 7)
    activation = activation_of(
        FeatureReader({"user": entry}, reader.tables, {}), "user", Column(ids_sent), 5
    )
    assert (activation.values == rows_of(reader, "users")[[49, 0, 50, 49, 50]]).all()
    assert activation.unknown == 2


def test_unknown_id_that_is_rejected_is_named_with_its_own_table(reader: FeatureReader) -> None:
    names = ["user", "strict"]  # 24 is a row of the users' table only
    assert (
        reader.activations(names, {"user": column(24, 49), "strict": column(0, 1)}, 2)[
            "user"
        ].unknown
        == 0
    )
    with pytest.raises(UnknownRejected, match=r"'strict'.*24.*'hours'") as problem:
        reader.activations(names, {"user": column(24, 49), "strict": column(0, 24)}, 2)
    assert problem.value.feature == "strict"


def test_default_is_repeated_and_never_counted(reader: FeatureReader) -> None:
    assert (activation_of(reader, "watched", None, 2).values == np.zeros((2, 3))).all()
    assert (
        activation_of(reader, "recent", None, 2).values[:, :2] == rows_of(reader, "movies")[[1, 2]]
    ).all()
    assert (activation_of(reader, "age", None, 2).values == [30, 30]).all()
    rows, offsets = reader.rows("recent", {}, 2)
    assert (rows.tolist(), offsets.tolist()) == ([1, 2, 1, 2], [0, 2, 4])


@pytest.mark.parametrize("n", [1, 3])
def test_write_of_defaults_among_what_was_sent_gives_the_activations(
    n: int, reader: FeatureReader
) -> None:
    names = ("watched", "user", "hour", "recent", "age")
    columns = {"user": column(*range(n))}
    values = [reader.activations([name], columns, n)[name].values.reshape(n, -1) for name in names]
    wanted = np.hstack(values).astype(np.float32)
    ends = np.cumsum([array.shape[1] for array in values])
    room = np.full(wanted.shape, np.nan, np.float32)
    block = OutputBlock(room, names, tuple(ends.tolist()))
    for _ in range(2):
        assert reader.write([block], columns, n) == {}
        assert room.tolist() == wanted.tolist()
        room[:] = np.nan


SENT = {
    "watched": column(10, 70, 10, 70, 70, 10, offsets=[0, 2, 2, 6]),
    "user": column(3, 0, 20),
    "hour": column(2, 0, 1),
    "recent": column(0, 1, 2, 3, 5, 8, offsets=[0, 4, 4, 6]),
    "age": column(31.0, 45.0, 18.0),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", range(len(SENT)))
def test_write_fills_places_cut_anywhere_whatever_was_sent(
    reader: FeatureReader, first: int, dtype: type[np.floating[Any]]
) -> None:
    """All ways to leave inputs out, and all ways to divide features among places."""
    names = (*list(SENT)[first:], *list(SENT)[:first])
    optional = [name for name in names if name != "user"]
    for omitted in chain.from_iterable(combinations(optional, count) for count in range(5)):
        columns = {name: values for name, values in SENT.items() if name not in omitted}
        parts = [
            reader.activations([name], columns, 3)[name].values.reshape(3, -1) for name in names
        ]
        ends = [0, *accumulate(part.shape[1] for part in parts)]
        wanted = np.hstack(parts).astype(dtype)
        cuts = chain.from_iterable(combinations(range(1, 5), count) for count in range(5))
        for cut in cuts:
            room = np.full(wanted.shape, np.nan, dtype)
            blocks = []
            for start, stop in pairwise((0, *cut, 5)):
                array = room[:, ends[start] : ends[stop]]
                inner = [end - ends[start] for end in ends[start + 1 : stop + 1]]
                blocks.append(OutputBlock(array, names[start:stop], tuple(inner)))
            assert reader.write(blocks, columns, 3) == {}
            assert room.tolist() == wanted.tolist(), (omitted, cut)


def test_bag_leaves_unknown_ids_and_weights_that_are_not_positive_out_of_its_mean(
    reader: FeatureReader,
) -> None:
    movies = rows_of(reader, "movies")
    activation = activation_of(reader, "watched", column(10, 999, 70, 999, offsets=[0, 3, 3, 4]), 3)
    assert activation.unknown == 2
    np.testing.assert_allclose(
        activation.values, [(movies[0] + movies[2]) / 2, movies[-1], movies[-1]], rtol=1e-6
    )
    weighted = column(10, 5, 70, offsets=[0, 3], weights=[2.0, -1.0, 0.0])
    np.testing.assert_allclose(
        activation_of(reader, "watched", weighted, 1).values[0], movies[0], rtol=1e-6
    )
    values = np.array([10, 5, 70, 8])  # without offsets it owns equally many
    equal = activation_of(reader, "watched", Column(values), 2).values
    assert (
        equal == activation_of(reader, "watched", Column(values, np.array([0, 2, 4])), 2).values
    ).all()


def test_bag_of_one_example_has_the_same_bits_in_any_batch(reader: FeatureReader) -> None:
    random = np.random.default_rng(3)
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 40, 60))])
    values = random.integers(0, 30, offsets[-1])
    together = activation_of(reader, "genres", Column(values, offsets), 60).values
    for example in range(60):
        alone = Column(values[offsets[example] : offsets[example + 1]])
        assert (activation_of(reader, "genres", alone, 1).values[0] == together[example]).all()


def test_sequence_is_cut_at_its_end_and_filled_with_zeros(reader: FeatureReader) -> None:
    activation = activation_of(reader, "recent", column(0, 1, 2, 3, 99, 8, offsets=[0, 4, 4, 6]), 3)
    assert (
        activation.values == rows_of(reader, "movies")[[[0, 1, 2], [-1, -1, -1], [-1, 8, -1]]]
    ).all()
    assert activation.unknown == 1


def test_dense_keeps_shape_and_type_and_takes_its_default_where_it_is_left_out(
    reader: FeatureReader,
) -> None:
    activation = activation_of(reader, "grid", Column(np.arange(8)), 2)
    assert activation.values.dtype == np.int32
    assert (activation.values == np.arange(8).reshape(2, 2, 2)).all()
    ages = activation_of(reader, "age", Column(np.array([1, 2]), np.array([0, 1, 1, 2])), 3).values
    assert ages.dtype == np.float32
    assert ages.tolist() == [1.0, 30.0, 2.0]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *(
            ("age", column(*values))
            for values in ((float("nan"), 1.0), (float("inf"), 1.0), (1e39, 1.0), ("1", "2"))
        ),
        *(("age", column(*values)) for values in ((True, False), (1.0, 2.0, 3.0, 4.0))),
        ("age", column(1.0, 2.0, weights=[1, 1])),
        *(
            ("grid", Column(values))
            for values in (np.ones(2), np.full(8, 1 << 31), np.full(8, 0.5), np.arange(7))
        ),
        *(("user", column(*values)) for values in ((1.0, 2.0), ("a", "b"), (1, 2, 3), (1,))),
        ("user", column(1, 2, weights=[1, 1])),
        ("user", column(1, 2, 3, offsets=[0, 2, 3])),
        ("user", Column(np.ones((2, 1), int))),
        ("name", column(1, 2)),
        *(("watched", column(10, 5, weights=weights)) for weights in ([1.0], [1.0, float("nan")])),
        *(
            ("watched", column(10, 5, offsets=offsets))
            for offsets in ([0, 1], [0, 3, 2], [1, 1, 2], [0, 1, 3])
        ),
        ("watched", Column(np.array([10, 5]), np.array([0.0, 1.0, 2.0]))),
        ("watched", column(10, 5, 8)),
        ("recent", column(10, 5, offsets=[0, 1, 2], weights=[1, 1])),
        ("nothing", column(1, 2)),
        *((name, None) for name in ("user", "grid", "name")),
        ("user", column(1, offsets=[0, 1, 1])),
    ],
)
def test_value_that_does_not_fit_is_rejected_with_the_name_of_the_feature(
    reader: FeatureReader, name: str, column: Column | None
) -> None:
    columns = {} if column is None else {name: column}
    for names in ([name], ["hour", name, "watched" if name != "watched" else "age"]):
        with pytest.raises(FeatureError, match=f"'{name}'"):
            reader.activations(names, columns, 2)


def test_rows_of_unknown_ids_are_negative_whatever_the_rule(reader: FeatureReader) -> None:
    assert reader.rows("user", {"user": column(1, 50)}, 2)[0].tolist() == [1, -1]
    assert reader.rows("strict", {"strict": column(24, 3)}, 2)[0].tolist() == [-1, 3]
    with pytest.raises(FeatureError, match="dense"):
        reader.rows("age", {"age": column(1.0)}, 1)


def test_activation_of_no_examples_is_empty(reader: FeatureReader) -> None:
    shapes = {
        "user": (0, 4),
        "watched": (0, 3),
        "recent": (0, 3, 3),
        "grid": (0, 2, 2),
        "age": (0,),
    }
    activations = reader.activations(
        shapes, dict.fromkeys(shapes, Column(np.empty(0, np.int64))), 0
    )
    assert {name: activation.values.shape for name, activation in activations.items()} == shapes


@pytest.mark.parametrize(
    "fields",
    [
        *({"kind": "single", "default": wrong} for wrong in ([1], 1.5, "x")),
        {"kind": "single", "default": 99, "unknown": Unknown(rule="refuse")},
        *(
            {"kind": "bag", "combiner": "sum", "default": wrong}
            for wrong in (1, [[1], [2, 3]], [1, None], {"ids": [1], "weights": [1]})
        ),
        {"kind": "sequence", "length": 2, "default": {"ids": [1]}},
        {"kind": "single", "table": "gone"},
        {"kind": "dense", "default": [1.0]},
        *(
            {"kind": "dense", "shape": (2,), "default": wrong}
            for wrong in (["a", "b"], [[1.0], [2.0, 3.0]])
        ),
    ],
)
def test_default_that_does_not_fit_is_rejected_when_opened(
    reader: FeatureReader, fields: dict[str, Any]
) -> None:
    model = DenseFeature if fields["kind"] == "dense" else EmbeddedFeature
    table = {} if model is DenseFeature else {"table": "users"}
    with pytest.raises(FormatError, match=r"features\.f"):
        FeatureReader(
            {"f": model.model_validate({"role": "context", **table, **fields})}, reader.tables, {}
        )


def test_open_features_of_files_that_contradict_the_manifest_is_rejected(
    sample_bundle: Path,
) -> None:
    manifest = read_manifest(sample_bundle)
    wrong = manifest.vocabularies["names"].model_copy(update={"size": 3})
    with pytest.raises(FormatError, match=r"holds 2 keys.*says 3"):
        open_features(
            sample_bundle,
            manifest.model_copy(update={"vocabularies": {**manifest.vocabularies, "names": wrong}}),
        )
    (sample_bundle / manifest.tables["users"].segments[1].file).unlink()
    with pytest.raises(DigestMismatch, match="rows-00001-of-00003"):
        open_features(sample_bundle, manifest)
