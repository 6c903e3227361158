"""Graphs of PyTorch compute what PyTorch computed, and what cannot is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.given_towers.exported_graphs import ExportedGraphTower
from export.graphs.loading import tf
from tests.export.given_towers.graphs import extract

CASES = (
    "attended",
    "attention",
    "cross",
    "elements",
    "encoder",
    "experts",
    "interest",
    "outputs",
    "ranker",
    "shapes",
)
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("graphs"), "torch_graphs")


def arrays_of(path: Path) -> Arrays:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def under(arrays: Arrays, folder: str) -> Arrays:
    return {
        name.removeprefix(folder): value
        for name, value in arrays.items()
        if name.startswith(folder)
    }


def outputs_of(found: Any) -> Arrays:
    return found if isinstance(found, dict) else {"": found}


@pytest.mark.parametrize("examples", [1, 2, 5])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_pytorch_for_any_batch(
    case: str, examples: int, written: Path
) -> None:
    arrays = arrays_of(written / f"{case}.npz")
    tower = ExportedGraphTower(written / f"{case}.npz")
    inputs = under(arrays, "examples/")
    assert set(tower.inputs) == set(inputs)
    specs = {
        name: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for name, value in inputs.items()
    }
    traced = tf.function(tower, input_signature=[specs], autograph=False)
    found = outputs_of(traced({name: value[:examples] for name, value in inputs.items()}))
    wanted = under(arrays, "results/")
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value[:examples], rtol=1e-4, atol=1e-5)


def test_operation_without_a_counterpart_is_named(written: Path) -> None:
    with pytest.raises(NotConvertible) as caught:
        ExportedGraphTower(written / "convolution.npz")
    assert "without a counterpart: convolution" in str(caught.value)
    assert "bring the tower as a SavedModel" in str(caught.value)


def test_results_that_are_not_those_of_pytorch_are_refused(written: Path, tmp_path: Path) -> None:
    arrays = arrays_of(written / "ranker.npz")
    arrays["weights/p_tower_click_bias"] = arrays["weights/p_tower_click_bias"] + 0.01
    np.savez(tmp_path / "ranker.npz", **arrays)
    with pytest.raises(NotConvertible, match="output 'click' differs from PyTorch's by"):
        ExportedGraphTower(tmp_path / "ranker.npz")


def test_results_of_another_shape_are_refused(written: Path, tmp_path: Path) -> None:
    arrays = arrays_of(written / "cross.npz")
    arrays["results/"] = arrays["results/"][:, np.newaxis]
    np.savez(tmp_path / "cross.npz", **arrays)
    message = r"the result has shape \[5\], and PyTorch computed \[5, 1\]"
    with pytest.raises(NotConvertible, match=message):
        ExportedGraphTower(tmp_path / "cross.npz")


def with_graph(arrays: Arrays, change: Callable[[Any], None]) -> Arrays:
    graph = json.loads(arrays["graph"].tobytes())
    change(graph)
    return {**arrays, "graph": np.frombuffer(json.dumps(graph).encode(), np.uint8)}


def without_name(graph: Any) -> None:
    del graph["operations"][0]["name"]


def with_unknown_key(graph: Any) -> None:
    graph["version"] = 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_name, "key 'operations.0.name' is missing"),
        (with_unknown_key, "unknown key 'version'"),
    ],
)
def test_graph_of_another_form_is_refused(
    change: Callable[[Any], None], reason: str, written: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "cross.npz", **with_graph(arrays_of(written / "cross.npz"), change))
    with pytest.raises(NotConvertible) as caught:
        ExportedGraphTower(tmp_path / "cross.npz")
    assert reason in str(caught.value)
    assert "write it again with write_tower" in str(caught.value)


@pytest.mark.parametrize("missing", ["graph", "weights/p_tower_normalize_weight", "examples/user"])
def test_missing_array_is_named(missing: str, written: Path, tmp_path: Path) -> None:
    arrays = arrays_of(written / "cross.npz")
    del arrays[missing]
    np.savez(tmp_path / "cross.npz", **arrays)
    with pytest.raises(NotConvertible, match=missing):
        ExportedGraphTower(tmp_path / "cross.npz")


def test_arguments_that_an_operation_does_not_take_are_refused(
    written: Path, tmp_path: Path
) -> None:
    def change(graph: Any) -> None:
        graph["operations"][-1]["options"]["dimension"] = 3

    np.savez(tmp_path / "cross.npz", **with_graph(arrays_of(written / "cross.npz"), change))
    with pytest.raises(NotConvertible, match=r"operation 'sum_1' \(sum\)"):
        ExportedGraphTower(tmp_path / "cross.npz")


def test_result_that_no_operation_computes_is_refused(written: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        graph["operations"].pop(0)

    np.savez(tmp_path / "cross.npz", **with_graph(arrays_of(written / "cross.npz"), change))
    with pytest.raises(NotConvertible, match="these arguments: 'cat'"):
        ExportedGraphTower(tmp_path / "cross.npz")


@pytest.mark.parametrize("size", [0, 100, -100])
def test_damaged_file_is_refused(size: int, written: Path, tmp_path: Path) -> None:
    (tmp_path / "cross.npz").write_bytes((written / "cross.npz").read_bytes()[:size])
    with pytest.raises(NotConvertible, match=r"cross\.npz: cannot be read"):
        ExportedGraphTower(tmp_path / "cross.npz")
