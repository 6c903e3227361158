"""Features at random, what is sent for them, and what they read by their definition.

Every table has ROWS rows, and so has every indicator. A value is read by Python, one example after
another: nothing here is shared with the code that serves, but fingerprints of texts, which
`test_fingerprints.py` holds to TensorFlow's. Words of texts and ids of several inputs are drawn in
tests/differential/random_models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.fingerprints import fingerprints
from bundle.format import manifest as entries
from tests.id_graphs import (
    bucket_ids,
    computed_ids,
    hash_ids,
    vocabulary_ids,
)

ROWS = 9
DTYPES = get_args(entries.Table.model_fields["dtype"].annotation)
SMALL = tuple(f"small{number}" for number in range(16))
"""Enough tables of one width to be laid side by side in memory."""
TABLES = (*DTYPES, *SMALL)
DIMS = {**dict.fromkeys(DTYPES, 4), **dict.fromkeys(SMALL, 3)}
KEYS = (7, 0, -3, 2**62, 11, 5, -9, 8, 1)
WORDS = ("red", "blue", "green", "red blue")
LEFT_OUT = object()
"""The row of a value that is padding."""
UNKNOWN = -1

Vectors = NDArray[np.float32]
Rows = list[Any]


class Rejected(Exception):
    """A feature rejects an id without a row."""


class Ids(NamedTuple):
    """A rule of ids: values with rows, values without, and the row of each by its definition."""

    entry: entries.IdRule
    known_values: Sequence[Any]
    unknown: Sequence[Any]
    row: Callable[[Any], int]


def fingerprint(value: Any) -> int:
    return int(fingerprints(np.array([str(value)], object))[0])


def bucket(number: float) -> int:
    return sum(number >= boundary for boundary in (-1.5, 0.5, 0.5, 4.0))


def word_row(word: Any) -> int:
    return 2 + WORDS.index(word) if word in WORDS else UNKNOWN


BUCKETS = bucket_ids((-1.5, 0.5, 0.5, 4.0))
IDS: tuple[Ids, ...] = (
    Ids(entries.IDENTITY, range(ROWS), (-1, ROWS, -ROWS - 1, (1 << 32) + 3, -(1 << 63)), int),
    Ids(computed_ids(("AddV2", -3)), range(3, ROWS + 3), (2, ROWS + 3, -40), lambda row: row - 3),
    Ids(hash_ids(ROWS), (*"abc", "5"), (), lambda text: fingerprint(text) % ROWS),
    Ids(
        hash_ids(ROWS + 9), (-6, -5, 0, 3), (1, 2, 6, -9), lambda row: fingerprint(row) % (ROWS + 9)
    ),
    Ids(vocabulary_ids("words", first_row=2), WORDS, ("", "x", "\u00e9"), word_row),
    Ids(BUCKETS, (-2.0, 0.5, 3.75, 9.0), (), bucket),
    Ids(bucket_ids((-1.5, 0.5), first_row=8), (-2.0,), (0.5, -1.5), lambda n: 8 + bucket(n)),
    Ids(entries.KeyedIds(keys="own"), KEYS, (2, 6, 2**63 - 1, 77), KEYS.index),
)


@dataclass(frozen=True)
class State:
    """What tables hold: the vectors of their rows."""

    vectors: Mapping[str, Vectors]


Lists = list[list[Any]]


@dataclass
class Sent:
    """An input: a list of values for each example; None: it is left out.

    Attributes:
      lists: The values of each example.
      weights: The weight of each value; None: none were sent.
    """

    lists: Lists | None
    weights: Lists | None = None

    def column(self, random: Random) -> Column:
        """Returns the column of the lists, which has no offsets where it may have none."""
        assert self.lists is not None
        values = [value for row in self.lists for value in row]
        lengths = [len(row) for row in self.lists]
        if any(isinstance(value, str) for value in values):
            array = np.empty(len(values), object)
            array[:] = values
        elif any(isinstance(value, float) for value in values):
            array = np.array(values, np.float32)
        else:
            array = np.array(values, np.int64)
        offsets = np.array([0, *itertools.accumulate(lengths)])
        weights = None
        if self.weights is not None:
            flat = [weight for row in self.weights for weight in row]
            weights = np.array(flat, np.float32)
        is_even = len(set(lengths)) == 1
        return Column(array, None if is_even and random.random() < 0.5 else offsets, weights)


@dataclass
class Model:
    """Features, and what is sent for them.

    Attributes:
      n: The number of examples.
      features: The features.
      sent_inputs: What is sent, by input.
      rules: The rule of the ids of each feature that reads a table by one input.
    """

    random: Random
    n: int
    features: dict[str, entries.Feature] = field(default_factory=dict)
    sent_inputs: dict[str, Sent] = field(default_factory=dict)
    rules: dict[str, Ids] = field(default_factory=dict)

    def columns(self) -> dict[str, Column]:
        return {
            name: sent_inputs.column(self.random)
            for name, sent_inputs in self.sent_inputs.items()
            if sent_inputs.lists is not None
        }

    def sent(self, name: str) -> Sent:
        """Returns what is sent for a feature."""
        return self.sent_inputs[(self.features[name].inputs or (name,))[0]]

    def example(self, number: int) -> Model:
        """Returns the features with what is sent for one example."""
        sent_inputs = {}
        for name, column in self.sent_inputs.items():
            lists = column.lists and [column.lists[number]]
            sent_inputs[name] = Sent(lists, column.weights and [column.weights[number]])
        return replace(self, n=1, sent_inputs=sent_inputs)

    def read(
        self, name: str, state: State, lost: Mapping[str, frozenset[int]] | None = None
    ) -> tuple[NDArray[Any], int]:
        """Returns the values of a feature, and the number of ids that it does not know.

        Args:
          lost: The rows of each table that cannot be fetched.

        Raises:
          Rejected: An id is unknown, or its row is lost, and the feature rejects unknown ids.
        """
        feature = self.features[name]
        if isinstance(feature, entries.DenseFeature):
            return self._dense(name, feature), 0
        rows = self.rows(name, state)
        if feature.kind == "sequence":
            rows = [row[: feature.length] for row in rows]
        unknown = sum(row == UNKNOWN for example in rows for row in example)
        lost_rows = (lost or {}).get(feature.table, frozenset())
        is_rejected = any(row == UNKNOWN or row in lost_rows for part in rows for row in part)
        if feature.unknown.rule == "refuse" and is_rejected:
            raise Rejected(name)
        other_row = UNKNOWN if feature.unknown.row is None else feature.unknown.row
        rows = [
            [other_row if row == UNKNOWN or row in lost_rows else row for row in example]
            for example in rows
        ]
        if self.sent(name).lists is None:
            unknown = 0  # a default is not the caller's
        vectors = _vectors(feature, state)
        if feature.kind == "single":
            read: list[Any] = [_vector(vectors, row) for (row,) in rows]
        elif feature.kind == "bag":
            weights = self._weights(name, feature, rows)
            read = [_bag(feature, vectors, *example) for example in zip(rows, weights, strict=True)]
        else:
            read = [_sequence(feature, vectors, example) for example in rows]
        shape = (
            (vectors.shape[1],) if feature.length is None else (feature.length, vectors.shape[1])
        )
        return np.array(read, np.float32).reshape(self.n, *shape), unknown

    def rows(self, name: str, state: State) -> list[Rows]:
        """Returns the row of each id of a feature: UNKNOWN or LEFT_OUT for what has none."""
        feature = self.features[name]
        assert isinstance(feature, entries.EmbeddedFeature)
        lists = self._lists(name)
        if feature.place is not None:
            lists = [[example[feature.place]] for example in lists]
        return [[self._row(name, feature, value, state) for value in example] for example in lists]

    def _row(
        self, name: str, feature: entries.EmbeddedFeature, value: Any, state: State
    ) -> int | object:
        if feature.padding is not None and value == feature.padding:
            return LEFT_OUT
        if isinstance(feature.ids, entries.KeyedIds):
            return KEYS.index(int(value)) if int(value) in KEYS else UNKNOWN
        rule = self.rules[name]
        row = rule.row(int(value) if isinstance(rule.known_values, range) else value)
        if feature.from_end and row < 0:
            row += ROWS
        return _within(row)

    def _lists(self, name: str) -> Lists:
        """Returns the values of a feature's input, with the default where nothing was sent."""
        feature = self.features[name]
        default: Any = feature.default
        if isinstance(default, dict):
            default = default["ids"]
        if isinstance(feature, entries.DenseFeature) and feature.take == "values":
            default = np.array(default, object).reshape(-1).tolist()
        default = default if isinstance(default, list) else [default]
        lists = self.sent(name).lists
        if lists is None:
            return [default] * self.n
        is_single = isinstance(feature, entries.EmbeddedFeature) and feature.one_each
        is_values = isinstance(feature, entries.DenseFeature) and feature.take == "values"
        if is_single or is_values:
            return [example or default for example in lists]
        return lists

    def _weights(
        self, name: str, feature: entries.EmbeddedFeature | entries.DenseFeature, lists: Any
    ) -> Lists:
        sent = self.sent(name)
        if feature.weighted and sent.lists is None and isinstance(feature.default, dict):
            return [feature.default["weights"]] * self.n
        if feature.weighted and sent.lists is not None and sent.weights is not None:
            return sent.weights
        return [[1.0] * len(example) for example in lists]

    def _dense(self, name: str, feature: entries.DenseFeature) -> NDArray[Any]:
        lists = self._lists(name)
        if feature.take == "lengths":
            lists = [[len(example)] for example in lists]
        if feature.take == "weights":
            lists = self._weights(name, feature, lists)
        if feature.take in ("padded", "weights"):
            filler = "" if feature.dtype == "string" else 0
            size = math.prod(feature.shape)
            lists = [example + [filler] * (size - len(example)) for example in lists]
        flat = [value for example in lists for value in example]
        if feature.dtype != "string":
            return np.array(flat, feature.dtype).reshape(self.n, *feature.shape)
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(self.n, *feature.shape)


