"""Recipes, checkpoints and traces of the models in tests/models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary, write_vocabulary
from export.checkpoint.reader import open_checkpoint
from export.front_end.manifest_features import describe_features
from export.graphs.loading import load_tensorflow, tf
from export.model_code.factories import load_factory
from export.recipe.schema import ExportJob
from export.tables.vocabularies import as_array
from export.tensorflow_models.model.tracing import TracedModel, trace_towers
from export.tensorflow_models.model.weights import TrainedModel
from export.tensorflow_models.reference.model import TensorFlowReference
from export.verify.examples import Examples
from export.verify.synthetic_examples import make_examples
from tests.bundles.tables import write_table

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
                "split": False,  # test_split_towers.py is of what is
                "precisions": ["f32", "int8"],
                "max_abs_error": {"int8": 1.0},
            },
        },
        sections,
    )


@dataclass(frozen=True)
class TracedCheckpoint:
    """A traced model with its checkpoint, and the keys and values of its tables there."""

    job: ExportJob
    prefix: Path
    model: TracedModel
    keys: Mapping[str, str]
    tables: Mapping[str, NDArray[np.float32]]
    features: Mapping[str, manifest.Feature]
    vocabularies: Mapping[str, NDArray[Any]]
    reader: FeatureReader

    @property
    def reference_model(self) -> TensorFlowReference:
        checkpoint = open_checkpoint(self.prefix)
        return TensorFlowReference(self.job, MODELS, checkpoint, self.prefix, self.model.spec)

    def examples(self, n: int = 40) -> Examples:
        return make_examples(self.model.spec, self.features, self.vocabularies, n)


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


def save_and_trace(
    job: ExportJob, directory: Path, inputs: Mapping[str, Any] | None = None
) -> TracedCheckpoint:
    """Saves a checkpoint, and traces the model."""
    prefix = save_checkpoint(job, directory, inputs=inputs)
    return trace_checkpoint(prefix, job, directory)


def trace_checkpoint(prefix: Path, job: ExportJob, directory: Path) -> TracedCheckpoint:
    """Traces a recipe's model, and opens the tables and vocabularies that its features read."""
    model = trace_towers(job, MODELS)
    checkpoint = open_checkpoint(prefix)
    features = describe_features(model.spec, job)
    keys = TrainedModel(model.root, checkpoint, "model").table_keys(model.tables)
    keys |= {name: part.key for name, part in job.tables.items() if part.key is not None}
    tables = {name: checkpoint.read_all(keys[name]) for name in model.spec.tables}
    readers = {
        name: TableReader(directory, write_table(directory, name, values, "float32", []))
        for name, values in tables.items()
    }
    vocabularies = {name: as_array(keys) for name, keys in model.spec.vocabularies.items()}
    for name, array in vocabularies.items():
        write_vocabulary(directory / f"{name}.arrow", array)
    opened = {name: Vocabulary.open(directory / f"{name}.arrow") for name in vocabularies}
    return TracedCheckpoint(
        job,
        prefix,
        model,
        keys,
        tables,
        features,
        vocabularies,
        FeatureReader(features, readers, opened),
    )
