"""What models compute of ids: the exporter captures it, and a bundle computes it, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.ids.crosses import Crossed, Joined
from bundle.features.ids.rules import rule_of
from bundle.features.ids.texts import Text
from bundle.format.id_graphs import CONSTANT_MAX
from bundle.format.manifest import CrossedIds, CrossKey, IdentityIds, IdRule, JoinedIds, TextIds
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_graphs import crosses, texts
from export.tensorflow_models.id_graphs.capture import find_rule
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids
from tests.units.export.tensorflow_models.graph.traced_calls import Traced, ids, numbers, trace
from tests.units.export.tensorflow_models.graph.traced_calls import texts as strings

Change = Callable[[Any], Any]
Sent = Mapping[str, np.ndarray[Any, Any]]
ROWS = 50
N = 97
"""Examples: no multiple of the number of any input's values, so that all pairs of these meet."""
INTEGERS = [
    *(0, 1, 2, 3, 5, 6, 7, 10, 20, 30, 49, 50, -1, -2, -3, -20, 99, -300, (1 << 32) + 5),
    *((1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1, (1 << 63) - 1, -(1 << 63)),
]
NUMBERS = np.array(
    [
        *(0, -0.0, 0.5, -0.5, 0.75, 1, 1.5, 2, 2.5, 3, -1, -1.5, -2, 4.99, 5, 5.5, 7, 49, 50, 1e5),
        *(
            np.nextafter(np.float32(start), np.float32(direction))
            for start in (1, 2)
            for direction in (0, 9)
        ),
        *(5e4, 5e4 + 0.5, 2.0**24 + 2, 2.0**31, 3e9, -3e9, 2.0**63, 1e19, 3e38, -3e38, 1e-40),
    ],
    np.float32,
)
TEXTS = [
    *("", "red", "Blue ", " a  b\tc ", "-", "10", "-20", "020", "-0", "\u00c9t\u00e9 <br /> x.y"),
    *("\u6771\u4eac abc", "x" * 70, "none", str(-(1 << 63)), "!a&b", "\u00a0nbsp\u00a0", "\x00z"),
    "\x0b\x0ca\x1cb",
]
NAMED: dict[str, tuple[Any, Any]] = {
    "x": (ids(), INTEGERS),
    "y": (ids(), INTEGERS[::-1]),
    "small": (tf.TensorSpec([None], tf.int32), [*INTEGERS[:18], (1 << 31) - 1, -(1 << 31)]),
    "number": (numbers(), NUMBERS),
    "other_number": (numbers(), NUMBERS[::-1]),
    "city": (strings(), TEXTS),
    "other_city": (strings(), TEXTS[::-1]),
    "pair": (ids(2), INTEGERS[3:] + INTEGERS[:3]),
    "words": (strings(2), TEXTS[1:] + TEXTS[:1]),
    "one": (ids(1), INTEGERS[5:]),
    "other": (ids(1), INTEGERS[7:]),
    "word": (strings(1), TEXTS[2:]),
    "age": (numbers(1), NUMBERS),
}
"""Inputs of one model: the type of each, and values that are sent."""
RAGGED = {
    "tags": tf.RaggedTensorSpec([None, None], tf.string),
    "sparse": tf.SparseTensorSpec([None, None], tf.string),
}
REJECTED = "rejected"


def examples() -> Sent:
    """Returns values of N examples by input, [N] or [N, columns]."""
    samples = {}
    for name, (spec, values) in NAMED.items():
        shape = [N, *spec.shape.as_list()[1:]]
        dtype = object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
        samples[name] = np.resize(np.array(values, dtype), shape)
    return samples


def traced_of(call: Callable[[Any], Any]) -> Traced:
    """Traces what a function makes of the inputs, a tensor of ids or several by name."""

    def named(features: Any) -> dict[str, Any]:
        results = call(features)
        return results if isinstance(results, dict) else {"ids": results}

    return trace(named, **{name: spec for name, (spec, _) in NAMED.items()}, **RAGGED)


def resolved(
    traced: Traced, rows: int | None = None, from_end: bool = False
) -> ResolvedIds | Values:
    """Returns what computes ids, of one input or several, or the values that nothing computes."""
    call = replace(traced.calls, from_end=from_end)
    tensor = traced.results["ids"]
    resolved_ids = find_rule(Values(tensor), call, rows)
    return (
        resolved_ids
        if isinstance(resolved_ids, ResolvedIds)
        else crosses.find(tensor, call) or resolved_ids
    )


def by_tensorflow(traced: Traced) -> Callable[[Sent], Any]:
    """Returns TensorFlow's own computation of a traced call."""
    pruned = traced.function.prune([traced.inputs[name] for name in NAMED], traced.results["ids"])
    return lambda samples: pruned(*[tf.constant(samples[name]) for name in NAMED]).numpy()


def by_bundle(resolved_ids: ResolvedIds) -> Callable[[Sent], Any]:
    """Returns a bundle's computation of ids."""
    rule, vocabularies = opened(resolved_ids)
    sources = [source.name for source in resolved_ids.sources]

    def rows(samples: Sent) -> Any:
        columns = [column_of(samples[source.name], source) for source in resolved_ids.sources]
        n = len(samples["x"])
        if isinstance(rule, CrossedIds):
            return Crossed(sources, rule, vocabularies).ids(columns, n).values
        if isinstance(rule, JoinedIds):
            return Joined(sources, rule, vocabularies).ids(columns, n).values
        assert not isinstance(rule, TextIds)
        return rule_of(rule, vocabularies).resolve(sources[0], columns[0].values)

    return rows


def column_of(values: np.ndarray[Any, Any], source: Source) -> Column:
    """Returns the values of a source, one of each example."""
    return Column(values[:, source.position or 0] if values.ndim == 2 else values)


def opened(resolved_ids: ResolvedIds) -> tuple[IdRule, dict[str, Vocabulary]]:
    """Returns a rule as a bundle reads it, and its vocabularies."""
    vocabularies = {
        f"v{number}": Vocabulary(
            StringKeys([str(key) for key in keys])
            if isinstance(keys[0], str)
            else IntegerKeys(np.array(keys))
        )
        for number, keys in enumerate(resolved_ids.keys)
    }
    written = (resolved_ids.rule or IdentityIds()).model_dump(mode="json")
    rule: IdRule = TypeAdapter(IdRule).validate_python(named(written, count()))
    return rule, vocabularies


def named(written: Any, numbers: Iterator[int]) -> Any:
    """Returns a rule as JSON whose vocabularies have distinct names."""
    if isinstance(written, list):
        return [named(value, numbers) for value in written]
    if not isinstance(written, dict):
        return written
    return {
        key: f"v{next(numbers)}" if key == "vocabulary" else named(value, numbers)
        for key, value in written.items()
    }


def outcomes(compute: Callable[[Sent], Any], samples: Sent) -> list[Any]:
    """Returns the row of each example, or that it is rejected."""
    try:
        return [int(row) for row in np.reshape(compute(samples), [-1])]
    except (FeatureError, tf.errors.InvalidArgumentError):
        n = len(samples["x"])
        if n == 1:
            return [REJECTED]
        single_samples = [
            {name: values[index : index + 1] for name, values in samples.items()}
            for index in range(n)
        ]
        return [row for sample in single_samples for row in outcomes(compute, sample)]


def rows_inside(outcomes: list[Any], rows: int | None, from_end: bool = False) -> list[Any]:
    """Returns rows with None in place of those outside of a table."""
    if rows is None:
        return outcomes
    low = -rows if from_end else 0
    return [row if row == REJECTED or low <= row < rows else None for row in outcomes]


def check(change: Change, rows: int | None, from_end: bool = False) -> None:
    """Checks that a bundle gives the rows of TensorFlow."""
    traced = traced_of(change)
    resolved_ids = resolved(traced, rows, from_end)
    assert isinstance(resolved_ids, ResolvedIds), resolved_ids.type
    samples = examples()
    expected = rows_inside(outcomes(by_tensorflow(traced), samples), rows, from_end)
    computed = rows_inside(outcomes(by_bundle(resolved_ids), samples), rows, from_end)
    differing = [
        (
            {source.name: samples[source.name][index] for source in resolved_ids.sources},
            actual_row,
            right,
        )
        for index, (actual_row, right) in enumerate(zip(computed, expected, strict=True))
        if actual_row != right
    ]
    assert not differing, differing[:5]


def int64(value: Any) -> Any:
    return tf.constant(value, tf.int64)


def hashed(values: Any) -> Any:
    decimals = values if values.dtype == tf.string else tf.strings.as_string(values)
    return tf.strings.to_hash_bucket_fast(decimals, ROWS)


def table_of(keys: list[Any], positions: list[int], default: int = -1) -> Any:
    dtype = tf.int64 if isinstance(keys[0], int) else tf.string
    initial = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, dtype), tf.constant(positions, tf.int64)
    )
    return tf.lookup.StaticHashTable(initial, default)


