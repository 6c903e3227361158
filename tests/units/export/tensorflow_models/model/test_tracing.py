from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.graphs.loading import tf
from export.jobs.saved_model_job import prepare_inline
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from export.tensorflow_models.model.tracing import trace_towers
from export.towers.manifest_towers import check_limits
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import (
    IDS,
    MODELS,
    TracedCheckpoint,
    one_table_recipe,
    recipe,
    save_checkpoint,
)


def test_trace_towers_mid_level_finds_weights_sequences_and_sparse_bags(
    ads: TracedCheckpoint,
) -> None:
    assert ads.model.spec.features == {
        "ad": embedded("ad", "ads"),
        "clicks": embedded(
            "clicks",
            "ads",
            kind="bag",
            encoding="ragged",
            combiner="mean",
            weights="click_weights",
            ids_dtype="int32",
        ),
        "recent": embedded("recent", "ads", kind="sequence", encoding="ragged", length=3),
        "words": embedded(
            "words",
            "words",
            kind="bag",
            encoding="sparse",
            combiner="sqrtn",
            weights="word_weights",
        ),
        "slots": embedded("slots", "slots", kind="sequence", length=2),
    }
    shapes = {part.feature: part.shape for part in ads.model.spec.towers["ranking"].inputs}
    assert shapes["recent"] == (None, 3, 4)
    assert shapes["ad"] == (None, 4)
    context = ads.model.spec.towers["context"]
    ranking = ads.model.spec.towers["ranking"]
    assert (context.result, context.paths) == ("result", {"result": ()})
    assert (ranking.result, set(ranking.paths)) == ("click", {"click", "hidden"})


def test_trace_towers_squeezes_never_take_the_batch_and_shapes_are_kept() -> None:
    outputs = {name: name for name in ("number", "whole", "score")}
    ranking = {"role": "ranking", "outputs": outputs, "result": "score"}
    model = trace_towers(
        recipe("shapes.py:build_squeezed", {"item": IDS}, {"tower": ranking}), MODELS
    )
    (tower,) = model.towers
    assert {output.shape for output in tower.spec.outputs} == {(None,)}
    assert {tuple(output.shape) for output in tower.function.structured_outputs.values()} == {
        (None,)
    }
    for items in ([2], [2, 3]):
        results = {
            name: output.numpy().tolist()
            for name, output in tower.function(tf.constant(items, tf.int64)).items()
        }
        squares = [float(item * item) for item in items]
        assert results == {"number": squares, "whole": squares, "score": items}


def test_trace_towers_small_keras_embedding_stays_inside() -> None:
    model = trace_towers(one_table_recipe("build_small_keras_table"), MODELS)
    assert model.spec.tables == {}
    assert model.spec.features == {"item": dense("item", "int64", (), below=100, outside="zeros")}


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            "one_table.py:build_computed_ids",
            r"ids of feature 'item' are computed by operation .*\(PopulationCount\) "
            r"\(one_table.py:\d+\) of the model",
        ),
        (
            "one_table.py:build_in_a_condition",
            "'item' is looked up inside a tf.function, tf.cond or tf.while_loop.*call the "
            "embedding",
        ),
        (
            "one_table.py:build_reads_the_table",
            r"reads table 'items' directly \(one_table.py:\d+\)\. A table of an embedding layer",
        ),
        (
            "one_table.py:build_reads_a_hash_table",
            r"reads a resource that is not a variable .* \(one_table.py:\d+\); let the factory",
        ),
        (
            "one_table.py:build_runs_python",
            r"TypeError: .* \(one_table.py:\d+\); .*; and what tf.py_function .* .*: compute",
        ),
        (
            "one_table.py:build_raises",
            r"call with inputs item raised ValueError: no such way \(one_table.py:\d+\)$",
        ),
        (
            "shapes.py:build_reads_early",
            r"were read while the model was made \(.*shapes.py:\d+\), .* they are constants",
        ),
        (
            "shapes.py:build_unknown_shape",
            r"raised ValueError: The last dimension .* should be defined.*\(shapes.py:\d+\)",
        ),
        (
            "one_table.py:build_takes_values",
            r"AttributeError: .*'numpy' \(one_table.py:\d+\); a call is traced without values: "
            r".*NumPy's",
        ),
        (
            "one_table.py:build_takes_an_array",
            r"NotImplementedError: .*\(one_table.py:\d+\); a call is traced .*NumPy's",
        ),
        (
            "one_table.py:build_goes_through",
            r"Iterating over .*\(one_table.py:\d+\); a call is traced .*tf.unstack",
        ),
        (
            "one_table.py:build_decides",
            r"as a Python `bool`.*\(one_table.py:\d+\); a call is traced .*tf.where",
        ),
        (
            "one_table.py:build_wants_another_input",
            r"KeyError: 'hour' \(one_table.py:\d+\); it was given one dict of the inputs "
            r"that the recipe declares: declare",
        ),
        (
            "one_table.py:build_wants_another_shape",
            r"Dimensions must be equal.*\(one_table.py:\d+\); the recipe declares item as int64 "
            r"\[batch\]$",
        ),
        ("one_table.py:build_a_fixed_batch", r"output 'result' has shape \(4, 2\); \[batch, ...\]"),
    ],
)
def test_trace_towers_model_that_cannot_be_partitioned_names_why_and_the_cure(
    factory: str, message: str
) -> None:
    with pytest.raises(NotConvertible, match=f"(?s){message}"):
        trace_towers(recipe(factory, {"item": IDS}, {"tower": {"role": "query"}}), MODELS)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"call": "score"}, "call 'score': One has no attribute 'score'"),
        ({"call": "way"}, "call 'way' is a str, which cannot be called"),
        (
            {"outputs": {"vector": "query"}},
            r"returns one tensor of shape \(None, 2\); towers.tower.outputs names 'query'; leave "
            "towers.tower.outputs out, or name a position on its last axis, from 0 to 1",
        ),
        (
            {"result": "score"},
            "towers.tower.result is 'score'; it must be one of its outputs: result",
        ),
    ],
)
def test_trace_towers_recipe_that_does_not_fit_the_model_is_rejected(
    part: dict[str, object], message: str
) -> None:
    job = recipe(
        "one_table.py:build_plain",
        {"item": {"dtype": "int64"}},
        {"tower": {"role": "query", **part}},
    )
    with pytest.raises(UsageError, match=message):
        trace_towers(job, MODELS)


