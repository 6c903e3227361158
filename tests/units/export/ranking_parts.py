"""Traces of the models in rankers.py, and runs of their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.built_model import trace_model
from export.towers.parts import TracedPart
from runtime.tower_inputs import tower_inputs
from tests.units.export.traced_models import IDS, MODELS, RAGGED, recipe

Values = dict[str, NDArray[Any]]

FEATURES = {"user": IDS, "history": RAGGED, "item": IDS, "shop": IDS}
AGE = {"dtype": "float32"}
CONTEXT = ("user", "history", "age")
TASKS = ("click", "like", "share", "both", "loyal")


def ranking_recipe(
    function: str, outputs: Iterable[str], inputs: Mapping[str, Any], **parts: Any
) -> ExportJob:
    tower = {
        "role": "ranking",
        "outputs": {name: name for name in outputs},
        "result": next(iter(outputs)),
    }
    towers = {"ranking": tower | parts.pop("tower", {})}
    return recipe(f"rankers.py:{function}", inputs, towers, parts)


def experts_recipe(tasks: Iterable[str] = TASKS, **parts: Any) -> ExportJob:
    roles = {name: {"role": "candidate"} for name in ("item", "shop")}
    return ranking_recipe("build_experts", tasks, {**FEATURES, "age": AGE}, features=roles, **parts)


def traced(
    function: str, outputs: Iterable[str], inputs: Mapping[str, Any] = FEATURES
) -> TracedTower:
    tf.keras.utils.set_random_seed(3)  # else each run has other weights
    return trace_model(ranking_recipe(function, outputs, inputs), MODELS).towers[0]


def random_inputs(tower: TracedTower, n: int) -> Values:
    """Values of each feature that a tower takes."""
    random = np.random.default_rng(2)
    return {
        tensor.feature: random.standard_normal(
            [n, *(size or 1 for size in tensor.shape[1:])]
        ).astype(tensor.dtype)
        for tensor in tower.spec.inputs
    }


def run(tower: TracedTower | TracedPart, values: Values, n: int) -> Values:
    inputs = tower_inputs(tower.spec.inputs, values, n)
    results = tower.function(*(tf.constant(inputs[tensor.name]) for tensor in tower.spec.inputs))
    return {name: result.numpy() for name, result in results.items()}


def run_parts(parts: Iterable[TracedPart], values: Values, n: int, candidates: int = 1) -> Values:
    """Runs parts as a service does: those of a context once for every `candidates` examples, which
    share its features.

    Values of what is computed per context are those of each context's first example.
    """
    tensors = dict(values)
    for part in parts:
        if part.spec.per == "context":
            results = run(
                part,
                {name: array[::candidates] for name, array in tensors.items()},
                n // candidates,
            )
            tensors |= {name: array.repeat(candidates, axis=0) for name, array in results.items()}
        elif part.spec.is_of_one_context:
            results_by_context = [
                run(
                    part,
                    {name: array[first : first + candidates] for name, array in tensors.items()},
                    candidates,
                )
                for first in range(0, n, candidates)
            ]
            tensors |= {
                output.name: np.concatenate(
                    [results[output.name] for results in results_by_context]
                )
                for output in part.spec.outputs
            }
        else:
            tensors |= run(part, tensors, n)
    return tensors