def _within(row: int) -> int:
    return row if 0 <= row < ROWS else UNKNOWN


def _vectors(feature: entries.EmbeddedFeature, state: State) -> Vectors:
    if feature.ordinal:
        return np.arange(ROWS, dtype=np.float32)[:, np.newaxis]
    if feature.indicator is not None:
        return np.eye(ROWS, dtype=np.float32)
    return state.vectors[feature.table]


def _vector(vectors: Vectors, row: Any) -> Any:
    if row == UNKNOWN or row is LEFT_OUT:
        return np.zeros_like(vectors[0])
    return vectors[row]


def _bag(
    feature: entries.EmbeddedFeature, vectors: Vectors, rows: Rows, weights: Sequence[float]
) -> NDArray[np.float64]:
    drops = feature.encoding == "sparse" and feature.combiner != "sum"
    kept_ids = [
        (row, weight)
        for row, weight in zip(rows, weights, strict=True)
        if row != UNKNOWN and row is not LEFT_OUT and not (drops and weight <= 0)
    ]
    if not kept_ids and feature.empty_row is not None:
        kept_ids = [(feature.empty_row, 1.0)]
    total = np.zeros(vectors.shape[1])
    for row, weight in kept_ids:
        vector = vectors[row].astype(np.float64)
        norm = np.linalg.norm(vector)
        if feature.max_norm is not None and norm > feature.max_norm:
            vector *= feature.max_norm / norm
        total += weight * vector
    divisor = {
        "sum": 1.0,
        "mean": sum(weight for _, weight in kept_ids),
        "sqrtn": math.sqrt(sum(weight**2 for _, weight in kept_ids)),
    }[feature.combiner or "sum"]
    return total / divisor if divisor else 0 * total


