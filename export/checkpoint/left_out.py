"""Variables of the checkpoint that belong to an object of the model and that its code lacks.

A layer without its bias, or an embedding without its LoRA matrices, computes other values although
everything that the code reads is there. Objects that the code lacks as a whole, such as another
tower, may be left out on purpose. An object is whatever holds variables: a layer, a scope, a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from bundle.shown_values import shown_first
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError

_SHOWN_MAX = 5
"""The maximum number of variables that a message lists."""


def listed_shapes(checkpoint: Checkpoint, keys: Mapping[str, str]) -> str:
    """Returns variables with their shapes, for a message.

    Args:
      checkpoint: The checkpoint that holds the variables.
      keys: Keys of the variables by the names that a user knows, such as attribute paths.
    """
    texts = [f"{path} {list(checkpoint.entries[key].shape)}" for path, key in keys.items()]
    return shown_first(texts, _SHOWN_MAX)


def left_out_siblings(
    read: Collection[str], unread: Collection[str], object_of: Callable[[str], str]
) -> dict[str, str]:
    """Returns the unread keys of objects of which other variables are read: each key by itself, as
    `reject_left_out` takes them.

    Args:
      read: Keys of the model's variables.
      unread: Further keys of the checkpoint.
      object_of: Returns the object that holds a variable by the variable's key; "" if none does.
    """
    # "" holds nothing together: two variables without an object are no siblings.
    objects = {object_of(key) for key in read} - {""}
    return {key: key for key in sorted(unread) if object_of(key) in objects}


def reject_left_out(checkpoint: Checkpoint, keys: Mapping[str, str]) -> None:
    """Rejects variables that the code of the model's objects lacks.

    Args:
      checkpoint: The checkpoint that holds the variables.
      keys: Keys of the variables by the names that a user knows, such as attribute paths.

    Raises:
      CheckpointError: There is such a variable.
    """
    if not keys:
        return
    raise CheckpointError(
        f"checkpoint {checkpoint.prefix} also holds {listed_shapes(checkpoint, keys)}, which the "
        "model code lacks, though it creates other variables of the same object: it would not "
        "compute what was trained. Create the object as in training, with all of its variables"
    )
