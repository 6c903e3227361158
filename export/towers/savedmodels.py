"""Writes each tower as a SavedModel for CPUs: activations and dense features in, named results out, no table inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.checkpoint.reader import Checkpoint
from export.errors import DestinationError, NotConvertible
from export.frameworks.loading import load_tensorflow
from export.graph.pruning import TracedPart, TracedTower, tables_of
from export.graph.specs import SIGNATURE
from export.model.weights import restore_weights
from export.towers.renumbering import renumber


def write_saved_model(
    tower: TracedTower | TracedPart, root: Any, checkpoint: Checkpoint, object_path: str, directory: Path
) -> None:
    """Restores the dense weights of a tower, or of a part of one, from the checkpoint and writes it.

    Its signature `serving_default` takes the tensors of `tower.spec.inputs` and returns those of `tower.spec.outputs`,
    by their names, with the batch open.

    Args:
      tower: as traced.
      root: the model that it was traced from.
      checkpoint: what was trained.
      object_path: where the model sits in the checkpoint.
      directory: made; must not exist or be empty.
    Raises:
      CheckpointError: a weight is not in the checkpoint, or differs in shape or dtype.
      DestinationError: the directory cannot be written.
      NotConvertible: what was written is not what the tower says.
    """
    restore_weights(tower.variables, root, checkpoint, object_path)
    save_function(tower, directory)
    _check(tower, directory)


def save_function(tower: TracedTower | TracedPart, directory: Path) -> None:
    """Writes a tower, or a part of one, with the weights that its variables hold.

    Raises:
      DestinationError: the directory cannot be written.
    """
    tf = load_tensorflow()
    spec = tower.spec
    names = [tensor.name for tensor in spec.inputs]

    def serve(**inputs: Any) -> dict[str, Any]:
        results = tower.function(*(inputs[name] for name in names))
        return {tensor.name: tf.identity(results[tensor.name]) for tensor in spec.outputs}

    signature = tf.function(serve, autograph=False).get_concrete_function(
        **{tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in spec.inputs}
    )
    module = tf.Module(name="tower")
    module.weights = list(tower.variables)
    module.tables = tables_of(tower.function)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tf.saved_model.save(module, str(directory), signatures={SIGNATURE: signature})
        renumber(directory)
    except (OSError, tf.errors.OpError) as problem:
        raise DestinationError(f"tower {spec.name!r} cannot be written to {directory}: {problem}") from problem


def _check(tower: TracedTower | TracedPart, directory: Path) -> None:
    """Looks at the written files: exactly the tower's dense weights, exactly its signature."""
    tf = load_tensorflow()
    reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
    stored = sorted(
        tuple(shape) for key, shape in reader.get_variable_to_shape_map().items() if not key.startswith("_CHECKPOINT")
    )
    expected = sorted(tuple(variable.shape.as_list()) for variable in tower.variables)
    if stored != expected:
        raise NotConvertible(
            f"SavedModel of tower {tower.spec.name!r} holds variables of shapes {stored}; {expected} were expected"
        )
    written = tf.saved_model.load(str(directory)).signatures[SIGNATURE]
    inputs = set(written.structured_input_signature[1])
    outputs = set(written.structured_outputs)
    if inputs != {tensor.name for tensor in tower.spec.inputs} or outputs != {t.name for t in tower.spec.outputs}:
        raise NotConvertible(
            f"SavedModel of tower {tower.spec.name!r} has inputs {sorted(inputs)} and outputs {sorted(outputs)}"
        )
