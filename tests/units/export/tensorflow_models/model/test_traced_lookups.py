"""Lookups of small traced calls, and the features that they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bundle.format.manifest import CrossedIds, CrossKey, Unknown
from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.outside_ids import OutsideIds
from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.graphs.tensors import input_spec
from export.id_graphs.descriptions import describe_ids
from export.recipe.schema import InputSection
from export.tensorflow_models.frameworks.placeholders import tables_unallocated
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.graph.tower_results import Returned
from export.tensorflow_models.lookups.records import MissingRule, TracedLookup
from export.tensorflow_models.model.traced_lookups import resolve_lookups
from tests.id_graphs import hash_ids, vocabulary_ids
from tests.units.export.tensorflow_models.graph.traced_calls import trace

ITEMS = TableFacts("items", "items", 8, 4)
CONFIG = object()
INPUTS = {
    "item": InputSection(dtype="int64"),
    "other": InputSection(dtype="int64"),
    "short": InputSection(dtype="int32"),
    "age": InputSection(dtype="float32"),
    "one": InputSection(dtype="int64", shape=(1,)),
    "pair": InputSection(dtype="int64", shape=(2,)),
    "quad": InputSection(dtype="int64", shape=(4,)),
    "table": InputSection(dtype="int64", shape=(2, 3)),
    "text": InputSection(dtype="string"),
    "word": InputSection(dtype="string"),
    "bag": InputSection(dtype="int64", kind="ragged"),
    "another": InputSection(dtype="int64", kind="ragged"),
    "bag_weights": InputSection(dtype="float32", kind="ragged", weights_for="bag"),
    "loads": InputSection(dtype="float32", kind="ragged"),
    "tags": InputSection(dtype="int64", kind="sparse"),
}

LookUp = Callable[[Any], TracedLookup]
"""Makes a lookup of the inputs of a call, by their names."""


def resolve(look_up: LookUp) -> list[TracedLookup]:
    """Returns the resolved lookups of a call that has one lookup."""
    lookups: list[TracedLookup] = []

    def call(features: Any) -> dict[str, Any]:
        lookups.append(look_up(features))
        return {"nothing": tf.zeros([])}

    traced = trace(call, **{name: input_spec(part) for name, part in INPUTS.items()})
    returned = Returned(traced.results)
    whole = TracedCall(Call(), traced.function, traced.inputs, {}, returned, INPUTS, lookups)
    return resolve_lookups(whole, lookups)


FROM_END = OutsideIds(from_end=True)


def of(*ids: Any, **fields: Any) -> TracedLookup:
    """Returns a lookup in a table that cannot stay inside a tower, with these other fields."""
    length = fields.get("length")
    shape = [None, 4] if length is None else [None, length, 4]
    activation = tf.compat.v1.placeholder(tf.float32, shape)
    defaults = {"table": ITEMS, "variable": object(), "config": CONFIG}
    return TracedLookup("looked", ids=ids, activation=activation, **{**defaults, **fields})


def variable(**attributes: Any) -> Any:
    """Returns the variable of a table that may stay inside a tower."""
    with tables_unallocated():
        variable_of_attributes = tf.Variable(tf.zeros([8, 4]))
    for name, value in attributes.items():
        setattr(variable_of_attributes, name, value)
    return variable_of_attributes


def gathered(ids: Any, **fields: Any) -> TracedLookup:
    """Returns a lookup by `tf.gather`, which may stay inside a tower."""
    return replace(of(ids, **fields), gather=True)


def sequence(ids: Any, length: int, **fields: Any) -> TracedLookup:
    return of(ids, kind="sequence", length=length, **fields)


def bag(ids: Any, **fields: Any) -> TracedLookup:
    """Returns the sum of the rows of ragged ids."""
    return of(ids, **{"kind": "bag", "encoding": "ragged", "combiner": "sum", **fields})


def ragged(values: Any, splits: Any) -> Any:
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def hashed(text: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(text, 8)


def entry_of(lookup: TracedLookup) -> dict[str, Any]:
    """Returns what is special about the feature of a lookup."""
    feature = lookup.feature
    assert feature is not None
    assert feature.config is CONFIG
    entry = feature.entry.model_dump(exclude_defaults=True)
    assert entry.pop("role") == "context"
    if "ids" in entry:
        entry["ids"] = describe_ids(feature.entry, feature.entry.inputs)
    if isinstance(feature.entry.ids, CrossedIds):
        entry["paddings"] = tuple(key.padding for key in feature.entry.ids.keys)
    fields = {
        "weights": feature.weights,
        "ids_max": feature.ids_max,
        "keys": feature.keys,
        "has_rule": feature.has_rule,
        "has_unknown": feature.has_unknown,
    }
    fields = {name: value for name, value in fields.items() if value}
    dtype = {} if feature.ids_dtype == "int64" else {"ids_dtype": feature.ids_dtype}
    table = {} if entry.pop("table") == "items" else {"table": "none"}
    return {**entry, **fields, **dtype, **table}


LISTED = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([0, 1], tf.int64)),
    -1,
)
"""Gives other words row -1."""
WORDS = {
    "kind": "single",
    "inputs": ("text",),
    "ids": "position of the id in vocabulary, else -1",
    "keys": (("a", "b"),),
    "has_rule": True,
    "ids_dtype": "string",
}
HASHED = hash_ids(3, "int64")
HASHED_TEXT = hash_ids(3, "string")
FIFTH = "the id mod 5"
BELOW_3 = "(the id mod 5) - 3"
FROM_THE_END = ", below 0 from the end"
CROSS = CrossedIds(buckets=9, keys=(CrossKey(dtype="int64"), CrossKey(dtype="int64")))
PADDED_CROSS = CrossedIds(
    buckets=9, keys=(CrossKey(dtype="int64"), CrossKey(dtype="int64", padding=-1))
)


@pytest.mark.parametrize(
    ("look_up", "feature"),
    [
        pytest.param(
            lambda inputs: of(inputs["short"]),
            {"kind": "single", "inputs": ("short",), "ids_dtype": "int32"},
            id="ids of 32 bits",
        ),
        pytest.param(
            lambda inputs: of(inputs["one"], length=1),
            {"kind": "single", "inputs": ("one",)},
            id="one id with a dimension",
        ),
        pytest.param(
            lambda inputs: sequence(inputs["pair"], 2, filler_row=6, max_norm=2.0),
            {"kind": "sequence", "inputs": ("pair",), "length": 2, "filler_row": 6},
            id="sequence",
        ),
        pytest.param(
            lambda inputs: gathered(tf.reshape(inputs["pair"] % 5, [-1])),
            {
                "kind": "sequence",
                "inputs": ("pair",),
                "length": 2,
                "ids": FIFTH,
                "has_rule": True,
            },
            id="flattened ids",
        ),
        pytest.param(
            lambda inputs: gathered(inputs["pair"][:, 1]),
            {"kind": "single", "inputs": ("pair",), "place": 1, "places": 2},
            id="one of two ids",
        ),
        pytest.param(
            lambda inputs: of(tf.cast(inputs["age"], tf.int64)),
            {
                "kind": "single",
                "inputs": ("age",),
                "ids": "int64(the id)",
                "ids_dtype": "float32",
            },
            id="cast numbers",
        ),
        pytest.param(
            lambda inputs: bag(inputs["bag"] % 5, max_norm=2.0, empty_row=3, ids_max=7, length=9),
            {
                "kind": "bag",
                "inputs": ("bag",),
                "combiner": "sum",
                "encoding": "ragged",
                "max_norm": 2.0,
                "empty_row": 3,
                "ids": FIFTH,
                "has_rule": True,
            },
            id="bag",
        ),
        pytest.param(
            lambda inputs: bag(inputs["bag"], weights=inputs["bag_weights"]),
            {
                "kind": "bag",
                "inputs": ("bag",),
                "combiner": "sum",
                "encoding": "ragged",
                "weighted": True,
                "weights": "bag_weights",
            },
            id="weighted bag",
        ),
        pytest.param(
            lambda inputs: bag(inputs["tags"], encoding="sparse", ids_max=7),
            {"kind": "bag", "inputs": ("tags",), "combiner": "sum"},
            id="sparse bag",
        ),
        pytest.param(
            lambda inputs: bag(inputs["table"], encoding="dense"),
            {"kind": "bag", "inputs": ("table",), "combiner": "sum", "ids_max": 6},
            id="dense bag",
        ),
        pytest.param(
            lambda inputs: bag(hashed(tf.strings.split(inputs["text"])), ids_max=3),
            {
                "kind": "bag",
                "inputs": ("text",),
                "combiner": "sum",
                "encoding": "ragged",
                "ids": "fingerprint64(word) mod 8 for the first 3 of the words of the text",
                "has_rule": True,
                "ids_dtype": "string",
            },
            id="words of a text",
        ),
        pytest.param(
            lambda inputs: of(
                tf.strings.lower(inputs["text"]),
                rule=vocabulary_ids("v"),
                keys=(("a", "b"),),
                unknown=Unknown(rule="row", row=2),
                padding="",
            ),
            {
                "kind": "single",
                "inputs": ("text",),
                "ids": "position of lower(the id) in v, else -1",
                "keys": (("a", "b"),),
                "unknown": {"rule": "row", "row": 2},
                "padding": "",
                "has_rule": True,
                "has_unknown": True,
                "ids_dtype": "string",
            },
            id="words in lower case",
        ),
        pytest.param(
            lambda inputs: of(tf.strings.strip(tf.strings.upper(inputs["text"])), rule=HASHED_TEXT),
            {
                "kind": "single",
                "inputs": ("text",),
                "ids": "fingerprint64(strip(upper(the id))) mod 3",
                "has_rule": True,
                "ids_dtype": "string",
            },
            id="stripped words",
        ),
        pytest.param(
            lambda inputs: sequence(
                hashed(tf.strings.join([inputs["text"], inputs["word"]], "-"))[:, None], 1
            ),
            {
                "kind": "single",
                "inputs": ("text", "word"),
                "ids": "fingerprint64(text + '-' + word) mod 8",
                "has_rule": True,
                "ids_dtype": "string",
            },
            id="joined words",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], inputs["other"] % 5, rule=CROSS),
            {
                "kind": "single",
                "inputs": ("item", "other"),
                "ids": "cross of item and other mod 5 mod 9",
                "paddings": (None, None),
                "has_rule": True,
            },
            id="cross",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], inputs["other"], rule=PADDED_CROSS),
            {
                "kind": "single",
                "inputs": ("item", "other"),
                "ids": "cross of item and other mod 9",
                "paddings": (None, -1),
                "has_rule": True,
            },
            id="cross of unchanged inputs",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], tf.cast(inputs["age"], tf.int64) % 5, rule=CROSS),
            {
                "kind": "single",
                "inputs": ("item", "age"),
                "ids": "cross of item and int64(age) mod 5 mod 9",
                "paddings": (None, None),
                "has_rule": True,
            },
            id="cross of cast numbers",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] - 3, inputs["other"], rule=PADDED_CROSS),
            {
                "kind": "single",
                "inputs": ("item", "other"),
                "ids": "cross of item - 3 and other mod 9",
                "paddings": (None, -1),
                "has_rule": True,
            },
            id="cross with padding of another input",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], padding=-1),
            {"kind": "single", "inputs": ("item",), "padding": -1},
            id="padding",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] % 5, padding=-1),
            {"kind": "single", "inputs": ("item",), "ids": FIFTH, "has_rule": True},
            id="padding that no id is",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] % 5, rule=HASHED, padding=-1),
            {
                "kind": "single",
                "inputs": ("item",),
                "ids": "fingerprint64(str(int64(the id mod 5))) mod 3",
                "has_rule": True,
            },
            id="hash of computed ids",
        ),
        pytest.param(
            lambda inputs: of(tf.cast(inputs["item"], tf.int32), rule=HASHED),
            {
                "kind": "single",
                "inputs": ("item",),
                "ids": "fingerprint64(str(int64(int32(the id)))) mod 3",
                "has_rule": True,
            },
            id="hash of cast ids",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], variable=None, table=TableFacts("", "", 8, 8)),
            {"kind": "single", "inputs": ("item",), "indicator": 8, "table": "none"},
            id="indicator",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], variable=None, table=TableFacts("", "", 8, 1)),
            {
                "kind": "single",
                "inputs": ("item",),
                "indicator": 8,
                "ordinal": True,
                "table": "none",
            },
            id="ordinal",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], variable=variable(), outside=FROM_END),
            {"kind": "single", "inputs": ("item",), "from_end": True},
            id="from the end",
        ),
        pytest.param(
            lambda inputs: of(
                tf.where(inputs["item"] < 0, tf.constant(7, tf.int64), inputs["item"]),
                variable=variable(),
                outside=FROM_END,
            ),
            {
                "kind": "single",
                "inputs": ("item",),
                "ids": f"7 if (the id < 0) else the id{FROM_THE_END}",
                "from_end": True,
                "has_rule": True,
            },
            id="no longer below 0",
        ),
        pytest.param(
            lambda inputs: of(
                tf.where(inputs["item"] < 0, tf.constant(7, tf.int64), inputs["item"]),
                unknown=Unknown(rule="row", row=3),
            ),
            {
                "kind": "single",
                "inputs": ("item",),
                "ids": "7 if (the id < 0) else the id",
                "has_rule": True,
                "has_unknown": True,
                "unknown": {"rule": "row", "row": 3},
            },
            id="two rows of unknown ids",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] % 5 - 3, variable=variable(), outside=FROM_END),
            {
                "kind": "single",
                "inputs": ("item",),
                "ids": BELOW_3 + FROM_THE_END,
                "from_end": True,
                "has_rule": True,
            },
            id="computed from the end",
        ),
        pytest.param(
            lambda inputs: of(hashed(inputs["text"]) - 1, variable=variable(), outside=FROM_END),
            {
                "kind": "single",
                "inputs": ("text",),
                "ids": f"(fingerprint64(the id) mod 8) - 1{FROM_THE_END}",
                "from_end": True,
                "has_rule": True,
                "ids_dtype": "string",
            },
            id="chain from the end",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] % 5 - 3, variable=variable()),
            {"kind": "single", "inputs": ("item",), "ids": BELOW_3, "has_rule": True},
            id="computed and not from the end",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] % 5, variable=variable(), outside=FROM_END),
            {"kind": "single", "inputs": ("item",), "ids": FIFTH, "has_rule": True},
            id="computed and never negative",
        ),
        pytest.param(
            lambda inputs: of(LISTED.lookup(inputs["text"])),
            WORDS,
            id="list of words",
        ),
        pytest.param(
            lambda inputs: of(LISTED.lookup(inputs["text"]), variable=variable(), outside=FROM_END),
            {**WORDS, "ids": f"{WORDS['ids']}{FROM_THE_END}", "from_end": True},
            id="list of words from the end",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], variable=variable(), outside=FROM_END, rule=HASHED),
            {
                "kind": "single",
                "inputs": ("item",),
                "ids": "fingerprint64(str(the id)) mod 3",
                "has_rule": True,
            },
            id="hash that is never negative",
        ),
    ],
)
def test_lookup_of_an_input_becomes_one_feature(look_up: LookUp, feature: dict[str, Any]) -> None:
    (lookup,) = resolve(look_up)
    assert entry_of(lookup) == feature
    assert lookup.missing_rule is None


def within_8(ids: Any, other_row: int) -> Any:
    inside = (ids >= 0) & (ids < 8)
    return tf.where(inside, ids, tf.constant(other_row, ids.dtype))


@pytest.mark.parametrize(
    ("compute", "has_rule", "unknown"),
    [
        (lambda ids: within_8(ids, 3), False, Unknown(rule="row", row=3)),
        (lambda ids: within_8(ids, -1), False, Unknown()),
        (lambda ids: tf.clip_by_value(ids, 0, 7), True, Unknown()),  # two rows
        (lambda ids: tf.where(ids == 5, tf.zeros_like(ids), ids), True, Unknown()),
        (lambda ids: tf.cast(tf.cast(ids, tf.int32), tf.int64), False, Unknown()),
        (lambda ids: within_8(ids, 3) + 0 * (7 // ids), True, Unknown()),  # fails on 0
    ],
)
def test_recipe_may_state_a_rule_where_the_model_keeps_the_rows(
    compute: Callable[[Any], Any], has_rule: bool, unknown: Unknown
) -> None:
    (lookup,) = resolve(lambda features: of(compute(features["item"])))
    assert lookup.feature is not None
    assert lookup.feature.has_rule == has_rule
    assert lookup.feature.entry.unknown == unknown


def test_feature_has_the_encoding_of_its_lookup() -> None:
    lookups = [
        resolve(lambda inputs: bag(inputs["bag"])),
        resolve(lambda inputs: bag(inputs["tags"], encoding="sparse")),
        resolve(lambda inputs: of(inputs["item"])),
    ]
    features = [lookup.feature for (lookup,) in lookups]
    assert [feature and feature.encoding for feature in features] == ["ragged", "sparse", "dense"]


@pytest.mark.parametrize(
    "look_up",
    [
        pytest.param(
            lambda inputs: sequence(tf.stack([inputs["item"], inputs["other"] % 5], 1), 2),
            id="sequence",
        ),
        pytest.param(
            lambda inputs: gathered(
                tf.reshape(tf.stack([inputs["item"], inputs["other"] % 5], 1), [-1]),
            ),
            id="flattened",
        ),
    ],
)
def test_lookup_of_several_inputs_becomes_a_feature_of_each(look_up: LookUp) -> None:
    lookups = resolve(look_up)
    assert list(map(entry_of, lookups)) == [
        {"kind": "single", "inputs": ("item",)},
        {"kind": "single", "inputs": ("other",), "ids": FIFTH, "has_rule": True},
    ]
    assert [lookup.activation.shape.as_list() for lookup in lookups] == [[None, 4], [None, 4]]


LINE = r"\(test_traced_lookups\.py:\d+\)"
SEPARATE = (
    "let callers send what is looked up as a separate input, or compute it by arithmetic, "
    "comparisons, hashes, vocabularies or buckets"
)
DENSE_ROWS = (
    "make the rows dense by tf.reduce_sum or tf.reduce_mean with axis=1, or by "
    "to_tensor(shape=[None, LENGTH]), right after the lookup"
)


def bit_counts(inputs: Any) -> Any:
    """Returns ids that nothing in a bundle computes."""
    return tf.cast(tf.raw_ops.PopulationCount(x=inputs["item"]), inputs["item"].dtype)


def counted(inputs: Any, **fields: Any) -> TracedLookup:
    """Returns a lookup of ids that nothing in a bundle computes."""
    return of(bit_counts(inputs), **fields)


@pytest.mark.parametrize(
    ("look_up", "reason", "cure"),
    [
        pytest.param(
            lambda inputs: counted(inputs, gather=True),
            rf"computed by operation 'PopulationCount' \(PopulationCount\) {LINE} of the model",
            SEPARATE,
            id="gather",
        ),
        pytest.param(
            lambda inputs: counted(inputs, variable=variable()),
            rf"computed by operation 'PopulationCount' \(PopulationCount\) {LINE} of the model",
            SEPARATE,
            id="lookup",
        ),
        pytest.param(
            lambda inputs: gathered(tf.concat([inputs["item"], inputs["other"]], 0)),
            rf"computed by operation 'concat' \(ConcatV2\) {LINE} of the model",
            SEPARATE,
            id="ids of two inputs after each other",
        ),
        pytest.param(
            lambda inputs: gathered(
                tf.reshape(
                    tf.stack([inputs["item"], inputs["item"] * inputs["other"]], 1),
                    [-1],
                )
            ),
            rf"computed by operation 'mul' \(Mul\) {LINE} of the model",
            SEPARATE,
            id="one of two ids",
        ),
        pytest.param(
            lambda inputs: gathered(tf.reshape(inputs["quad"], [-1, 2]), kind="sequence", length=2),
            r"those of input 'quad', \(4,\) in each example, in a tensor of shape \(None, 2\)",
            "keep each example's ids together",
            id="sequences of parts of an example",
        ),
        pytest.param(
            lambda inputs: gathered(tf.reshape(inputs["pair"], [-1, 1]), length=1),
            r"those of input 'pair', \(2,\) in each example, in a tensor of shape \(None, 1\)",
            "keep each example's ids together",
            id="single ids of an example with two",
        ),
        pytest.param(
            lambda inputs: gathered(inputs["bag"].values),
            "those of input 'bag', whose ragged rows it reads",
            DENSE_ROWS,
            id="values of ragged rows",
        ),
        pytest.param(
            lambda inputs: bag(
                inputs["bag"], weights=inputs["bag_weights"] * 2.0, variable=variable()
            ),
            rf"looked up with weights that are computed by operation 'Mul' \(Mul\) {LINE} of the "
            "model",
            "give it an input of weights",
            id="computed weights",
        ),
    ],
)
def test_lookup_that_no_rule_describes_stays_inside_and_says_why(
    look_up: LookUp, reason: str, cure: str
) -> None:
    (lookup,) = resolve(look_up)
    assert lookup.feature is None
    assert isinstance(lookup.missing_rule, MissingRule)
    assert re.fullmatch(reason, lookup.missing_rule.reason)
    assert lookup.missing_rule.cure == cure


UNCHANGED = "give its lookup an unchanged input"
NO_PADDING = (
    "compute a value that never is, e.g. a remainder, or give the column the unchanged input"
)


@pytest.mark.parametrize(
    ("look_up", "reason", "cure"),
    [
        pytest.param(
            lambda inputs: counted(inputs, variable=variable(mod=True)),
            rf"computed by operation 'PopulationCount' \(PopulationCount\) {LINE} of the model",
            SEPARATE,
            id="partitions by remainder",
        ),
        pytest.param(
            lambda inputs: counted(
                inputs,
                variable=variable(),
                rule=vocabulary_ids("v"),
                keys=((1, 2),),
            ),
            rf"computed by operation 'PopulationCount' \(PopulationCount\) {LINE} of the model",
            SEPARATE,
            id="vocabulary",
        ),
        pytest.param(
            lambda inputs: of(inputs["other"], bit_counts(inputs), rule=CROSS, variable=variable()),
            rf"computed by operation 'PopulationCount' \(PopulationCount\) {LINE} of the model",
            SEPARATE,
            id="cross",
        ),
        pytest.param(
            lambda inputs: sequence(
                tf.tile(hashed(inputs["text"] + inputs["word"])[:, None], [1, 2]), 2
            ),
            rf"computed by operation 'Tile' \(Tile\) {LINE} of the model",
            SEPARATE,
            id="joined words twice",
        ),
        pytest.param(
            lambda inputs: bag(ragged(inputs["bag"].values, inputs["bag"].row_splits * 2)),
            rf"computed by operation 'mul' \(Mul\) {LINE} of the model",
            UNCHANGED,
            id="computed splits",
        ),
        pytest.param(
            lambda inputs: bag(ragged(inputs["bag"].values, inputs["another"].row_splits)),
            "put together from inputs another and bag",
            UNCHANGED,
            id="splits of another input",
        ),
        pytest.param(
            lambda inputs: bag(ragged(inputs["tags"].values, inputs["tags"].dense_shape)),
            r"computed by 'tags' \(extent\) of the model",
            UNCHANGED,
            id="splits that are no splits",
        ),
        pytest.param(
            lambda inputs: bag(ragged(inputs["item"], inputs["bag"].row_splits)),
            "computed by 'item' of the model",
            UNCHANGED,
            id="rows of dense ids",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"] % 5 - 3, rule=HASHED, padding=-1),
            "computed, and may be -1, which their column takes for no id",
            NO_PADDING,
            id="padding that a hashed id may be",
        ),
        pytest.param(
            lambda inputs: of(inputs["item"], inputs["other"] % 5 - 3, rule=PADDED_CROSS),
            "computed, and may be -1, which their column takes for no id",
            NO_PADDING,
            id="padding that a crossed id may be",
        ),
        pytest.param(
            lambda inputs: of(tf.strings.strip(inputs["text"]), rule=HASHED_TEXT, padding=""),
            "computed, and may be '', which their column takes for no id",
            NO_PADDING,
            id="padding that a stripped text may be",
        ),
        pytest.param(
            lambda inputs: of(inputs["bag"].values),
            "those of input 'bag', whose ragged rows it reads",
            DENSE_ROWS,
            id="values of ragged rows",
        ),
        pytest.param(
            lambda inputs: sequence(tf.reshape(inputs["quad"], [-1, 2]), 2),
            r"those of input 'quad', \(4,\) in each example, in a tensor of shape \(None, 2\)",
            "keep each example's ids together",
            id="sequences of parts of an example",
        ),
    ],
)
def test_lookup_that_can_neither_leave_nor_stay_is_rejected(
    look_up: LookUp, reason: str, cure: str
) -> None:
    message = (
        rf"ids of feature 'looked' are {reason}, not an unchanged input; {re.escape(cure)}; your "
        r"own rule from id to row can be stated in the recipe's features\.<input>\.ids"
    )
    with pytest.raises(NotConvertible, match=rf"\A{message}\Z"):
        resolve(look_up)


@pytest.mark.parametrize(
    ("look_up", "error", "message"),
    [
        pytest.param(
            lambda inputs: of(inputs["age"]),
            NotConvertible,
            "input 'age' is float32, and feature 'looked' takes it as ids",
            id="numbers",
        ),
        pytest.param(
            lambda inputs: of(inputs["text"]),
            NotConvertible,
            "input 'text' is string, and feature 'looked' takes it as ids",
            id="texts",
        ),
        pytest.param(
            lambda inputs: bag(inputs["bag"], weights=inputs["loads"]),
            UsageError,
            "input 'loads' holds the weights of 'bag' in feature 'looked'; write "
            'inputs.loads.weights_for = "bag"',
            id="undeclared weights",
        ),
        pytest.param(
            lambda inputs: bag(inputs["bag"], weights=inputs["bag_weights"] * 2.0),
            NotConvertible,
            "weights of feature 'looked' are computed by operation 'Mul' (Mul) LINE of the model, "
            "not an unchanged input; give the model an input that holds them",
            id="computed weights",
        ),
    ],
)
def test_lookup_that_does_not_fit_its_input_is_rejected(
    look_up: LookUp, error: type[Exception], message: str
) -> None:
    expected = re.escape(message).replace("LINE", LINE)
    with pytest.raises(error, match=rf"\A{expected}\Z"):
        resolve(look_up)
