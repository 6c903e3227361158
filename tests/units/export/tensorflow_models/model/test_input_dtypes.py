"""Inputs that the recipe declares in another dtype than the model takes."""

from __future__ import annotations

import pytest

from export.errors import NotConvertible, UsageError
from export.tensorflow_models.model.tracing import trace_towers
from tests.units.export.traced_models import IDS, MODELS, tower_recipe

STRING = {"dtype": "string"}


@pytest.mark.parametrize("function", ["build_2", "build_3"])
def test_numbers_for_a_string_input_are_rejected_while_tracing(function: str) -> None:
    job = tower_recipe(f"string_inputs.py:{function}", {"title": IDS, "item": IDS})
    message = (
        r"input 'title' is int64 in the recipe, and the model takes string.*inputs\.title\.dtype"
    )
    with pytest.raises(UsageError, match=message):
        trace_towers(job, MODELS)


def test_string_for_an_input_of_ids_is_rejected_while_tracing() -> None:
    job = tower_recipe("string_inputs.py:build_3", {"title": STRING, "item": STRING})
    message = r"input 'item' is string in the recipe, and the model takes int.*inputs\.item\.dtype"
    with pytest.raises(UsageError, match=message):
        trace_towers(job, MODELS)


def test_dtypes_that_differ_within_the_model_blame_no_input() -> None:
    job = tower_recipe("string_inputs.py:build_mixed", {"title": IDS, "item": IDS})
    with pytest.raises(NotConvertible, match="float64") as rejected:
        trace_towers(job, MODELS)
    assert ".dtype" not in str(rejected.value)


def test_numbers_for_an_operation_of_strings_name_the_inputs_of_that_dtype() -> None:
    inputs = {"title": IDS, "item": {"dtype": "int32"}}
    job = tower_recipe("string_inputs.py:build_hashed", inputs)
    message = "declares title as int64, and the model takes string: .* inputs.title.dtype"
    with pytest.raises(NotConvertible, match=message):
        trace_towers(job, MODELS)
