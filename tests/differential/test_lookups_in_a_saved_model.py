"""Lookups inside of a self-contained SavedModel against those of the service, which takes the same
raw values: every kind of feature, encoding, combiner and rule, for random requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import ConstantNode, CrossNode, InputNode, OperationNode, SplitNode
from bundle.format.manifest import EmbeddedFeature, GraphIds, JointInput, Unknown
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.checkpoint.inventory.specs import TableSpec
from export.checkpoint.layouts import Plain, SparseCore
from export.errors import DestinationError, NotConvertible, UsageError
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import FeatureSpec, ModelSpec, TableFacts
from export.graphs.loading import load_tensorflow, tf
from export.saved_model.graph import InlineGraph, build_graph, variable_key, write_graph
from tests.bundles.tables import write_table
from tests.id_graphs import bucket_ids, cast_ids, crossed_ids, hash_ids, vocabulary_ids, word_ids
from tests.units.export.partition.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import recipe

pytestmark = pytest.mark.slow

load_tensorflow()
ROWS = 5
EXAMPLES = 40
LENGTH = 3
TABLE = np.random.default_rng(1).standard_normal((ROWS, 2)).astype(ml_dtypes.bfloat16)
STACK = TableSpec(
    name="users",
    key="stack",
    rows=ROWS,
    dim=2,
    dtype="bfloat16",
    layout=SparseCore(cores=2, core_rows=4, offset=1, rotation=1),
    stored=(8, 3),
    origin="named",
    path="",
    slices=1,
    files=1,
    bytes=0,
)
PLAIN = replace(STACK, key="own", layout=Plain(), stored=(ROWS, 2), dtype="float32")
STACKED = np.full((8, 3), 99, ml_dtypes.bfloat16)
for row in range(ROWS):
    STACKED[(row + 1) % 2 * 4 + 1 + row // 2, :2] = TABLE[row]

_COMBINER = EmbeddedFeature.model_fields["combiner"].annotation
COMBINERS = get_args(get_args(_COMBINER)[0])
KEYS: dict[str, tuple[Any, ...]] = {"int64": (30, 10, 20), "string": ("c", "a", "b")}
OTHERS: dict[str, Any] = {"first_row": 2, "oov_buckets": 2, "oov_first_row": 0}
"""The rows of the known keys, and those of all others."""
TEXTS = ["a", "b", "c", "some words", "", "z z"]


class Lookup(NamedTuple):
    """A feature that reads the table.

    Attributes:
      entry: What its manifest entry says beside its table and its role.
      encoding: Of the tensor that the call takes.
      dtypes: The types of its inputs.
    """

    entry: dict[str, Any]
    encoding: str = "dense"
    dtypes: tuple[str, ...] = ("int64",)


def joined() -> dict[str, Any]:
    builder = GraphBuilder("int64")
    texts = [builder.texts(value) for value in (builder.last, builder.input("int64", 1))]
    builder.hashed(builder.compute("StringJoin", *texts, separator="-"), ROWS)
    return {"ids": builder.graph(), "joint": (JointInput(),) * 2}


def crossed(*padding: int | None) -> dict[str, Any]:
    joint = tuple(JointInput(padding=number) for number in padding)
    return {"ids": crossed_ids(["int64" for _ in padding], ROWS), "joint": joint}


SINGLE = {"kind": "single"}
SEQUENCE = {"kind": "sequence", "length": LENGTH}
SUM = {"kind": "bag", "combiner": "sum"}
LOOKUPS = {
    "single": Lookup(SINGLE),
    "single, unknown row": Lookup(SINGLE | {"unknown": Unknown(rule="row", row=3)}),
    "single, row 0": Lookup(SINGLE | {"unknown": Unknown(rule="row", row=0)}),
    "single, from the end": Lookup(SINGLE | {"from_end": True}),
    "single, padding": Lookup(SINGLE | {"padding": 4}),
    "single, place": Lookup(SINGLE | {"place": 1, "places": LENGTH}),
    "single, cast": Lookup(
        SINGLE | {"ids": cast_ids("float32", "int64", "Ceil")}, "dense", ("float32",)
    ),
    "single, buckets": Lookup(SINGLE | {"ids": bucket_ids((0.5, 2.0, 3.0))}, "dense", ("float32",)),
    "single, hash": Lookup(SINGLE | {"ids": hash_ids(ROWS)}),
    "single, hash of texts": Lookup(
        SINGLE | {"ids": hash_ids(ROWS, "string")}, "dense", ("string",)
    ),
    "single, vocabulary": Lookup(SINGLE | {"ids": vocabulary_ids("integers", "int64")}),
    "single, texts": Lookup(
        SINGLE | {"ids": vocabulary_ids("texts", "string")}, "dense", ("string",)
    ),
    "single, other texts": Lookup(
        SINGLE | {"ids": vocabulary_ids("texts", "string", **OTHERS)}, "dense", ("string",)
    ),
    "single, other keys by their remainders": Lookup(
        SINGLE | {"ids": vocabulary_ids("integers", "int64", **OTHERS, oov_hash="modulo", mask=0)}
    ),
    "single, hash by a key": Lookup(
        SINGLE | {"ids": hash_ids(ROWS, "string", key=(3, 4))}, "dense", ("string",)
    ),
    "single, joined inputs": Lookup(SINGLE | joined(), "dense", ("int64",) * 2),
    "single, crossed": Lookup(SINGLE | crossed(None, None), "dense", ("int64",) * 2),
    "indicator": Lookup(SINGLE | {"table": "", "indicator": ROWS}),
    "ordinal": Lookup(SINGLE | {"table": "", "indicator": ROWS, "ordinal": True}),
    "sequence": Lookup(SEQUENCE),
    "sequence, ragged": Lookup(SEQUENCE, "ragged"),
    "sequence, sparse": Lookup(SEQUENCE, "sparse"),
    "sequence, filler": Lookup(SEQUENCE | {"filler_row": 3}, "ragged"),
    "bag, padding": Lookup(SUM | {"padding": 0}),
    "bag, dense": Lookup(SUM),
    "bag, empty row": Lookup(SUM | {"empty_row": 3}, "sparse"),
    "bag, clipped": Lookup(SUM | {"max_norm": 0.5}, "sparse"),
    "bag, crossed": Lookup(SUM | crossed(0, None), "sparse", ("int64",) * 2),
    "bag, words": Lookup(
        SUM | {"ids": word_ids(hash_ids(ROWS, "string"))},
        "words",
        ("string",),
    ),
    **{
        f"bag, {combiner}, {encoding}{', weighted' * weighted}": Lookup(
            {"kind": "bag", "combiner": combiner, "weighted": weighted}, encoding
        )
        for combiner in COMBINERS
        for encoding in ("ragged", "sparse")
        for weighted in (False, True)
    },
}


class Requests(NamedTuple):
    """The same random values as a SavedModel takes them, and as the service does."""

    tensors: dict[str, Any]
    columns: dict[str, Column]


def values_of(random: np.random.Generator, dtype: str, count: int) -> NDArray[Any]:
    if dtype == "string":
        return random.choice(np.array(TEXTS, object), count)
    if dtype == "float32":
        return random.uniform(-1, 6, count).astype(np.float32)
    return random.choice([-2, -1, 0, 1, 2, 3, 4, 5, 6, 10, 20, 30], count)


def requests(lookup: Lookup, names: tuple[str, ...], seed: int) -> Requests:
    random = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    columns: dict[str, Column] = {}
    for name, dtype in zip(names, lookup.dtypes, strict=True):
        if lookup.encoding in ("ragged", "sparse"):
            lengths = random.integers(0, LENGTH + 2, EXAMPLES)
            splits = np.concatenate([[0], np.cumsum(lengths)])
            values = values_of(random, dtype, splits[-1])
            bags = tf.RaggedTensor.from_row_splits(tf.constant(values), splits)
            columns[name] = Column(values, splits)
            tensors[name] = bags
            if lookup.entry.get("weighted"):
                weights = random.uniform(0.5, 2, splits[-1]).astype(np.float32)
                columns[name] = Column(values, splits, weights)
                tensors[f"{name}_weight"] = bags.with_values(tf.constant(weights))
        else:
            is_list = lookup.entry["kind"] != "single" or "places" in lookup.entry
            is_list = is_list and lookup.encoding != "words"
            values = values_of(random, dtype, EXAMPLES * (LENGTH if is_list else 1))
            columns[name] = Column(values)
            tensor = tf.constant(values)
            tensors[name] = tf.reshape(tensor, [EXAMPLES, -1]) if is_list else tensor
    if lookup.encoding == "sparse":
        tensors = {name: bags.to_sparse() for name, bags in tensors.items()}
    return Requests(tensors, columns)


def tower(name: str, *features: str, shape: tuple[int, ...] = (2,)) -> TracedTower:
    """Returns a tower that gives what it is activations, all of its features together."""

    def call(activations: Mapping[str, Any]) -> dict[str, Any]:
        return {"score": tf.add_n([activations[feature] for feature in features])}

    traced = tower_of(trace(call, **{feature: numbers(*shape) for feature in features}))
    return replace(traced, spec=replace(traced.spec, name=name))


def built(
    towers: tuple[TracedTower, ...],
    specs: Mapping[str, Any],
    inputs: Mapping[str, Any],
    tables: Mapping[str, TableSpec],
    **output: str,
) -> InlineGraph:
    facts = {name: TableFacts(name, name, ROWS, 2) for name in tables}
    model = ModelSpec(facts, dict(specs), {tower.spec.name: tower.spec for tower in towers})
    original: Any = None
    sections = {"output": {"root": "bundles", **output}}
    job = recipe("model.py:build", inputs, {"tower": {"role": "query"}}, sections)
    entries = {name: spec.entry for name, spec in specs.items()}
    return build_graph(job, Path(), PartitionedModel(model, towers, original), entries, tables)


def declared(lookup: Lookup, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the inputs of the recipe."""
    inputs: dict[str, Any] = {}
    for name, dtype in zip(names, lookup.dtypes, strict=True):
        inputs[name] = {"dtype": dtype}
        if lookup.encoding in ("ragged", "sparse"):
            inputs[name]["kind"] = lookup.encoding
        elif lookup.encoding == "dense" and (
            "places" in lookup.entry or lookup.entry["kind"] != "single"
        ):
            inputs[name]["shape"] = [LENGTH]
    if lookup.entry.get("weighted"):
        weight = {"dtype": "float32", "kind": lookup.encoding, "weights_for": names[0]}
        inputs[f"{names[0]}_weight"] = weight
    return inputs