LISTED = table_of([10, 20, 30], [6, 7, 8])
DEFAULT_3 = table_of([10, 20, 30], [6, 7, 8], 3)
CITIES = table_of(["red", "", "\u6771\u4eac abc"], [4, 5, 6])
SIGNED = table_of(["+10", "-20"], [0, 1])
DECIMALS = [
    table_of(list(keys), [0, 1])
    for keys in (
        *(("10", "-20"), ("10", "020"), ("10", "-0"), (str(1 << 63), "1")),
        *((str(-(1 << 63)), str((1 << 63) - 1)), (str(-(1 << 63) - 1), "1")),
    )
]
DEFAULTS = [table_of([10, 20], [0, 1], default) for default in (-5, -1, 0, 1, 8, ROWS)]
WITH_A_GAP = table_of([10, 20], [0, 2])
FROM_MINUS_1 = table_of(["", "red"], [-1, 0])
LATIN_1 = table_of([b"\xe9", b"red"], [0, 1])


def clip(values: Any, low: Any, high: Any) -> Any:
    return tf.raw_ops.ClipByValue(t=values, clip_value_min=low, clip_value_max=high)


def limited(values: Any, largest: float) -> Any:
    return tf.cast(tf.clip_by_value(values, -1.0, largest), tf.int32)


def bucketized(values: Any, *boundaries: float) -> Any:
    return tf.raw_ops.Bucketize(input=values, boundaries=list(boundaries))


def inside(values: Any, first: Any = 0, end: Any = ROWS) -> Any:
    return tf.logical_and(values >= first, values < end)


def masked(condition: Any, rows: Any, row: int = 0) -> Any:
    return tf.where(condition, tf.constant(row, rows.dtype), rows)


def listed_or(beyond: Change, table: Any = LISTED, name: str = "x") -> Change:
    """Returns ids in a vocabulary, and what is computed of all others."""

    def rows(features: Any) -> Any:
        listed = table.lookup(features[name])
        return tf.where(tf.equal(listed, -1), beyond(features), listed)

    return rows


def decimals(values: Any, **options: Any) -> Any:
    return tf.strings.as_string(values, **options)


def cross(*values: Any, buckets: int = 30) -> Any:
    """Returns the hashes of one value of each of several tensors together."""
    indices, hashes, shape = tf.raw_ops.SparseCross(
        indices=[],
        values=[],
        shapes=[],
        dense_inputs=list(values),
        hashed_output=True,
        num_buckets=buckets,
        hash_key=7,
        out_type=tf.int64,
        internal_type=tf.int64,
    )
    return tf.sparse.to_dense(tf.SparseTensor(indices, hashes, shape))


