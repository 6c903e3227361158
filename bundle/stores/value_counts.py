"""How often each value of an attribute occurs."""

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
      counts: [m] int64, how many candidates have each of them.
      null_count: How many candidates have none.
    """

    values: Any
    counts: NDArray[np.int64]
    null_count: int

    def changed(self, removed: Any, added: Any) -> ValueCounts:
        """Returns the counts without some values, and with others.

        Args:
          removed: A `pyarrow.Array` of what candidates no longer have, with nulls.
          added: A `pyarrow.Array` of what candidates have besides, with nulls.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        new = added.filter(pc.invert(pc.is_in(added, value_set=self.values))).drop_null()
        fresh = ValueCounts.of_column(pa.chunked_array([new]))
        counts = self.counts.copy()
        for values, change in ((removed, -1), (added, 1)):
            numbers = pc.index_in(values, value_set=self.values).drop_null().to_numpy()
            np.add.at(counts, numbers, change)
        occurring = pa.array(counts > 0)
        return ValueCounts(
            pa.concat_arrays([self.values.filter(occurring), fresh.values]),
            np.concatenate([counts[counts > 0], fresh.counts]),
            self.null_count - removed.null_count + added.null_count,
        )

    @staticmethod
    def of_column(column: Any) -> ValueCounts:
        """Counts the values of a `pyarrow.ChunkedArray`."""
        counted = column.value_counts()
        valid = counted.filter(counted.field("values").is_valid())
        counts = valid.field("counts").to_numpy()
        return ValueCounts(valid.field("values"), counts, column.null_count)