def _sequence(feature: entries.EmbeddedFeature, vectors: Vectors, rows: Rows) -> list[Vectors]:
    filler = UNKNOWN if feature.filler_row is None else feature.filler_row
    filled = rows + [filler] * ((feature.length or 0) - len(rows))
    return [_vector(vectors, row) for row in filled]


def random_model(random: Random) -> Model:
    """Returns some features of each kind, with inputs of their own and inputs that they share."""
    model = Model(random, n=random.choice([0, 1, 1, 2, 3, 6]))
    for number in range(random.randint(3, 14)):
        name = f"f{number}"
        kind = random.choice(["single", "bag", "bag", "sequence", "dense", "reuse"])
        if kind == "dense":
            _add_dense(model, name)
        elif kind == "reuse":
            _add_reader(model, name)
        else:
            _add_embedded(model, name, kind)
    return model


def _maybe(random: Random, **fields: Callable[[], Any]) -> dict[str, Any]:
    """Returns some of the fields."""
    return {name: draw() for name, draw in fields.items() if random.random() < 0.3}


def _row(random: Random) -> int:
    return random.randrange(ROWS)


def _source(random: Random, *, may_be_ordinal: bool, sums: bool) -> dict[str, Any]:
    """Returns fields of what a feature reads: a table or an indicator."""
    row = _row(random)
    unknown = random.choice([{"rule": "zeros"}, {"rule": "row", "row": row}, {"rule": "refuse"}])
    fields: dict[str, Any] = {"role": random.choice(["context", "candidate"]), "unknown": unknown}
    if not sums or random.random() < 0.8:
        return {**fields, "table": random.choice(TABLES)}
    fields |= {"table": "", "indicator": ROWS}
    if may_be_ordinal and random.random() < 0.5:
        fields["ordinal"] = True
    return fields


