"""Towers of both forms: what they compute in any batch and thread, and what they do not take."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import Tower, TowerForm, TowerInput, TowerOutput
from runtime.errors import TowerUnreadable
from runtime.litert import CompiledTower
from runtime.towers import open_tower
from tests.e2e.process import WAIT_S

Arrays = dict[str, NDArray[Any]]
F32 = "compiled-f32.tflite"
INT8 = "compiled-int8.tflite"
FORMS = pytest.mark.parametrize("form", [F32, INT8])


def inputs_of(n: int) -> Arrays:
    random = np.random.default_rng(n)
    return {
        "user": random.normal(size=(n, 32)).astype(np.float32),
        "history": random.normal(size=(n, 64)).astype(np.float32),
    }


@FORMS
def test_a_tower_computes_its_model_with_the_same_bits_in_any_batch(
    towers: Path, form: str
) -> None:
    tower = CompiledTower(towers / "query" / form)
    with np.load(towers / "weights.npz") as stored:
        weights = dict(stored)
    inputs = inputs_of(500)
    wide = np.hstack([inputs["user"], inputs["history"]]).astype(np.float64)
    vectors = np.maximum(wide @ weights["query_in"], 0) @ weights["query_out"]
    outputs = tower.run(inputs)
    assert outputs["vector"].dtype == np.float32
    assert np.corrcoef(outputs["vector"].ravel(), vectors.ravel())[0, 1] > 0.999
    is_near = np.allclose(outputs["vector"], vectors, rtol=1e-5, atol=1e-5)
    assert is_near == (form == F32)
    norms = (inputs["user"].astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(outputs["norm"], norms, rtol=1e-5)

    kept_outputs = {name: values.copy() for name, values in outputs.items()}
    for first, size in [(0, 1), (499, 1), (13, 3), (7, 16), (100, 200), (1, 499), (0, 0)]:
        rows = slice(first, first + size)
        sent_inputs = {name: values[rows] for name, values in inputs.items()}
        buffers = tower.buffers(size)
        assert {name: buffer.shape for name, buffer in buffers.items()} == {
            name: values.shape for name, values in sent_inputs.items()
        }
        for name, buffer in buffers.items():
            buffer[...] = sent_inputs[name]
        for given_inputs in (sent_inputs, buffers, {**buffers, "user": sent_inputs["user"].copy()}):
            part = tower.run(given_inputs)
            for name, values in kept_outputs.items():
                assert part[name].tobytes() == values[rows].tobytes()
            part["vector"][...] = 0  # it is the caller's own
    assert all((outputs[name] == values).all() for name, values in kept_outputs.items())
    if form == F32:
        inputs["user"][1, 0] = np.nan
        assert np.isnan(tower.run(inputs)["vector"][1]).all()


def test_a_tower_states_the_tensors_of_its_signature(towers: Path) -> None:
    tower = CompiledTower(towers / "typed" / F32)
    tensors = [(tensor.name, tensor.dtype, tensor.shape) for tensor in tower.inputs]
    assert tensors == [("hour", "int64", (None,)), ("watched", "float32", (None, 5, 4))]
    assert [(tensor.name, tensor.shape) for tensor in tower.outputs] == [("sum", (None,))]
    watched = np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    sums = tower.run({"watched": watched, "hour": np.array([3, 23])})["sum"]
    assert sums.tolist() == [sum(range(20)) + 3, sum(range(20, 40)) + 23]


def test_threads_have_their_own_outputs_and_buffers(towers: Path) -> None:
    tower = CompiledTower(towers / "query" / F32)
    expected = {n: tower.run(inputs_of(n))["vector"].tobytes() for n in range(1, 9)}
    tasks = Path("/proc/self/task")
    before = {task.name for task in tasks.iterdir()}
    tower.run(inputs_of(300))
    assert {task.name for task in tasks.iterdir()} <= before, "computes in the calling thread"
    start = threading.Barrier(8, timeout=WAIT_S)

    def are_equal(n: int) -> bool:
        inputs = inputs_of(n)
        start.wait()
        if n % 2:
            tower.prepare_thread()
        results = {tower.run(inputs)["vector"].tobytes() for _ in range(100)}
        if n % 4 == 1:
            tower.release_thread()
            tower.release_thread()  # nothing is left to release
        results.add(tower.run(inputs)["vector"].tobytes())
        return results == {expected[n]}

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(are_equal, range(1, 9)))
        first = tower.buffers(8)["user"]
        assert np.shares_memory(first, tower.buffers(5)["user"])
        assert not np.shares_memory(first, threads.submit(tower.buffers, 8).result()["user"])


def test_files_that_are_no_tower_are_unreadable(towers: Path, tmp_path: Path) -> None:
    content = (towers / "query" / F32).read_bytes()
    path = tmp_path / F32
    outside = b"\xff\xff\xff\xffTFL3" + b"\xff" * 99
    empty = b"\x1c\0\0\0TFL3" + bytes(64)
    for wrong in (b"", b"not a tower", empty, outside, content[: len(content) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(TowerUnreadable, match=F32):
            CompiledTower(path)
    with pytest.raises(TowerUnreadable, match="cannot be read"):
        CompiledTower(tmp_path / "gone.tflite")


def entry(**changes: str) -> Tower:
    forms = [
        TowerForm(kind="saved_model", precision="f32", path="query/saved_model", max_abs_error={}),
        TowerForm(kind="litert", precision="f32", path=f"query/{F32}", max_abs_error={}),
        TowerForm(kind="litert", precision="int8", path=f"query/{INT8}", max_abs_error={}),
    ]
    inputs = {"user": 32, changes.get("second", "history"): 64}
    return Tower(
        role="query",
        inputs=tuple(
            TowerInput(name=name, feature=name, dtype="float32", shape=(None, size))
            for name, size in inputs.items()
        ),
        outputs=(
            TowerOutput(name="norm", dtype="float32", shape=(None,)),
            TowerOutput(name="vector", dtype=changes.get("dtype", "float32"), shape=(None, 64)),
        ),
        result="vector",
        forms=tuple(form for form in forms if form.kind == changes.get("only", form.kind)),
        serve="int8" if changes.get("serve") == "int8" else "f32",
    )


def test_a_tower_is_opened_in_the_wanted_precision_else_the_served_one(towers: Path) -> None:
    inputs = inputs_of(4)
    f32, int8 = (
        CompiledTower(towers / "query" / form).run(inputs)["vector"] for form in (F32, INT8)
    )
    for tower, expected in (
        (open_tower(towers, entry()), f32),
        (open_tower(towers, entry(serve="int8")), int8),
        (open_tower(towers, entry(), "int8"), int8),
    ):
        np.testing.assert_array_equal(tower.run(inputs)["vector"], expected)


@pytest.mark.parametrize(
    ("changes", "precision", "words"),
    [
        ({"second": "watched"}, None, "'history'.*'watched'"),
        ({"dtype": "int32"}, None, "'vector' is float32.*int32"),
        ({"only": "saved_model"}, "int8", "'int8'.*saved_model f32"),
    ],
)
def test_a_tower_other_than_its_entry_is_unreadable(
    towers: Path, changes: dict[str, str], precision: Any, words: str
) -> None:
    with pytest.raises(TowerUnreadable, match=words):
        open_tower(towers, entry(**changes), precision)
