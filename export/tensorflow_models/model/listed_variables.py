"""Finds the variables of a model of Keras 3 in lists without names, by their positions.

Training loops in JAX have the variables of a model as two lists, in the order of
`model.trainable_variables` and `model.non_trainable_variables`, and RecML's trainers save these. A
model of the same code has its variables in the same order. Every position must have the shape and
the dtype of its variable. Where several have one shape, nothing in the checkpoint distinguishes
them (`exchangeable.py`).

Source: Keras 3.15, src/backend/jax/trainer.py (`_get_jax_state`); RecML,
core/utils/keras_utils.py (`KerasOrbaxCheckpointManager`), core/training/jax_trainer.py
(`KerasState`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from export.checkpoint.formats.orbax import find_keras_lists
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry, is_wider_integer
from export.errors import CheckpointError
from export.graphs.placeholders import line_of_variable
from export.tensorflow_models.model.object_paths import VariableLocation
from export.user_lines import at_line

_OTHER_CODE = (
    "The model code is not the one that was saved, or layers that the calls of the recipe do not "
    "use have made no variables: call the model once in the factory, as training does"
)


def holds_lists(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint has the variables of a model of Keras in lists."""
    return checkpoint.storage.kind == "Orbax" and bool(find_keras_lists(checkpoint.entries))


def find_listed_variables(
    root: Any, checkpoint: Checkpoint, object_path: str
) -> list[tuple[Any, VariableLocation]]:
    """Returns every variable of a model, as TensorFlow's, and its location.

    Args:
      root: A model of Keras 3.
      checkpoint: A checkpoint that holds lists.
      object_path: The path in front of the lists, with dots; "": there is one pair of lists.

    Raises:
      CheckpointError: The lists are those of another model, or there are several; names the first
        variable that differs.
    """
    trainable_path, non_trainable_path = _lists(checkpoint, object_path)
    locations: list[tuple[Any, VariableLocation]] = []
    for name, path, variables in (
        ("trainable_variables", trainable_path, root.trainable_variables),
        ("non_trainable_variables", non_trainable_path, root.non_trainable_variables),
    ):
        entries = list(_entries(checkpoint, path))
        if len(entries) != len(variables):
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} has {len(entries)} variables in its list "
                f"{path!r}, and {name} of the model are {len(variables)}. {_OTHER_CODE}"
            )
        for entry, variable in zip(entries, variables, strict=True):
            _check(checkpoint, entry, variable)
            locations.append((variable.value, VariableLocation(variable.path, entry.key)))
    return locations


def _lists(checkpoint: Checkpoint, object_path: str) -> tuple[str, str]:
    """Returns the paths of the two lists of a model's variables."""
    pairs = find_keras_lists(checkpoint.entries)
    choices = " or ".join(repr(path.removesuffix(".")) for path in sorted(pairs) if path)
    if object_path:
        pair = pairs.get(f"{object_path}.")
        if pair is None:
            remedy = "leave it out"
            if choices:
                remedy = f"write {choices}"
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} has no lists of variables at {object_path!r} "
                f"(checkpoint.object_path): {remedy}"
            )
        return pair
    # Lists have no names of variables, so nothing shows which pair is that of this model.
    if len(pairs) > 1:
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} has lists of variables in several places: write "
            f"checkpoint.object_path, {choices}"
        )
    return next(iter(pairs.values()))


def _entries(checkpoint: Checkpoint, path: str) -> Iterator[Entry]:
    """Yields the members of a list in their order."""
    number = 0
    while (entry := checkpoint.entries.get(f"{path}.{number}")) is not None:
        yield entry
        number += 1


def _check(checkpoint: Checkpoint, entry: Entry, variable: Any) -> None:
    """Checks that a position of a list has the shape and dtype of its variable."""
    dtype = variable.value.dtype.name
    # JAX has integers of 32 bits where TensorFlow has 64.
    same_dtype = entry.dtype == dtype or is_wider_integer(dtype, entry.dtype)
    if entry.shape == tuple(variable.shape) and (same_dtype or is_random_state(variable.path)):
        return
    raise CheckpointError(
        f"checkpoint {checkpoint.prefix} has {entry.dtype} {list(entry.shape)} at {entry.key}, and "
        f"variable {variable.path} of the model{at_line(line_of_variable(variable.value))} is "
        f"{dtype} {list(variable.shape)}. {_OTHER_CODE}"
    )


def is_random_state(path: str) -> bool:
    """Returns whether a path of a variable of Keras 3 is that of the state of a generator of random
    numbers, whose dtype the framework decides.
    """
    return path.endswith("seed_generator_state")
