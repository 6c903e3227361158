"""Writes each tower as a SavedModel for CPUs: activations and dense features in, named results out,
no table inside.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from export.errors import DestinationError
from export.front_end.interface import OriginalModel, TracedTower
from export.front_end.specs import SIGNATURE
from export.graphs.functions import tables_of
from export.graphs.loading import tf
from export.steps import content_of
from export.towers.parts import TracedPart

_NUMBERED = re.compile(
    r'"((?:[^"\n]*PartitionedCall-|__(?:inference|forward|backward)_[^"\n]*_))([0-9]+)(?=")'
)
"""Names of functions that end with a number."""
_CAPTURED = re.compile(r'(key: "_user_specified_name"\s+value \{\s+s: ")[0-9]+(?=")')
"""Names of captured tensors, which are addresses."""


def write_saved_model(
    tower: TracedTower | TracedPart, original: OriginalModel, directory: Path
) -> None:
    """Restores the dense weights of a tower, or of a part of one, from the checkpoint and writes
    it.

    Its signature `serving_default` takes the tensors of `tower.spec.inputs` and returns those of
    `tower.spec.outputs`, by their names, for any batch size.

    Args:
      tower: The traced tower.
      original: The model that it was traced from.
      directory: The directory to create; it must be missing or empty.
    Raises:
      CheckpointError: A weight is not in the checkpoint, or differs in shape or dtype.
      DestinationError: The directory cannot be written.
    """
    original.restore_weights(tower.variables)
    save_function(tower, directory)


def save_function(tower: TracedTower | TracedPart, directory: Path) -> None:
    """Writes a tower, or a part of one, with the weights that its variables hold.

    Raises:
      DestinationError: The directory cannot be written.
    """
    spec = tower.spec
    names = [tensor.name for tensor in spec.inputs]

    def serve(**inputs: Any) -> dict[str, Any]:
        results = tower.function(*(inputs[name] for name in names))
        return {tensor.name: tf.identity(results[tensor.name]) for tensor in spec.outputs}

    signature = tf.function(serve, autograph=False).get_concrete_function(
        **{
            tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name)
            for tensor in spec.inputs
        }
    )
    # A SavedModel holds the variables and tables that attributes of its object refer to.
    module = tf.Module(name="tower")
    module.weights = list(tower.variables)
    module.tables = tables_of(tower.function)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tf.saved_model.save(module, str(directory), signatures={SIGNATURE: signature})
    except (OSError, tf.errors.OpError) as problem:
        raise DestinationError(
            f"tower {spec.name!r} cannot be written to {directory}: {problem}"
        ) from problem


def content_of_saved_model(directory: Path) -> list[str]:
    """Returns digests of a SavedModel's content that are the same in a later run.

    TensorFlow numbers functions over the whole process, which has traced fewer in a resumed run,
    names captured tensors by their addresses, and writes a random number into `fingerprint.pb`.
    """
    # Here, TensorFlow is loaded already.
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    for graph in message.meta_graphs:
        # In the order of their numbers, which is the order of tracing.
        graph.graph_def.library.function.sort(
            key=lambda function: (_number_of(function.signature.name), function.signature.name)
        )
    text = _CAPTURED.sub(r"\1", str(message))
    numbers = sorted({int(match[2]) for match in _NUMBERED.finditer(text)})
    ranks = {number: rank for rank, number in enumerate(numbers)}
    text = _NUMBERED.sub(lambda match: f'"{match[1]}{ranks[int(match[2])]}', text)

    # The values of the variables, but not the messages that were compared above.
    paths = sorted(directory.rglob("*"))
    files = [path for path in paths if path.is_file() and path.suffix != ".pb"]
    return [hashlib.sha256(text.encode()).hexdigest(), *content_of(files)]


def _number_of(name: str) -> int:
    """Returns the number at the end of a function's name; 0 without one."""
    match = re.search(r"[0-9]+$", name)
    if match is None:
        return 0
    return int(match[0])