def joined(*parts: Any, separator: str = "") -> Any:
    return hashed(tf.strings.join(list(parts), separator))


INTEGER_COMPUTATIONS: list[Change] = [
    lambda f: f["x"],
    lambda f: tf.identity(f["x"]) % 9,
    lambda f: f["x"] + 1,
    lambda f: f["small"] + 1,
    lambda f: f["small"] - 1,
    lambda f: f["small"] % 9 + 1,
    lambda f: tf.minimum(f["small"], 9),
    lambda f: tf.maximum(f["small"], 9),
    lambda f: tf.cast(f["small"], tf.int64),
    lambda f: tf.cast(f["x"], tf.int32),
    lambda f: tf.cast(f["x"] + 1, tf.int32),
    lambda f: tf.cast(f["x"] % 9, tf.int32),
    lambda f: 10 + f["x"],
    lambda f: f["x"] - 10,
    lambda f: 10 - f["x"],
    lambda f: 10 * f["x"],
    lambda f: f["x"] // 10,
    lambda f: f["x"] // 1,
    lambda f: f["x"] // -3,
    lambda f: f["x"] % 0,
    lambda f: 10 // f["x"],
    lambda f: 10 % f["x"],
    lambda f: f["x"] + tf.int64.max,
    lambda f: f["x"] + tf.int64.min,
    lambda f: -f["x"],
    lambda f: tf.abs(f["x"]),
    lambda f: clip(f["x"], int64(2), int64(9)),
    lambda f: clip(filled(f, "x", int64(5)), f["x"], filled(f, "x", int64(9))),
    lambda f: tf.cast(tf.cast(f["x"] + 1, tf.float32), tf.int64),
    lambda f: tf.cast(tf.cast(f["x"], tf.float32), tf.int32),
    lambda f: bucketized(f["x"], 1.0, 2.0),
    lambda f: bucketized(f["x"], 2.0**25),
    lambda f: bucketized(f["x"], -(2.0**25)),
    lambda f: bucketized(tf.cast(f["x"], tf.int32), 1.0, 20.0),
    lambda f: bucketized(tf.cast(tf.cast(f["x"], tf.bool), tf.int32), 0.5),
    lambda f: bucketized(f["small"] * 1000, 1.0),
    lambda f: bucketized(f["small"] * 3, 1.0),
    lambda f: tf.searchsorted(int64([1, 2]), f["x"], side="right"),
    lambda f: tf.gather(int64([1, 5, 5]), f["x"] % 3),
    lambda f: tf.gather(int64([1, 5, 5]), f["x"]),
]
HASHES: list[Change] = [
    lambda f: hashed(f["city"]),
    lambda f: hashed(f["x"]),
    lambda f: hashed(f["x"]) + 0,
    lambda f: 3 + hashed(f["x"]),
    lambda f: hashed(f["x"] % 9),
    lambda f: hashed(hashed(f["x"] % 9) % 9),
    lambda f: hashed((f["pair"] % 9)[:, 1]),
    lambda f: hashed(hashed(f["pair"]) % 9)[:, 1],
    lambda f: hashed(tf.cast(f["pair"], tf.int32)[:, 1]),
    lambda f: tf.cast(hashed(f["x"]), tf.int32),
    lambda f: hashed(tf.cast(f["x"], tf.int32)),
    lambda f: hashed(tf.cast(tf.reshape(f["small"], [-1]), tf.int64)),
    lambda f: hashed(decimals(f["x"], width=3)),
    lambda f: hashed(decimals(f["x"], fill="+")),
    lambda f: hashed(decimals(f["x"], fill=" ")),
    lambda f: hashed(f["number"]),
    lambda f: tf.strings.to_hash_bucket_strong(f["city"], 4, [1, 2]),
    lambda f: masked(tf.equal(f["x"], 5), hashed(f["x"])),
    lambda f: masked(tf.equal(f["x"], 5), hashed(f["x"]), 1),
    lambda f: tf.where(tf.equal(f["x"], 5), hashed(f["x"]), int64(0)),
    lambda f: masked(tf.greater(f["x"], 5), hashed(f["x"])),
    lambda f: masked(tf.equal(f["x"], 5), f["x"]),
    lambda f: masked(tf.equal(f["x"], 5), masked(tf.equal(f["x"], 6), hashed(f["x"]))),
    lambda f: masked(tf.equal(tf.cast(f["x"], tf.float32), 5.5), hashed(f["x"])),
    lambda f: masked(tf.equal(f["x"], 5), hashed(tf.cast(f["x"], tf.int32))),
    lambda f: masked(tf.equal(f["city"], "-"), hashed(f["city"])),
    lambda f: masked(
        tf.equal(tf.cast(f["number"], tf.int64), 5),
        hashed(tf.cast(tf.floor(f["number"]), tf.int64)),
    ),
]
NUMBER_COMPUTATIONS: list[Change] = [
    lambda f: tf.cast(f["number"], tf.int32),
    lambda f: tf.cast(tf.math.ceil(f["number"]), tf.int64),
    lambda f: tf.cast(tf.cast(f["number"], tf.float16), tf.int32),
    lambda f: limited(f["number"] * 10.0, 50.0),
    lambda f: limited(f["number"] * 0.0, 50.0),
    lambda f: limited(f["number"] / 0.5, 50.0),
    lambda f: limited(10.0 / f["number"], 50.0),
    lambda f: limited(f["number"], float(1 << 17)),
    lambda f: tf.cast(f["number"] * 10.0, tf.int32),
    lambda f: tf.cast(tf.clip_by_value(f["number"] * 2.0, 100_000.0, 100_002.0), tf.int32),
    lambda f: bucketized(f["number"], 1.0, 2.0, 3.0) - 2,
    lambda f: bucketized(f["number"], 1.0, 2.0) - 5,
    lambda f: 2 - bucketized(f["number"], 1.0, 2.0),
    lambda f: bucketized(-f["number"], 1.0, 2.0),
    lambda f: bucketized(tf.floor(f["number"]), 1.5),
    lambda f: bucketized(2.0 * f["number"], 1.0),
    lambda f: bucketized(f["number"] / 2.0, 1.0),
    lambda f: bucketized(f["number"] - 2.0, 1.0),
    lambda f: bucketized(clip(f["number"], 0.0, 5.0), 1.0),
    lambda f: bucketized(tf.cast(f["number"], tf.float64), 1.0),
    lambda f: bucketized(tf.cast(tf.cast(f["number"] * 2.0, tf.float64), tf.float32), 1.5),
    lambda f: bucketized(tf.cast(tf.cast(f["number"] * 1e9, tf.int32), tf.float32), 1e9),
    lambda f: tf.searchsorted([1.0, 2.0], f["number"], side="right"),
    lambda f: bucketized(
        clip(filled(f, "number", 5.0), f["number"], filled(f, "number", 9.0)), 7.0
    ),
]
OUTSIDE: list[Change] = [
    lambda f: masked(tf.logical_not(inside(f["x"])), f["x"], 7),
    lambda f: tf.where(inside(f["x"]), f["x"], int64(7)),
    lambda f: tf.where(inside(f["x"], 1), f["x"], int64(7)),
    lambda f: tf.where(inside(f["x"], 0, ROWS - 1), f["x"], int64(7)),
    lambda f: tf.where(inside(f["x"]), int64(7), f["x"]),
    lambda f: tf.where(inside(f["x"]), hashed(f["x"]), int64(7)),
    lambda f: tf.where(f["x"] >= 0, f["x"], int64(ROWS)),
    lambda f: tf.where(f["x"] >= 0, f["x"], int64(-1)),
    lambda f: tf.where(f["x"] < ROWS, f["x"], int64(7)),
    lambda f: masked(f["x"] < 0, f["x"], 7),
    lambda f: masked(tf.logical_or(f["x"] < 0, f["x"] >= ROWS), f["x"], ROWS - 1),
    lambda f: tf.where(tf.not_equal(f["x"], ROWS), f["x"], int64(0)),
    lambda f: tf.where(tf.not_equal(f["x"], 0), f["x"], int64(7)),
    lambda f: masked(tf.equal(f["x"], -1), f["x"], 7),
    lambda f: tf.where(inside(f["small"]), f["small"], 7),
    lambda f: masked(f["x"] < 0, masked(f["x"] >= ROWS, f["x"], 7), 7),
    lambda f: masked(f["x"] < 0, masked(f["x"] >= ROWS, f["x"], ROWS - 1)),
    lambda f: tf.where(f["x"] < ROWS, masked(f["x"] < 0, f["x"]), int64(ROWS - 1)),
    lambda f: tf.where(inside(f["number"]), tf.cast(f["number"], tf.int32), 7),
    lambda f: tf.where(
        inside(tf.cast(f["number"], tf.int32)), tf.cast(tf.floor(f["number"]), tf.int32), 7
    ),
]
VOCABULARIES: list[Change] = [
    lambda f: LISTED.lookup(f["x"]),
    lambda f: LISTED.lookup(f["x"] * f["x"]),
    lambda f: LISTED.lookup(tf.cast(f["number"], tf.int64)),
    lambda f: CITIES.lookup(f["city"]),
    *(lambda f, table=table: table.lookup(decimals(f["x"])) for table in DECIMALS),
    lambda f: SIGNED.lookup(decimals(f["x"], fill="+")),
    *(lambda f, table=table: table.lookup(f["x"]) for table in DEFAULTS),
    listed_or(lambda f: f["x"] % 4),
    listed_or(lambda f: f["x"] % 4 + 2),
    listed_or(lambda f: f["x"] % 4 - 1),
    listed_or(lambda f: f["x"] % 4 * 2),
    listed_or(lambda f: (f["x"] + 1) % 4),
    listed_or(lambda f: tf.cast(tf.cast(f["x"], tf.int32) % 4, tf.int64)),
    listed_or(lambda f: f["x"] % 4, DEFAULT_3),
    listed_or(lambda f: tf.strings.to_hash_bucket_fast(f["city"], 3) + 1, CITIES, "city"),
    listed_or(lambda f: tf.strings.to_hash_bucket_strong(f["city"], 4, [1, 2]), CITIES, "city"),
    listed_or(lambda f: masked(tf.equal(f["city"], ""), hashed(f["city"])), CITIES, "city"),
    lambda f: tf.where(tf.not_equal(LISTED.lookup(f["x"]), -1), LISTED.lookup(f["x"]), f["x"] % 4),
    lambda f: tf.where(tf.equal(hashed(f["x"]), -1), f["x"] % 4, hashed(f["x"])),
    lambda f: tf.where(tf.equal(f["x"], -1), f["x"] % 4, LISTED.lookup(f["x"])),
]
WHOLE_TEXTS: list[Change] = [
    lambda f: hashed(tf.strings.lower(f["city"])),
    lambda f: hashed(tf.strings.upper(f["city"])),
    lambda f: hashed(tf.strings.lower(tf.strings.strip(f["city"]))),
    lambda f: hashed(tf.strings.lower(f["words"][:, 1])),
    *(
        lambda f, pattern=pattern, by=by, options=attributes: hashed(
            tf.strings.regex_replace(f["city"], pattern, by, **options)
        )
        for pattern, by, attributes in (
            *(("[a-c]", "x", {}), ("<br />", " ", {}), (r"\.", "", {}), ("[ -/]", "x", {})),
            *(("[a]", "a", {}), ("[a]", "\u00e9", {}), ("[a]", "x", {"replace_global": False})),
            ("\u00e9", "e", {}),
        )
    ),
    lambda f: joined("a", "b", f["city"], "c", separator="-"),
    lambda f: joined(f["city"], tf.strings.substr(tf.strings.join([f["city"], "x"]), 0, 1)),
    lambda f: joined(f["city"], tf.strings.lower(f["city"])),
    lambda f: joined(decimals(f["x"], width=0), "!"),
    lambda f: joined(decimals(f["x"] + 1), "!"),
    lambda f: joined(decimals(tf.cast(f["x"], tf.int32) % 9), "!"),
    lambda f: hashed(tf.strings.substr(f["city"], 0, 1)),
]
SEVERAL_INPUTS: list[Change] = [
    lambda f: joined(f["city"], decimals(f["x"]), separator="_"),
    lambda f: hashed("<" + f["city"] + ", " + decimals(f["x"]) + ">"),
    lambda f: joined(f["city"], decimals(f["x"], width=3)),
    lambda f: joined(f["city"], decimals(tf.cast(f["x"], tf.float32))),
    lambda f: joined(f["city"], decimals(tf.cast(f["number"], tf.int64))),
    lambda f: joined(tf.strings.lower(f["city"]), decimals(CITIES.lookup(f["other_city"]))),
    lambda f: hashed(tf.strings.join([f["city"], f["other_city"]])),
    lambda f: f["x"] * f["y"],
    lambda f: hashed(f["x"]) + f["y"],
    lambda f: masked(tf.equal(f["y"], 5), hashed(f["x"])),
    lambda f: masked(tf.equal(f["other_city"], "-"), hashed(f["city"])),
    lambda f: tf.where(inside(f["y"]), f["x"], int64(7)),
    lambda f: tf.where(tf.not_equal(f["x"], f["y"]), f["x"], int64(7)),
    listed_or(lambda f: f["y"] % 4),
    lambda f: bucketized(f["number"] + f["other_number"], 1.0),
    lambda f: LISTED.lookup(f["one"])[:, 0] + f["other"][:, 0],
    lambda f: f["one"] * f["other"],
    *(
        lambda f, axis=axis, keepdims=keepdims: hashed(
            tf.strings.reduce_join(
                tf.stack([f["city"], decimals(f["x"])], axis), axis, keepdims, separator="x"
            )
        )
        for axis, keepdims in [(1, False), (-1, True)]
    ),
]
CROSSES: list[Change] = [
    lambda f: cross(f["one"], f["other"]),
    lambda f: cross(f["one"], f["other"], buckets=1),
    lambda f: cross(f["word"], f["other"]),
    lambda f: cross(f["one"] % 9, hashed(f["word"]), CITIES.lookup(f["word"])),
    lambda f: cross(tf.strings.lower(f["word"]), tf.cast(f["age"], tf.int64)),
    lambda f: cross(tf.cast(bucketized(f["age"], 1.0, 2.0), tf.int64), f["one"]),
]
COMPUTATIONS = {
    f"{kind} {number}": change
    for kind, changes in (
        ("integers", INTEGER_COMPUTATIONS),
        ("hash", HASHES),
        ("number", NUMBER_COMPUTATIONS),
        ("outside", OUTSIDE),
        ("vocabulary", VOCABULARIES),
        ("text", WHOLE_TEXTS),
        ("several", SEVERAL_INPUTS),
        ("cross", CROSSES),
    )
    for number, change in enumerate(changes)
}


