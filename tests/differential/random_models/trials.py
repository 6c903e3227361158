"""One trial: a random model is saved by its framework, exported, served, and compared with itself.

What is expected is what the model object gives that was saved, called by its own framework with
what requests hold. No part of rowcast takes part in it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.errors import ExportError, VerificationFailed
from export.graphs.loading import load_tensorflow
from service.errors import InvalidArgument
from tests.differential.random_models.coverage import options_of_bundle
from tests.differential.random_models.models import RandomModel, draw_model
from tests.differential.random_models.requests import (
    arrays_of,
    draw_examples,
    lines_of,
    request_of,
    values_of,
)
from tests.differential.random_models.serving import response_to
from tests.units.export.movies_job import export

TOLERANCE = 1e-6
"""Relative and absolute. Outputs are below 10 and are sums of at most 60 products, which programs
add in different orders: each order is within a few times 60 * 2^-24 of the largest product. A wrong
row or divisor changes an output by a thousand times as much.
"""

Outputs = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended that did not fail.

    Attributes:
      model: The model that was tried.
      rejection: The message of the exporter or the service that rejected it; "": it was published,
        and its responses equal its framework's results.
      options: The options of the format that its bundle uses.
    """

    model: RandomModel
    rejection: str = ""
    options: Set[str] = frozenset()


def trial(seed: int, directory: Path) -> Outcome:
    """Draws a model, exports it in a directory, and compares the service's responses.

    Raises:
      Exception: The responses differ from the model's results, or an error is raised that is not
        typed, or names no part of the model. A note shows the model, and how to try it again.
    """
    model = draw_model(seed)
    try:
        _write_files(model, directory)
        return _rejected_or_compared(model, directory)
    except Exception as problem:
        command = f".venv/bin/python -m benchmarks.soak.random_models 1 --first {seed}"
        problem.add_note(f"\n{model}\nTo try it again: {command}")
        raise


def _rejected_or_compared(model: RandomModel, directory: Path) -> Outcome:
    """Exports, sends requests and compares."""
    examples = draw_examples(model, "requests")
    expected = _saved_and_called(model, directory, arrays_of(model, examples))
    try:
        manifest = export(directory / "recipe.toml").manifest
        response = response_to(directory / "bundles", *request_of(model, examples))
    except VerificationFailed:
        raise  # the export differs from the model, as the exporter found itself
    except (ExportError, InvalidArgument) as rejection:
        message = f"{type(rejection).__name__}: {rejection}"
        named = [name for name in (*model.inputs, "model.py") if name in message]
        assert named, f"the rejection names no part of the model: {message}"
        return Outcome(model, message)
    tables = {(table.rows, table.dim) for table in manifest.tables.values()}
    assert tables >= model.extracted, f"tables that stayed inside: {model.extracted - tables}"
    actual = values_of(model, response)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        if model.is_exact:
            np.testing.assert_array_equal(actual[name], values, name)
        else:
            np.testing.assert_allclose(actual[name], values, TOLERANCE, TOLERANCE, err_msg=name)
    return Outcome(model, options=options_of_bundle(manifest))


def _write_files(model: RandomModel, directory: Path) -> None:
    """Writes what the user brings to an export but the checkpoint."""
    (directory / "model.py").write_text(model.code)
    (directory / "recipe.toml").write_text(model.recipe)
    examples = draw_examples(model, "examples")
    (directory / "examples.jsonl").write_text(lines_of(model, examples))
    for name, text in model.files.items():
        (directory / name).write_text(text)
    for name, keys in model.vocabularies.items():
        (directory / f"{name}.txt").write_text("".join(f"{key}\n" for key in keys))


def _saved_and_called(model: RandomModel, directory: Path, inputs: Mapping[str, Any]) -> Outputs:
    """Saves a model with random weights as its framework does; returns what it computes."""
    module = _imported(directory / "model.py")
    if model.library in ("flax", "jax"):
        return _outputs(_saved_in_jax(module, model, directory, inputs))
    tf = load_tensorflow()
    tf.keras.utils.set_random_seed(model.seed)
    network = module.build()
    results = network(inputs)
    if "weights.h5" in model.recipe:
        network.save_weights(directory / "model.weights.h5")
    else:
        tf.train.Checkpoint(model=network).write(str(directory / "checkpoint" / "model"))
    return _outputs(results)


def _saved_in_jax(
    module: ModuleType, model: RandomModel, directory: Path, inputs: Mapping[str, Any]
) -> Any:
    import jax
    from orbax.checkpoint import StandardCheckpointer

    random = np.random.default_rng(model.seed)
    shapes, functions = module.build()
    parameters = jax.tree.map(
        lambda leaf: random.normal(0, 0.5, leaf.shape).astype(leaf.dtype), shapes
    )
    with StandardCheckpointer() as checkpointer:
        checkpointer.save(directory / "checkpoint", parameters)
    # Compiled once: JAX by itself compiles each operation.
    return jax.jit(functions["score"])(parameters, dict(inputs))


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("random_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _outputs(results: Any) -> Outputs:
    if isinstance(results, Mapping):
        return {name: np.asarray(values) for name, values in results.items()}
    return {"": np.asarray(results)}
