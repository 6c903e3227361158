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
      where: The part of the model that holds the weights, for messages.
      weights: Names and values of the weights.
      allowed: Names of weights that may hold NaN or an infinity.

    Raises:
      NotConvertible: A weight is not finite. The message names the first such weight, the number
        of its values that are not finite, and the position of the first of them.
    """
    problems = []
    for name, values in weights:
        if name in allowed:
            continue
        is_finite = _is_finite(values)
        count = int(np.count_nonzero(~is_finite))
        if count:
            # The minimum of booleans is the first False.
            first = np.unravel_index(int(np.argmin(is_finite)), values.shape)
            position = [int(index) for index in first]
            problems.append(
                f"variable {name!r} {list(values.shape)} holds NaN or an infinity in {count} of "
                f"{values.size} values, the first at {position}"
            )
    if problems:
        more = ""
        if len(problems) > 1:
            more = f" (and {len(problems) - 1} other variables)"
        raise NotConvertible(
            f"{where}: {problems[0]}{more}; take an older checkpoint, or, if they are meant, "
            "such as a mask of infinities, name the variable in checkpoint.allow_non_finite"
        )


def _is_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    # NumPy's kind of bfloat16, a type of another library, is not "f".
    if values.dtype == ml_dtypes.bfloat16:
        values = values.astype(np.float32)
    if values.dtype.kind not in "fc":
        return np.ones(values.shape, bool)
    is_finite: NDArray[np.bool_] = np.isfinite(values)
    return is_finite
