"""The dense parts of the benchmark's workloads, written as SavedModels and flatbuffers. The one file with TensorFlow.

Run as a program of its own, so that what is measured beside it has no TensorFlow in its process. Prints, as JSON, the
largest difference between each compiled form and the SavedModel.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CATEGORICAL = 26
DIM = 32
NUMBERS = 13
CROSS_RANK = 128
ITEM_DIM = 64
EXAMPLES = 256
"""Random examples over which the forms are compared."""

CONTEXT = tuple(f"c{place:02d}" for place in range(0, CATEGORICAL, 2))
CANDIDATE = tuple(f"c{place:02d}" for place in range(1, CATEGORICAL, 2))
PRECISIONS = {"ranking": ("f32", "int8"), "query": ("f32", "int8"), "candidate": ("f32",)}

Errors = dict[str, dict[str, float]]
"""Largest difference from the SavedModel by tower and precision."""


def write_towers(directory: Path, *names: str) -> Errors:
    """Writes `<name>/saved_model` and `<name>/compiled-<precision>.tflite` in a process of its own; takes seconds."""
    program = [sys.executable, "-m", "tests.bench.workload_towers", str(directory), *names]
    ran = subprocess.run(program, cwd=Path(__file__).parents[2], check=True, capture_output=True, timeout=300)
    errors: Errors = json.loads(ran.stdout.splitlines()[-1])
    return errors


def inputs_of(name: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of one example by input."""
    if name == "ranking":
        return {**dict.fromkeys(CONTEXT, (DIM,)), "numbers": (NUMBERS,), **dict.fromkeys(CANDIDATE, (DIM,))}
    return {"user": (ITEM_DIM,), "history": (ITEM_DIM,)} if name == "query" else {"item": (ITEM_DIM,)}


def ranking_weights() -> dict[str, Any]:
    """DCN v2: three low-rank crosses over 845 inputs, then a perceptron 256-128-1; 1.80 MFLOP a candidate."""
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
    """Nearly the identity through a ReLU, so that a query lies where its history lies: user / 2 + history + noise."""
    random = np.random.default_rng(21)
    eye = np.eye(ITEM_DIM)
    inner = np.block([[eye * 0.5, -eye * 0.5], [eye, -eye]]) + random.standard_normal((128, 128)) * 0.005
    outer = np.concatenate([eye, -eye]) + random.standard_normal((128, ITEM_DIM)) * 0.005
    return {"inner": inner.astype(np.float32), "outer": outer.astype(np.float32)}


def _functions(tensorflow: Any) -> dict[str, tuple[Any, Callable[..., Any]]]:
    tf = tensorflow
    modules = {}
    for name, weights in (("ranking", ranking_weights()), ("query", query_weights()), ("candidate", {})):
        modules[name] = tf.Module()
        modules[name].kept = {key: tf.Variable(values, trainable=False) for key, values in weights.items()}
    rank, retrieve = modules["ranking"].kept, modules["query"].kept

    def ranking(**inputs: Any) -> Any:
        context = [inputs[name] for name in CONTEXT]
        x = first = tf.concat([*context, tf.math.log1p(inputs["numbers"]), *(inputs[name] for name in CANDIDATE)], 1)
        for layer in range(3):
            x = first * (x @ rank[f"down{layer}"] @ rank[f"up{layer}"] + rank[f"bias{layer}"]) + x
        for layer in range(2):
            x = tf.nn.relu(x @ rank[f"dense{layer}"] + rank[f"dense_bias{layer}"])
        return {"score": tf.sigmoid(x @ rank["dense2"] + rank["dense_bias2"])[:, 0]}

    def query(**inputs: Any) -> Any:
        hidden = tf.nn.relu(tf.concat([inputs["user"], inputs["history"]], 1) @ retrieve["inner"])
        return {"vector": tf.math.l2_normalize(hidden @ retrieve["outer"], 1)}

    def candidate(**inputs: Any) -> Any:
        return {"vector": tf.identity(inputs["item"])}

    return {
        name: (modules[name], function) for name, function in zip(modules, (ranking, query, candidate), strict=True)
    }


def _write(directory: Path, names: list[str]) -> Errors:
    import tensorflow as tf

    from runtime.towers import CompiledTower

    errors: Errors = {}
    functions = _functions(tf)
    for name in names:
        module, function = functions[name]
        specs = {key: tf.TensorSpec([None, *shape], tf.float32, name=key) for key, shape in inputs_of(name).items()}
        traced = tf.function(function).get_concrete_function(**specs)
        saved = directory / name / "saved_model"
        tf.saved_model.save(module, str(saved), signatures={"serving_default": traced})
        random = np.random.default_rng(0)
        examples = {key: random.random((EXAMPLES, *shape), np.float32) for key, shape in inputs_of(name).items()}
        wanted = {
            key: value.numpy() for key, value in traced(**{k: tf.constant(v) for k, v in examples.items()}).items()
        }
        errors[name] = {}
        for precision in PRECISIONS[name]:
            converter = tf.lite.TFLiteConverter.from_saved_model(str(saved))
            if precision == "int8":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            path = directory / name / f"compiled-{precision}.tflite"
            path.write_bytes(converter.convert())
            found = CompiledTower(path).run(examples)
            errors[name][precision] = max(float(np.abs(found[key] - wanted[key]).max()) for key in wanted)
    return errors


if __name__ == "__main__":
    print(json.dumps(_write(Path(sys.argv[1]), sys.argv[2:])))  # noqa: T201 - its answer
