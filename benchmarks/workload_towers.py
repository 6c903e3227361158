"""The towers of the benchmark's workloads, written by the exporter's own steps. The one file with
TensorFlow.

Towers are partitioned, packed, saved and compiled in a process of their own: what is measured has
no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.format import manifest, paths
from export.front_end.calls import Call
from export.front_end.interface import TracedTower
from export.front_end.specs import TowerSpec
from export.graphs.functions import narrowed
from export.graphs.loading import load_tensorflow
from export.towers.compiled import compile_tower
from export.towers.division import split_tower
from export.towers.packing import pack
from export.towers.parts import TracedPart
from export.towers.savedmodels import save_function
from runtime.litert import CompiledTower
from runtime.tower_inputs import tower_inputs
from tests.models.tensorflow_process import with_tensorflow

CATEGORICAL = 26
DIM = 32
NUMBERS = 13
CROSS_RANK = 128
ITEM_DIM = 64
EXAMPLES = 256
"""Random examples over which the forms are compared."""

CONTEXT = tuple(f"c{number:02d}" for number in range(0, CATEGORICAL, 2))
CANDIDATE = tuple(f"c{number:02d}" for number in range(1, CATEGORICAL, 2))
PRECISIONS: dict[str, tuple[manifest.Precision, ...]] = {
    "ranking": ("f32", "int8"),
    "query": ("f32", "int8"),
    "candidate": ("f32",),
}

_ROLES: dict[str, Literal["query", "ranking"]] = {"query": "query", "ranking": "ranking"}
"""Roles of towers by name; the others are candidate towers."""


def write_towers(directory: Path, *names: str) -> dict[str, manifest.Tower]:
    """Writes towers into a bundle's directory, in a process of its own; returns their manifest
    entries.
    """
    return with_tensorflow(_write, directory, names)


def inputs_of(name: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of one example by input."""
    if name == "ranking":
        return {
            **dict.fromkeys(CONTEXT, (DIM,)),
            "numbers": (NUMBERS,),
            **dict.fromkeys(CANDIDATE, (DIM,)),
        }
    return (
        {"user": (ITEM_DIM,), "history": (ITEM_DIM,)} if name == "query" else {"item": (ITEM_DIM,)}
    )


def ranking_weights() -> dict[str, Any]:
    """DCN v2: three low-rank crosses over 845 inputs, then a perceptron 256-128-1; 1.80 MFLOP a
    candidate.
    """
    random = np.random.default_rng(20)
    width = CATEGORICAL * DIM + NUMBERS
    weights = {}
    for layer in range(3):
        weights[f"down{layer}"] = random.standard_normal((width, CROSS_RANK)) / width**0.5
        weights[f"up{layer}"] = random.standard_normal((CROSS_RANK, width)) / CROSS_RANK**0.5
        weights[f"bias{layer}"] = np.zeros(width)
    for layer, (rows, columns) in enumerate([(width, 256), (256, 128), (128, 1)]):
        weights[f"dense{layer}"] = random.standard_normal((rows, columns)) * (2 / rows) ** 0.5
        weights[f"dense_bias{layer}"] = np.zeros(columns)
    return {name: values.astype(np.float32) for name, values in weights.items()}


def query_weights() -> dict[str, Any]:
    """Nearly the identity through a ReLU, so that a query lies where its history lies: user / 2 +
    history + noise.
    """
    random = np.random.default_rng(21)
    eye = np.eye(ITEM_DIM)
    inner = (
        np.block([[eye * 0.5, -eye * 0.5], [eye, -eye]])
        + random.standard_normal((128, 128)) * 0.005
    )
    outer = np.concatenate([eye, -eye]) + random.standard_normal((128, ITEM_DIM)) * 0.005
    return {"inner": inner.astype(np.float32), "outer": outer.astype(np.float32)}


