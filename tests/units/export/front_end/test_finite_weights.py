"""A weight that is not finite is named with how many of its values are not, and the first one."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from export.errors import NotConvertible
from export.front_end.finite_weights import check_finite_weights


def weight(dtype: Any, *lost: tuple[tuple[int, ...], float]) -> Any:
    values = np.ones((3, 4), dtype)
    for index, value in lost:
        values[index] = value
    return values


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_weight_that_is_not_finite_is_rejected(dtype: Any, lost: float) -> None:
    weights = [
        ("fine", weight(dtype)),
        ("kernel", weight(dtype, ((2, 1), lost), ((1, 3), lost))),
        ("bias", np.array(lost, dtype)),
    ]
    message = (
        "checkpoint ckpt-7: variable 'kernel' [3, 4] holds NaN or an infinity in 2 of 12 values, "
        "the first at [1, 3] (and 1 other variables); take an older checkpoint, or, if they are "
        "meant, such as a mask of infinities, name the variable in checkpoint.allow_non_finite"
    )
    with pytest.raises(NotConvertible, match=f"^{re.escape(message)}$"):
        check_finite_weights("checkpoint ckpt-7", weights, ())
    with pytest.raises(NotConvertible, match=re.escape("'bias' [] holds NaN or an infinity in 1")):
        check_finite_weights("checkpoint ckpt-7", weights, ("kernel",))
    check_finite_weights("checkpoint ckpt-7", weights, ("kernel", "bias"))


def test_weights_that_are_no_floats_are_finite() -> None:
    weights = [
        ("count", np.arange(3)),
        ("names", np.array([b"nan"], object)),
        ("on", np.ones(2, bool)),
    ]
    check_finite_weights("tower t", weights, ())
