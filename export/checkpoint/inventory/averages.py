"""Moving averages that optimizers keep of variables, where the object graph ties them to each
other; never by guessing.

They are slot variables: of TensorFlow Addons' wrapper (`average`), of tf-keras
(`[<optimizer>/]average/<variable>`) and of Keras 3 (a list in the order of the variables that are
trained).
"""

from __future__ import annotations

from export.checkpoint.inventory.findings import Findings
from export.checkpoint.inventory.optimizer_state import AVERAGE_SLOTS, find_slots
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError


def find_averages(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the key of the moving average of each variable that has one, by the variable's key.

    Raises:
      CheckpointError: An average belongs to no single variable, or a variable has two averages; the
        error names it.
    """
    slots = Findings(checkpoint)
    if checkpoint.graph is not None:
        find_slots(slots, checkpoint.graph)
    average_keys: dict[str, str] = {}
    for slot in slots.slots.values():
        if slot.name not in AVERAGE_SLOTS:
            continue
        variable = checkpoint.entries.get(slot.trained_key)
        # An optimizer whose variables have ambiguous names has averages without a variable.
        average = checkpoint.entries[slot.key]
        if variable is None or (variable.dtype, variable.shape) != (average.dtype, average.shape):
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: the moving average {slot.key!r} is not tied to one "
                "variable of its shape and dtype; give every layer its own name, or call the "
                "optimizer's finalize_variable_values(model.trainable_variables) before the model "
                "is saved, and leave checkpoint.averages out"
            )
        if average_keys.setdefault(slot.trained_key, slot.key) != slot.key:
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: {slot.trained_key!r} has two moving averages, "
                f"{average_keys[slot.trained_key]!r} and {slot.key!r}; save the model with one "
                "optimizer"
            )
    return average_keys
