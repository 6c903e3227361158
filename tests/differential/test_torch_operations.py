"""Operations of PyTorch in a tower's file give what PyTorch gives: in graphs that it wrote itself,
and one by one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.given_towers.aten_operations import OPERATIONS
from export.given_towers.tower import open_tower
from export.graphs.loading import load_tensorflow, tf
from tests.units.export.given_towers.graphs import extract, operation, write_graph

load_tensorflow()
WITHOUT_COUNTERPART = {"routed"}
"""The recorded graphs that are refused."""


def f(*values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def i(*values: Any) -> NDArray[np.int64]:
    return np.array(values, np.int64)


COUNT = f([0, 1, 2], [3, 4, 5])
TRUTH = np.array([True, False])
HALF = f(0.5, -0.25)
QUERY = f([[0.0], [math.log(3.0)]])
KEY = f([[0.0], [1.0]])
VALUE = f([[4.0], [8.0]])
LATER = f([0.0, math.log(3.0)], [-math.inf, -math.inf])
OPERANDS: list[tuple[tuple[Any, ...], Any]] = [
    *(
        ((name, HALF), getattr(np, function)(HALF))
        for name, function in {
            "acos": "arccos",
            "asin": "arcsin",
            "asinh": "arcsinh",
            "atan": "arctan",
            "atanh": "arctanh",
            **{name: name for name in ("ceil", "cos", "cosh", "expm1", "floor", "sign", "sin")},
            **{name: name for name in ("sinh", "tan")},
        }.items()
    ),
    (("acosh", f(1.5)), np.arccosh(f(1.5))),
    (("erfc", HALF), f(*(math.erfc(value) for value in HALF))),
    (("gelu", f(1)), f(0.8413447)),
    (("gelu", f(1), "tanh"), f(0.8411920)),
    (("leaky_relu", f(-2, 3)), f(-0.02, 3)),
    (("atan2", f(1), f(-1)), f(2.3561945)),
    (("logical_not", TRUTH), ~TRUTH),
    (("logical_and", TRUTH, ~TRUTH), TRUTH & ~TRUTH),
    (("logical_or", TRUTH, ~TRUTH), TRUTH | ~TRUTH),
    # Operands are taken to the wider dtype.
    (("add", i(1, 2), 0.5), f(1.5, 2.5)),
    (("add", TRUTH, np.array([1, 1], np.int32)), np.array([2, 1], np.int32)),
    (("mul", TRUTH, f(2, 3)), f(2, 0)),
    (("sub", 1, f(0.25)), f(0.75)),
    # A number decides on the kind alone, and a tensor without dimensions on less than others.
    (("mul", TRUTH, 3), i(3, 0)),
    (("mul", TRUTH, ~TRUTH), TRUTH & ~TRUTH),
    (("add", np.array([1], np.int32), np.array(2)), np.array([3], np.int32)),
    (("add", f(1), np.array(0.5)), f(1.5)),
    (("add", np.array(1), f(0.5)), f(1.5)),
    (("where", TRUTH, np.array(1.0), f(2, 3)), f(1, 3)),
    (("maximum", f(1, 5), i(2, 3)), f(2, 5)),
    (("minimum", f(1, 5), i(2, 3)), f(1, 3)),
    (("pow", f(3), 2), f(9)),
    (("div", i(3), 2), f(1.5)),
    (("clamp", f(-1, 0.5, 9), 0), f(0, 0.5, 9)),
    (("hardtanh", f(-3, 0.5, 9), -1.0, 1.0), f(-1, 0.5, 1)),
    (("where", TRUTH, f(1.5, 1.5), i(7, 7)), f(1.5, 7)),
    (("mm", COUNT, COUNT.T), COUNT @ COUNT.T),
    (("addmm", f(1, 2), COUNT, COUNT.T), COUNT @ COUNT.T + f(1, 2)),
    (("matmul", COUNT, f(1, 0, 2)), f(4, 13)),
    (("matmul", f(1, 2), COUNT), f(6, 9, 12)),
    (("linear", f([1, 2]), f([3, 4], [5, 6]), f(1, 2)), f([12, 19])),
    (("layer_norm", f([1, 3], [2, 10]), [2], f(2, 2), f(1, 1), 0.0), f([-1, 3], [-1, 3])),
    (("scaled_dot_product_attention", QUERY, KEY, VALUE), f([[6], [7]])),
    (("scaled_dot_product_attention", QUERY, KEY, VALUE, None, 0.0, False, 2.0), f([[6], [7.6]])),
    (("scaled_dot_product_attention", QUERY, KEY, VALUE, None, 0.0, True), f([[4], [7]])),
    (("scaled_dot_product_attention", QUERY, KEY, VALUE, LATER), f([[7], [0]])),
    (("scaled_dot_product_attention", QUERY, KEY, VALUE, np.outer(TRUTH, TRUTH)), f([[4], [0]])),
    (("expand", f([1], [2]), [-1, 3]), f([1, 1, 1], [2, 2, 2])),
    (("expand", f(1, 2), [3, -1]), f([1, 2], [1, 2], [1, 2])),
    (("select", COUNT, -1, 0), f(0, 3)),
    (("slice", COUNT, -1, 0, 3, 2), COUNT[:, ::2]),
    (("slice", COUNT, 0, None, 1), COUNT[:1]),
    (("cat", [COUNT[:, :1], i([7], [8])], 1), f([0, 7], [3, 8])),
    (("view", COUNT, [3, 2]), COUNT.reshape(3, 2)),
    (("full_like", COUNT[:1], 7), f([7, 7, 7])),
    (("full_like", COUNT[:1], 1, np.bool_), np.ones((1, 3), bool)),
    (("full", [1, 2], 7), i([7, 7])),
    (("full", [1, 2], 0.5), f([0.5, 0.5])),
    (("full", [2], True), np.array([True, True])),
    (("full", [2], 1, np.float32), f(1, 1)),
    (("arange", 0.0, 1.0, 0.5), f(0, 0.5)),
    (("squeeze", COUNT[:1], 0), COUNT[0]),
    (("squeeze", COUNT, 0), COUNT),
    (("squeeze", COUNT[:1, :, None], [0, 1, 2]), COUNT[0]),
    (("constant_pad_nd", COUNT, [-1, 2, 1, 0], 9.0), f([9] * 4, [1, 2, 9, 9], [4, 5, 9, 9])),
    (("_to_copy", f(1.5, 2), np.int64), i(1, 2)),
    (("alias", HALF), HALF),
    (("index_put", COUNT, [COUNT > 2], np.array(7.0)), f([0, 1, 2], [7, 7, 7])),
    (("index_put", COUNT, [TRUTH], f(7)), f([7, 7, 7], [3, 4, 5])),
    (("embedding", COUNT, i(1, 0), -1, False), COUNT[::-1]),
    (("gather", COUNT, 1, i([2], [0])), f([2], [3])),
    (("index", COUNT, [i(1, -2), None]), COUNT[::-1]),
    (("index", COUNT, [None, i(2, -3)]), f([2, 0], [5, 3])),
    (("index", COUNT[None], [None, i(1, 0), i(0, 2)]), f([3, 2])),
    (("index", COUNT[..., None], [i(1, 0), i(0, 2)]), f([3], [2])),
    (("sum", COUNT), np.float32(15)),
    (("sum", COUNT, [1], True), f([3], [12])),
    (("sum", np.array([[True, True, False]]), [1]), i(2)),
    (("amin", COUNT, [0]), f(0, 1, 2)),
    (("amax", COUNT, []), np.float32(5)),
    (("mean", COUNT, []), np.float32(2.5)),
    (("mean", TRUTH, None, False, np.float32), np.float32(0.5)),
    (("sum", TRUTH, None, False, np.float32), np.float32(1)),
    (("var", f([1, 3]), [1]), f(2)),
    (("softmax", f([0, 0]), 1, np.float64), np.array([[0.5, 0.5]])),
    (("linalg_vector_norm", f([3, 4])), np.float32(5)),
    (("linalg_vector_norm", f([3, -4]), 1, [1]), f(7)),
    (("linalg_vector_norm", f([3, -4]), math.inf, [1]), f(4)),
    (("linalg_vector_norm", f([3, 4]), 2, [1], True), f([5])),
]
"""Operations with arguments in ATen's order; what PyTorch returns for them."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("graphs"), "torch_graphs")