def feature_of(lookup: Lookup, names: tuple[str, ...]) -> FeatureSpec:
    """Returns the feature of a lookup, which has the name of its first input."""
    entry: dict[str, Any] = {"table": "users", "inputs": names, **lookup.entry}
    has_keys = isinstance(entry.get("ids"), GraphIds) and entry["ids"].tables
    keys = {"keys": (KEYS[lookup.dtypes[0]],)} if has_keys else {}
    weights = f"{names[0]}_weight" if lookup.entry.get("weighted") else None
    encoding = "ragged" if lookup.encoding == "words" else lookup.encoding
    return embedded(names[0], entry.pop("table"), weights, encoding=encoding, **keys, **entry)


@pytest.mark.parametrize(
    ("table", "names"),
    [(STACK, [*LOOKUPS]), (PLAIN, ["single", "sequence", "bag, dense"])],
    ids=["stack", "plain"],
)
def test_lookups_give_what_the_service_looks_up(
    table: TableSpec, names: list[str], tmp_path: Path
) -> None:
    """All of them are outputs of one tower."""
    lookups = {name: LOOKUPS[name] for name in names}
    names_of = {
        name: (f"f{number}", f"f{number}_other")[: len(lookup.dtypes)]
        for number, (name, lookup) in enumerate(lookups.items())
    }
    specs = {}
    inputs: dict[str, Any] = {}
    shapes = {}
    for name, lookup in lookups.items():
        feature = feature_of(lookup, names_of[name])
        specs[feature.name] = feature
        inputs |= declared(lookup, names_of[name])
        width = {"indicator": ROWS, "ordinal": 1}.get(name, 2)
        shape = (LENGTH, 2) if lookup.entry["kind"] == "sequence" else (width,)
        shapes[feature.name] = numbers(*shape)

    def call(activations: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tf.identity(values) for name, values in activations.items()}

    graph = built((tower_of(trace(call, **shapes)),), specs, inputs, {"users": table})
    stored = STACKED if table is STACK else TABLE.astype(np.float32)
    graph.module.table_0.assign(tf.constant(stored))

    served = write_table(tmp_path, "users", TABLE.view("u2"), "bfloat16", [])
    vocabularies = {
        "integers": Vocabulary(IntegerKeys(np.array(KEYS["int64"]))),
        "texts": Vocabulary(StringKeys(list(KEYS["string"]))),
    }
    entries = {name: feature.entry for name, feature in specs.items()}
    reader = FeatureReader(entries, {"users": TableReader(tmp_path, served)}, vocabularies)
    problems = []
    for seed in range(3):
        drawn = {name: requests(lookups[name], names_of[name], seed) for name in lookups}
        tensors = {key: part for request in drawn.values() for key, part in request.tensors.items()}
        results = graph.signatures["tower"](**tensors)
        for name, request in drawn.items():
            actual = results[names_of[name][0]].numpy()
            expected = reader.activation(names_of[name][0], request.columns, EXAMPLES).values
            if not np.allclose(actual, expected.reshape(actual.shape), rtol=1e-5, atol=1e-5):
                problems.append(f"{name}, seed {seed}: {actual[:3]}, by the service {expected[:3]}")
    reader.close()
    assert not problems, "\n".join(problems)


