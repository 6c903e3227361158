"""Compares the rows of ids with the model's own operations, on values that examples do not hold.

A bundle computes the rows of ids with functions of its own. The reference model is called with
examples, which hold ordinary values. Here, the bundle and the model's operations compute rows of
the ends of the types, negative numbers, floats that are no integers, and odd texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.features.sources import RemoteRows, RemoteTable
from bundle.format import manifest
from bundle.format.manifest import Feature
from export.errors import VerificationFailed
from export.front_end.interface import ComputeRows, OwnRows, PartitionedModel
from export.front_end.specs import FeatureSpec, Keys, ModelSpec
from export.recipe.schema import ExportJob, FeatureSection
from export.tables.vocabularies import as_array
from export.verify.hostile_numbers import hostile_numbers
from export.verify.synthetic_examples import vocabulary_of

Values = NDArray[Any]
Rows = NDArray[np.int64]

HOSTILE_VALUES = 10_000
"""The number of values of each input on which rows are compared, beside the keys of vocabularies.
"""
_CALLS_MAX = 200
"""The largest number of calls in search of values that the model, or the feature, rejects."""
_AT_STEPS_MAX = 64
"""The largest number of differing values that may lie at steps between buckets; more are a mistake.
"""
_NEIGHBORS = 64
"""The number of floats on either side of a step for which the row of the other side is right, too.
"""
_KEYS_MAX = 1000
"""The number of keys of each vocabulary that are compared, too."""
_REJECTED = np.int64(-2)
"""The row of a value that is rejected."""
_WORDS = (
    "",
    " ",
    "0",
    "-1",
    "00",
    "1.5",
    "nan",
    "[UNK]",
    "a b  c",
    "\t tab\n",
    "Straße",
    "ÉCOLE",
    "東京",
    "🙂🙂",
    "İ",
    "x" * 300,
    "a,b|c;d",
    "\u0000",
    "é",  # one letter, and the next is two
    "e\u0301",
)


def check_own_rows(
    job: ExportJob, traced: PartitionedModel, entries: Mapping[str, Feature]
) -> tuple[str, ...]:
    """Compares the rows that a bundle would find with those of the model's own operations.

    Features whose rule the recipe states are left out: their model was trained on rows.

    Args:
      job: The recipe.
      traced: The model, with its own operations.
      entries: The features of the manifest.

    Returns:
      A note about the features that could not be compared; no note if all could.

    Raises:
      VerificationFailed: A value has another row; names feature, value, row and id.
    """
    model = traced.spec
    compared = {}
    for name in traced.own_rows:
        spec = model.features[name]
        if isinstance(spec, FeatureSpec) and not _is_stated(job, spec):
            compared[name] = spec
    features = _reader({name: entries[name] for name in compared}, model)
    not_compared = [
        name
        for name, spec in compared.items()
        if not _is_compared(job, spec, traced.own_rows[name], features)
    ]
    if not not_compared:
        return ()
    return (
        f"the rows of {', '.join(not_compared)} were compared with the model's on the examples "
        "alone: its operations between inputs and ids do not run without the rest of the model",
    )


def _is_stated(job: ExportJob, spec: FeatureSpec) -> bool:
    """Returns whether the recipe states the rule of a feature."""
    sections = [job.features.get(name, FeatureSection()) for name in spec.reads]
    return any(section.ids.kind != "identity" for section in sections)


def _reader(entries: Mapping[str, Feature], model: ModelSpec) -> FeatureReader:
    """Returns a reader that finds rows as a service does, before any table is copied."""
    # Remote tables have no values, and only rows are looked up.
    tables = {
        name: RemoteTable(table.rows, RemoteRows(name, table.dim))
        for name, table in model.tables.items()
    }
    vocabularies = {
        name: vocabulary_of(as_array(keys)) for name, keys in model.vocabularies.items()
    }
    return FeatureReader(entries, tables, vocabularies)


def _columns(
    job: ExportJob, spec: FeatureSpec, inputs: Sequence[str]
) -> tuple[dict[str, Values], int]:
    """Returns keys and hostile values of each input, [n * size], and n, the number of examples."""
    columns = {}
    for number, name in enumerate(inputs):
        dtype = job.inputs[name].sent_dtype
        values = np.concatenate([_near_keys(spec.keys, dtype), hostile_values(dtype)])
        # Padding is no id, and nothing looks it up.
        padding = None
        if name in spec.reads:
            padding = spec.padding_of(name)
        if padding is not None:
            values = values[values != padding]
        # In their own order, the smallest values of all inputs would meet, then the next ones.
        size = math.prod(job.inputs[name].shape)
        if size > 1 or len(inputs) > 1:
            values = values[np.random.default_rng(number).permutation(values.size)]
        columns[name] = values
    sizes = {name: math.prod(job.inputs[name].shape) for name in columns}
    n = min(column.size // sizes[name] for name, column in columns.items())
    return {name: column[: n * sizes[name]] for name, column in columns.items()}, n


def _near_keys(vocabularies: Sequence[Keys], dtype: str) -> Values:
    """Returns keys of vocabularies, and values that are nearly keys, in the type of an input."""
    keys = [key for vocabulary in vocabularies for key in vocabulary[:_KEYS_MAX]]
    if dtype == "string":
        words = [str(key) for key in keys]
        near_words = [near for word in words for near in (word.upper(), f" {word}", f"{word}0")]
        return _texts(words + near_words)
    bits = 32 if dtype == "int32" else 64
    end = 1 << (bits - 1)
    numbers = [key for key in keys if isinstance(key, int) and -end <= key < end - 1]
    numbers += [number + 1 for number in numbers]
    if dtype == "float32":
        return np.array(numbers, np.float32)
    return np.array(numbers, np.int64)


def hostile_values(dtype: str) -> Values:
    """Returns values of an input that clients send by mistake or by design, the same in every run.

    Args:
      dtype: The type of the values: int32, int64, float32 or string.

    Returns:
      [HOSTILE_VALUES] values; texts as an array of objects.
    """
    random = np.random.default_rng(45)
    if dtype == "string":
        numbers = random.integers(-(1 << 40), 1 << 40, HOSTILE_VALUES - len(_WORDS))
        return _texts([*_WORDS, *map(str, numbers.tolist())])
    listed = hostile_numbers(dtype)
    count = HOSTILE_VALUES - listed.size
    if dtype == "float32":
        scaled = random.standard_normal(count) * 10.0 ** random.integers(-2, 12, count)
        return np.concatenate([listed, scaled.astype(np.float32)])
    high = np.iinfo(dtype).max
    # Each magnitude is as likely as any other: of uniform numbers, nearly all would be large.
    magnitudes = np.minimum(1 << random.integers(1, high.bit_length(), count), high)
    random_integers = random.integers(-magnitudes, magnitudes)
    return np.concatenate([listed.astype(np.int64), random_integers])


def _texts(words: Sequence[str]) -> Values:
    """Returns [m] object."""
    texts = np.empty(len(words), object)
    texts[:] = words
    return texts


def _is_compared(
    job: ExportJob, spec: FeatureSpec, own_rows: OwnRows, features: FeatureReader
) -> bool:
    """Compares the rows of one feature; returns whether it could.

    Raises:
      VerificationFailed: A value has another row.
    """
    if own_rows.inputs is None:
        return False
    # The model's operations may need more inputs than the feature reads.
    inputs = tuple(dict.fromkeys((*spec.reads, *own_rows.inputs)))
    columns, n = _columns(job, spec, inputs)
    feature_columns = {name: columns[name] for name in spec.reads}
    if isinstance(spec.entry.ids, manifest.TextIds):
        return _are_words_compared(spec, own_rows, features, feature_columns, n)

    rows = _computed(partial(_rows, features, spec.name), feature_columns, n)
    expected = _computed(own_rows.compute, columns, n)
    if expected is None or rows is None or expected.size != rows.size:
        return False
    # A value that one side rejects has no row to compare with.
    is_rejected = (rows == _REJECTED) | (expected == _REJECTED)
    unknown = spec.unknown or manifest.Unknown()
    if unknown.rule == "refuse":
        is_rejected |= rows == -1
    elif unknown.rule == "row":
        rows = np.where(rows == -1, np.int64(unknown.row or 0), rows)
    differs = (rows != expected) & ~is_rejected
    if 0 < np.count_nonzero(differs) <= _AT_STEPS_MAX:
        differs &= ~_at_step(own_rows.compute, columns, n, rows)
    wrong = np.flatnonzero(differs)
    if wrong.size:
        first = int(wrong[0])
        example = first * n // rows.size
        values = {
            name: column.reshape(n, -1)[example].tolist()
            for name, column in feature_columns.items()
        }
        raise _difference(
            spec,
            values,
            _row_text(rows, first),
            _row_text(expected, first),
            f"{wrong.size} of {rows.size} values differ",
        )
    return True


def _are_words_compared(
    spec: FeatureSpec,
    own_rows: OwnRows,
    features: FeatureReader,
    columns: Mapping[str, Values],
    n: int,
) -> bool:
    """Compares the rows of the words of n texts; returns whether it could.

    Raises:
      VerificationFailed: A word has another row.
    """
    try:
        expected = own_rows.compute(columns, n)
        texts = {name: Column(values) for name, values in columns.items()}
        rows, offsets = features.rows(spec.name, texts, n)
    except Exception:  # noqa: BLE001 - a model's framework raises errors of any type
        return False
    shared_count = min(rows.size, expected.size)
    wrong = np.flatnonzero(rows[:shared_count] != expected[:shared_count])
    if not wrong.size and rows.size == expected.size:
        return True
    # Where all shared words agree, the first word that one side lacks differs.
    first = shared_count
    if wrong.size:
        first = int(wrong[0])
    example = min(int(np.searchsorted(offsets, first, side="right")) - 1, n - 1)
    raise _difference(
        spec,
        {name: [values[example]] for name, values in columns.items()},
        _row_text(rows, first),
        _row_text(expected, first),
        f"of {rows.size} and {expected.size} words, {wrong.size} differ",
    )


def _difference(
    spec: FeatureSpec, values: Mapping[str, list[Any]], row: str, expected_row: str, extent: str
) -> VerificationFailed:
    """Returns the error that names the first value with another row."""
    values_text = ", ".join(f"{name} = {value!r}" for name, value in values.items())
    return VerificationFailed(
        f"feature {spec.name!r}: with {values_text:.200}, a bundle would read {row} of "
        f"{spec.entry.table!r}, and the model's own operations read {expected_row}; {extent}; "
        f"state the rule of the ids in the recipe (features.{spec.reads[0]}.ids), and let the "
        "model take rows"
    )


def _row_text(rows: Rows, position: int) -> str:
    if position >= rows.size:
        return "no more words"
    if rows[position] < 0:
        return "no row"
    return f"row {rows[position]}"


def _at_step(
    compute: ComputeRows, columns: Mapping[str, Values], n: int, rows: Rows
) -> NDArray[np.bool_]:
    """Returns where the model's rows change within a few floats, and a row is that of either side:
    logarithms and the like differ in their last bit from one library to another, and in one
    library from one vector length to another.
    """
    nowhere = np.zeros(rows.shape, bool)
    if any(column.dtype != np.float32 for column in columns.values()):
        return nowhere
    below, above = (
        _computed(compute, {name: _shifted(column, end) for name, column in columns.items()}, n)
        for end in (-np.inf, np.inf)
    )
    if below is None or above is None:
        return nowhere
    at_step: NDArray[np.bool_] = (below != above) & ((rows == below) | (rows == above))
    return at_step


def _shifted(values: Values, end: float) -> Values:
    """Returns the floats that are some numbers of their type nearer to an end."""
    # The neighbor of the largest float is infinite.
    with np.errstate(over="ignore"):
        for _ in range(_NEIGHBORS):
            values = np.nextafter(values, np.float32(end))
    return values


def _rows(features: FeatureReader, name: str, columns: Mapping[str, Values], n: int) -> Rows:
    """Returns the rows that the bundle finds, -1 where there is none."""
    rows, _ = features.rows(name, {key: Column(values) for key, values in columns.items()}, n)
    return rows


def _computed(compute: ComputeRows, columns: Mapping[str, Values], n: int) -> Rows | None:
    """Returns the rows of n examples, `_REJECTED` where a value is rejected or not tried; None if
    all are rejected, or examples have different numbers of rows.

    One value that is rejected fails a whole call, so examples are halved until it is alone. If too
    many are rejected for that, some examples are tried one by one.
    """
    computed: dict[tuple[int, int], Rows] = {}
    # The ranges of examples that are left, the first one last.
    pending = [(0, n)]
    for _ in range(_CALLS_MAX):
        if not pending:
            break
        first, last = pending.pop()
        rows = _rows_or_rejected(compute, columns, n, first, last)
        if rows is not None:
            computed[first, last] = rows
        elif last - first > 1:
            middle = (first + last) // 2
            pending += [(middle, last), (first, middle)]
    if pending:
        for first in np.linspace(0, n - 1, min(n, _CALLS_MAX), dtype=int).tolist():
            rows = _rows_or_rejected(compute, columns, n, first, first + 1)
            if rows is not None:
                computed[first, first + 1] = rows
    return _joined(computed, n)


def _joined(computed: Mapping[tuple[int, int], Rows], n: int) -> Rows | None:
    """Returns the rows of n examples, computed in ranges; `_REJECTED` outside of these ranges."""
    # The number of rows of an example, which must be the same for all.
    sizes = {rows.size / (last - first) for (first, last), rows in computed.items()}
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    if not size.is_integer():
        return None
    result = np.full((n, int(size)), _REJECTED)
    for (first, last), rows in computed.items():
        result[first:last] = rows.reshape(last - first, -1)
    return result.reshape(-1)


def _rows_or_rejected(
    compute: ComputeRows, columns: Mapping[str, Values], n: int, first: int, last: int
) -> Rows | None:
    """Returns the rows of the examples from `first` to `last`; None if one of them is rejected."""
    values = {name: column.reshape(n, -1)[first:last].ravel() for name, column in columns.items()}
    try:
        return compute(values, last - first)
    except Exception:  # noqa: BLE001 - a model's framework raises errors of any type
        return None
