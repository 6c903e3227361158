"""An original model that gives other results when it is run in another way: what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from export.front_end.calls import Call
from export.verify import repeated_runs
from export.verify.examples import Examples
from export.verify.reference_inputs import Reference
from export.verify.repeated_runs import notes_on_eager_results, self_contradiction

Array = NDArray[np.float64]
NUMBERS = np.arange(1.0, 9.0)


def reference_of(original: Any = None) -> Reference:
    """Returns a model of one tower with the examples `NUMBERS`."""
    tower = SimpleNamespace(call=Call("", ("x",)), joining="Mean (model.py:1)")
    model: Any = SimpleNamespace(towers={"tower": tower}, averages_texts=original is not None)
    unused: Any = None
    examples = Examples(NUMBERS.size, {"x": Column(NUMBERS)})
    reference = Reference(unused, Path(), model, original, unused, examples, unused)
    # They are derived from a recipe, which this model has not.
    vars(reference)["inputs"] = unused
    return reference


def alone_differs(numbers: Array) -> Array:
    return numbers + float(numbers.size == 1)


def sum_differs(numbers: Array) -> Array:
    return numbers / float(numbers[0])


def rounding_differs(numbers: Array) -> Array:
    return numbers * (1 + 1e-6 * float(numbers.size == 1))


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (
            lambda numbers: numbers + RANDOM.random(),
            ("example 0 when it is called", "random"),
        ),
        (lambda numbers: numbers * np.nan, ("called again",)),
        (sum_differs, ("in another order", "Mean (model.py:1)")),
        (alone_differs, ("example 0 alone", "Mean (model.py:1)")),
        (rounding_differs, ()),
    ],
)
def test_contradiction_of_a_model_names_the_way_in_which_it_was_run(
    compute: Callable[[Array], Array], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def results_of(reference: Reference) -> Any:
        numbers = reference.examples.columns["x"].values
        return {"tower": {"score": np.broadcast_to(compute(numbers), numbers.shape)}}

    monkeypatch.setattr(repeated_runs, "reference_results", results_of)
    contradiction = self_contradiction(reference_of())
    assert bool(contradiction) == bool(words), contradiction
    for word in words:
        assert word in contradiction
    if words:
        assert contradiction.startswith("tower 'tower', output 'score': the original model itself")


def test_call_as_users_make_it_that_gives_nan_is_noted_with_its_first_example() -> None:
    eager = np.where(NUMBERS < 3, NUMBERS, np.nan)
    run = SimpleNamespace(results={"tower": {"score": eager}})
    original = SimpleNamespace(run=lambda *_, **__: run)
    (note,) = notes_on_eager_results(reference_of(original), {"tower": {"score": NUMBERS}})
    assert "the model itself gives nan in 6 of 8 examples, first in example 2" in note
