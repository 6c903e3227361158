"""Writes checkpoints of models that were built and never trained: a plan reads no value."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from export.graphs.loading import tf
from export.recipe.schema import ExportJob, InputSection

Build = Callable[[], Any]
Write = Callable[[Build, ExportJob, Path], None]
"""(factory of the model, recipe, folder of the checkpoint): writes one there."""

EXAMPLES = 4
"""In the batch that models are called with. One of the models takes no other number."""


def write_objects(build: Build, job: ExportJob, folder: Path) -> None:
    """Calls the model as the recipe's towers do, which makes its variables, and saves it."""
    tf.train.Checkpoint(model=_called(build, job)).write(str(folder / "model"))


def write_nothing(_build: Build, _job: ExportJob, folder: Path) -> None:
    """Saves a step alone, for models that cannot be built or called."""
    tf.train.Checkpoint(step=tf.Variable(3)).write(str(folder / "model"))


def write_objects_and_keras_rs_tables(build: Build, job: ExportJob, folder: Path) -> None:
    """Saves the tables beside the model.

    tf.train.Checkpoint passes over those of a DistributedEmbedding of keras-rs.
    """
    model = _called(build, job)
    tables = {layer.name: layer.embeddings.value for layer in model.embedding._layers}
    tf.train.Checkpoint(model=model, **tables).write(str(folder / "model"))


def write_keras_weights(build: Build, job: ExportJob, folder: Path) -> None:
    """Calls the model as its training does, and saves what Keras 3 saves of it, whichever
    framework it runs on.
    """
    model = _called(build, job)
    model(_batch(job))
    model.save_weights(folder / "model.weights.h5")


def write_keras_lists(build: Build, job: ExportJob, folder: Path) -> None:
    """Saves variables of a model of Keras 3 without names, as RecML's KerasTrainer does."""
    from tests.units.export.checkpoint.orbax_trees import write_step

    model = build()
    model(_batch(job))
    lists = (model.trainable_variables, model.non_trainable_variables)
    leaves = {
        f"{place}.{number}": variable.numpy()
        for place, variables in enumerate(lists)
        for number, variable in enumerate(variables)
    }
    write_step(folder, "0", leaves)


def write_session(build: Build, job: ExportJob, folder: Path) -> None:
    """Builds the graph as a program of TF1 does, and saves its session."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        build()({name: _placeholder(part) for name, part in job.inputs.items()})
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model"), write_meta_graph=False)


def write_keras_tree(build: Build, job: ExportJob, folder: Path) -> None:
    """Saves variables by their paths, as the callback OrbaxCheckpoint of Keras 3 does."""
    from tests.units.export.checkpoint.orbax_trees import write_step

    leaves = {
        f"trainable_variables.{variable.path.replace('/', '.')}": variable.numpy()
        for variable in _called(build, job).trainable_variables
    }
    write_step(folder, "1", leaves)


def write_parameters(build: Build, _job: ExportJob, folder: Path) -> None:
    """Saves the parameters of functions in JAX by Orbax."""
    import orbax.checkpoint as ocp

    shapes, *_ = build()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, {"params": zeros(shapes)}, force=True)


def zeros(shapes: Any) -> Any:
    """Returns arrays of zeros for a tree of shapes of JAX."""
    import jax

    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def _called(build: Build, job: ExportJob) -> Any:
    """Returns the model with all of its variables, which models of Keras make in their first
    call.
    """
    model = build()
    if getattr(model, "built", True):
        return model
    batch = _batch(job)
    calls = {(tower.call, tower.inputs or tuple(batch)) for tower in job.towers.values()}
    for path, inputs in sorted(calls):
        call = attrgetter(path)(model) if path else model
        call({name: batch[name] for name in inputs})
    return model


def _batch(job: ExportJob) -> dict[str, Any]:
    return {name: _tensor(part) for name, part in job.inputs.items()}


def _tensor(part: InputSection) -> Any:
    """Returns a batch of an input: ones, or a word."""
    value = "a" if part.dtype == "string" else 1
    if part.kind == "dense":
        return tf.fill([EXAMPLES, *part.shape], tf.constant(value, part.dtype))
    flat = tf.fill([2 * EXAMPLES], tf.constant(value, part.dtype))
    bags = tf.RaggedTensor.from_row_lengths(flat, [2] * EXAMPLES)
    return bags if part.kind == "ragged" else bags.to_sparse()


def _placeholder(part: InputSection) -> Any:
    v1 = tf.compat.v1
    if part.kind == "dense":
        return v1.placeholder(part.dtype, [None, *part.shape])
    return v1.sparse_placeholder(part.dtype)