@pytest.mark.parametrize("change", COMPUTATIONS.values(), ids=COMPUTATIONS)
def test_computation_gives_the_integers_of_tensorflow(change: Change) -> None:
    check(change, None)
    check(change, ROWS)
    check(change, ROWS, from_end=True)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int16, tf.uint16, tf.uint32])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda f, narrow: narrow(f["x"]), id="row"),
        pytest.param(lambda f, narrow: narrow(f["x"]) + 1, id="sum"),
        pytest.param(lambda f, narrow: hashed(narrow(f["x"])), id="hash"),
        pytest.param(lambda f, narrow: LISTED.lookup(narrow(f["x"])), id="vocabulary"),
        pytest.param(lambda f, narrow: narrow(within(f["number"], narrow)), id="number"),
        pytest.param(lambda f, narrow: narrow(within(f["number"] * 0.5, narrow)), id="product"),
        pytest.param(
            lambda f, narrow: narrow(within(tf.cast(f["x"], tf.float32), narrow)),
            id="float and back",
        ),
    ],
)
def test_integers_wrap_around_at_few_bits_as_in_tensorflow(change: Any, dtype: Any) -> None:
    def narrow(values: Any) -> Any:
        return tf.cast(tf.cast(values, dtype), tf.int64)

    narrow.dtype = dtype  # type: ignore[attr-defined]
    check(lambda features: change(features, narrow), None)


