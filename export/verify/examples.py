"""Examples that towers are compared on: read from a file as callers would send them, or made of
known ids.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bundle.features.reader import Column
from bundle.features.rules.ids import rule_of, within
from bundle.format import manifest
from bundle.tables.vocabularies import Vocabulary, index_keys
from export.errors import UsageError
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec

BAG_SIZES = 6
"""Made bags hold 0 to 5 ids, made sequences up to two more than fit."""

Keys = Mapping[str, NDArray[Any]]
"""Keys of each vocabulary in the order of their rows: [size] int64 or object holding str."""


@dataclass(frozen=True)
class Examples:
    """`n` examples by input; an input without a column takes its default.

    Attributes:
      labels: [n] int64 of 0 and 1 by the output that they are the truth of, where the examples tell
        it.
      recorded: [n, ...] float64 by output: what training recorded of it, where the examples tell
        it.
    """

    n: int
    columns: Mapping[str, Column]
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    recorded: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def read_examples(
    path: Path,
    model: ModelSpec,
    entries: Mapping[str, manifest.Feature],
    count: int,
    labels: Mapping[str, str] = MappingProxyType({}),
    recorded: Mapping[str, str] = MappingProxyType({}),
) -> Examples:
    """Reads the first `count` examples of a Parquet file, or of one with a JSON object in each
    line.

    It has a column (or key) for each input; one with a default may be left out. Weights stand in
    the column of their input.

    Raises:
      UsageError: no such file, not of that kind, or without an input; names it.
    """
    try:
        table = (
            _read_parquet(path, count)
            if path.suffix == ".parquet"
            else _read_json_lines(path, count)
        )
    except FileNotFoundError as problem:
        raise UsageError(f"verify.examples: {path} does not exist") from problem
    except (OSError, ValueError) as problem:
        raise UsageError(f"verify.examples: {path} cannot be read: {problem}") from problem
    n = max((len(values) for values in table.values()), default=0)
    if n == 0:
        raise UsageError(f"verify.examples: {path} holds no example")
    columns = {}
    for name, readers in model.inputs.items():
        if name not in table:
            if entries[readers[0].name].default is None:
                raise UsageError(
                    f"verify.examples: {path} has no {name!r}, which has no default; it has "
                    f"{list(table)}"
                )
            continue
        weighted = [spec.weights for spec in readers if spec.weights]
        weights = table.get(weighted[0]) if weighted else None
        try:
            columns[name] = _pack(table[name], weights)
        except (TypeError, ValueError, OverflowError) as problem:
            raise UsageError(
                f"verify.examples: {name!r} in {path} does not fit: {problem}"
            ) from problem
    truths = {output: _labels(table, column, path) for output, column in labels.items()}
    return Examples(
        n,
        columns,
        truths,
        {name: _recorded(table, column, path) for name, column in recorded.items()},
    )


def _recorded(table: Mapping[str, list[Any]], column: str, path: Path) -> NDArray[np.float64]:
    try:
        values = np.asarray(_column("expected", table, column, path), np.float64)
    except (TypeError, ValueError) as problem:
        raise UsageError(
            f"verify.expected: column {column!r} of {path} holds no numbers: {problem}"
        ) from problem
    if not np.isfinite(values).all():
        raise UsageError(f"verify.expected: column {column!r} of {path} holds NaN or an infinity")
    return values


def _labels(table: Mapping[str, list[Any]], column: str, path: Path) -> NDArray[np.int64]:
    values = _column("labels", table, column, path)
    wrong = [value for value in values if value not in (0, 1)]
    if wrong:
        raise UsageError(
            f"verify.labels: column {column!r} of {path} holds {wrong[0]!r}; 0 or 1 was expected"
        )
    return np.array(values, np.int64)


def _column(key: str, table: Mapping[str, list[Any]], column: str, path: Path) -> list[Any]:
    if column not in table:
        raise UsageError(
            f"verify.{key}: {path} has no column {column!r}; it has {', '.join(table)}"
        )
    return table[column]


def make_examples(
    model: ModelSpec,
    entries: Mapping[str, manifest.Feature],
    keys: Keys,
    count: int,
    dumped: Keys = MappingProxyType({}),
) -> Examples:
    """Makes examples whose ids are all known: bags of 0 to 5 ids with repeated ones, numbers around
    zero.

    They are the same in every run.

    Args:
      model: the traced features and tables.
      entries: the manifest's features.
      keys: of each vocabulary.
      count: how many.
      dumped: some keys of each table whose rows are found by key.
    """
    random = np.random.default_rng(0)
    columns = {}
    for name, readers in model.inputs.items():
        embedded = [spec for spec in readers if isinstance(spec, FeatureSpec)]
        dense = [spec.entry for spec in readers if isinstance(spec, DenseSpec)]
        numbers = [each for each in dense if each.take == "values"]
        bags = [each for each in dense if each.take == "padded"]
        if numbers and not embedded:
            size = count * math.prod(numbers[0].shape)
            columns[name] = Column(_numbers(numbers[0], size, random))
            continue
        if bags and not embedded:
            weighted = any(spec.weights is not None for spec in readers)
            columns[name] = _bags(bags[0], weighted, count, random)
            continue
        below = min((each.below for each in numbers if each.below is not None), default=None)
        spec = min(embedded, key=_telling, default=None)
        sizes = _sizes(spec, numbers, count)
        sizes = np.minimum(sizes, bags[0].shape[0]) if bags else sizes
        size = int(sizes.sum())
        rows = min([below or 1 << 62, *(_reach(each, model.rows_of(each)) for each in embedded)])
        # The `ids_dtype` of a crossed feature is that of its first input alone.
        crossed = spec is not None and len(spec.reads) > 1
        beyond = below or 1 << (31 if crossed or (spec and spec.ids_dtype == "int32") else 40)
        entry = entries[spec.name] if spec else None
        if isinstance(entry, manifest.EmbeddedFeature) and isinstance(entry.ids, manifest.KeyedIds):
            ids = random.choice(dumped[entry.ids.keys], size)
        else:
            if spec is not None and isinstance(spec.rule, manifest.TextIds):
                ids = _texts(spec.rule, keys, size, random)
            else:
                ids = _known_ids(name, entry, rows, beyond, keys, size, random)
            if spec and not crossed and spec.ids_dtype == "string" and ids.dtype != object:
                ids = ids.astype(str).astype(object)
            ids = _computable(ids, embedded, model, keys, beyond, random)
        if spec and not crossed and spec.ids_dtype.startswith("int") and ids.dtype.kind == "f":
            ids = np.floor(ids).astype(np.int64)
        offsets = _offsets(sizes)
        again = offsets[:-1][sizes > 1]
        ids[again[::2] + 1] = ids[again[::2]]
        weights = None
        if any(each.weights is not None for each in embedded):
            weights = random.uniform(0.25, 2.0, ids.size).astype(np.float32)
            if not any(
                each.encoding == "dense" for each in embedded
            ):  # where a weight of 0 is one that is not there
                weights[::7] = 0
        one_each = spec is not None and spec.entry.one_each and spec.entry.place is None
        columns[name] = Column(ids, None if one_each else offsets, weights)
    return Examples(count, columns)


def without_signs(examples: Examples, model: ModelSpec) -> Examples:
    """Returns the same with the absolute value of each number that a tower takes."""
    numbers = {
        name
        for name, readers in model.inputs.items()
        if any(isinstance(each, DenseSpec) and each.entry.take == "values" for each in readers)
    }
    columns = {
        name: column._replace(values=np.abs(column.values)) if name in numbers else column
        for name, column in examples.columns.items()
    }
    return replace(examples, columns=columns)


def _telling(spec: FeatureSpec) -> tuple[int, bool, bool]:
    """Puts first what tells most of an input: alone, one id of an example, which keys there are."""
    listed = spec.rule is not None and isinstance(
        manifest.first_of(spec.rule), manifest.VocabularyIds
    )
    return len(spec.reads), not spec.entry.one_each, not listed


def _sizes(
    spec: FeatureSpec | None, numbers: Sequence[manifest.DenseFeature], count: int
) -> NDArray[np.int64]:
    """Returns how many values each example has in an input that `spec` and `numbers` read."""
    fixed = _fixed_size(spec, numbers)
    if fixed is not None:
        return np.full(count, fixed, np.int64)
    below = BAG_SIZES
    if spec is not None and spec.entry.length is not None:
        below = spec.entry.length + 3
    elif spec is not None and spec.ids_max is not None:
        below = min(BAG_SIZES, spec.ids_max + 1)
    return np.arange(count, dtype=np.int64) % below


def _fixed_size(spec: FeatureSpec | None, numbers: Sequence[manifest.DenseFeature]) -> int | None:
    """Returns how many values every example has in an input; None if examples differ."""
    if numbers:  # the ids are read as numbers, too
        return math.prod(numbers[0].shape)
    if spec is None:
        return None
    entry = spec.entry
    if entry.one_each or len(spec.reads) > 1:  # of a cross, one value of each input
        return entry.places or 1
    if spec.encoding == "dense" and entry.length is not None:
        return entry.length
    # Where no id stands for padding, every example of a dense bag is full.
    return spec.ids_max if entry.padding is None else None


def _known_ids(
    name: str,
    entry: manifest.Feature | None,
    rows: int,
    beyond: int,
    keys: Keys,
    size: int,
    random: np.random.Generator,
) -> NDArray[Any]:
    rule = (
        manifest.first_of(entry.ids)
        if isinstance(entry, manifest.EmbeddedFeature)
        else manifest.IdentityIds()
    )
    if isinstance(rule, manifest.MultiInputIds) and entry is not None:
        key = rule.keys[entry.inputs.index(name)]
        rule = manifest.first_of(key.ids)
        if not isinstance(rule, manifest.BucketIds | manifest.VocabularyIds):
            ids = random.integers(0, beyond, size)
            return ids if key.dtype == "int64" else ids.astype(str).astype(object)
    if isinstance(rule, manifest.VocabularyIds):
        known = keys[rule.vocabulary]
        return known[random.integers(0, max(1, min(known.size, rows - rule.first_row)), size)]
    if isinstance(rule, manifest.HashIds):
        return random.integers(0, beyond, size)
    if isinstance(rule, manifest.BucketIds):
        low = min(rule.boundaries, default=0.0)
        high = max(rule.boundaries, default=0.0)
        return random.uniform(low - 1, high + 1, size).astype(np.float32)
    ids = random.integers(0, max(1, min(rows, beyond)), size)
    cast = entry.cast if isinstance(entry, manifest.EmbeddedFeature) else None
    if cast is None or cast.of != "float32":
        return ids
    return (ids + (-0.25 if cast.rounding == "up" else 0.25)).astype(np.float32)


def _texts(
    rule: manifest.TextIds, keys: Keys, size: int, random: np.random.Generator
) -> NDArray[Any]:
    """Returns [size] object: texts of words that are known, mostly; every eighth has none."""
    known = ["x", "X!"]
    if isinstance(rule.ids, manifest.VocabularyIds):
        known += keys[rule.ids.vocabulary].tolist()
    space = "" if rule.split == "characters" else " "
    counts = np.arange(size) % 8 if rule.split else np.ones(size, np.int64)
    made = np.empty(size, object)
    made[:] = [
        space.join(known[place] for place in random.integers(0, len(known), count))
        for count in counts
    ]
    return made


def _computable(
    ids: NDArray[Any],
    specs: Sequence[FeatureSpec],
    model: ModelSpec,
    keys: Keys,
    beyond: int,
    random: np.random.Generator,
) -> NDArray[Any]:
    """Replaces ids of which a model computes no row by others; where one in many thousands has a
    row, not all are.
    """
    rules = []
    for each in specs:
        if (
            isinstance(each.rule, manifest.ComputedIds | manifest.ChainedIds)
            and each.unknown is None
        ):
            read = {rule.vocabulary for rule in manifest.vocabularies_of(each.rule)}
            rules.append(
                (
                    rule_of(each.rule, {name: vocabulary_of(keys[name]) for name in read}),
                    model.rows_of(each),
                )
            )
    if not rules or ids.dtype.kind not in "ifO":
        return ids

    def known(tried: NDArray[Any]) -> NDArray[np.bool_]:
        whole = tried if tried.dtype == object else np.floor(tried).astype(np.int64)
        return np.asarray(
            np.all([within(rule.resolve("", whole), rows) >= 0 for rule, rows in rules], axis=0)
        )

    if ids.dtype == object:
        right = known(ids)
        return np.where(right, ids, random.choice(ids[right], ids.size)) if right.any() else ids
    reaches = (
        (1 << 10, 1 << 16, 1 << 23)
        if ids.dtype.kind == "f"
        else (1 << 10, 1 << 16, 1 << 23, 1 << 31, beyond)
    )
    others = np.concatenate(
        [random.integers(-reach, reach, 1 << 14) for reach in reaches if reach <= beyond]
    )
    others = others[known(others)]
    wrong = ~known(ids)
    if others.size:
        ids = ids.copy()
        ids[wrong] = random.choice(others, int(wrong.sum())) + (
            ids[wrong] % 1 if ids.dtype.kind == "f" else 0
        )
    return ids


def vocabulary_of(keys: NDArray[Any]) -> Vocabulary:
    """Returns a vocabulary of keys in the order of their rows."""
    import pyarrow as pa

    return Vocabulary(index_keys(pa.chunked_array([pa.array(keys)])))


def _reach(spec: FeatureSpec, rows: int) -> int:
    """Returns up to which id the rows of a table are asked for."""
    operations = spec.rule.operations if isinstance(spec.rule, manifest.ComputedIds) else ()
    return 1 << 62 if any("remainder" in each.do for each in operations) else rows


def _numbers(entry: manifest.DenseFeature, size: int, random: np.random.Generator) -> NDArray[Any]:
    """Returns [size] values of a feature."""
    if entry.dtype == "float32":
        return random.standard_normal(size).astype(np.float32)
    if entry.dtype == "string":
        return random.integers(0, 100, size).astype(str).astype(object)
    # What integers mean is not known here: 0 and 1 fit most.
    return random.integers(0, entry.below or 2, size)


def _bags(
    entry: manifest.DenseFeature, weighted: bool, count: int, random: np.random.Generator
) -> Column:
    sizes = np.arange(count) % min(BAG_SIZES, entry.shape[0] + 1)
    values = _numbers(entry, int(sizes.sum()), random)
    offsets = _offsets(sizes)
    weights = None
    if weighted:
        weights = random.uniform(0.25, 2.0, values.size).astype(np.float32)
    return Column(values, offsets, weights)


def _offsets(sizes: ArrayLike) -> NDArray[np.int64]:
    """Returns where the values of each example begin, and where the last ones end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _read_parquet(path: Path, count: int) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq

    if not path.is_file():
        raise FileNotFoundError(path)
    batch = next(pq.ParquetFile(path).iter_batches(batch_size=count), None)
    return {} if batch is None else dict(batch.to_pydict())


