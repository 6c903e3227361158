"""What a tower inside a SavedModel is given for raw ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from bundle.format.manifest import DenseFeature, EmbeddedFeature, TowerInput, TowerOutput, Unknown
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Layout, Plain, SparseCore
from export.errors import NotConvertible
from export.front_end.calls import Call
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts, TowerSpec
from export.graphs.loading import load_tensorflow, tf
from export.saved_model.lookups import InlineLookups, sent_dtype
from tests.id_graphs import cast_ids, hash_ids
from tests.units.export.traced_models import recipe

load_tensorflow()
ROWS = 5
TURNED = SparseCore(cores=2, core_rows=4, offset=1, rotation=1)
STORED = {
    # Row r of both tables is [10 r + 1, 10 r + 2]; the third column is padding.
    "users": np.array([[10 * row + 1, 10 * row + 2, -1] for row in range(ROWS)], np.float32),
    "movies": np.array(
        [[-1, -1, -1]]
        + [[10 * row + 1, 10 * row + 2, -1] for row in (1, 3)]
        + [[-1, -1, -1], [-1, -1, -1]]
        + [[10 * row + 1, 10 * row + 2, -1] for row in (0, 2, 4)],
        np.float32,
    ),
}


def table_spec(name: str, layout: Layout) -> TableSpec:
    stored = STORED[name].shape
    return TableSpec(
        name=name,
        key=name,
        rows=ROWS,
        dim=2,
        dtype="float32",
        layout=layout,
        stored=(stored[0], stored[1]),
        origin="named",
        path="",
        slices=1,
        files=1,
        bytes=0,
    )


TABLES = {"users": table_spec("users", Plain()), "movies": table_spec("movies", TURNED)}


class NoLayers:
    """Stands for a model without embedding layers."""

    def combine(self, _config: Any, ids: Any, weights: Any, vectors: Any) -> Any:
        return {"ids": ids, "weights": weights, "vectors": vectors}


def looked_up(
    spec: FeatureSpec | DenseSpec,
    inputs: Mapping[str, Any],
    weights: FeatureSpec | None = None,
) -> Any:
    """Returns what a tower of one feature is given; the model may have another one beside it."""
    tower_spec = TowerSpec(
        name="tower",
        role="query",
        call=Call(),
        paths={"given": ()},
        inputs=(TowerInput(name="taken", feature=spec.name, dtype="float32", shape=(None,)),),
        outputs=(TowerOutput(name="given", dtype="float32", shape=(None,)),),
        result="given",
    )
    arguments: list[Any] = []

    def function(argument: Any) -> dict[str, Any]:
        arguments.append(argument)
        return {"given": tf.zeros([])}

    tower = TracedTower(tower_spec, function, ())
    facts = {name: TableFacts(name, name, ROWS, 2) for name in TABLES}
    features = {spec.name: spec} if weights is None else {spec.name: spec, "beside": weights}
    model = ModelSpec(facts, features, {"tower": tower_spec})
    original: Any = NoLayers()
    job = recipe("model.py:build", {}, {"tower": {"role": "query"}})
    traced = PartitionedModel(model, (tower,), original)
    lookups = InlineLookups(
        job,
        traced,
        {spec.name: spec.entry},
        TABLES,
        {},
        lambda table, rows: tf.gather(STORED[table], rows),
    )
    lookups.run(tower, inputs)
    return arguments[0]


def feature(**entry: Any) -> EmbeddedFeature:
    return EmbeddedFeature.model_validate(
        {"kind": "single", "table": "users", "role": "context", "inputs": ("user",), **entry}
    )


def spec(encoding: Any = "dense", weights: str | None = None, **entry: Any) -> FeatureSpec:
    return FeatureSpec("user", feature(**entry), weights=weights, encoding=encoding)


def ids(*values: Any) -> Any:
    return tf.constant(values, tf.int64)


def row(number: int) -> list[int]:
    return [10 * number + 1, 10 * number + 2]


ZEROS = [0, 0]


@pytest.mark.parametrize("table", ["users", "movies"])
def test_rows_of_a_table_are_read_where_the_checkpoint_stores_them(table: str) -> None:
    actual = looked_up(spec(table=table), {"user": ids(0, 1, 2, 3, 4, 1)})
    assert actual.dtype == tf.float32
    assert actual.numpy().tolist() == [row(number) for number in (0, 1, 2, 3, 4, 1)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, [row(0), row(4), ZEROS, ZEROS]),
        ({"unknown": Unknown(rule="row", row=3)}, [row(0), row(4), row(3), row(3)]),
        ({"unknown": Unknown(rule="row", row=0)}, [row(0), row(4), row(0), row(0)]),
        ({"from_end": True}, [row(0), row(4), ZEROS, row(4)]),
        ({"padding": 4}, [row(0), ZEROS, ZEROS, ZEROS]),
        ({"padding": 4, "unknown": Unknown(rule="row", row=3)}, [row(0), ZEROS, row(3), row(3)]),
    ],
)
def test_ids_outside_of_a_table_become_what_the_feature_says(
    entry: dict[str, Any], expected: list[list[int]]
) -> None:
    actual = looked_up(spec(**entry), {"user": ids(0, 4, 5, -1)})
    assert actual.numpy().tolist() == expected


@pytest.mark.parametrize("unknown", [5, -1])
def test_unknown_id_is_rejected_where_the_feature_says_so(unknown: int) -> None:
    rejecting = spec(unknown=Unknown(rule="refuse"))
    assert looked_up(rejecting, {"user": ids(0, 4)}).numpy().tolist() == [row(0), row(4)]
    message = "feature user: an id is not in table users, and the feature rejects unknown ids"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        looked_up(rejecting, {"user": ids(0, unknown)})


def test_cast_of_numbers_makes_the_ids() -> None:
    actual = looked_up(
        spec(ids=cast_ids("float32", "int64", "Ceil")), {"user": tf.constant([1.5, 2.0])}
    )
    assert actual.numpy().tolist() == [row(2), row(2)]


def test_sequence_of_a_dense_input_has_a_vector_for_each_place() -> None:
    actual = looked_up(spec(kind="sequence", length=3), {"user": ids([0, 1, 9], [4, -1, 2])})
    assert actual.numpy().tolist() == [[row(0), row(1), ZEROS], [row(4), ZEROS, row(2)]]


def test_one_place_of_several_is_looked_up() -> None:
    inputs = {"user": ids([0, 1, 2], [3, 4, 0])}
    assert looked_up(spec(place=1, places=3), inputs).numpy().tolist() == [row(1), row(4)]
    assert looked_up(spec(place=0, places=3), inputs).numpy().tolist() == [row(0), row(3)]


def test_indicator_and_ordinal_read_no_table() -> None:
    actual = looked_up(spec(table="", indicator=3), {"user": ids(2, 0, 7)})
    assert actual.numpy().tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    actual = looked_up(spec(table="", indicator=3, ordinal=True), {"user": ids(2, 0, 7)})
    assert actual.numpy().tolist() == [[2], [0], [0]]


def ragged(*bags: list[Any], dtype: Any = None) -> Any:
    return tf.ragged.constant(bags, dtype or tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)


def bag(encoding: str, combiner: str = "sum", **entry: Any) -> FeatureSpec:
    return spec(encoding, kind="bag", combiner=combiner, **entry)


@pytest.mark.parametrize("encoding", ["ragged", "sparse", "dense"])
@pytest.mark.parametrize(
    ("combiner", "first"),
    [
        ("sum", [52, 54]),
        ("mean", [26, 27]),
        ("sqrtn", [52 / np.sqrt(2), 54 / np.sqrt(2)]),
    ],
)
def test_bag_combines_known_ids_and_is_zeros_without_any(
    encoding: str, combiner: str, first: list[float]
) -> None:
    bags = ragged([1, 9, 4], [], [2], [-1])
    request = bags.to_sparse() if encoding == "sparse" else bags
    actual = looked_up(bag(encoding, combiner), {"user": request})
    expected = np.array([first, ZEROS, row(2), ZEROS])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_bag_of_a_dense_input_leaves_out_its_padding() -> None:
    padded = bag("dense", padding=0)
    actual = looked_up(padded, {"user": ids([1, 4, 0], [0, 0, 0], [2, 0, 2])})
    assert actual.numpy().tolist() == [[52, 54], ZEROS, [42, 44]]
    actual = looked_up(bag("dense"), {"user": ids([1, 4, 0], [0, 0, 0])})
    assert actual.numpy().tolist() == [[53, 56], [3, 6]]


@pytest.mark.parametrize("encoding", ["sparse", "dense"])
def test_empty_bag_reads_the_row_that_stands_for_it(encoding: str) -> None:
    bags = ragged([1], [], [9])
    actual = looked_up(bag(encoding, empty_row=3), {"user": bags})
    assert actual.numpy().tolist() == [row(1), row(3), row(3)]


def test_rows_of_a_bag_are_clipped_to_their_largest_norm() -> None:
    actual = looked_up(bag("sparse", max_norm=1.0), {"user": ragged([0, 0], [])})
    norm = np.sqrt(1 + 4)
    np.testing.assert_allclose(actual, [[2 / norm, 4 / norm], ZEROS], rtol=1e-6)


WEIGHTS = ragged([0.5, 2.0, -1.0], [3.0], dtype=tf.float32)


@pytest.mark.parametrize("encoding", ["ragged", "sparse"])
@pytest.mark.parametrize("weights_kind", ["ragged", "sparse", "dense"])
def test_weights_go_with_their_ids(encoding: str, weights_kind: str) -> None:
    bags = ragged([1, 9, 4], [2])
    weights = {"ragged": WEIGHTS, "sparse": WEIGHTS.to_sparse(), "dense": WEIGHTS.values}[
        weights_kind
    ]
    inputs = {"user": bags if weights_kind != "sparse" else bags.to_sparse(), "weight": weights}
    actual = looked_up(bag(encoding, "mean", weights="weight", weighted=True), inputs)
    # Rows 1 and 4, of which the lookup of sparse bags leaves out the one whose weight is negative.
    with_both = [(0.5 * 11 - 41) / -0.5, (0.5 * 12 - 42) / -0.5]
    expected = np.array([with_both if encoding == "ragged" else row(1), row(2)])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_padding_of_a_weighted_bag_is_left_out_with_its_weight() -> None:
    inputs = {"user": ids([1, 0], [0, 2]), "weight": tf.constant([[0.5, 9.0], [9.0, 3.0]])}
    padded = bag("dense", weights="weight", weighted=True, padding=0)
    np.testing.assert_allclose(looked_up(padded, inputs), np.array([[5.5, 6], [63, 66]]), rtol=1e-6)


def test_layer_combines_what_it_is_given() -> None:
    layered = FeatureSpec(
        "user",
        feature(kind="bag", combiner="sum", weighted=True),
        weights="weight",
        encoding="ragged",
        config=object(),
    )
    inputs = {"user": ragged([1, 9, 4], [2]), "weight": WEIGHTS}
    actual = looked_up(layered, inputs)
    assert actual["ids"].to_list() == [[1, 4], [2]]
    assert actual["weights"].to_list() == [[0.5, -1.0], [3.0]]
    assert actual["vectors"].numpy().tolist() == [row(1), row(4), row(2)]
    unweighted = FeatureSpec(
        "user", feature(kind="bag", combiner="sum"), encoding="ragged", config=object()
    )
    assert looked_up(unweighted, inputs)["weights"] is None


@pytest.mark.parametrize(
    ("entry", "filler"), [({}, ZEROS), ({"filler_row": 3}, row(3)), ({"filler_row": 0}, row(0))]
)
@pytest.mark.parametrize("encoding", ["ragged", "sparse"])
def test_sequence_of_bags_is_filled_up_behind_and_cut(
    entry: dict[str, Any], filler: list[int], encoding: str
) -> None:
    bags = ragged([1, 9], [], [2, 3, 4])
    request = bags.to_sparse() if encoding == "sparse" else bags
    actual = looked_up(spec(encoding, kind="sequence", length=2, **entry), {"user": request})
    assert actual.numpy().tolist() == [[row(1), ZEROS], [filler, filler], [row(2), row(3)]]


def key(**entry: Any) -> manifest.CrossKey:
    return manifest.CrossKey.model_validate({"dtype": "int64", "role": "context", **entry})


def test_crossed_ids_are_looked_up_for_each_pair_of_values_without_padding() -> None:
    crossed = manifest.CrossedIds(buckets=1, keys=(key(padding=0), key()))
    crossing = bag("sparse", ids=crossed, inputs=("left", "right"))
    inputs = {"left": ids([1, 2], [3, 0]), "right": ragged([7, 8, 9], [])}
    # Every pair is row 0: two values with three, and one with none.
    assert looked_up(crossing, inputs).numpy().tolist() == [[6, 12], ZEROS]


@pytest.mark.parametrize("encoding", ["dense", "sparse"])
def test_single_of_crossed_ids_is_one_row(encoding: str) -> None:
    crossed = manifest.CrossedIds(buckets=1, keys=(key(), key()))
    crossing = spec(encoding, ids=crossed, inputs=("left", "right"))
    actual = looked_up(crossing, {"left": ids(1, 2), "right": ids(3, 4)})
    assert actual.numpy().tolist() == [row(0), row(0)]


@pytest.mark.parametrize("inputs", [("left",), ("left", "right")])
def test_single_of_joined_ids_is_one_row(inputs: tuple[str, ...]) -> None:
    builder = GraphBuilder("int64")
    values = [0, *(builder.input("int64", number) for number in range(1, len(inputs)))]
    texts = [builder.texts(value) for value in values]
    builder.hashed(builder.compute("StringJoin", *texts, separator="-"), 1)
    joined = manifest.JoinedIds(keys=(key(),) * len(inputs), ids=builder.graph())
    joining = spec(ids=joined, inputs=inputs)
    actual = looked_up(joining, {"left": ids(1, 2), "right": ids(3, 4)})
    assert actual.numpy().tolist() == [row(0), row(0)]


def test_words_of_a_text_are_the_ids() -> None:
    one_row = hash_ids(1, first_row=2)
    split = manifest.TextIds(split="whitespace", ids=one_row)
    texts = tf.constant(["a bc d", "", "e"])
    actual = looked_up(bag("ragged", ids=split), {"user": texts})
    assert actual.numpy().tolist() == [[63, 66], ZEROS, row(2)]


def numbers(**entry: Any) -> DenseSpec:
    weights = entry.pop("weights", None)
    return DenseSpec(
        "number",
        DenseFeature.model_validate(
            {"kind": "dense", "role": "context", "inputs": ("user",), **entry}
        ),
        weights,
    )


def test_numbers_are_cast_and_texts_are_not() -> None:
    actual = looked_up(numbers(dtype="float32"), {"user": ids(1, 2)})
    assert (actual.dtype, actual.numpy().tolist()) == (tf.float32, [1, 2])
    actual = looked_up(numbers(dtype="string"), {"user": tf.constant(["a"])})
    assert actual.numpy().tolist() == [b"a"]


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_length_of_a_bag_is_how_many_ids_it_has(kind: str) -> None:
    bags = ragged([1, 0, 4], [], [2])
    request = bags.to_sparse() if kind == "sparse" else bags
    actual = looked_up(numbers(take="lengths"), {"user": request})
    assert (actual.dtype, actual.numpy().tolist()) == (tf.int64, [3, 0, 1])


def test_length_of_a_dense_input_is_that_of_all_its_ids() -> None:
    actual = looked_up(numbers(take="lengths"), {"user": ids([1, 0, 0], [0, 0, 0])})
    assert actual.numpy().tolist() == [3, 3]


def test_length_of_a_dense_input_ends_at_the_last_id_that_is_no_padding() -> None:
    padded = bag("dense", padding=0)
    request = ids([1, 0, 0], [0, 0, 0], [0, 2, 0], [1, 2, 3])
    actual = looked_up(numbers(take="lengths"), {"user": request}, padded)
    assert actual.numpy().tolist() == [1, 0, 2, 3]


class TestPadded:
    """A bag that a tower takes itself, as a row of at most three values."""

    @pytest.mark.parametrize("kind", ["ragged", "sparse"])
    def test_values_are_filled_up_with_zeros(self, kind: str) -> None:
        bags = ragged([1, 2, 3], [], [4])
        request = bags.to_sparse() if kind == "sparse" else bags
        actual = looked_up(numbers(take="padded", shape=(3,), dtype="int64"), {"user": request})
        assert actual.numpy().tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]

    @pytest.mark.parametrize("kind", ["ragged", "sparse"])
    def test_weights_lie_where_their_ids_do(self, kind: str) -> None:
        bags = ragged([1, 2, 3], [4])
        weights_spec = numbers(take="weights", shape=(3,), weights="weight")
        weights = WEIGHTS.to_sparse() if kind == "sparse" else WEIGHTS
        actual = looked_up(weights_spec, {"user": bags, "weight": weights})
        assert actual.numpy().tolist() == [[0.5, 2, -1], [3, 0, 0]]

    def test_more_values_are_rejected(self) -> None:
        message = "input user has more than the 3 values of an example that a tower takes"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            looked_up(
                numbers(take="padded", shape=(3,), dtype="int64"), {"user": ragged([1, 2, 3, 4])}
            )


def job_with(rule: Mapping[str, Any] | None, dtype: str = "int64") -> Any:
    features = {} if rule is None else {"user": {"ids": rule}}
    vocabularies = {"names": {"file": "names.txt", "dtype": "string"}}
    return recipe(
        "model.py:build",
        {"user": {"dtype": dtype}},
        {"tower": {"role": "query"}},
        {"features": features, "vocabularies": vocabularies},
    )


def model_of(*specs: FeatureSpec | DenseSpec) -> ModelSpec:
    return ModelSpec({}, {f"f{position}": reader for position, reader in enumerate(specs)}, {})


STATED = spec()
COMPUTED = FeatureSpec("user", feature(ids=hash_ids(9)), has_rule=True)
NAMES = {"kind": "vocabulary", "vocabulary": "names"}


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        (None, "int32"),
        ({"kind": "identity"}, "int32"),
        ({"kind": "keyed"}, "int32"),
        ({"kind": "hash"}, "int64"),
        ({"kind": "hash", "dtype": "string"}, "string"),
        ({"kind": "buckets", "boundaries": [0.5]}, "float32"),
        (NAMES, "string"),
    ],
)
def test_ids_are_sent_in_the_dtype_that_their_rule_takes(
    rule: Mapping[str, Any] | None, dtype: str
) -> None:
    assert sent_dtype("user", model_of(STATED), job_with(rule, "int32")) == dtype


def test_ids_whose_rule_the_model_has_are_sent_in_its_dtype() -> None:
    assert sent_dtype("user", model_of(COMPUTED), job_with(NAMES)) == "int64"


@pytest.mark.parametrize("take", ["values", "padded"])
def test_ids_that_are_also_read_as_they_are_cannot_have_another_dtype(take: str) -> None:
    shape = (3,) if take == "padded" else ()
    model = model_of(STATED, numbers(take=take, shape=shape, dtype="int64"))
    assert sent_dtype("user", model, job_with(None)) == "int64"
    with pytest.raises(NotConvertible) as caught:
        sent_dtype("user", model, job_with(NAMES))
    assert str(caught.value) == (
        "input 'user' would be sent as int64 and as string: it is read by the recipe's rule "
        "(features.user.ids) and otherwise, too, which a self-contained SavedModel does not do; "
        'write a bundle (output.tables = "copy" or "link")'
    )


def test_lengths_of_ids_do_not_matter_to_their_dtype() -> None:
    model = model_of(STATED, numbers(take="lengths"))
    assert sent_dtype("user", model, job_with(NAMES)) == "string"


def test_tower_needs_the_inputs_of_its_features_and_their_weights() -> None:
    bags = bag("ragged", weights="weight", weighted=True)
    movie_spec = FeatureSpec("movie", feature(inputs=("movie",), table="movies"))
    read = {"user": bags, "movie": movie_spec}
    tensors = tuple(
        TowerInput(name=name, feature=name, dtype="float32", shape=(None, 2)) for name in read
    )
    tower_spec = TowerSpec(
        name="tower",
        role="query",
        call=Call(),
        paths={"given": ()},
        inputs=tensors[:1],
        outputs=(),
        result="given",
    )
    declared = {
        "weight": {"dtype": "float32", "kind": "ragged", "weights_for": "user"},
        "movie": {"dtype": "int64"},
        "user": {"dtype": "int64", "kind": "ragged"},
        "unread": {"dtype": "int64"},
    }
    features = {"user": {"ids": {"kind": "hash", "dtype": "string"}}}
    job = recipe("model.py:build", declared, {"tower": {"role": "query"}}, {"features": features})
    model = ModelSpec({}, read, {"tower": tower_spec})
    original: Any = NoLayers()

    def parts(*inputs: TowerInput) -> dict[str, Any]:
        tower = TracedTower(replace(tower_spec, inputs=inputs), None, ())
        traced = PartitionedModel(model, (tower,), original)
        lookups = InlineLookups(job, traced, {}, TABLES, {}, lambda *_: None)
        return {name: (part.dtype, part.kind) for name, part in lookups.inputs_of(tower).items()}

    user = {"weight": ("float32", "ragged"), "user": ("string", "ragged")}
    movie = {"movie": ("int64", "dense")}
    assert parts(*tensors[:1]) == user
    assert parts(*tensors[1:]) == movie
    assert list(parts(*tensors).items()) == [
        ("weight", user["weight"]),
        ("movie", movie["movie"]),
        ("user", user["user"]),
    ]
