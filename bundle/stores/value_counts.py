"""Counts of the values of an attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """The distinct values of an attribute, and how many candidates have each.

    Attributes:
      values: A `pyarrow.Array` of distinct values without null.
      counts: [m] int64, the number of candidates that have each value.
      null_count: The number of candidates without a value.
    """

    values: Any
    counts: NDArray[np.int64]
    null_count: int

    def changed(self, removed: Any, added: Any) -> ValueCounts:
        """Returns the counts without some values, and with others.

        Args:
          removed: A `pyarrow.Array` of the values that candidates no longer have, with nulls.
          added: A `pyarrow.Array` of the values that candidates have in addition, with nulls.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        # Values that occurred before change their counts; new ones are counted on their own.
        is_new = pc.invert(pc.is_in(added, value_set=self.values))
        new_values = added.filter(is_new).drop_null()
        new_counts = ValueCounts.of_column(pa.chunked_array([new_values]))
        counts = self.counts.copy()
        for values, change in ((removed, -1), (added, 1)):
            numbers = pc.index_in(values, value_set=self.values).drop_null().to_numpy()
            np.add.at(counts, numbers, change)
        occurs = counts > 0
        remaining_values = self.values.filter(pa.array(occurs))
        return ValueCounts(
            pa.concat_arrays([remaining_values, new_counts.values]),
            np.concatenate([counts[occurs], new_counts.counts]),
            self.null_count - removed.null_count + added.null_count,
        )

    @staticmethod
    def of_column(column: Any) -> ValueCounts:
        """Counts the values of a `pyarrow.ChunkedArray`."""
        # A `pyarrow.StructArray` of values, null among them, and their counts.
        pairs = column.value_counts()
        valid_pairs = pairs.filter(pairs.field("values").is_valid())
        counts = valid_pairs.field("counts").to_numpy()
        return ValueCounts(valid_pairs.field("values"), counts, column.null_count)
