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
      source: The file or option that named the rows, for messages.
    """

    rows: NDArray[np.int64]
    source: str

    def sample(self, count: int) -> TrainedRows:
        """Returns at most `count` of the rows, the same ones in every run."""
        if len(self.rows) <= count:
            return self
        # A fixed seed: a layout that one run proves must not be rejected by the next.
        generator = np.random.default_rng(0)
        chosen = np.sort(generator.choice(len(self.rows), count, replace=False))
        return TrainedRows(self.rows[chosen], self.source)


NO_ROWS: Mapping[str, TrainedRows] = MappingProxyType({})
"""The trained rows of no table."""
