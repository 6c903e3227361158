"""Recipes, checkpoints and tables for models of this directory: those of tower_models.py if no file is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from export.frameworks.loading import load_tensorflow, tf
from export.model.code import load_factory
from export.model.manifest_features import describe_features, model_vocabularies
from export.model.tracing import TracedModel, trace_towers
from export.model.vocabularies import as_array
from export.model.weights import TrainedModel
from export.recipe.schema import ExportJob
from export.verify.examples import Examples, make_examples
from tests.conftest import write_table

HERE = Path(__file__).parent
IDS = {"dtype": "int64"}
RAGGED = {"dtype": "int64", "kind": "ragged"}


def recipe(
    function: str,
    inputs: Mapping[str, Any],
    towers: Mapping[str, Any],
    parts: Mapping[str, Any] = MappingProxyType({}),
) -> ExportJob:
    return ExportJob.model_validate(
        {
            "model": "tested",
            "checkpoint": {"path": "ckpt", "object_path": "model"},
            "code": {"factory": function if ":" in function else f"tower_models.py:{function}"},
            "inputs": inputs,
            "towers": towers,
            "output": {"root": "bundles"},
        }
        | dict(parts)
    )


def movies_recipe(function: str = "build_movies", **parts: Any) -> ExportJob:
    return recipe(
        function,
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
        parts,
    )


def ads_recipe(**parts: Any) -> ExportJob:
    return recipe(
        "build_ads",
        {
            "ad": IDS,
            "clicks": {"dtype": "int32", "kind": "ragged"},
            "click_weights": {"dtype": "float32", "kind": "ragged", "weights_for": "clicks"},
            "recent": RAGGED,
            "words": {"dtype": "int64", "kind": "sparse"},
            "word_weights": {"dtype": "float32", "kind": "sparse", "weights_for": "words"},
            "slots": {"dtype": "int64", "shape": [2]},
        },
        {
            "context": {"role": "query", "call": "context"},
            "ranking": {
                "role": "ranking",
                "call": "rank",
                "outputs": {"click": "click", "hidden": "hidden"},
                "result": "click",
            },
        },
        parts,
    )


def one_recipe(function: str, **inputs: Any) -> ExportJob:
    return recipe(function, {"item": IDS, **inputs}, {"tower": {"role": "query"}})


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

    def examples(self, n: int = 40) -> Examples:
        return make_examples(self.model.spec, self.features, self.vocabularies, n)


def save_checkpoint(
    job: ExportJob, directory: Path, seed: int = 5, beside: Sequence[int] = ()
) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """Builds the whole model with random weights and saves it as a training script would, slots beside tables.

    `beside` is the shape of the weight of an object that the model had in training and its code lacks now.
    """
    load_tensorflow()  # as the exporter needs it, before the model imports it
    model = load_factory(job.code.factory, HERE)()
    if beside:
        model.gone = tf.train.Checkpoint(weight=tf.Variable(tf.zeros(beside)))
    random = np.random.default_rng(seed)
    parts = list(tf.train.TrackableView(model).descendants())
    for variable in [
        part for part in parts if isinstance(part, tf.Variable) and part.dtype == tf.float32
    ]:
        values = random.normal(0, 0.3, variable.shape).astype(np.float32)
        variable.assign(np.abs(values) if "variance" in variable.name else values)
    prefix = tf.train.Checkpoint(model=model, step=tf.Variable(3)).write(str(directory / "ckpt-3"))
    tables = {}
    for layer in [part for part in parts if hasattr(part, "embedding_tables")]:
        tables.update(
            {config.name: table.numpy() for config, table in layer.embedding_tables.items()}
        )
    return Path(prefix), tables


def save_and_trace(job: ExportJob, directory: Path) -> TracedCheckpoint:
    return trace_checkpoint(save_checkpoint(job, directory)[0], job, HERE, directory)


def trace_checkpoint(prefix: Path, job: ExportJob, base: Path, directory: Path) -> TracedCheckpoint:
    """Traces a recipe's model, and opens the tables and vocabularies that its features read."""
    model, checkpoint = trace_towers(job, base), open_checkpoint(prefix)
    features = describe_features(model.spec, job)
    keys = TrainedModel(model.root, checkpoint, "model").table_keys(model.tables)
    keys |= {name: part.key for name, part in job.tables.items() if part.key is not None}
    tables = {name: checkpoint.read_all(keys[name]) for name in model.spec.tables}
    readers = {
        name: TableReader(directory, write_table(directory, name, values, "float32", []))
        for name, values in tables.items()
    }
    vocabularies = {name: as_array(found) for name, found in model_vocabularies(model.spec).items()}
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