def arrays_under(path: Path, folder: str) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        names = [name for name in file.files if name.startswith(folder)]
        return {name.removeprefix(folder): file[name] for name in names}


def operations_of(path: Path) -> set[str]:
    with np.load(path) as file:
        graph = json.loads(file["graph"].tobytes())
    return {node["operation"] for node in graph["operations"]}


def test_recorded_graphs_give_what_pytorch_gave_for_any_batch(written: Path) -> None:
    for path in written.glob("*.npz"):
        if path.stem in WITHOUT_COUNTERPART:
            continue
        tower = open_tower(path)
        inputs = arrays_under(path, "examples/")
        specs = {
            name: tf.TensorSpec([None, *values.shape[1:]], values.dtype)
            for name, values in inputs.items()
        }
        assert tower.inputs.keys() == inputs.keys()
        traced = tf.function(tower, input_signature=[specs], autograph=False)
        for examples in (1, 2, 5):
            outputs = traced({name: values[:examples] for name, values in inputs.items()})
            if not isinstance(outputs, dict):
                outputs = {"": outputs}
            expected = arrays_under(path, "results/")
            assert outputs.keys() == expected.keys()
            for name, values in expected.items():
                what = f"{path.stem} {name}"
                np.testing.assert_allclose(
                    outputs[name], values[:examples], 1e-4, 1e-5, err_msg=what
                )


def test_operations_give_what_pytorch_gives_one_by_one(tmp_path: Path) -> None:
    weights: dict[str, NDArray[Any]] = {}

    def described(argument: Any) -> Any:
        if isinstance(argument, list):
            return [described(entry) for entry in argument]
        if isinstance(argument, type):
            return {"dtype": np.dtype(argument).name}
        if not isinstance(argument, np.ndarray):
            return argument
        weights[f"w{len(weights)}"] = argument
        return {"result": f"w{len(weights) - 1}"}

    nodes = []
    results = {}
    for number, ((name, *arguments), expected) in enumerate(OPERANDS):
        result = f"{name} {number}"
        nodes.append(operation(result, name, *map(described, arguments)))
        results[result] = np.asarray(expected)
    graph = {
        "weights": list(weights),
        "inputs": {"x": "p_x"},
        "operations": nodes,
        "outputs": {name: name for name in results},
    }
    arrays = {f"results__{name}": values for name, values in results.items()}
    arrays |= {f"weights__{name}": values for name, values in weights.items()}
    write_graph(tmp_path / "tower.npz", graph, examples__x=f(1, 2), **arrays)
    # Opening the tower compares its results with the recorded ones.
    outputs = open_tower(tmp_path / "tower.npz")({"x": tf.constant([1.0, 2.0])})
    assert {name: output.dtype.name for name, output in outputs.items()} == {
        name: values.dtype.name for name, values in results.items()
    }


def test_each_operation_is_compared(written: Path) -> None:
    compared = {name for (name, *_), _ in OPERANDS}
    for path in written.glob("*.npz"):
        if path.stem not in WITHOUT_COUNTERPART:
            compared |= operations_of(path)
    assert compared == OPERATIONS.keys()
