"""Examples that towers are compared on, read from a file in the form of requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bundle.errors import FeatureError, WrongLength
from bundle.features.input_lengths import InputLengths
from bundle.features.reader import Column
from bundle.format import manifest
from bundle.storage.regular_files import check_regular
from bundle.tables.offsets import chosen_bags
from export.errors import UsageError
from export.front_end.specs import DenseSpec, ModelSpec


@dataclass(frozen=True)
class Examples:
    """`n` examples by input; an input without a column takes its default.

    Attributes:
      n: The number of examples.
      columns: The values of all examples, by input.
      labels: [n] int64 of 0 and 1, the labels of outputs that have some.
      recorded: [n, ...] float64, the values that training recorded of outputs.
      with_known_ids: Synthetic examples without the ids that no table has, which a model may
        reject; None: these are real examples, or have no such ids.
    """

    n: int
    columns: Mapping[str, Column]
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    recorded: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    with_known_ids: Examples | None = None


def read_examples(
    path: Path,
    model: ModelSpec,
    entries: Mapping[str, manifest.Feature],
    count: int,
    labels: Mapping[str, str] = MappingProxyType({}),
    recorded: Mapping[str, str] = MappingProxyType({}),
) -> Examples:
    """Reads the first `count` examples of a Parquet file, or of a file with a JSON object in each
    line.

    The file has a column (or key) for each input; one with a default may be left out. Weights stand
    in the column of their input.

    Raises:
      UsageError: The file does not exist, cannot be read, or lacks an input; names it.
    """
    return examples_of_table(read_table(path, count), path, model, entries, labels, recorded)


def examples_of_table(
    table: Mapping[str, list[Any]],
    path: Path,
    model: ModelSpec,
    entries: Mapping[str, manifest.Feature],
    labels: Mapping[str, str],
    recorded: Mapping[str, str],
) -> Examples:
    """Returns the examples in the columns of a file.

    Args:
      table: The values of each example, by column.
      path: The file, for messages.
      model: The traced features.
      entries: The features of the manifest.
      labels: The columns of labels, by output.
      recorded: The columns of values that training recorded, by output.

    Raises:
      UsageError: A column is missing or does not fit its input; names it.
    """
    n = max((len(values) for values in table.values()), default=0)
    if n == 0:
        raise UsageError(f"verify.examples: {path} holds no example")
    columns: dict[str, Column] = {}
    for name, readers in model.inputs.items():
        if name not in table:
            if entries[readers[0].name].default is None:
                raise UsageError(
                    f"verify.examples: {path} has no {name!r}, which has no default; it has "
                    f"{list(table)}"
                )
            continue
        # All weighted readers of an input have the same weights.
        weights_names = [spec.weights for spec in readers if spec.weights]
        weights = None
        if weights_names:
            weights = table.get(weights_names[0])
        try:
            columns[name] = _pack(table[name], weights)
        except (TypeError, ValueError, OverflowError) as problem:
            # NumPy raises these where values have different types or do not fit an int64.
            raise UsageError(
                f"verify.examples: {name!r} in {path} does not fit: {problem}"
            ) from problem
    return Examples(
        n,
        _fitted(columns, entries, n, path),
        {output: _labels(table, column, path) for output, column in labels.items()},
        {output: _recorded(table, column, path) for output, column in recorded.items()},
    )


def _fitted(
    columns: Mapping[str, Column], entries: Mapping[str, manifest.Feature], n: int, path: Path
) -> Mapping[str, Column]:
    """Returns columns in which lists have the lengths that their inputs take."""
    try:
        return InputLengths(entries).fit(columns, n).columns
    except WrongLength as problem:
        raise UsageError(
            f"verify.examples: row {problem.example + 1} of {path}, column {problem.feature!r} "
            f"{problem.counts}; write lists of that length, or state what pads or cuts others as "
            f"inputs.{problem.feature}.pad and inputs.{problem.feature}.keep"
        ) from problem
    except FeatureError as problem:
        raise UsageError(f"verify.examples: {path} does not fit: {problem}") from problem


def _recorded(table: Mapping[str, list[Any]], column: str, path: Path) -> NDArray[np.float64]:
    try:
        values = np.asarray(_column("expected", table, column, path), np.float64)
    except (TypeError, ValueError) as problem:
        raise UsageError(
            f"verify.expected: column {column!r} of {path} holds no numbers: {problem}"
        ) from problem
    not_finite = np.argwhere(~np.isfinite(values))
    if not_finite.size:
        first = tuple(not_finite[0])
        raise UsageError(
            f"verify.expected: column {column!r} of {path} holds {values[first]} in row "
            f"{first[0] + 1}; a service rejects such results: leave these examples out"
        )
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


def without_signs(examples: Examples, model: ModelSpec) -> Examples:
    """Returns examples with the absolute value of each number that a tower takes."""
    columns = dict(examples.columns)
    for name, column in examples.columns.items():
        is_number = any(
            isinstance(spec, DenseSpec) and spec.entry.take == "values"
            for spec in model.inputs[name]
        )
        if is_number:
            columns[name] = column._replace(values=np.abs(column.values))
    return replace(examples, columns=columns)


def chosen(column: Column, rows: NDArray[np.int64], n: int) -> Column:
    """Returns the values of some of n examples, in another order, or several times.

    Args:
      column: The values of all examples.
      rows: [m] positions of the examples.
      n: The number of all examples.
    """
    offsets = column.offsets
    if offsets is None:
        # Without offsets, each example has the same number of values.
        offsets = np.arange(n + 1) * (column.values.size // n)
    positions, chosen_offsets = chosen_bags(offsets, rows)
    column = column._replace(values=column.values[positions])
    if column.offsets is not None:
        column = column._replace(offsets=chosen_offsets)
    if column.weights is not None:
        column = column._replace(weights=column.weights[positions])
    return column


def joined(columns: Sequence[Column], counts: Sequence[int]) -> Column:
    """Returns the values of the examples of several columns of one input, one after the other.

    Args:
      columns: The columns. All of them have weights, or none.
      counts: The number of examples of each.
    """
    offsets = None
    if any(column.offsets is not None for column in columns):
        sizes = []
        for column, count in zip(columns, counts, strict=True):
            if column.offsets is None:
                sizes.append(np.full(count, column.values.size // count))
            else:
                sizes.append(np.diff(column.offsets))
        offsets = offsets_of(np.concatenate(sizes))
    weights = None
    weights_by_column = [column.weights for column in columns if column.weights is not None]
    if weights_by_column:
        weights = np.concatenate(weights_by_column)
    return Column(np.concatenate([column.values for column in columns]), offsets, weights)


def offsets_of(sizes: ArrayLike) -> NDArray[np.int64]:
    """Returns [n + 1] positions: where the values of each of n examples begin, and the last end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def read_table(path: Path, count: int, key: str = "verify.examples") -> dict[str, list[Any]]:
    """Returns the columns of the first `count` examples of a file.

    Args:
      path: The file.
      count: The number of examples.
      key: The key of the recipe that names the file, for messages.

    Raises:
      UsageError: The file does not exist, or cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path, count)
        return _read_json_lines(path, count)
    except FileNotFoundError as problem:
        raise UsageError(f"{key}: {path} does not exist") from problem
    except (OSError, ValueError) as problem:
        raise UsageError(f"{key}: {path} cannot be read: {problem}") from problem


def _read_parquet(path: Path, count: int) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq

    check_regular(path)
    # Only the first batch is read, whatever the size of the file.
    batch = next(pq.ParquetFile(path).iter_batches(batch_size=count), None)
    if batch is None:
        return {}
    return dict(batch.to_pydict())


def _read_json_lines(path: Path, count: int) -> dict[str, list[Any]]:
    check_regular(path)
    with path.open(encoding="utf-8") as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        examples = [_parsed(number, line) for number, line in islice(numbered, count)]
    for number, example in enumerate(examples, 1):
        if not isinstance(example, dict):
            raise ValueError(f"example {number} is no JSON object")
    # Otherwise, an input whose name is misspelled in one line would have its default there.
    names = Counter(name for example in examples for name in example)
    for name, occurrences in names.items():
        missing = len(examples) - occurrences
        if missing:
            raise ValueError(f"{name!r} is left out in {missing} of {len(examples)} examples")
    return {name: [example[name] for example in examples] for name in names}


def _parsed(number: int, line: str) -> Any:
    """Returns an example, which has a line of its own."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as problem:
        raise ValueError(
            f"line {number} is no JSON: {problem.msg} at column {problem.colno}; each example is "
            "one line"
        ) from problem
    except RecursionError as problem:
        raise ValueError(f"line {number} is nested too deeply") from problem


def _pack(values: list[Any], weights: list[Any] | None) -> Column:
    """Returns the column of an input, whose examples are single values or lists of any depth."""
    examples = [_flat(value) for value in values]
    packed = _array([value for example in examples for value in example])
    offsets = None
    if any(isinstance(value, list) for value in values):
        offsets = offsets_of([len(example) for example in examples])
    if weights is None:
        return Column(packed, offsets)
    flat_weights = [weight for example in weights for weight in example]
    return Column(packed, offsets, np.asarray(flat_weights, np.float32))


def _flat(value: Any) -> list[Any]:
    # Without recursion: a file may be nested as deeply as its parser allows.
    flat = []
    pending = [value]
    while pending:
        element = pending.pop()
        if isinstance(element, list):
            pending.extend(reversed(element))
        else:
            flat.append(element)
    return flat


def _array(values: list[Any]) -> NDArray[Any]:
    if not values:
        return np.empty(0, np.int64)
    if all(isinstance(value, str) for value in values):
        return np.array(values, object)
    # NumPy would turn numbers beside strings into strings, and booleans into 0 and 1.
    if any(isinstance(value, str | bool) or value is None for value in values):
        raise ValueError("strings, booleans or nulls among numbers")
    return np.asarray(values)
