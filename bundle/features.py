"""Ids of one feature -> rows -> combined vector: THE combiner, used by both programs, never written twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Column:
    """The values of one feature for n examples, packed.

    Attributes:
      values: [m] int64, [m] object holding str, or [m] float32. A dense feature's values are flat too.
      offsets: [n + 1] int64, beginning with 0 and ending with m, never falling: example i owns
        values[offsets[i]:offsets[i + 1]]. None: every example owns equally many.
      weights: [m] float32 beside the values of a weighted bag; None: all 1.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    weights: NDArray[np.float32] | None = None
