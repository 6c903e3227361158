"""Many features of one call at once: ids resolved a kind of rule at a time, one gather for each table.

Thousands of features would spend their time in numpy calls on a few ids each. Here they are laid side by side: the ids
of all features with one kind of rule are resolved together, the rows of all features of one table are read together,
and all bags of one combiner and width are combined together. Each answer is the same bits as of the feature alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle import ids
from bundle.columns import Activation, Column, Offsets, checked_offsets
from bundle.combiner import combine
from bundle.crosses import Crossed
from bundle.embedded import Embedded, Vectors, Weights
from bundle.id_values import Rows, Values
from bundle.tables import TableReader


@dataclass(slots=True)
class _Part:
    """One feature of the call: its rows, negative for what contributes nothing, then their vectors."""

    name: str
    feature: Embedded
    rows: Rows
    offsets: Offsets | None
    """[n + 1] int64; None: one row for each example."""
    weights: Weights | None
    unknown: int
    vectors: Vectors | None = None


def activations(wanted: Mapping[str, Embedded], columns: Mapping[str, Column], n: int) -> dict[str, Activation]:
    """Looks many features up; see FeatureReader.activations.

    Args:
      wanted: the features by name.
      columns: what was sent, by input.
      n: examples in the call.
    """
    found: dict[str, Activation] = {}
    listed: list[tuple[str, Embedded, Column, Offsets | None]] = []
    parts: list[_Part] = []
    for name, feature in wanted.items():
        if isinstance(feature.rule, Crossed):
            rows, offsets = feature.rows(columns, n)
            rows, unknown = feature.known(rows, None)
            parts.append(_Part(name, feature, rows, offsets, None, unknown))
            continue
        column = columns.get(feature.inputs[0])
        single = feature.page.kind == "single"
        if column is None or (single and (column.offsets is not None or column.values.shape != (n,))):
            found[name] = feature.activation(columns, n)  # defaults stand among its values
        else:
            starts = None if single else checked_offsets(feature.inputs[0], column, n)
            listed.append((name, feature, column, starts))
    parts += _resolved(listed)
    _read_tables(parts)
    together: dict[tuple[Any, ...], list[_Part]] = {}
    for part in parts:
        page = part.feature.page
        key = (part.feature.table.dim, page.kind, page.combiner, page.length, part.weights is None)
        together.setdefault(key, []).append(part)
    for alike in together.values():
        for part, values in zip(alike, _combined(alike, n), strict=True):
            found[part.name] = Activation(values, part.unknown)
    return {name: found[name] for name in wanted}


def _resolved(listed: Sequence[tuple[str, Embedded, Column, Offsets | None]]) -> list[_Part]:
    parts: list[_Part] = []
    sent: list[Values] = []
    for name, feature, column, offsets in listed:
        weights, length = feature.weights(column), feature.page.length
        values, starts = column.values, offsets
        if length is not None and offsets is not None:
            values, starts = _cut(values, offsets, length)
        sent.append(values)
        parts.append(_Part(name, feature, values, starts, weights, 0))
    rules = [feature.rule for _, feature, _, _ in listed if not isinstance(feature.rule, Crossed)]
    for part, values, rows in zip(parts, sent, ids.resolve_all(rules, sent), strict=True):
        part.rows = part.feature.padded(rows, values)
    if not parts:
        return parts
    negative = np.concatenate([part.rows for part in parts]) < 0
    if np.count_nonzero(negative) or any(part.weights is not None for part in parts):
        for part, values in zip(parts, sent, strict=True):
            part.rows, part.unknown = part.feature.known(part.rows, values)
            if part.feature.page.kind == "bag":
                _prune(part)
    return parts


def _cut(values: Values, offsets: Offsets, length: int) -> tuple[Values, Offsets]:
    lengths = offsets[1:] - offsets[:-1]
    if int(lengths.max(initial=0)) <= length:
        return values, offsets
    place = np.arange(values.size) - offsets[:-1].repeat(lengths)
    kept = np.minimum(lengths, length)
    return values[place < length], np.concatenate([[0], np.cumsum(kept)])


def _prune(part: _Part) -> None:
    kept = part.feature.kept(part.rows, part.weights)
    if part.offsets is not None and np.count_nonzero(kept) < kept.size:
        part.offsets = np.concatenate([[0], np.cumsum(kept)])[part.offsets]
        part.rows = part.rows[kept]
        part.weights = None if part.weights is None else part.weights[kept]


def _read_tables(parts: Sequence[_Part]) -> None:
    by_table: dict[int, tuple[TableReader, list[_Part]]] = {}
    for part in parts:
        by_table.setdefault(id(part.feature.table), (part.feature.table, []))[1].append(part)
    for table, readers in by_table.values():
        rows = readers[0].rows if len(readers) == 1 else np.concatenate([part.rows for part in readers])
        missing = rows < 0
        if np.count_nonzero(missing):
            vectors = table.take(np.where(missing, 0, rows))
            vectors[missing] = 0
        else:
            vectors = table.take(rows)
        ends = np.cumsum([0, *(part.rows.size for part in readers)]).tolist()
        for part, (start, end) in zip(readers, pairwise(ends), strict=True):
            part.vectors = vectors[start:end]


def _combined(parts: Sequence[_Part], n: int) -> NDArray[Any]:
    """Returns [features, n, dim] or [features, n, length, dim] of features that are alike."""
    page, dim = parts[0].feature.page, parts[0].feature.table.dim
    given = [part.vectors for part in parts if part.vectors is not None]
    vectors = given[0] if len(given) == 1 else np.concatenate(given)
    if page.kind == "single":
        return vectors.reshape(len(parts), n, dim)
    starts = np.stack([part.offsets for part in parts if part.offsets is not None])
    lengths = (starts[:, 1:] - starts[:, :-1]).reshape(-1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if page.kind == "bag":
        weights = [part.weights for part in parts if part.weights is not None]
        beside = np.concatenate(weights) if weights else None
        return combine(vectors, offsets, parts[0].feature.combiner, beside).reshape(len(parts), n, dim)
    length = page.length or 0
    example = np.repeat(np.arange(lengths.size), lengths)
    whole = np.zeros((lengths.size, length, dim), np.float32)
    whole[example, np.arange(example.size) - offsets[example]] = vectors
    return whole.reshape(len(parts), n, length, dim)