def _bag_fields(random: Random) -> dict[str, Any]:
    combiner = random.choice(["sum", "mean", "sqrtn"])
    return {
        "combiner": combiner,
        "encoding": random.choice(["sparse", "ragged"]),
        **_source(random, may_be_ordinal=False, sums=combiner == "sum"),
        **_maybe(
            random,
            empty_row=lambda: _row(random),
            max_norm=lambda: random.choice([0.5, 2.0]),
            weighted=lambda: True,
        ),
    }


def _kind_fields(random: Random, kind: str) -> dict[str, Any]:
    if kind == "bag":
        return _bag_fields(random)
    fields = _source(random, may_be_ordinal=True, sums=True)
    if kind == "sequence":
        fields |= {"length": random.randint(1, 4)}
        fields |= _maybe(random, filler_row=lambda: _row(random))
    return fields


def _values(random: Random, rule: Ids, count: int, *, known_values: bool = False) -> list[Any]:
    pool = (
        [*rule.known_values]
        if known_values
        else [*rule.known_values, *rule.known_values, *rule.unknown]
    )
    return [random.choice(pool) for _ in range(count)]


def _add_embedded(model: Model, name: str, kind: str) -> None:
    random = model.random
    rule = random.choice(IDS)
    fields = {"kind": kind, **_kind_fields(random, kind)}
    if isinstance(rule.entry, entries.KeyedIds):
        index = random.choice(["shared", fields["table"], fields["table"], fields["table"]])
        rule = rule._replace(entry=entries.KeyedIds(keys=index or "shared"))
    fields["ids"] = rule.entry
    if rule.entry.kind in ("identity", "graph"):
        fields |= _maybe(random, from_end=lambda: True)
    places = random.choice([None, 2, 3]) if kind == "single" else None
    if places is not None:
        fields |= {"places": places, "place": random.randrange(places)}
    if random.random() < 0.5:
        fields["inputs"] = (f"{name}_input",)
    if kind != "single":
        fields |= _maybe(random, padding=lambda: random.choice([*rule.known_values, *rule.unknown]))
        if isinstance(fields.get("padding"), float):
            del fields["padding"]
    if random.random() < 0.5:
        default = _values(random, rule, places or random.randint(0, 3), known_values=True)
        fields["default"] = (
            default
            if kind != "single" or places
            else _values(random, rule, 1, known_values=True)[0]
        )
        if fields.get("weighted") and random.random() < 0.5:
            fields["default"] = {"ids": default, "weights": [0.5] * len(default)}

    feature = entries.EmbeddedFeature.model_validate(fields)
    model.features[name] = feature
    model.rules[name] = rule
    lists: Lists = []
    for _ in range(model.n):
        count = random.randint(0, 5)
        if kind == "single":
            count = places or int(feature.default is None or random.random() < 0.8)
        lists.append(_values(random, rule, count))
    # Integers travel as decimal texts, too.
    is_integer = rule.entry == entries.IDENTITY or isinstance(rule.entry, entries.KeyedIds)
    if is_integer and feature.padding is None and random.random() < 0.2:
        lists = [[str(value) for value in values] for values in lists]
    weights = None
    if feature.weighted and random.random() < 0.7:
        weights = [[random.choice([-1, 0, 0.5, 2]) for _ in values] for values in lists]
    is_left_out = feature.default is not None and random.random() < 0.3
    model.sent_inputs[(feature.inputs or (name,))[0]] = Sent(
        None if is_left_out else lists, weights
    )