def test_every_kind_combiner_and_rule_is_drawn() -> None:
    entries = [lookup.entry for lookup in LOOKUPS.values()]
    assert {entry["kind"] for entry in entries} == {"single", "bag", "sequence"}
    graphs = [entry["ids"] for entry in entries if "ids" in entry]
    nodes = {type(node) for graph in graphs for node in graph.nodes}
    assert nodes == {InputNode, ConstantNode, CrossNode, SplitNode, OperationNode}


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_bags_that_a_tower_takes_itself_are_lengths_values_and_weights(kind: str) -> None:
    specs = {
        "count": dense("count", "int64", (), take="lengths", inputs=("user",)),
        "ids": dense("ids", "int64", (3,), take="padded", inputs=("user",)),
        "shares": replace(
            dense("shares", "float32", (3,), take="weights", inputs=("user",)), weights="weight"
        ),
    }

    def call(activations: Mapping[str, Any]) -> dict[str, Any]:
        ids = tf.cast(activations["ids"], tf.float32)
        count = tf.cast(activations["count"], tf.float32)
        return {"score": tf.concat([count[:, None], ids, activations["shares"]], 1)}

    traced = tower_of(
        trace(
            call,
            count=tf.TensorSpec([None], tf.int64),
            ids=tf.TensorSpec([None, 3], tf.int64),
            shares=numbers(3),
        )
    )
    inputs = {
        "user": {"dtype": "int64", "kind": kind},
        "weight": {"dtype": "float32", "kind": kind, "weights_for": "user"},
    }
    graph = built((traced,), specs, inputs, {})
    bags = tf.ragged.constant([[1, 2, 3], [], [4]], tf.int64, row_splits_dtype=tf.int64)
    weights = bags.with_values(tf.constant([0.5, 2, -1, 3]))
    longer = tf.ragged.constant([[1, 2, 3, 4]], tf.int64, row_splits_dtype=tf.int64)

    def called(user: Any, weight: Any) -> Any:
        if kind == "sparse":
            user = user.to_sparse()
            weight = weight.to_sparse()
        return graph.signatures["tower"](user=user, weight=weight)["score"].numpy().tolist()

    assert called(bags, weights) == [
        [3, 1, 2, 3, 0.5, 2, -1],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 4, 0, 0, 3, 0, 0],
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than the 3 values"):
        called(longer, longer.with_values(tf.ones([4])))


