"""How much a form of a tower may differ from the original model, and the report of one beyond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.format.manifest import TowerForm, TowerInput
from export.errors import VerificationFailed
from export.front_end.calls import Call
from export.front_end.specs import TowerSpec
from export.verify.forms import OpenForm

Array = NDArray[Any]
SPEC = TowerSpec(
    name="ranking", role="ranking", call=Call(), paths={}, inputs=(), outputs=(),
    result="score",
)  # fmt: skip


def judged(results: Array, original: Array, batch: Any = None, **opened: Any) -> float:
    """Returns the largest difference of a form's results; raises what rejects them.

    Args:
      results: Of a batch of examples.
      original: The results of the original model for all examples.
      batch: The positions of the batch among all examples; None: it is all of them.
      opened: The precision and the limit of the form, and what its tower states.
    """
    precision = opened.pop("precision", "f32")
    limit = opened.pop("limit", None)
    form = TowerForm(kind="saved_model", precision=precision, path="x", max_abs_error={})
    network: Any = None
    entry: Any = None
    opened_form = OpenForm("here", replace(SPEC, **opened), entry, form, limit, network)
    batch = np.arange(len(results)) if batch is None else batch
    return opened_form.check("score", results, original, limit, batch)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=9),
    st.data(),
)
def test_difference_is_allowed_up_to_the_parity_rule_and_named_beyond(
    values: list[float], data: st.DataObject
) -> None:
    """1e-5, and 1e-5 of the value or of the median magnitude of all examples."""
    original = np.array(values)
    example = data.draw(st.integers(0, len(values) - 1))
    limit = data.draw(st.sampled_from([None, 0.5]))
    typical = max(abs(original[example]), float(np.median(np.abs(original))))
    allowed = 1e-5 + 1e-5 * typical if limit is None else limit
    results = original.copy()
    results[example] += 0.98 * allowed
    assert judged(results, original, limit=limit) == pytest.approx(0.98 * allowed, rel=0.01)
    for wrong in (original[example] + 1.02 * allowed, np.nan):
        results[example] = wrong
        with pytest.raises(VerificationFailed, match=f"example {example} .*1 of {len(values)}"):
            judged(results, original, limit=limit)


def test_magnitudes_of_the_other_examples_show_that_of_the_terms_for_each_element() -> None:
    """A sum of large terms that is near 0 may have the rounding of its terms."""
    original = np.array([[0.0, 0.0], [40.0, 0.1], [-50.0, -0.2], [60.0, 0.1]])
    rounding = np.zeros_like(original)
    rounding[0, 0] = 4e-4
    assert judged(original + rounding, original) == pytest.approx(4e-4)
    first = np.arange(1)
    assert judged((original + rounding)[:1], original, first) == pytest.approx(4e-4)
    with pytest.raises(VerificationFailed, match=r"example 0, element \[1\]"):
        judged(original + rounding[:, ::-1], original)
    with pytest.raises(VerificationFailed, match="1 of 2 values"):
        judged((original + rounding)[:1], original[:1])


def reading(*features: str) -> tuple[TowerInput, ...]:
    return tuple(
        TowerInput(name=f"i{n}", feature=name, shape=(None,), dtype="float32")
        for n, name in enumerate(features)
    )


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        ({}, ("1e-05", "would not be the model's")),
        ({"precision": "int8", "limit": 0.5}, ("max_abs_error.int8 = 0.5", "leave 'int8' out")),
        ({"limit": 0.5}, ("max_abs_error.f32 = 0.5", "dtype that loses less")),
        ({"half": "bfloat16"}, ("policy 'float32'", "towers.ranking.max_abs_error.f32")),
        ({"precision": "int8", "limit": 0.5, "half": "bfloat16"}, ("leave 'int8' out",)),
        ({"inputs": reading("age", "user_id")}, ("it reads age, user_id",)),
        (
            {"inputs": reading("history@items", "history@values", "n@values")},
            ("suspect history@values:",),
        ),
    ],
)
def test_output_beyond_its_limit_is_told_with_the_remedy(
    opened: dict[str, Any], words: tuple[str, ...]
) -> None:
    original = np.array([1, 2, 3], np.float32)
    with pytest.raises(VerificationFailed) as failure:
        judged(original + np.array([0, 2, 1], np.float32), original, **opened)
    for expected in ("output 'score'", "example 1 is 4", "2 of 3 values", *words):
        assert expected in str(failure.value)