def _add_reader(model: Model, name: str) -> None:
    """Adds another feature that reads the ids, or the weights, of an earlier bag."""
    random = model.random
    earlier = [
        (other_row, feature)
        for other_row, feature in model.features.items()
        if isinstance(feature, entries.EmbeddedFeature)
        and feature.kind == "bag"
        and other_row in model.rules
    ]
    if not earlier:
        return
    other_row, feature = random.choice(earlier)
    fields: dict[str, Any] = {
        "inputs": feature.inputs or (other_row,),
        "role": feature.role,
        "default": feature.default,
    }
    takes = ["bag", "sequence", "lengths"]
    if feature.weighted:
        takes.append("weights")
    if feature.ids == entries.IDENTITY:
        takes.append("padded")
    take = random.choice(takes)
    if take in ("bag", "sequence"):
        fields |= {"kind": take, "ids": feature.ids} | {**_kind_fields(random, take), **fields}
        fields["weighted"] = False
        model.features[name] = entries.EmbeddedFeature.model_validate(fields)
        model.rules[name] = model.rules[other_row]
        return
    fields |= {"kind": "dense", "take": take, "shape": (6,)}
    if take == "lengths":
        fields |= {"shape": random.choice([(), (1,)])}
    fields["dtype"] = "float32" if take == "weights" else random.choice(["int64", "float32"])
    if take == "padded":
        fields["dtype"] = "int64"
    model.features[name] = entries.DenseFeature.model_validate(fields)


def _add_dense(model: Model, name: str) -> None:
    random = model.random
    dtype = random.choice(["float32", "int32", "int64", "string"])
    shape = random.choice([(), (2,), (2, 3)])
    size = math.prod(shape)
    fields: dict[str, Any] = {"kind": "dense", "role": "context", "dtype": dtype, "shape": shape}
    pool: list[Any] = [0, 1, 3, -2]
    if dtype == "float32":
        pool = [0.5, -1.5, 3.0]
    if dtype == "string":
        pool = ["a", "", "é"]
    if dtype in ("int32", "int64"):
        below = _maybe(random, below=lambda: 4)
        if below:
            below |= {"outside": random.choice(["refuse", "zeros", "nearest"])}
            below |= {"from_end": below["outside"] == "refuse"}
        fields |= below
    if random.random() < 0.5:
        values = [random.choice(pool) for _ in range(size)]
        array = np.empty(len(values), object)
        array[:] = values
        fields["default"] = array.reshape(shape).tolist()
    feature = entries.DenseFeature.model_validate(fields)
    model.features[name] = feature
    lists: Lists | None = [[random.choice(pool) for _ in range(size)] for _ in range(model.n)]
    if feature.default is not None:
        lists = random.choice([None, [values * random.randint(0, 1) for values in lists or ()]])
    model.sent_inputs[name] = Sent(lists)