def within(values: Any, narrow: Any) -> Any:
    """Limits numbers to those that a type holds: what a cast makes of others, depends on the size
    of the batch.
    """
    largest = narrow.dtype.max
    return tf.clip_by_value(values, float(narrow.dtype.min), float(largest - (largest >> 20)))


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.int16, tf.uint16])
def test_arithmetic_of_few_bits_is_that_of_tensorflow(dtype: Any) -> None:
    check(lambda f: tf.cast(tf.cast(f["x"], dtype) * 3, tf.int64), None)


LOGARITHMS: list[Change] = [
    lambda f: tf.cast(tf.math.log(tf.maximum(f["number"], 1.0)) * 3.0, tf.int32),
    lambda f: tf.cast(tf.math.log(f["number"]), tf.int32),
    lambda f: tf.cast(tf.math.log(f["number"]), tf.int32) + 3,
    lambda f: tf.cast(tf.where(f["number"] < 1.5, 4.0, tf.math.log1p(f["number"])), tf.int32),
    lambda f: tf.cast(tf.math.log(tf.cast(tf.maximum(f["small"], 1), tf.float32)), tf.int32),
    lambda f: 9 - tf.cast(tf.math.log1p(tf.maximum(f["number"], 0.0)) * 0.5, tf.int64),
    lambda f: tf.cast(tf.math.log1p(tf.maximum(f["number"], 0.0)) * 0.5, tf.int32) % 7,
    lambda f: bucketized(tf.math.log1p(tf.maximum(f["number"], 0.0)), 0.6, 1.2) - 1,
    lambda f: hashed(bucketized(tf.math.sigmoid(f["number"]), 0.3, 0.7)),
    lambda f: tf.cast(tf.math.tanh(f["number"]) * 7.3, tf.int32),
    lambda f: bucketized(tf.math.tanh(tf.cast(tf.cast(f["x"], tf.int32), tf.float32)), 0.5),
]
"""Whose last bit differs from one library to another: they become buckets."""


