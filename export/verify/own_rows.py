"""Rows of ids, compared with the model's own operations on values that nobody thought of.

A bundle computes the rows of ids with functions of its own. The reference model is called with
examples, which hold ordinary values. Here the rows of each feature are compared with those of the
model's operations on the ends of the types, negative numbers, floats that are no integers, and odd
texts.
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
from export.verify.made_examples import vocabulary_of

Values = NDArray[Any]
Rows = NDArray[np.int64]

HOSTILE_VALUES = 10_000
"""Values of each input on which rows are compared, beside the keys of vocabularies."""
_CALLS_MAX = 200
"""Calls in search of values that the model, or the feature, rejects."""
_AT_STEPS_MAX = 64
"""Values that may lie at steps between buckets; more that differ are a mistake."""
_NEIGHBORS = 64
"""Floats on either side of a step where the row of the other side is right, too."""
_KEYS_MAX = 1000
"""Keys of each vocabulary that are compared, too."""
_REJECTED = np.int64(-2)
"""Stands for the id or row of a value that is rejected."""
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
      job: the recipe.
      traced: the model, with its own operations.
      entries: the features of the manifest.

    Returns:
      A note about the features that could not be compared; none if there are none.

    Raises:
      VerificationFailed: a value has another row; names feature, value, row and id.
    """
    model = traced.spec
    compared = {
        name: spec
        for name in traced.own_rows
        if isinstance(spec := model.features[name], FeatureSpec) and not _is_stated(job, spec)
    }
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
    """Returns whether the recipe has the rule."""
    parts = [job.features.get(name, FeatureSection()) for name in spec.reads]
    return any(part.ids.kind != "identity" for part in parts)


