"""Weights of towers that hold NaN or an infinity, found before anything is computed with them.

Every output of a model with such a weight is mostly NaN, whatever its examples: a check that
compares outputs could only blame these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from export.errors import NotConvertible


def check_finite_weights(
    where: str, weights: Iterable[tuple[str, NDArray[Any]]], allowed: Collection[str]
) -> None:
    """Checks that weights are finite.

    Args:
      where: what holds them, for messages.
      weights: name and values of each.
      allowed: names of those that may hold other values.

    Raises:
      NotConvertible: some are not finite; names the first, how many of its values are not, and
        where the first of these is.
    """
    problems = []
    for name, values in weights:
        if name in allowed:
            continue
        is_finite = _is_finite(values)
        count = int(np.count_nonzero(~is_finite))
        if count:
            first = np.unravel_index(int(np.argmin(is_finite)), values.shape)
            place = [int(index) for index in first]
            problems.append(
                f"variable {name!r} {list(values.shape)} holds NaN or an infinity in {count} of "
                f"{values.size} values, the first at {place}"
            )
    if problems:
        others = f" (and {len(problems) - 1} other variables)" if problems[1:] else ""
        raise NotConvertible(
            f"{where}: {problems[0]}{others}; take an older checkpoint, or, if they are meant, "
            "such as a mask of infinities, name the variable in checkpoint.allow_non_finite"
        )


def _is_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype == ml_dtypes.bfloat16:
        values = values.astype(np.float32)
    if values.dtype.kind not in "fc":
        return np.ones(values.shape, bool)
    found: NDArray[np.bool_] = np.isfinite(values)
    return found
