from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import DigestMismatch, FeatureError, FormatError, UnknownRefused
from bundle.features.reader import Column, FeatureReader, open_features
from bundle.format.manifest import ComputedIds, DenseFeature, EmbeddedFeature, IdentityIds, IdOperation, IdRule, Unknown
from bundle.storage.staging import read_manifest


def texts(*values: Any) -> np.ndarray[Any, Any]:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def column(*values: Any, offsets: list[int] | None = None, weights: list[float] | None = None) -> Column:
    return Column(
        texts(*values) if any(isinstance(value, str) for value in values) else np.array(values),
        None if offsets is None else np.array(offsets),
        None if weights is None else np.array(weights, np.float32),
    )


@pytest.fixture
def reader(committed_bundle: Path) -> FeatureReader:
    return open_features(committed_bundle, read_manifest(committed_bundle))


def rows_of(reader: FeatureReader, table: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return reader.tables[table].gather(np.arange(reader.tables[table].rows))


def test_single_reads_one_row_each_bit_for_bit(reader: FeatureReader) -> None:
    ids = np.array([49, 0, 20, 21, 20])
    assert (reader.activation("user", {"user": Column(ids)}, 5).values == rows_of(reader, "users")[ids]).all()


def test_single_with_unknown_ids_reads_the_row_of_its_rule_and_counts(reader: FeatureReader) -> None:
    activation = reader.activation("user", {"user": column(1, -1, 50)}, 3)
    assert activation.unknown == 2
    assert (activation.values == rows_of(reader, "users")[[1, 3, 3]]).all()


@pytest.mark.parametrize("ids", [IdentityIds(), ComputedIds(operations=(IdOperation(do="add", by=-7),))])
def test_rows_below_0_are_counted_from_the_end_where_the_feature_says_so(reader: FeatureReader, ids: IdRule) -> None:
    page = EmbeddedFeature(kind="single", table="users", role="context", ids=ids, from_end=True)
    stored, sent = rows_of(reader, "users"), np.array([-1, -50, -51, 49, 50]) + (0 if ids.kind == "identity" else 7)
    found = FeatureReader({"user": page}, reader.tables, {}).activation("user", {"user": Column(sent)}, 5)
    assert (found.values == np.vstack([stored, np.zeros_like(stored[:1])])[[49, 0, 50, 49, 50]]).all()
    assert found.unknown == 2


def test_single_with_unknown_ids_gives_zeros_by_default(reader: FeatureReader) -> None:
    activation = reader.activation("name", {"name": column("bob", "eve")}, 2)
    assert activation.unknown == 1
    assert (activation.values[0] == rows_of(reader, "users")[31]).all()
    assert (activation.values[1] == 0).all()


def test_single_by_key_reads_the_row_that_the_index_holds(reader: FeatureReader) -> None:
    activation = reader.activation("shop", {"shop": column(1 << 40, 5, 77, -4)}, 4)
    assert activation.unknown == 1
    assert (activation.values[[0, 2, 3]] == rows_of(reader, "hours")[[1, 3, 0]]).all()
    assert (activation.values[1] == 0).all()


def test_single_that_refuses_names_the_id_and_the_table(reader: FeatureReader) -> None:
    with pytest.raises(UnknownRefused, match=r"'strict'.*24.*'hours'") as problem:
        reader.activation("strict", {"strict": column(3, 24)}, 2)
    assert problem.value.feature == "strict"


@pytest.mark.parametrize(
    "given", [column(1, 2, 3), column(1), column(1, 2, 3, offsets=[0, 2, 3]), Column(np.ones((2, 1), int))]
)
def test_single_with_other_than_one_value_each_is_refused(reader: FeatureReader, given: Column) -> None:
    with pytest.raises(FeatureError, match="'user'"):
        reader.activation("user", {"user": given}, 2)


def test_single_left_out_of_some_examples_takes_its_default_there(reader: FeatureReader) -> None:
    activation = reader.activation(
        "hour", {"hour": Column(np.array([2.0, 0.0], np.float32), np.array([0, 1, 1, 2]))}, 3
    )
    assert (activation.values == rows_of(reader, "hours")[[2, 1, 0]]).all()
    with pytest.raises(FeatureError, match="must be sent"):
        reader.activation("user", {"user": column(1, offsets=[0, 1, 1])}, 2)


@pytest.mark.parametrize(
    "user",
    [
        column(49, 0),
        column(0, 50),
        column(-1, 3),
        Column(np.array([7, 8], np.int32)),
        Column(np.arange(8)[::4]),
        column(4, 5, offsets=[0, 1, 2]),
        column("4", "5"),
    ],
)
def test_features_looked_up_together_are_as_each_alone(reader: FeatureReader, user: Column) -> None:
    columns = {"user": user, "strict": column(3, 23), "name": column("bob", "eve")}
    names = ["user", "strict", "hour", "name"]
    together = reader.activations(names, columns, 2)
    assert list(together) == names
    for name in names:
        alone = reader.activation(name, columns, 2)
        assert (together[name].values == alone.values).all(), name
        assert together[name].unknown == alone.unknown, name


def test_features_looked_up_together_hold_each_id_against_its_own_table(reader: FeatureReader) -> None:
    # 24 is a row of the users' table only, 49 the last of it.
    both = ["user", "strict"]
    assert reader.activations(both, {"user": column(24, 49), "strict": column(0, 1)}, 2)["user"].unknown == 0
    with pytest.raises(UnknownRefused, match=r"'strict'.*24"):
        reader.activations(both, {"user": column(24, 49), "strict": column(0, 24)}, 2)
    with pytest.raises(FeatureError, match="'nobody'"):
        reader.activations(["user", "nobody"], {"user": column(1)}, 1)


def test_default_is_repeated_and_never_counted(reader: FeatureReader) -> None:
    assert (reader.activation("hour", {}, 3).values == rows_of(reader, "hours")[[1, 1, 1]]).all()
    assert (reader.activation("watched", {}, 2).values == np.zeros((2, 3))).all()
    assert (reader.activation("recent", {}, 2).values[:, :2] == rows_of(reader, "movies")[[1, 2]]).all()
    assert (reader.activation("age", {}, 2).values == [30, 30]).all()
    rows, offsets = reader.rows("recent", {}, 2)
    assert (rows.tolist(), offsets.tolist()) == ([1, 2, 1, 2], [0, 2, 4])


@pytest.mark.parametrize("name", ["user", "grid", "name"])
def test_feature_without_a_default_must_be_sent(reader: FeatureReader, name: str) -> None:
    with pytest.raises(FeatureError, match="must be sent"):
        reader.activation(name, {}, 1)


def test_bag_leaves_unknown_ids_out_of_its_mean(reader: FeatureReader) -> None:
    movies = rows_of(reader, "movies")
    activation = reader.activation("watched", {"watched": column(10, 999, 70, 999, offsets=[0, 3, 3, 4])}, 3)
    assert activation.unknown == 2
    np.testing.assert_allclose(activation.values[0], (movies[0] + movies[2]) / 2, rtol=1e-6)
    assert (activation.values[1:] == 0).all()


def test_bag_without_offsets_owns_equally_many(reader: FeatureReader) -> None:
    given = np.array([10, 5, 70, 8])
    equal = reader.activation("watched", {"watched": Column(given)}, 2).values
    assert (equal == reader.activation("watched", {"watched": Column(given, np.array([0, 2, 4]))}, 2).values).all()


def test_sparse_mean_drops_weights_that_are_not_positive(reader: FeatureReader) -> None:
    movies = rows_of(reader, "movies")
    given = column(10, 5, 70, offsets=[0, 3], weights=[2.0, -1.0, 0.0])
    np.testing.assert_allclose(reader.activation("watched", {"watched": given}, 1).values[0], movies[0], rtol=1e-6)


def test_bag_of_one_example_has_the_same_bits_in_any_batch(reader: FeatureReader) -> None:
    random = np.random.default_rng(3)
    lengths = random.integers(0, 40, 60)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    given = random.integers(0, 30, offsets[-1])
    together = reader.activation("genres", {"genres": Column(given, offsets)}, 60).values
    for example in range(60):
        alone = Column(given[offsets[example] : offsets[example + 1]])
        assert (reader.activation("genres", {"genres": alone}, 1).values[0] == together[example]).all()


def test_sequence_is_cut_at_its_end_and_filled_with_zeros(reader: FeatureReader) -> None:
    movies = rows_of(reader, "movies")
    activation = reader.activation("recent", {"recent": column(0, 1, 2, 3, 99, 8, offsets=[0, 4, 4, 6])}, 3)
    assert activation.values.shape == (3, 3, 3)
    assert (activation.values[0] == movies[:3]).all()
    assert (activation.values[1] == 0).all()
    assert (activation.values[2] == np.stack([np.zeros(3), movies[8], np.zeros(3)])).all()
    assert activation.unknown == 1


def test_dense_keeps_shape_and_type(reader: FeatureReader) -> None:
    activation = reader.activation("grid", {"grid": Column(np.arange(8))}, 2)
    assert activation.values.dtype == np.int32
    assert (activation.values == np.arange(8).reshape(2, 2, 2)).all()
    assert reader.activation("age", {"age": column(1, 2)}, 2).values.dtype == np.float32


def test_dense_left_out_of_some_examples_takes_its_default_there(reader: FeatureReader) -> None:
    given = Column(np.array([1.0, 2.0], np.float32), np.array([0, 1, 1, 2]))
    assert reader.activation("age", {"age": given}, 3).values.tolist() == [1.0, 30.0, 2.0]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("age", column(float("nan"), 1.0)),
        ("age", column(float("inf"), 1.0)),
        ("age", column(1e39, 1.0)),
        ("age", column("1", "2")),
        ("age", column(True, False)),
        ("age", column(1.0, 2.0, 3.0, 4.0)),
        ("age", column(1.0, 2.0, weights=[1, 1])),
        ("grid", column(1.0, 2.0)),
        ("grid", Column(np.full(8, 1 << 31))),
        ("grid", Column(np.full(8, 0.5))),
        ("grid", Column(np.arange(7))),
        ("user", column(1.0, 2.0)),
        ("user", column(1, 2, weights=[1, 1])),
        ("user", column("a", "b")),
        ("name", column(1, 2)),
        ("watched", column(10, 5, weights=[1])),
        ("watched", column(10, 5, weights=[1, float("nan")])),
        ("watched", column(10, 5, offsets=[0, 1])),
        ("watched", column(10, 5, offsets=[0, 3, 2])),
        ("watched", column(10, 5, offsets=[1, 1, 2])),
        ("watched", column(10, 5, offsets=[0, 1, 3])),
        ("watched", Column(np.array([10, 5]), np.array([0.0, 1.0, 2.0]))),
        ("watched", column(10, 5, 8)),
        ("recent", column(10, 5, offsets=[0, 1, 2], weights=[1, 1])),
        ("nothing", column(1, 2)),
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_features_name(
    reader: FeatureReader, name: str, given: Column
) -> None:
    with pytest.raises(FeatureError, match=f"'{name}'"):
        reader.activation(name, {name: given}, 2)


def test_rows_of_unknown_ids_are_negative_whatever_the_rule(reader: FeatureReader) -> None:
    assert reader.rows("user", {"user": column(1, 50)}, 2)[0].tolist() == [1, -1]
    assert reader.rows("strict", {"strict": column(24, 3)}, 2)[0].tolist() == [-1, 3]
    with pytest.raises(FeatureError, match="dense"):
        reader.rows("age", {"age": column(1.0)}, 1)


def test_activation_of_no_examples_is_empty(reader: FeatureReader) -> None:
    none = Column(np.empty(0, np.int64))
    assert reader.activation("user", {"user": none}, 0).values.shape == (0, 4)
    assert reader.activation("watched", {"watched": none}, 0).values.shape == (0, 3)
    assert reader.activation("recent", {"recent": none}, 0).values.shape == (0, 3, 3)
    assert reader.activation("grid", {"grid": none}, 0).values.shape == (0, 2, 2)
    assert reader.activation("age", {}, 0).values.shape == (0,)


def test_reader_lists_its_features_and_closes_its_tables(reader: FeatureReader) -> None:
    assert "watched" in set(reader)
    reader.close()
    with pytest.raises(Exception, match="closed"):
        reader.activation("user", {"user": column(1)}, 1)


@pytest.mark.parametrize(
    "feature",
    [
        EmbeddedFeature(kind="single", table="users", role="context", default=[1]),
        EmbeddedFeature(kind="single", table="users", role="context", default=1.5),
        EmbeddedFeature(kind="single", table="users", role="context", default="x"),
        EmbeddedFeature(kind="single", table="users", role="context", default=99, unknown=Unknown(rule="refuse")),
        EmbeddedFeature(kind="bag", combiner="sum", table="users", role="context", default=1),
        EmbeddedFeature(kind="bag", combiner="sum", table="users", role="context", default=[[1], [2, 3]]),
        EmbeddedFeature(kind="bag", combiner="sum", table="users", role="context", default=[1, None]),
        EmbeddedFeature(
            kind="bag", combiner="sum", table="users", role="context", default={"ids": [1], "weights": [1]}
        ),
        EmbeddedFeature(kind="sequence", length=2, table="users", role="context", default={"ids": [1]}),
        EmbeddedFeature(kind="single", table="gone", role="context"),
        DenseFeature(kind="dense", role="context", default=[1.0]),
        DenseFeature(kind="dense", role="context", shape=(2,), default=["a", "b"]),
        DenseFeature(kind="dense", role="context", shape=(2,), default=[[1.0], [2.0, 3.0]]),
    ],
)
def test_default_that_does_not_fit_is_refused_when_opened(
    reader: FeatureReader, feature: EmbeddedFeature | DenseFeature
) -> None:
    with pytest.raises(FormatError, match=r"features\.f"):
        FeatureReader({"f": feature}, reader.tables, {})


def test_default_of_a_weighted_bag_carries_weights(reader: FeatureReader) -> None:
    default = {"ids": [1, 2], "weights": [0.5, 2.0]}
    bag = EmbeddedFeature(kind="bag", combiner="sum", weighted=True, table="users", role="context", default=default)
    users = rows_of(reader, "users").astype(np.float64)
    found = FeatureReader({"f": bag}, reader.tables, {}).activation("f", {}, 1).values
    np.testing.assert_allclose(found[0], 0.5 * users[1] + 2 * users[2], rtol=1e-6)


def test_open_features_with_another_vocabulary_than_the_manifest_says_is_refused(sample_bundle: Path) -> None:
    manifest = read_manifest(sample_bundle)
    wrong = manifest.vocabularies["names"].model_copy(update={"size": 3})
    with pytest.raises(FormatError, match=r"holds 2 keys.*says 3"):
        open_features(
            sample_bundle, manifest.model_copy(update={"vocabularies": {**manifest.vocabularies, "names": wrong}})
        )


def test_open_features_with_a_missing_shard_is_data_loss(sample_bundle: Path) -> None:
    manifest = read_manifest(sample_bundle)
    (sample_bundle / manifest.tables["users"].shards[1].file).unlink()
    with pytest.raises(DigestMismatch, match="rows-00001-of-00003"):
        open_features(sample_bundle, manifest)
