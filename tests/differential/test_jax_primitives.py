"""Each primitive of JAX in a tower gives what JAX gives: calls as users write them, of ordinary
numbers and of those at the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from export.graphs.loading import tf
from export.jobs.preparation import trace_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.units.export.checkpoint.orbax_trees import write_item

jax = pytest.importorskip("jax")

from export.jax_models.evaluation import OPERATIONS  # noqa: E402 they need JAX
from tests.differential import jax_primitive_calls as model  # noqa: E402

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}
"""Of what TensorFlow and JAX round differently, relative to the largest value."""
WITHOUT_NAN = {
    *("argmax", "argmin", "cumlogsumexp", "dot_general", "le_to", "lt_to", "sort", "top_k"),
}
"""Primitives in which TensorFlow gives NaN, which no request has, another place than JAX."""
Arrays = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arrays], tuple[Any, Any]]:
    """Returns a function that computes every call in the exported tower, and in JAX."""
    folder = tmp_path_factory.mktemp("calls")
    write_item(folder / "checkpoint", {"params.unread": np.zeros(1, np.float32)})
    inputs = model.ordinary_inputs()
    lowered = jax.jit(model.every_call).lower({}, inputs)
    # XLA takes half as long without optimizations.
    compiled = lowered.compile({"xla_backend_optimization_level": 0})
    names = list(compiled({}, inputs))
    job = ExportJob.model_validate(
        {
            "model": "calls",
            "checkpoint": {"path": "checkpoint"},
            "code": {"factory": f"{model.__file__}:build"},
            "output": {"root": "bundles"},
            "inputs": {
                name: {"dtype": str(array.dtype), "shape": list(array.shape[1:])}
                for name, array in inputs.items()
            },
            "towers": {
                "calls": {
                    "role": "query",
                    "outputs": {name: name for name in names},
                    "result": names[0],
                }
            },
        }
    )
    progress = Progress(Console(quiet=True))
    (tower,) = trace_job(job, folder, ExportSettings(), None, progress).traced.towers

    def run(arrays: Arrays) -> tuple[Any, Any]:
        tensors = [tf.constant(arrays[tensor.name]) for tensor in tower.spec.inputs]
        return tower.function(*tensors), compiled({}, dict(arrays))

    return run


def differences(actual: Any, expected: Any) -> list[str]:
    """Returns the calls whose results differ, with the first numbers that do."""
    assert actual.keys() == expected.keys()
    different = []
    for name, array in expected.items():
        wanted = np.asarray(array)
        computed = np.asarray(actual[name])
        assert (name, computed.shape) == (name, wanted.shape)
        tolerance = TOLERANCE[name.rpartition("_")[2]]
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        same = np.isclose(computed, wanted, tolerance, tolerance * scale, equal_nan=True)
        if not same.all():
            different.append(f"{name}: {computed[~same][:3]}, in JAX {wanted[~same][:3]}")
    return different


@pytest.mark.slow
def test_calls_of_ordinary_numbers_give_what_jax_gives(compute: Any) -> None:
    assert differences(*compute(model.ordinary_inputs())) == []


@pytest.mark.slow
def test_calls_of_numbers_at_the_limits_give_what_jax_gives(compute: Any) -> None:
    inputs = model.hostile_inputs()
    different = differences(*compute(inputs))
    beside_nan = tuple(f"{primitive}_" for primitive in WITHOUT_NAN)
    assert [line for line in different if not line.startswith(beside_nan)] == []


def test_each_primitive_has_a_call_that_reaches_it() -> None:
    """Primitives that JAX computes itself, since they depend on constants alone, do not count."""
    (batch,) = jax.export.symbolic_shape("b")
    inputs = model.ordinary_inputs()
    specs = {
        name: jax.ShapeDtypeStruct((batch, *array.shape[1:]), array.dtype)
        for name, array in inputs.items()
    }
    reached: set[str] = set()
    missed = []

    def every_call(arrays: Any) -> None:
        for name, primitive, call in model.named_calls(arrays):
            traced = jax.make_jaxpr(lambda _, call=call: call())(0)
            primitives = primitives_of(traced.jaxpr)
            reached.update(primitives)
            if primitive not in primitives:
                missed.append(f"{name} does not reach {primitive}")

    jax.eval_shape(every_call, specs)
    assert missed == []
    tabled = {primitive for group in model.CALLS.values() for primitive in group}
    assert tabled == OPERATIONS.keys(), "a primitive without calls, or calls of none"
    assert reached >= tabled


def primitives_of(jaxpr: Any) -> set[str]:
    """Returns the primitives of a computation, and of those inside of it."""
    primitives = set()
    for eqn in jaxpr.eqns:
        primitives.add(eqn.primitive.name)
        for param in eqn.params.values():
            for part in param if isinstance(param, list | tuple) else (param,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    primitives |= primitives_of(inner)
    return primitives
