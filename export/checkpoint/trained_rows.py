"""Rows of a table that training is known to have read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainedRows:
    """Rows of a table that training read, by what the user says of ids.

    Attributes:
      rows: [n] int64, distinct, in [0, rows of the table).
      counts: [n] float64, how often training read each row, or any numbers in this order; None: not
        known.
      all_trained: Whether training surely read each of them; false for a vocabulary, whose rare ids
        it may never have read.
      source: What named them, for messages.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.float64] | None
    all_trained: bool
    source: str

    def sample(self, count: int) -> TrainedRows:
        """Returns at most `count` of the rows, the same ones in every run."""
        if len(self.rows) <= count:
            return self
        chosen = np.sort(np.random.default_rng(0).choice(len(self.rows), count, replace=False))
        counts = None if self.counts is None else self.counts[chosen]
        return TrainedRows(self.rows[chosen], counts, self.all_trained, self.source)


NO_ROWS: Mapping[str, TrainedRows] = MappingProxyType({})
"""The trained rows of no table."""
