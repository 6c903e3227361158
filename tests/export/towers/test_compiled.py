from __future__ import annotations

from pathlib import Path

import pytest

from bundle.format import manifest
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from export.tensorflow_models.front_end import TensorFlowModel
from export.tensorflow_models.model.tracing import trace_towers
from export.towers.compiled import compile_tower
from export.towers.manifest_towers import describe_tower
from export.towers.savedmodels import write_saved_model
from tests.export.traced_models import (
    MODELS,
    TracedCheckpoint,
    movies_recipe,
    one_table_recipe,
    save_checkpoint,
)


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("build_odd_operation", "Betainc"),
        ("build_half", "BiasAdd, MatMul"),
        ("build_loop", "TensorListReserve: build recurrent layers with unroll=True in the factory"),
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
    made = compile_tower(tmp_path / "saved_model", "f32", tmp_path / "compiled.tflite")
    assert made.startswith(f"LiteRT has no operation {missing}")
    assert not (tmp_path / "compiled.tflite").exists()


def test_tower_to_be_served_in_a_precision_that_litert_cannot_run_is_refused(
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
