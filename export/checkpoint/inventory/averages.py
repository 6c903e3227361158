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
      CheckpointError: an average belongs to no one variable, or a variable has two; names it.
    """
    slots = Findings(checkpoint)
    if checkpoint.graph is not None:
        find_slots(slots, checkpoint.graph)
    found: dict[str, str] = {}
    for slot in slots.slots.values():
        if slot.name not in AVERAGE_SLOTS:
            continue
        of = checkpoint.entries.get(slot.of)
        average = checkpoint.entries[slot.key]
        if of is None or (of.dtype, of.shape) != (average.dtype, average.shape):
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: the moving average {slot.key!r} is not tied to one "
                "variable of its "
                "shape and dtype; give every layer its own name, or call the optimizer's "
                "finalize_variable_values(model.trainable_variables) before the model is saved, "
                "and leave checkpoint.averages out"
            )
        if found.setdefault(slot.of, slot.key) != slot.key:
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: {slot.of!r} has two moving averages, "
                f"{found[slot.of]!r} and {slot.key!r}; save the model with one optimizer"
            )
    return found
