"""Rows of a table that training is known to have read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainedRows:
    """Rows of a table that training read, according to the user's ids.

    Attributes:
      rows: [n] int64, distinct, in [0, rows of the table).
      counts: [n] float64, how often training read each row, or any numbers in this order; None if
        that is not known.
      all_trained: Whether training surely read each row; false for a vocabulary, whose rare ids
        training may never have read.
      source: The file or option that named the rows, for messages.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.float64] | None
    all_trained: bool
    source: str

    def sample(self, count: int) -> TrainedRows:
        """Returns at most `count` of the rows, the same ones in every run."""
        if len(self.rows) <= count:
            return self
        # A fixed seed: a layout that one run proves must not be rejected by the next.
        generator = np.random.default_rng(0)
        chosen = np.sort(generator.choice(len(self.rows), count, replace=False))
        counts = None
        if self.counts is not None:
            counts = self.counts[chosen]
        return TrainedRows(self.rows[chosen], counts, self.all_trained, self.source)


NO_ROWS: Mapping[str, TrainedRows] = MappingProxyType({})
"""The trained rows of no table."""