@pytest.mark.parametrize("change", LOGARITHMS)
@pytest.mark.parametrize("from_end", [False, True])
def test_rows_of_a_logarithm_are_those_of_tensorflow(change: Change, from_end: bool) -> None:
    check(change, ROWS, from_end)


@pytest.mark.parametrize(("steps", "rejected"), [(CONSTANT_MAX - 1, ""), (CONSTANT_MAX, "Relu")])
def test_buckets_have_at_most_as_many_steps_as_fit_a_manifest(steps: int, rejected: str) -> None:
    def rows(features: Any) -> Any:
        return tf.cast(tf.minimum(tf.nn.relu(features["number"]), float(steps)), tf.int32)

    assert rejection_of(rows, None) == rejected


def rejection_of(change: Change, rows: int | None) -> str:
    """Returns the operation at which ids are rejected; "" where they are not."""
    resolved_ids = resolved(traced_of(change), rows)
    return "" if isinstance(resolved_ids, ResolvedIds) else resolved_ids.type


def filled(features: Any, name: str, value: Any) -> Any:
    return tf.fill(tf.shape(features[name]), value)


def replaced(pattern: str, by: str) -> Change:
    return lambda f: hashed(tf.strings.regex_replace(f["city"], pattern, by))


UNSUPPORTED: list[tuple[str, Change]] = [
    # Operations that no function computes, in front of an id or of what it is computed by.
    ("Pow", lambda f: f["x"] ** 2),
    ("Pow", lambda f: hashed(f["x"] ** 2)),
    ("Pow", lambda f: hashed(f["x"]) ** 2),
    ("Pow", lambda f: tf.cast(f["number"] ** 2, tf.int32)),
    ("Pow", lambda f: bucketized(f["number"] ** 3.0, 1.0)),
    ("Pow", lambda f: joined(f["city"], decimals(f["x"] ** 2))),
    ("Relu", lambda f: tf.nn.relu(f["x"])),
    (
        "EncodeBase64",
        lambda f: tf.strings.to_hash_bucket_fast(tf.io.encode_base64(f["city"]), 9),
    ),
    ("StringLower", lambda f: hashed(tf.strings.lower(f["city"], encoding="utf-8"))),
    # Too many steps.
    ("Log1p", lambda f: tf.cast(tf.math.log1p(tf.maximum(f["number"], 0.0)) * 1e9, tf.int32)),
    # Patterns that RE2 and Python may understand differently.
    *(
        ("StaticRegexReplace", replaced(pattern, by))
        for pattern, by in (
            *(("[\u00e9]", "e"), ("[a-\u00e9]", "x"), ("[a]", r"\0"), ("[^a]", "x")),
            *(("a+", "x"), ("", "x")),
        )
    ),
    # Strings that are not in UTF-8, which no manifest holds.
    ("Const", lambda f: masked(tf.equal(f["city"], b"\xe9"), hashed(f["city"]))),
    ("LookupTableFindV2", lambda f: LATIN_1.lookup(f["city"])),
    # Tables whose values are no consecutive ones from 0 on, or with a default that is no constant.
    ("LookupTableFindV2", lambda f: WITH_A_GAP.lookup(f["x"])),
    ("LookupTableFindV2", lambda f: FROM_MINUS_1.lookup(f["city"])),
    (
        "LookupTableFindV2",
        lambda f: tf.raw_ops.LookupTableFindV2(
            table_handle=LISTED.resource_handle, keys=f["x"], default_value=f["y"][0]
        ),
    ),
    # Values of different examples meet, or results depend on the batch.
    ("Mul", lambda f: tf.reshape(f["x"][:, None] * f["x"][None, :], [-1]) % 7),
    ("StridedSlice", lambda f: f["x"] % f["x"][0]),
    ("StridedSlice", lambda f: f["x"] % tf.cast(tf.shape(f["x"])[0], tf.int64)),
    ("ReverseV2", lambda f: tf.reverse(f["x"], [0]) % 7),
    ("Max", lambda f: f["x"] - tf.reduce_max(f["x"])),
    (
        "UpperBound",
        lambda f: tf.reshape(
            tf.raw_ops.UpperBound(
                sorted_inputs=[[1.0, 2.0], [1.0, 2.0]], values=tf.reshape(f["number"], [2, -1])
            ),
            [-1],
        ),
    ),
    ("ReduceJoin", lambda f: hashed(tf.strings.reduce_join(tf.stack([f["city"]] * 2, 0), 0))),
    # Several values of an example, and one of several beside another input.
    ("ReduceJoin", lambda f: hashed(tf.strings.reduce_join(f["words"], 1))),
    ("ReduceJoin", lambda f: hashed(tf.strings.reduce_join(tf.stack([f["word"]] * 2, 1), 1))),
    ("StringToHashBucketFast", lambda f: joined(f["city"], f["words"][:, 0])),
    ("StringToHashBucketFast", lambda f: joined(f["city"], decimals(f["pair"])[:, 0])),
    ("StringToHashBucketFast", lambda f: hashed(f["x"] + f["pair"][:, 1])),
    # No input.
    ("StringToHashBucketFast", lambda f: joined(filled(f, "city", "a"), "b")),
    # Crosses of hashes of any size, of one input alone, of several values, and of sparse ones.
    ("SparseToDense", lambda f: cross(f["one"], f["other"], buckets=0)),
    ("SparseToDense", lambda f: cross(f["one"])),
    ("SparseToDense", lambda f: cross(f["one"], f["pair"])),
    ("SparseToDense", lambda f: cross(f["one"], f["other"] ** 2)),
    (
        "SparseToDense",
        lambda f: tf.sparse.to_dense(tf.sparse.cross_hashed([f["sparse"], f["one"]], 30)),
    ),
    ("SparseToDense", lambda f: tf.sparse.to_dense(tf.sparse.from_dense(f["pair"]))),
]


