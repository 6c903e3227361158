"""Finds the rows that make the features of a request NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bundle.features.columns import Column
from bundle.features.dense import Dense
from bundle.features.reader import FeatureReader
from bundle.features.sources import Fetched, Indicator, RemoteTable


class NonFiniteRow(NamedTuple):
    """A row with NaN or an infinity that an example reads.

    Attributes:
      feature: The name of the feature that reads the row.
      table: The name of the table that holds the row.
      id: The id whose row it is, before the rule of the feature is applied.
      example: The position of the example.
    """

    feature: str
    table: str
    id: Any
    example: int


def rows_not_finite(
    reader: FeatureReader,
    names: Iterable[str],
    columns: Mapping[str, Column],
    n: int,
    fetched: Fetched | None = None,
) -> list[NonFiniteRow]:
    """Finds the rows that make vectors of features NaN or infinite: for each example and feature,
    the first row that is not finite, if there is one.

    Args:
      reader: Reads the features.
      names, columns, n, fetched: See FeatureReader.activations, which raises the same errors.
    """
    columns = reader.fitted(columns, n)
    nonfinite_rows = []
    for name in names:
        feature = reader.feature(name)
        if isinstance(feature, Dense) or isinstance(feature.table, Indicator):
            continue
        combined = reader.activations([name], columns, n, fetched)[name].values
        is_nonfinite = ~np.isfinite(combined.reshape(n, -1)).all(axis=1)
        if not is_nonfinite.any():
            continue

        # The rows are read anew, since the combined vectors hide the row at fault.
        ids = feature.ids(columns, n).values
        rows, offsets = reader.rows(name, columns, n)
        if feature.entry.unknown.row is not None:
            rows = np.where(rows < 0, feature.entry.unknown.row, rows)
        for example in is_nonfinite.nonzero()[0].tolist():
            start, stop = offsets[example : example + 2].tolist()
            read_rows = rows[start:stop]
            table = feature.table
            if isinstance(table, RemoteTable):
                shifted = np.where(read_rows < 0, read_rows, read_rows + table.first)
                vectors = (fetched or {})[table.among.name].take(shifted)
            else:
                vectors = table.take(read_rows)
            (at_fault,) = np.nonzero(~np.isfinite(vectors).all(axis=1))
            if at_fault.size:
                nonfinite_id = ids[start + at_fault[0]]
                nonfinite_rows.append(
                    NonFiniteRow(name, feature.entry.table, nonfinite_id, example)
                )
    return nonfinite_rows
