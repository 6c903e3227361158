from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle.format import manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import DestinationError, NotConvertible
from export.front_end.interface import TracedTower
from export.graphs.internals import variable_class
from export.graphs.loading import load_tensorflow, tf
from export.tensorflow_models.front_end import TensorFlowModel
from export.tensorflow_models.model.tracing import trace_towers
from export.towers.compiled import compile_tower, reason_not_compiled
from export.towers.manifest_towers import describe_tower
from export.towers.savedmodels import save_function, write_saved_model
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, texts, tower_of, trace
from tests.units.export.traced_models import (
    MODELS,
    TracedCheckpoint,
    movies_recipe,
    one_table_recipe,
    save_checkpoint,
)

load_tensorflow()


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("build_odd_operation", "Betainc"),
        ("build_half", "BiasAdd, MatMul"),
        ("build_loop", "TensorListReserve: recurrent layers of Keras are unrolled if inputs.NAME"),
    ],
)
def test_compile_tower_with_an_operation_that_litert_lacks_returns_the_reason(
    function: str, missing: str, tmp_path: Path
) -> None:
    job = one_table_recipe(function)
    prefix = save_checkpoint(job, tmp_path)
    model = trace_towers(job, MODELS)
    original = TensorFlowModel(job, MODELS, open_checkpoint(prefix), model)
    write_saved_model(model.towers[0], original, tmp_path / "saved_model")
    reason = compile_tower(tmp_path / "saved_model", "f32", tmp_path / "compiled.tflite")
    assert reason.startswith(f"LiteRT has no operation {missing}")
    assert not (tmp_path / "compiled.tflite").exists()


def test_tower_to_be_served_in_a_precision_that_litert_cannot_run_is_rejected(
    movies: TracedCheckpoint,
) -> None:
    form = manifest.TowerForm(
        kind="saved_model", precision="f32", path="towers/query/s", max_abs_error={}
    )
    towers = {
        "query": {
            "role": "query",
            "precisions": ["f32", "int8"],
            "serve": "int8",
            "max_abs_error": {"int8": 1},
        }
    }
    with pytest.raises(
        NotConvertible,
        match=r"tower 'query' is to be served in int8, and LiteRT cannot run it; set",
    ):
        describe_tower(movies.model.spec.towers["query"], movies_recipe(towers=towers), (form,))


def small(score: Callable[[Any], Any], spec: Any = None) -> TracedTower:
    """Returns a tower of one input."""
    input_spec = numbers(2) if spec is None else spec
    return tower_of(trace(lambda inputs: {"score": score(inputs["user"])}, user=input_spec))


def odd(values: Any) -> Any:
    """Computes what LiteRT has no operation for."""
    return tf.reduce_sum(tf.math.betainc(values, values, tf.sigmoid(values)), 1)


def test_tower_that_litert_runs_is_compiled_with_its_names(tmp_path: Path) -> None:
    tower = small(lambda user: tf.reduce_sum(user * 2.0, 1))
    save_function(tower, tmp_path / "saved_model")
    compiled = tmp_path / "a/b/compiled.tflite"
    assert compile_tower(tmp_path / "saved_model", "f32", compiled) == ""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(compiled)).get_signature_runner("serving_default")
    results = runner(user=tf.constant([[1.0, 2.0], [3.0, 4.0]]).numpy())
    assert results["score"].tolist() == [6, 14]
    assert reason_not_compiled(tower) == ""


def test_weights_of_int8_are_smaller(tmp_path: Path) -> None:
    kernel = tf.Variable(tf.random.normal([256, 256], seed=1))
    tower = small(lambda user: tf.reduce_sum(tf.nn.relu(user @ kernel), 1), numbers(256))
    save_function(tower, tmp_path / "saved_model")
    sizes = {}
    for precision in ("f32", "int8"):
        path = tmp_path / precision
        assert compile_tower(tmp_path / "saved_model", precision, path) == ""
        sizes[precision] = path.stat().st_size
    assert sizes["f32"] > 4 * 256 * 256
    assert sizes["int8"] < sizes["f32"] / 2


def test_tower_is_judged_before_its_weights_are_read() -> None:
    kernel = variable_class()(shape=[2, 3], dtype=tf.float32, name="kernel")
    tower = small(lambda user: odd(user @ kernel))
    reason = reason_not_compiled(replace(tower, lines={"Betainc": "model.py:7"}))
    assert reason == "LiteRT has no operation Betainc (model.py:7)"
    assert kernel.is_initialized()


def test_tower_that_gives_no_row_for_each_example_is_not_compiled(tmp_path: Path) -> None:
    save_function(small(tf.reduce_sum), tmp_path / "saved_model")
    reason = compile_tower(tmp_path / "saved_model", "f32", tmp_path / "compiled.tflite")
    assert reason == "output 'score' of a batch of 1 has shape ()"
    assert not (tmp_path / "compiled.tflite").exists()


def test_tower_that_is_right_for_one_example_alone_is_not_compiled() -> None:
    first = small(lambda user: tf.ensure_shape(user[:1, 0], [None]))
    assert reason_not_compiled(first) == "output 'score' of a batch of 3 has shape (1,)"


def test_tower_that_takes_strings_is_not_compiled() -> None:
    tower = small(lambda user: tf.ones([tf.shape(user)[0]]), texts())
    assert reason_not_compiled(tower) == "it takes strings"


def test_tower_with_a_lookup_table_is_told_what_to_change() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.0
    )
    reason = reason_not_compiled(small(table.lookup, texts()))
    assert reason.startswith(
        "LiteRT has no operations on texts, such as LookupTableFindV2: let the"
    )


def test_operations_on_texts_are_told_what_to_change() -> None:
    reason = reason_not_compiled(
        small(lambda user: tf.cast(tf.strings.length(user), "float32"), texts())
    )
    assert reason.startswith(
        "LiteRT has no operations on texts, such as StringLength: let the tower"
    )


def test_several_missing_operations_are_named_in_order() -> None:
    tower = small(lambda user: odd(user) + tf.reduce_sum(tf.math.polygamma(user, user), 1))
    lines = {"Polygamma": "model.py:9"}
    reason = reason_not_compiled(replace(tower, lines=lines))
    assert reason == "LiteRT has no operation Betainc, Polygamma (model.py:9)"


def test_operation_that_the_converter_rejects_is_named_with_its_line_and_the_reason() -> None:
    kernel = tf.constant([[1], [2]], tf.int8)

    def rounded(user: Any) -> Any:
        product = tf.matmul(tf.cast(user, tf.int8), kernel, output_type=tf.int32)
        return tf.cast(product[:, 0], tf.float32)

    reason = reason_not_compiled(replace(small(rounded), lines={"BatchMatMulV3": "model.py:5"}))
    assert reason.startswith(
        "LiteRT's converter rejects BatchMatMulV3 (model.py:5): 'tfl.fully_connected' op operand"
    )


def test_other_error_is_told_by_its_first_line(tmp_path: Path) -> None:
    missing = tmp_path / ("m" * 200) / ("n" * 200)
    reason = compile_tower(missing, "f32", tmp_path / "compiled.tflite")
    assert len(reason) == 300
    assert str(tmp_path) in reason
    assert "\n" not in reason


def test_compiled_tower_that_cannot_be_written_is_an_error_of_the_destination(
    tmp_path: Path,
) -> None:
    save_function(small(lambda user: user[:, 0]), tmp_path / "saved_model")
    (tmp_path / "file").touch()
    with pytest.raises(DestinationError, match=r"compiled tower .*/file/tower cannot be written"):
        compile_tower(tmp_path / "saved_model", "f32", tmp_path / "file/tower")