PAIR = {"user": {"dtype": "int64"}, "item": {"dtype": "int64"}}


@pytest.mark.parametrize(
    ("calls", "problem", "message"),
    [
        # Each call alone is fine: what follows knows tables by name, and would give one tower the
        # other's table.
        (
            {"query": "query", "candidate": "candidate"},
            NotConvertible,
            "two tables are called 'things'.*<new name>.key",
        ),
        (
            {"query": "pair"},
            UsageError,
            "call 'pair' returns a list of 2 results; name those wanted by their positions",
        ),
        (
            {"query": ""},
            UsageError,
            "the model's call takes user, item, and is given one dict of inputs",
        ),
        (
            {"query": "wrong_key"},
            NotConvertible,
            r"call 'wrong_key' with inputs user, item raised ValueError: .{,120}\(.*:\d+\)$",
        ),
    ],
)
def test_trace_towers_calls_that_cannot_be_partitioned_name_why_and_the_cure(
    calls: dict[str, str], problem: type[Exception], message: str
) -> None:
    towers: dict[str, Any] = {role: {"role": role, "call": call} for role, call in calls.items()}
    if len(calls) > 1:
        for role, tower in towers.items():
            tower["inputs"] = ["user" if role == "query" else "item"]
    with pytest.raises(problem, match=message):
        trace_towers(recipe("two_towers.py:build_two_layers", PAIR, towers), MODELS)


def test_check_limits_limit_of_a_float32_tower_is_rejected() -> None:
    job = recipe(
        "one_table.py:build_plain",
        {"item": {"dtype": "int64"}},
        {"tower": {"role": "query", "max_abs_error": {"f32": 1}}},
    )
    with pytest.raises(UsageError, match=r"max_abs_error\.f32: the tower computes in float32"):
        check_limits(job, trace_towers(job, MODELS).spec)


def test_trace_towers_undeclared_weights_are_named(ads: TracedCheckpoint) -> None:
    changed = ads.job.model_dump()
    changed["inputs"]["click_weights"]["weights_for"] = None
    with pytest.raises(UsageError, match=r'write inputs.click_weights.weights_for = "clicks"'):
        trace_towers(ExportJob.model_validate(changed), MODELS)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"dtype": "float32"}, r"input 'item' is float32, and feature 'item' takes it as ids"),
        (
            {"dtype": "int64", "shape": [2, 2]},
            r"shape \(None, 2, 2\); \[batch\] or \[batch, length\] was expected",
        ),
    ],
)
def test_trace_towers_input_that_is_no_id_of_an_example_is_rejected(
    item: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotConvertible, match=message):
        trace_towers(one_table_recipe("build_plain", item=item), MODELS)


def test_trace_towers_error_inside_keras_layers_is_one_sentence(movies: TracedCheckpoint) -> None:
    changed = movies.job.model_dump()
    changed["inputs"]["user_id"]["shape"] = [2, 2]
    with pytest.raises(
        NotConvertible, match=r"\Afeature 'user_id' was given a dense tensor of shape [^\n]*\Z"
    ):
        trace_towers(ExportJob.model_validate(changed), MODELS)


def test_trace_towers_numbers_of_an_input_with_a_rule_of_the_recipe_are_its_rows(
    tmp_path: Path,
) -> None:
    changed = one_table_recipe("build_reads_the_ids").model_dump(mode="json", exclude_unset=True)
    changed["features"] = {"item": {"ids": {"kind": "hash", "dtype": "string"}}}
    changed["output"] = {"root": str(tmp_path), "tables": "inline"}
    prefix = save_checkpoint(one_table_recipe("build_reads_the_ids"), tmp_path)
    changed["checkpoint"]["path"] = str(prefix)
    job = ExportJob.model_validate(changed)
    prepared = prepare_inline(job, MODELS, ExportSettings())
    assert set(prepared.entries) == {"item@items", "item@indicator"}


@pytest.mark.parametrize("function", ["build_large_keras_table", "build_called_keras_table"])
def test_large_keras_embedding_stays_inside_where_it_may(function: str) -> None:
    traced = trace_towers(one_table_recipe(function), MODELS, inside=True)
    assert {tuple(variable.shape) for variable in traced.towers[0].variables} == {
        (20_000, 4),
        (4, 4),
        (4,),
    }
    assert not traced.spec.tables
