"""What an error shows of a value that is no id or no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.tables.id_values import integers, numbers


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array([1e20], np.float32), "1e+20"),
        (np.array([0.1], np.float32), "0.1"),
        (np.array([5, 2.5], np.float32), "2.5"),
        (np.array([5, np.inf], np.float32), "inf"),
        (np.array([5, np.nan]), "nan"),
        (np.array([1.0, 2.0]), "1.0"),
    ],
)
def test_integers_of_floats_show_the_shortest_text_of_the_first_that_is_no_integer(values: Any, shown: str) -> None:
    with pytest.raises(FeatureError) as refused:
        integers("age", values)
    assert f"{shown} is no id" in str(refused.value)


@pytest.mark.parametrize("values", [np.array([1, 1e300]), np.array([0.5, np.inf], np.float32)])
def test_numbers_beyond_float32_are_shown_as_sent(values: Any) -> None:
    with pytest.raises(FeatureError, match=r"(1e\+300|inf) is not finite in float32"):
        numbers("age", values)
