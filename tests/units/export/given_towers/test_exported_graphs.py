"""Graphs of PyTorch compute what PyTorch computed, and what cannot is rejected."""

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
from tests.units.export.given_towers.graphs import extract, operation, write_graph

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


def outputs_of(result: Any) -> Arrays:
    return result if isinstance(result, dict) else {"": result}


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
    outputs = outputs_of(traced({name: value[:examples] for name, value in inputs.items()}))
    wanted = under(arrays, "results/")
    assert set(outputs) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(outputs[name], value[:examples], rtol=1e-4, atol=1e-5)


def test_operation_without_a_counterpart_is_named(written: Path) -> None:
    with pytest.raises(NotConvertible) as caught:
        ExportedGraphTower(written / "convolution.npz")
    assert "without a counterpart: convolution" in str(caught.value)
    assert "bring the tower as a SavedModel" in str(caught.value)


def test_results_that_are_not_those_of_pytorch_are_rejected(written: Path, tmp_path: Path) -> None:
    arrays = arrays_of(written / "ranker.npz")
    arrays["weights/p_tower_click_bias"] = arrays["weights/p_tower_click_bias"] + 0.01
    np.savez(tmp_path / "ranker.npz", **arrays)
    with pytest.raises(NotConvertible, match="output 'click' differs from PyTorch's by"):
        ExportedGraphTower(tmp_path / "ranker.npz")


def test_results_of_another_shape_are_rejected(written: Path, tmp_path: Path) -> None:
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
def test_graph_of_another_form_is_rejected(
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


def test_arguments_that_an_operation_does_not_take_are_rejected(
    written: Path, tmp_path: Path
) -> None:
    def change(graph: Any) -> None:
        graph["operations"][-1]["options"]["dimension"] = 3

    np.savez(tmp_path / "cross.npz", **with_graph(arrays_of(written / "cross.npz"), change))
    with pytest.raises(NotConvertible, match=r"operation 'sum_1' \(sum\)"):
        ExportedGraphTower(tmp_path / "cross.npz")


def test_result_that_no_operation_computes_is_rejected(written: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        graph["operations"].pop(0)

    np.savez(tmp_path / "cross.npz", **with_graph(arrays_of(written / "cross.npz"), change))
    with pytest.raises(NotConvertible, match="these arguments: 'cat'"):
        ExportedGraphTower(tmp_path / "cross.npz")


@pytest.mark.parametrize("size", [0, 100, -100])
def test_damaged_file_is_rejected(size: int, written: Path, tmp_path: Path) -> None:
    (tmp_path / "cross.npz").write_bytes((written / "cross.npz").read_bytes()[:size])
    with pytest.raises(NotConvertible, match=r"cross\.npz: cannot be read"):
        ExportedGraphTower(tmp_path / "cross.npz")


def doubled(folder: Path, recorded: Any, wanted: Any, *, dtype: str = "float32") -> Path:
    """Writes a tower that doubles its input, with recorded results of PyTorch."""
    graph = {
        "weights": ["two"],
        "inputs": {"x": "p_x"},
        "operations": [operation("twice", "mul", {"result": "p_x"}, {"result": "two"})],
        "outputs": {"": "twice"},
    }
    arrays = {
        "examples__x": np.array(recorded, dtype),
        "results__": np.array(wanted, dtype),
        "weights__two": np.array(2, dtype),
    }
    write_graph(folder / "tower.npz", graph, **arrays)
    return folder / "tower.npz"


@pytest.mark.parametrize(
    ("computed", "wanted"),
    [
        ([1.0, 50.0], [2.0, 100.009]),
        ([1.0, 50.0], [2.009, 100.0]),
        # Numbers that are almost zero may differ as those of a thousandth do.
        ([0.0, 0.0], [0.9e-7, 0.0]),
    ],
)
def test_difference_of_a_ten_thousandth_of_the_largest_result_is_allowed(
    computed: list[float], wanted: list[float], tmp_path: Path
) -> None:
    tower = ExportedGraphTower(doubled(tmp_path, computed, wanted))
    assert tower.inputs["x"].shape.as_list() == [None]
    assert tower.inputs["x"].dtype == tf.float32
    assert tower({"x": tf.constant([3.0])}).numpy().tolist() == [6]


@pytest.mark.parametrize(
    ("computed", "wanted"),
    [
        ([1.0, 50.0], [2.0, 100.011]),
        ([1.0, 50.0], [2.011, 100.0]),
        ([0.0, 0.0], [1.1e-7, 0.0]),
        ([1.0], [float("nan")]),
        ([float("nan")], [2.0]),
    ],
)
def test_larger_difference_is_rejected(
    computed: list[float], wanted: list[float], tmp_path: Path
) -> None:
    with pytest.raises(NotConvertible) as caught:
        ExportedGraphTower(doubled(tmp_path, computed, wanted))
    assert "the result differs from PyTorch's by " in str(caught.value)
    assert "at most 0.0001 of it was expected" in str(caught.value)


def test_tower_of_no_examples_is_not_compared(tmp_path: Path) -> None:
    assert ExportedGraphTower(doubled(tmp_path, [], [])).inputs.keys() == {"x"}


def test_dtypes_and_lists_of_results_are_arguments(tmp_path: Path) -> None:
    graph = {
        "weights": [],
        "inputs": {"x": "p_x"},
        "operations": [
            operation("whole", "_to_copy", {"result": "p_x"}, dtype={"dtype": "int64"}),
            operation("both", "cat", [{"result": "whole"}, {"result": "whole"}], dim=0),
        ],
        "outputs": {"twice": "both", "once": "whole"},
    }
    arrays = {
        "examples__x": np.array([1.5, 2.0], np.float32),
        "results__twice": np.array([1, 2, 1, 2]),
        "results__once": np.array([1, 2]),
    }
    write_graph(tmp_path / "tower.npz", graph, **arrays)
    outputs = ExportedGraphTower(tmp_path / "tower.npz")({"x": tf.constant([7.9])})
    assert {name: value.numpy().tolist() for name, value in outputs.items()} == {
        "twice": [7, 7],
        "once": [7],
    }


def test_reason_of_a_library_is_cut_to_200_letters(tmp_path: Path) -> None:
    graph = {
        "weights": [],
        "inputs": {"x": "p_x"},
        "operations": [operation("broken", "view", {"result": "p_x"}, ["no size " * 99])],
        "outputs": {"": "broken"},
    }
    arrays = {"examples__x": np.ones(3, np.float32), "results__": np.ones(3, np.float32)}
    write_graph(tmp_path / "tower.npz", graph, **arrays)
    with pytest.raises(NotConvertible) as caught:
        ExportedGraphTower(tmp_path / "tower.npz")
    before, _, reason = str(caught.value).partition(" has no counterpart with these arguments: ")
    assert before.endswith("operation 'broken' (view) of PyTorch")
    assert len(reason) == 200


def test_weight_that_is_not_finite_is_named_before_results_are_compared(
    written: Path, tmp_path: Path
) -> None:
    arrays = arrays_of(written / "ranker.npz")
    arrays["weights/p_tower_click_bias"][0] = np.nan
    np.savez(tmp_path / "ranker.npz", **arrays)
    message = r"ranker\.npz: variable 'p_tower_click_bias' \[1\] holds NaN or an infinity in 1 of 1"
    with pytest.raises(NotConvertible, match=message):
        ExportedGraphTower(tmp_path / "ranker.npz")
    with pytest.raises(NotConvertible, match="differs from PyTorch's by nan"):
        ExportedGraphTower(tmp_path / "ranker.npz", ["p_tower_click_bias"])