def _reader(entries: Mapping[str, Feature], model: ModelSpec) -> FeatureReader:
    """Returns what finds rows as a service does, before there are any tables."""
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
    """Returns keys and hostile values of each input, [n * size], and n; those of several values, or
    of one feature, meet in a drawn order.
    """
    columns = {}
    for number, name in enumerate(inputs):
        values = hostile_values(job.inputs[name].sent_dtype)
        values = np.concatenate([_beside_keys(spec.keys, job.inputs[name].sent_dtype), values])
        padding = spec.padding_of(name) if name in spec.reads else None
        if padding is not None:  # no id: nothing looks it up
            values = values[values != padding]
        size = math.prod(job.inputs[name].shape)
        if size > 1 or len(inputs) > 1:
            values = values[np.random.default_rng(number).permutation(values.size)]
        columns[name] = values
    sizes = {name: math.prod(job.inputs[name].shape) for name in columns}
    n = min(column.size // sizes[name] for name, column in columns.items())
    return {name: column[: n * sizes[name]] for name, column in columns.items()}, n


def _beside_keys(vocabularies: Sequence[Keys], dtype: str) -> Values:
    """Returns keys of vocabularies, and values that are nearly keys, in the type of an input."""
    keys = [key for vocabulary in vocabularies for key in vocabulary[:_KEYS_MAX]]
    if dtype == "string":
        words = [str(key) for key in keys]
        words += [near for word in words for near in (word.upper(), f" {word}", f"{word}0")]
        return _texts(words)
    end = 1 << (31 if dtype == "int32" else 63)
    numbers = [key for key in keys if isinstance(key, int) and -end <= key < end - 1]
    numbers += [number + 1 for number in numbers]
    return np.array(numbers, np.float32 if dtype == "float32" else np.int64)


def hostile_values(dtype: str) -> Values:
    """Returns values of an input that callers send by mistake or by design, the same in every run.

    Args:
      dtype: int32, int64, float32 or string.

    Returns:
      [HOSTILE_VALUES]; texts as an array of objects.
    """
    random = np.random.default_rng(45)
    if dtype == "string":
        numbers = random.integers(-(1 << 40), 1 << 40, HOSTILE_VALUES - len(_WORDS))
        return _texts([*_WORDS, *map(str, numbers.tolist())])
    bits = 32 if dtype == "int32" else 64
    low = -(1 << (bits - 1))
    high = (1 << (bits - 1)) - 1
    powers = [1 << bit for bit in range(bits - 1)]
    edges = {*powers, *(power - 1 for power in powers), *(power + 1 for power in powers)}
    edges |= {-edge for edge in edges} | {low, high, 0}
    listed = sorted(edge for edge in edges if low <= edge <= high)
    if dtype == "float32":
        halves = [edge / 2 for edge in listed] + [-0.0, np.nan, np.inf, -np.inf, 1e-30, 3e38]
        drawn = random.standard_normal(HOSTILE_VALUES - len(halves))
        scaled = drawn * 10.0 ** random.integers(-2, 12, drawn.size)
        return np.concatenate([halves, scaled]).astype(np.float32)
    count = HOSTILE_VALUES - len(listed)
    reaches = np.minimum(1 << random.integers(1, bits - 1, count), high)
    drawn = random.integers(-reaches, reaches)
    return np.concatenate([np.array(listed, np.int64), drawn])


def _texts(words: Sequence[str]) -> Values:
    """Returns [m] object."""
    texts = np.empty(len(words), object)
    texts[:] = words
    return texts


def _is_compared(job: ExportJob, spec: FeatureSpec, own: OwnRows, features: FeatureReader) -> bool:
    """Compares the rows of one feature; returns whether it could.

    Raises:
      VerificationFailed: as `check_own_rows`.
    """
    if own.inputs is None:
        return False
    columns, n = _columns(job, spec, tuple(dict.fromkeys((*spec.reads, *own.inputs))))
    sent = {name: columns[name] for name in spec.reads}
    if isinstance(spec.entry.ids, manifest.TextIds):
        return _are_words_compared(spec, own, features, sent, n)
    rows = _computed(partial(_rows, features, spec.name), sent, n)
    right = _computed(own.compute, columns, n)
    if right is None or rows is None or right.size != rows.size:
        return False
    rejected = (rows == _REJECTED) | (right == _REJECTED)
    unknown = spec.unknown or manifest.Unknown()
    if unknown.rule == "refuse":
        rejected |= rows == -1
    elif unknown.rule == "row":
        rows = np.where(rows == -1, np.int64(unknown.row or 0), rows)
    different = (rows != right) & ~rejected
    if 0 < np.count_nonzero(different) <= _AT_STEPS_MAX:
        different &= ~_at_step(own.compute, columns, n, rows)
    wrong = np.flatnonzero(different)
    if wrong.size:
        first = int(wrong[0])
        example = first * n // rows.size
        values = {name: column.reshape(n, -1)[example].tolist() for name, column in sent.items()}
        raise _difference(
            spec,
            values,
            _row_text(rows[first]),
            _row_text(right[first]),
            f"{wrong.size} of {rows.size} values differ",
        )
    return True


def _are_words_compared(
    spec: FeatureSpec, own: OwnRows, features: FeatureReader, sent: Mapping[str, Values], n: int
) -> bool:
    """Compares the rows of the words of n texts; returns whether all of them have some.

    Raises:
      VerificationFailed: as `check_own_rows`.
    """
    try:
        right = own.compute(sent, n)
        rows, offsets = features.rows(
            spec.name, {name: Column(values) for name, values in sent.items()}, n
        )
    except Exception:  # noqa: BLE001 - the model's framework raises what it likes
        return False
    shared = min(rows.size, right.size)
    wrong = np.flatnonzero(rows[:shared] != right[:shared])
    if not wrong.size and rows.size == right.size:
        return True
    first = int(wrong[0]) if wrong.size else shared
    example = min(int(np.searchsorted(offsets, first, side="right")) - 1, n - 1)
    raise _difference(
        spec,
        {name: [values[example]] for name, values in sent.items()},
        _row_text(rows[first]) if first < rows.size else "no more words",
        _row_text(right[first]) if first < right.size else "no more words",
        f"of {rows.size} and {right.size} words, {wrong.size} differ",
    )


def _difference(
    spec: FeatureSpec, sent: Mapping[str, list[Any]], row: str, right: str, extent: str
) -> VerificationFailed:
    """Returns the error that tells of the first value with another row."""
    values = ", ".join(f"{name} = {value!r}" for name, value in sent.items())
    return VerificationFailed(
        f"feature {spec.name!r}: with {values:.200}, a bundle would read {row} of "
        f"{spec.entry.table!r}, and the model's own operations read {right}; {extent}; state the "
        f"rule of the ids in the recipe (features.{spec.reads[0]}.ids), and let the model take "
        "rows"
    )


def _row_text(row: np.int64) -> str:
    return f"row {row}" if row >= 0 else "no row"


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
    sides = [
        _computed(compute, {name: _shifted(column, end) for name, column in columns.items()}, n)
        for end in (-np.inf, np.inf)
    ]
    below, above = sides
    if below is None or above is None:
        return nowhere
    at_step: NDArray[np.bool_] = (below != above) & ((rows == below) | (rows == above))
    return at_step


def _shifted(values: Values, end: float) -> Values:
    """Returns the floats that are some numbers of their type nearer to an end."""
    for _ in range(_NEIGHBORS):
        values = np.nextafter(values, np.float32(end))
    return values


def _rows(features: FeatureReader, name: str, columns: Mapping[str, Values], n: int) -> Rows:
    """Returns the rows that the bundle finds, -1 where there is none."""
    return features.rows(name, {which: Column(column) for which, column in columns.items()}, n)[0]


def _computed(compute: ComputeRows, columns: Mapping[str, Values], n: int) -> Rows | None:
    """Returns what is computed of n examples, `_REJECTED` where a value is rejected or not tried;
    None if all are, or not as many rows are computed of each example.

    One value that is rejected fails a whole call, so examples are divided until it is alone. Where
    so many are rejected that this takes too long, some examples are tried one by one.
    """
    computed: dict[tuple[int, int], Rows] = {}
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
    sizes = {rows.size / (last - first) for (first, last), rows in computed.items()}
    if len(sizes) != 1 or not (size := sizes.pop()).is_integer():
        return None
    result = np.full((n, int(size)), _REJECTED)
    for (first, last), rows in computed.items():
        result[first:last] = rows.reshape(last - first, -1)
    return result.reshape(-1)


def _rows_or_rejected(
    compute: ComputeRows, columns: Mapping[str, Values], n: int, first: int, last: int
) -> Rows | None:
    """Returns the rows of the examples from `first` to `last`; None if one of them is rejected."""
    part = {name: column.reshape(n, -1)[first:last].ravel() for name, column in columns.items()}
    try:
        return compute(part, last - first)
    except Exception:  # noqa: BLE001 - the model's framework raises what it likes
        return None
