"""Recipes, checkpoints and traces of the models in tests/models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.reader import open_checkpoint
from export.graphs.loading import load_tensorflow, tf
from export.model_code.factories import load_factory
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.built_model import trace_model
from export.tensorflow_models.model.weights import TrainedModel

MODELS = Path(__file__).parents[2] / "models"
"""Factories are in files of this directory."""
IDS = {"dtype": "int64"}
RAGGED = {"dtype": "int64", "kind": "ragged"}
NOTHING: Mapping[str, Any] = MappingProxyType({})


def recipe(
    factory: str,
    inputs: Mapping[str, Any],
    towers: Mapping[str, Any],
    sections: Mapping[str, Any] = NOTHING,
) -> ExportJob:
    """Returns a recipe.

    Args:
      factory: `file.py:function`, a file in tests/models.
      inputs: The recipe's `inputs`.
      towers: The recipe's `towers`.
      sections: Other sections, or replacements of those above.
    """
    return ExportJob.model_validate(
        {
            "model": "tested",
            "checkpoint": {"path": "ckpt", "object_path": "model"},
            "code": {"factory": factory},
            "inputs": inputs,
            "towers": towers,
            "output": {"root": "bundles"},
        }
        | dict(sections)
    )


def tower_recipe(
    factory: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, str] = NOTHING,
    *,
    code: Mapping[str, Any] = NOTHING,
    **sections: Any,
) -> ExportJob:
    """Returns a recipe of one query tower, `tower`, whose result is the first of its outputs."""
    tower: dict[str, Any] = {"role": "query", "outputs": dict(outputs)}
    if outputs:
        tower["result"] = next(iter(outputs))
    return recipe(
        factory, inputs, {"tower": tower}, {"code": {"factory": factory, **code}, **sections}
    )


def one_table_recipe(function: str, **inputs: Any) -> ExportJob:
    """Returns a recipe of a model in one_table.py."""
    return recipe(f"one_table.py:{function}", {"item": IDS, **inputs}, {"tower": {"role": "query"}})


def movies_recipe(**sections: Any) -> ExportJob:
    """Returns a recipe of two towers and a ranker over one call of a TFRS layer."""
    return recipe(
        "two_towers.py:build_movies",
        {
            "user_id": IDS,
            "history": RAGGED,
            "hour": IDS,
            "movie_id": IDS,
            "genres": RAGGED,
            "year": {"dtype": "float32"},
        },
        {
            "query": {"role": "query", "outputs": {"vector": "query"}},
            "candidate": {"role": "candidate", "outputs": {"vector": "candidate"}},
            "ranking": {
                "role": "ranking",
                "outputs": {"score": "score"},
                "split": False,  # test_split_ranker_job.py is of what is
                "precisions": ["f32", "int8"],
                "max_abs_error": {"int8": 1.0},
            },
        },
        sections,
    )


@dataclass(frozen=True)
class TracedCheckpoint:
    """A model's checkpoint, and the keys and values of its tables there."""

    job: ExportJob
    prefix: Path
    keys: Mapping[str, str]
    tables: Mapping[str, NDArray[np.float32]]


def save_checkpoint(
    job: ExportJob,
    directory: Path,
    seed: int = 5,
    *,
    inputs: Mapping[str, Any] | None = None,
) -> Path:
    """Builds the whole model with random weights, and saves it as a training script would.

    Args:
      job: The recipe.
      directory: Where the checkpoint is written.
      seed: Other seeds give other weights.
      inputs: A batch. Models that make their variables in the first call are called with it.

    Returns:
      The prefix of the checkpoint.
    """
    load_tensorflow()  # as the exporter needs it, before the model imports it
    model = load_factory(job.code.factory, MODELS)()
    if inputs is not None:
        model(dict(inputs))

    random = np.random.default_rng(seed)
    for variable in _float_variables(model):
        values = random.normal(0, 0.3, variable.shape).astype(np.float32)
        variable.assign(np.abs(values) if "variance" in variable.name else values)
    checkpoint = tf.train.Checkpoint(model=model, step=tf.Variable(3))
    return Path(checkpoint.write(str(directory / "ckpt-3")))


def _float_variables(model: Any) -> list[Any]:
    # Tables of TPU layers are not among a Keras model's variables, and those of Keras 3 are not
    # TensorFlow's.
    tracked = tf.train.TrackableView(model).descendants()
    variables = [part for part in tracked if isinstance(part, tf.Variable)]
    variables += getattr(model, "variables", ())
    by_identity = {
        id(variable): variable for variable in variables if "float32" in str(variable.dtype)
    }
    return list(by_identity.values())


def save_and_trace(job: ExportJob, directory: Path) -> TracedCheckpoint:
    """Saves a checkpoint, and traces the model, which states its tables."""
    prefix = save_checkpoint(job, directory)
    model = trace_model(job, MODELS)
    checkpoint = open_checkpoint(prefix)
    keys = TrainedModel(model.root, checkpoint, "model").table_keys(model.tables)
    tables = {name: checkpoint.read_all(keys[name]) for name in model.spec.tables}
    return TracedCheckpoint(job, prefix, keys, tables)