def _read_json_lines(path: Path, count: int) -> dict[str, list[Any]]:
    with path.open(encoding="utf-8") as lines:
        examples = [json.loads(line) for line in islice(filter(str.strip, lines), count)]
    for number, example in enumerate(examples, 1):
        if not isinstance(example, dict):
            raise ValueError(f"example {number} is no JSON object")
    names = Counter(name for example in examples for name in example)
    for name, found in names.items():
        if found < len(examples):
            raise ValueError(
                f"{name!r} is left out in {len(examples) - found} of {len(examples)} examples"
            )
    return {name: [example[name] for example in examples] for name in names}


def _pack(values: list[Any], weights: list[Any] | None) -> Column:
    lists = [value if isinstance(value, list) else [value] for value in values]
    flat = [_flat(value) for value in lists]
    offsets = _offsets([len(part) for part in flat])
    one_each = not any(isinstance(value, list) for value in values)
    packed = _array([value for part in flat for value in part])
    if weights is None:
        return Column(packed, None if one_each else offsets)
    beside = [weight for part in weights for weight in part]
    return Column(packed, None if one_each else offsets, np.asarray(beside, np.float32))


def _flat(value: list[Any]) -> list[Any]:
    return [
        inner for part in value for inner in (_flat(part) if isinstance(part, list) else [part])
    ]


def _array(values: list[Any]) -> NDArray[Any]:
    if not values:
        return np.empty(0, np.int64)
    if all(isinstance(value, str) for value in values):
        return np.array(values, object)
    if any(isinstance(value, str | bool) or value is None for value in values):
        raise ValueError("strings, booleans or nulls among numbers")
    return np.asarray(values)
