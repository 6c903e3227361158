"""Results that are returned must be finite: NaN and infinities have no place in JSON, and none in
an order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class NotFinite(ArithmeticError):
    """A result holds NaN or an infinity; the message names it."""


def check_finite(array: NDArray[Any], what: str) -> None:
    """Raises NotFinite if the array holds NaN or an infinity."""
    finite = np.isfinite(array)
    if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
        raise NotFinite(what)