INT64 = {"dtype": "int64"}
RAGGED = {"dtype": "int64", "kind": "ragged"}
USER = embedded("user", "users")
MOVIE = embedded("movie", "movies")
TAG = embedded("tag", "tags", kind="bag", combiner="sum", encoding="ragged")
TABLES = {
    "users": STACK,
    "movies": replace(STACK, name="movies"),
    "tags": replace(PLAIN, name="tags"),
}


def test_tables_of_a_stack_share_a_variable_and_each_tower_is_a_signature(tmp_path: Path) -> None:
    towers = (tower("first", "user"), tower("second", "movie", "tag"))
    inputs = {"tag": RAGGED, "user": INT64, "movie": INT64}
    specs = {"user": USER, "movie": MOVIE, "tag": TAG}
    graph = built(towers, specs, inputs, TABLES)
    assert graph.tables == {"table_0": "stack", "table_1": "own"}
    assert graph.inputs == {
        "first": {"user": ("user",)},
        "second": {"tag": ("tag", "tag_1"), "movie": ("movie",)},
        "serving_default": {"user": ("user",)},
    }
    assert graph.signatures["serving_default"] is graph.signatures["first"]
    named = built(towers, specs, inputs, TABLES, serving_default="second")
    assert named.signatures["serving_default"] is named.signatures["second"]
    with pytest.raises(UsageError, match=r"output\.serving_default is 'third'"):
        built(towers, specs, inputs, TABLES, serving_default="third")

    objects = write_graph(graph, tmp_path / "saved_model")
    for name in graph.tables:
        assert variable_key(name).encode() in objects
    assert not list(tmp_path.rglob("*.data-*"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DestinationError, match="file/sub"):
        write_graph(graph, tmp_path / "file/sub")


def test_inputs_whose_tensors_would_have_one_name_are_rejected() -> None:
    numbered = replace(embedded("tag_1", "users"), name="tag_1")
    specs = {"tag": TAG, "tag_1": numbered}
    inputs = {"tag": RAGGED, "tag_1": INT64}
    with pytest.raises(UsageError, match="two inputs need a tensor 'tag_1'"):
        built((tower("rank", "tag", "tag_1"),), specs, inputs, TABLES)


def test_unknown_id_is_rejected_where_the_feature_says_so() -> None:
    spec = embedded("user", "users", unknown=Unknown(rule="refuse"))
    graph = built((tower("tower", "user"),), {"user": spec}, {"user": INT64}, {"users": PLAIN})
    graph.module.table_0.assign(tf.constant(TABLE.astype(np.float32)))
    assert graph.signatures["tower"](user=tf.constant([0, 4], tf.int64))["score"].shape == (2, 2)
    for unknown in (5, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rejects unknown ids"):
            graph.signatures["tower"](user=tf.constant([0, unknown], tf.int64))


def test_key_that_the_vocabulary_of_a_model_lacks_is_rejected() -> None:
    rule = vocabulary_ids("known", is_complete=True)
    spec = embedded("user", "users", ids=rule, keys=(KEYS["string"],))
    inputs = {"user": {"dtype": "string"}}
    graph = built((tower("tower", "user"),), {"user": spec}, inputs, {"users": PLAIN})
    graph.module.table_0.assign(tf.constant(TABLE.astype(np.float32)))
    graph.signatures["tower"](user=tf.constant(["a", "b"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in vocabulary known"):
        graph.signatures["tower"](user=tf.constant(["a", "no"]))


def test_ids_that_would_be_sent_in_two_types_are_rejected() -> None:
    specs: dict[str, Any] = {"user": USER, "again": dense("again", "int64", (), inputs=("user",))}
    model = ModelSpec({"users": TableFacts("users", "users", ROWS, 2)}, dict(specs), {})
    names = {"file": "names.txt", "dtype": "string"}
    rule = {"ids": {"kind": "vocabulary", "vocabulary": "names"}}

    def call(activations: Mapping[str, Any]) -> dict[str, Any]:
        return {"score": activations["user"] + tf.cast(activations["again"], tf.float32)[:, None]}

    traced = tower_of(trace(call, user=numbers(2), again=tf.TensorSpec([None], tf.int64)))
    original: Any = None
    model = replace(model, towers={"tower": traced.spec})
    sections = {"features": {"user": rule}, "vocabularies": {"names": names}}
    job = recipe("model.py:build", {"user": INT64}, {"tower": {"role": "query"}}, sections)
    entries = {name: spec.entry for name, spec in specs.items()}
    with pytest.raises(NotConvertible, match=r'output\.tables = "copy"'):
        build_graph(job, Path(), PartitionedModel(model, (traced,), original), entries, TABLES)