def variables(tf: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Returns TensorFlow's variables of weights."""
    return {key: tf.Variable(values, trainable=False) for key, values in weights.items()}


def dcn(tf: Any, weights: dict[str, Any], inputs: Any) -> Any:
    """Scores [n, 845] inputs by DCN v2."""
    x = inputs
    for layer in range(3):
        x = (
            inputs * (x @ weights[f"down{layer}"] @ weights[f"up{layer}"] + weights[f"bias{layer}"])
            + x
        )
    for layer in range(2):
        x = tf.nn.relu(x @ weights[f"dense{layer}"] + weights[f"dense_bias{layer}"])
    return {"score": tf.sigmoid(x @ weights["dense2"] + weights["dense_bias2"])[:, 0]}


def _functions(tf: Any) -> dict[str, Callable[..., Any]]:
    rank = variables(tf, ranking_weights())
    retrieve = variables(tf, query_weights())

    def ranking(**inputs: Any) -> Any:
        numbers = tf.math.log1p(inputs["numbers"])
        parts = [
            *(inputs[name] for name in CONTEXT),
            numbers,
            *(inputs[name] for name in CANDIDATE),
        ]
        return dcn(tf, rank, tf.concat(parts, 1))

    def query(**inputs: Any) -> Any:
        hidden = tf.nn.relu(tf.concat([inputs["user"], inputs["history"]], 1) @ retrieve["inner"])
        return {"vector": tf.math.l2_normalize(hidden @ retrieve["outer"], 1)}

    def candidate(**inputs: Any) -> Any:
        return {"vector": tf.identity(inputs["item"])}

    return {"ranking": ranking, "query": query, "candidate": candidate}


def _traced(tf: Any, name: str, function: Callable[..., Any]) -> TracedTower:
    """Traces a tower as the exporter extracts it: an input for each feature."""
    inputs = tuple(
        manifest.TowerInput(name=key, feature=key, dtype="float32", shape=(None, *shape))
        for key, shape in inputs_of(name).items()
    )
    keys = [tensor.name for tensor in inputs]
    whole = tf.compat.v1.wrap_function(
        lambda *tensors: function(**dict(zip(keys, tensors, strict=True))),
        [tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in inputs],
    )
    traced, read = narrowed(
        name, whole, whole.graph.inputs[: len(inputs)], whole.structured_outputs
    )
    ((result, tensor),) = traced.structured_outputs.items()
    spec = TowerSpec(
        name=name,
        role=_ROLES.get(name, "candidate"),
        call=Call("", tuple(keys)),
        paths={result: (result,)},
        inputs=inputs,
        outputs=(
            manifest.TowerOutput(name=result, dtype="float32", shape=tuple(tensor.shape.as_list())),
        ),
        result=result,
        variables=tuple(variable.name for variable in read),
    )
    return TracedTower(spec, traced, read)


def _forms(
    directory: Path,
    name: str,
    traced: TracedTower | TracedPart,
    values: dict[str, NDArray[Any]],
    part: str = "",
) -> tuple[manifest.TowerForm, ...]:
    """Writes the forms of a tower or of a part, and compares them; adds its outputs for `values` to
    them.
    """
    entries = traced.spec.inputs
    inputs = tower_inputs(entries, values, EXAMPLES)
    constant = load_tensorflow().constant
    results = traced.function(*(constant(inputs[entry.name]) for entry in entries))
    wanted = {key: result.numpy() for key, result in results.items()}
    values |= wanted
    saved = paths.saved_model(name, part)
    save_function(traced, directory / saved)
    none = dict.fromkeys(wanted, 0.0)
    forms = [
        manifest.TowerForm(kind="saved_model", precision="f32", path=saved, max_abs_error=none)
    ]
    for precision in PRECISIONS[name]:
        path = paths.compiled_tower(name, precision, part)
        if reason := compile_tower(directory / saved, precision, directory / path):
            raise RuntimeError(reason)
        results = CompiledTower(directory / path).run(inputs)
        errors = {key: float(np.abs(results[key] - wanted[key]).max()) for key in wanted}
        forms.append(
            manifest.TowerForm(kind="litert", precision=precision, path=path, max_abs_error=errors)
        )
    return tuple(forms)


def _entry(directory: Path, tf: Any, name: str, function: Callable[..., Any]) -> manifest.Tower:
    """Writes a tower and its parts; returns its manifest entry."""
    tower = _traced(tf, name, function)
    roles: dict[str, manifest.Role] = {
        key: "candidate" if key in CANDIDATE else "context" for key in inputs_of(name)
    }
    parts = [pack(part) for part in split_tower(tower, roles).parts] if name == "ranking" else []
    random = np.random.default_rng(0)
    values = {
        key: random.random((EXAMPLES, *shape), np.float32) for key, shape in inputs_of(name).items()
    }
    packed = pack(tower)
    return manifest.Tower(
        role=tower.spec.role,
        inputs=packed.spec.inputs,
        outputs=packed.spec.outputs,
        result=tower.spec.result,
        forms=_forms(directory, name, packed, dict(values)),
        parts=tuple(
            part.spec.model_copy(
                update={"forms": _forms(directory, name, part, values, part.spec.name)}
            )
            for part in parts
        ),
    )


def _write(directory: Path, names: tuple[str, ...]) -> dict[str, manifest.Tower]:
    import tensorflow as tf

    functions = _functions(tf)
    return {name: _entry(directory, tf, name, functions[name]) for name in names}
