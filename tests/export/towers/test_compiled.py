from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.checkpoint.reader import open_checkpoint
from export.errors import DestinationError
from export.model.tracing import trace_towers
from export.model.weights import TrainedModel
from export.towers.compiled import compile_tower
from export.towers.savedmodels import write_saved_model
from runtime.litert import CompiledTower
from runtime.savedmodel import SavedModelTower
from tests.export.traced_models import HERE, TracedCheckpoint, one_recipe, save_checkpoint


@pytest.fixture(scope="module")
def ranking(movies: TracedCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranking")
    trained = TrainedModel(movies.model.root, open_checkpoint(movies.prefix), "model")
    write_saved_model(movies.model.towers[2], trained, directory / "saved_model")
    return directory


def inputs(n: int) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(n)
    dims = {"user_id": 8, "history": 8, "hour": 4, "movie_id": 8, "genres": 4}
    columns = {name: random.standard_normal((n, dim)).astype(np.float32) for name, dim in dims.items()}
    return columns | {"year": random.standard_normal(n).astype(np.float32)}


def test_compile_tower_int8_is_smaller_and_near(ranking: Path) -> None:
    assert compile_tower(ranking / "saved_model", "int8", ranking / "compiled-int8.tflite") == ""
    assert compile_tower(ranking / "saved_model", "f32", ranking / "f32.tflite") == ""
    sizes = [(ranking / name).stat().st_size for name in ("compiled-int8.tflite", "f32.tflite")]
    assert sizes == sorted(sizes)
    got = CompiledTower(ranking / "compiled-int8.tflite").run(inputs(50))["score"]
    expected = SavedModelTower(ranking / "saved_model").run(inputs(50))["score"]
    assert 0 < np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


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
    job = one_recipe(function)
    prefix, _ = save_checkpoint(job, tmp_path)
    model = trace_towers(job, HERE)
    trained = TrainedModel(model.root, open_checkpoint(prefix), "model")
    write_saved_model(model.towers[0], trained, tmp_path / "saved_model")
    made = compile_tower(tmp_path / "saved_model", "f32", tmp_path / "compiled.tflite")
    assert made.startswith(f"LiteRT has no operation {missing}")
    assert not (tmp_path / "compiled.tflite").exists()


def test_compile_tower_below_a_file_is_refused(ranking: Path, tmp_path: Path) -> None:
    (tmp_path / "towers").write_text("in the way")
    with pytest.raises(DestinationError, match=r"cannot be written"):
        compile_tower(ranking / "saved_model", "f32", tmp_path / "towers" / "compiled.tflite")
