"""Outputs that training recorded: results may differ from them by a share of how much they vary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.errors import ExportError, UsageError, VerificationFailed
from export.verify.reference_model import check_recorded

VECTORS = np.array([[1, -1], [1, -1], [-1, 1], [-1, 1]], np.float64)
EXCHANGED = VECTORS[[0, 2, 1, 3]]


@pytest.mark.parametrize("name", ["score", "second.score"])
@pytest.mark.parametrize(
    ("recorded", "result", "error", "words"),
    [
        # They vary by 1 and reach 1: the root mean square may be 0.05 + 0.001, or 0.102 of one.
        ([-1, 1, -1, 1], [-1, 1, -0.8982, 1], None, ""),
        ([-1, 1, -1, 1], [-1, 1, -0.8978, 1], VerificationFailed, "in example 2"),
        ([-1, 1, -1, 1], [-1, 1, -1.1018, 1], None, ""),
        ([-1, 1, -1, 1], [-1, 1, -1.1022, 1], VerificationFailed, "in example 2"),
        (VECTORS, VECTORS, None, ""),
        (VECTORS, EXCHANGED, VerificationFailed, "'second', output 'score'.*in example 1"),
        (VECTORS, [1, 2, 3, 4], UsageError, r"verify\.expected\.score: \[4, 2\]"),
    ],
)
def test_results_may_differ_from_recorded_values_by_a_share_of_how_these_vary(
    name: str, recorded: Any, result: Any, error: type[ExportError] | None, words: str
) -> None:
    results: Any = {
        "first": {"other": np.ones(4)},
        "second": {"score": np.array(result, np.float32)},
    }
    expected = {name: np.array(recorded, np.float64)}
    if error is None:
        check_recorded(results, expected)
        return
    with pytest.raises(error, match=words):
        check_recorded(results, expected)
