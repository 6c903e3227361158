"""Notes about inputs that a model casts to another kind of number than callers send."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from export.graphs.loading import tf
from export.graphs.walks import needed
from export.partition.graph.pruning import TracedCall
from export.user_lines import at_line, line_of_operation


def notes_on_dtypes(
    call: TracedCall, results: Sequence[Any], ids: Collection[str]
) -> Iterator[str]:
    """Yields a note about each number of a call that is cast to another kind wherever it is read.

    Args:
      call: The traced call, whose lookups have their placeholders.
      results: The outputs of its towers.
      ids: The inputs that lookups read, whatever else does.
    """
    operations = needed(results, call.activations.values()).operations
    for name, tensor in call.inputs.items():
        if name in ids or not isinstance(tensor, tf.Tensor) or not _is_number(tensor):
            continue
        readers = [
            operation
            for operation in operations
            if any(operand is tensor for operand in operation.inputs)
        ]
        casts = [operation for operation in readers if operation.type == "Cast"]
        # The model reads the number as it is, too: then the dtype is meant.
        if not casts or any(reader.type not in ("Cast", "Shape") for reader in readers):
            continue

        cast = casts[0].outputs[0]
        if not _is_number(cast) or cast.dtype.is_floating == tensor.dtype.is_floating:
            continue
        effect = "callers can send whole numbers only"
        if cast.dtype.is_integer:
            effect = "the fractions that callers send are cut off"
        yield (
            f"input {name!r} is {tensor.dtype.name} in the recipe, and the model reads it as "
            f"{cast.dtype.name}{at_line(line_of_operation(casts[0]))}: {effect}; if that is not "
            f'meant, write inputs.{name}.dtype = "{_written(cast.dtype)}"'
        )


def _is_number(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_integer)


def _written(dtype: Any) -> str:
    """Returns the dtype as a recipe can state it."""
    if dtype.is_floating:
        return "float32"
    if dtype.name == "int32":
        return "int32"
    return "int64"