@pytest.mark.parametrize(("operation", "change"), UNSUPPORTED)
def test_ids_are_rejected_at_the_operation_that_is_not_computed(
    operation: str, change: Change
) -> None:
    assert rejection_of(change, None) == operation


FLAT: list[tuple[Change, str]] = [
    (lambda flat: hashed(flat) % 9, ""),
    (lambda flat: tf.where(tf.equal(flat, 5), tf.zeros_like(flat), hashed(flat)), ""),
    (lambda flat: masked(tf.equal(flat, 5), hashed(flat)), ""),
    (lambda flat: tf.searchsorted(int64([1, 2]), flat, side="right"), ""),
    # Constants of one value: which values they meet is not known.
    (lambda flat: tf.where(tf.constant([True]), flat, hashed(flat)), "SelectV2"),
    (lambda flat: masked(tf.equal(flat, int64([5])), hashed(flat)), "Equal"),
]


@pytest.mark.parametrize(("change", "rejected"), FLAT)
def test_values_of_a_flat_tensor_are_followed_through_tensors_of_its_shape(
    change: Change, rejected: str
) -> None:
    traced = traced_of(lambda f: change(tf.reshape(f["pair"], [-1])))
    resolved_ids = find_rule(Values(traced.results["ids"], 1, 2), traced.calls, None)
    if rejected:
        assert isinstance(resolved_ids, Values)
        assert resolved_ids.type == rejected
        return
    assert isinstance(resolved_ids, ResolvedIds)
    assert resolved_ids.source.position == 1
    expected = by_tensorflow(traced)(examples())[1::2]
    assert by_bundle(resolved_ids)(examples()).tolist() == expected.tolist()


def test_constant_of_each_column_meets_its_own() -> None:
    def rows(features: Any) -> Any:
        pair = features["pair"]
        return tf.where(tf.equal(pair, [5, 6]), tf.zeros_like(pair), hashed(pair))

    traced = traced_of(rows)
    for column in range(2):
        resolved_ids = find_rule(Values(traced.results["ids"], column, 2), traced.calls, None)
        assert isinstance(resolved_ids, ResolvedIds)
        expected = by_tensorflow(traced)(examples())[:, column]
        assert by_bundle(resolved_ids)(examples()).tolist() == expected.tolist()


def split(words: Change, rows: Change, counted_by: Change) -> tuple[Traced, ResolvedIds | None]:
    """Returns the rule of ids of the words of texts.

    Args:
      words: Makes ragged words from the inputs.
      rows: Makes flat ids from the words.
      counted_by: Makes ragged words of which each text has the same number.
    """

    def call(features: Any) -> dict[str, Any]:
        listed = words(features)
        counts = listed if counted_by is words else counted_by(features)
        return {"ids": rows(listed.flat_values), "splits": counts.row_splits}

    traced = traced_of(call)
    results = traced.results
    return traced, texts.find(results["ids"], traced.calls, results["splits"])


def titles(features: Any) -> Any:
    return tf.strings.split(features["city"])


def encoded(change: Change, encoding: str = "UTF-8") -> Change:
    """Returns the characters of what is made of a text's code points."""

    def characters(features: Any) -> Any:
        points = tf.strings.unicode_decode(features["city"], "UTF-8")
        encoded = tf.strings.unicode_encode(change(points.values), encoding)
        return tf.RaggedTensor.from_row_splits(encoded, points.row_splits, validate=False)

    return characters


@pytest.mark.parametrize(
    "rows",
    [
        hashed,
        lambda words: CITIES.lookup(words) + 1,
        # No word is empty, whatever its mask gives; others are.
        lambda words: masked(tf.equal(words, ""), hashed(words)),
        lambda words: masked(tf.equal(words, "red"), hashed(words)),
        lambda words: masked(tf.not_equal(words, ""), hashed(words)),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        titles,
        lambda f: tf.strings.split(tf.strings.lower(f["city"])),
        lambda f: tf.strings.split(tf.strings.regex_replace(f["city"], "[.&]", " ")),
        lambda f: tf.strings.split(tf.strings.join(["x", f["city"]])),
        lambda f: tf.strings.split(f["city"], " "),
        lambda f: tf.strings.split(f["city"], "\u00e9 <"),
        lambda f: tf.strings.unicode_split(f["city"], "UTF-8"),
        encoded(lambda points: tf.expand_dims(points, 1)),
        lambda f: tf.strings.ngrams(titles(f), 2),
        lambda f: tf.strings.ngrams(titles(f), (1, 3)),
    ],
)
def test_words_of_texts_have_the_rows_of_tensorflow(words: Change, rows: Change) -> None:
    traced, resolved_ids = split(words, rows, words)
    assert resolved_ids is not None
    rule, vocabularies = opened(resolved_ids)
    assert isinstance(rule, TextIds)
    words_of_texts, offsets = Text(rule, vocabularies).words("city", np.array(TEXTS, object))
    results = traced.results
    pruned = traced.function.prune([traced.inputs["city"]], (results["ids"], results["splits"]))
    expected = [tensor.numpy().tolist() for tensor in pruned(tf.constant(TEXTS))]
    row_ids = rule_of(rule.ids, vocabularies).resolve("city", words_of_texts)
    assert [row_ids.tolist(), offsets.tolist()] == expected


@pytest.mark.parametrize(
    ("words", "counted_by"),
    [
        *(
            (words, words)
            for words in (
                lambda f: tf.strings.split(f["city"], b"\xff"),
                lambda f: tf.strings.split(f["city"], maxsplit=2),
                lambda f: tf.strings.split(f["words"][:, 1]),
                lambda f: tf.strings.split(tf.strings.join([f["city"], f["other_city"]])),
                lambda f: tf.strings.unicode_split(f["city"], "UTF-16-BE"),
                encoded(lambda points: tf.expand_dims(points, 1), "UTF-16-BE"),
                encoded(lambda points: tf.expand_dims(points + 1, 1)),
                encoded(lambda points: tf.reshape(points, [-1, 2])),
                lambda f: tf.strings.ngrams(titles(f), 2, separator="_"),
                lambda f: tf.strings.ngrams(titles(f), 2, pad_values=("<", ">")),
                lambda f: tf.strings.ngrams(f["tags"], 2),
                lambda f: tf.strings.ngrams(tf.strings.ngrams(titles(f), 2), 2),
                lambda f: tf.strings.ngrams(
                    tf.strings.split(f["other_city"]).with_values(titles(f).values), 2
                ),
            )
        ),
        (titles, lambda f: tf.strings.split(f["other_city"])),
        (titles, lambda f: f["tags"]),
    ],
)
def test_words_that_are_split_or_counted_in_other_ways_have_no_rule(
    words: Change, counted_by: Change
) -> None:
    assert split(words, hashed, counted_by)[1] is None


def test_mask_of_the_words_of_another_text_has_no_rule() -> None:
    def call(features: Any) -> dict[str, Any]:
        other_words = tf.strings.split(features["other_city"])
        words = titles(features)
        rows = masked(tf.equal(other_words.values, ""), hashed(words.values))
        return {"ids": rows, "splits": words.row_splits}

    traced = traced_of(call)
    assert texts.find(traced.results["ids"], traced.calls, traced.results["splits"]) is None


def own_rule(name: str, rule: Any, *keys: tuple[Any, ...], other_sources: Any = ()) -> ResolvedIds:
    """Returns a rule of a lookup's own, with its vocabularies."""
    return ResolvedIds(Source(name, "dense"), rule, keys=keys, other_sources=other_sources)


def ids_of(change: Change) -> ResolvedIds:
    resolved_ids = resolved(traced_of(change))
    assert isinstance(resolved_ids, ResolvedIds)
    return resolved_ids


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda f: f["x"] % 9, own_rule("ids", hash_ids(50, "int64"))),
        (lambda f: LISTED.lookup(f["x"]), own_rule("ids", vocabulary_ids("v", "int64"), (7, -1))),
        (lambda f: f["small"] % 9, own_rule("ids", computed_ids(("Mul", 1 << 40)))),
        (lambda f: f["x"], own_rule("ids", hash_ids(50, "int64"))),
        (lambda f: f["x"] % 9, own_rule("ids", None)),
    ],
)
def test_rule_of_a_lookup_takes_what_the_model_computes(change: Change, after: ResolvedIds) -> None:
    before = ids_of(change)
    between = by_bundle(before)(examples())
    expected = by_bundle(after)({"x": between, "ids": between})
    assert by_bundle(crosses.followed_by(before, after))(examples()).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        (lambda f: f["x"] % 9, lambda f: f["city"]),
        (lambda f: LISTED.lookup(f["x"]), lambda f: f["city"]),
        (lambda f: tf.cast(f["number"], tf.int64), lambda f: tf.strings.lower(f["city"])),
    ],
)
def test_cross_of_a_lookup_takes_what_the_model_computes(changes: tuple[Change, Change]) -> None:
    keys = (
        CrossKey(dtype="int64"),
        CrossKey(dtype="string", ids=vocabulary_ids("v", "string")),
    )
    rule = CrossedIds(keys=keys, buckets=50)
    after = own_rule("first", rule, ("red", "10"), other_sources=(Source("second", "dense"),))
    traced = [traced_of(change) for change in changes]
    first, second = (by_tensorflow(traced_call)(examples()) for traced_call in traced)
    between = {"x": first, "first": first, "second": np.array([t.decode() for t in second], object)}
    expected = by_bundle(after)(between)
    before = [ids_of(change) for change in changes]
    crossed = crosses.crossed_by(before, after)
    sources = [resolved_ids.source for resolved_ids in before]
    crossed = replace(crossed, source=sources[0], other_sources=tuple(sources[1:]))
    assert by_bundle(crossed)(examples()).tolist() == expected.tolist()
