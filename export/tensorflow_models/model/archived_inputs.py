"""The order of a model's inputs in files that record it: what Keras saves with a model describes
the dict that the model was built with.

Source: Keras 3.15, src/layers/layer.py, `get_build_config`; tf-keras 2.20,
src/saving/legacy/saved_model/layer_serialization.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from export.checkpoint.reader import Checkpoint
from export.front_end.calls import call_of
from export.recipe.schema import ExportJob


def with_archived_orders(
    job: ExportJob, checkpoint: Checkpoint
) -> tuple[ExportJob, tuple[str, ...]]:
    """Returns a recipe whose towers list their inputs in the order that the checkpoint records, and
    notes on those that list them in another one.

    Args:
      job: The recipe.
      checkpoint: Its checkpoint. Few record an order.
    """
    towers = dict(job.towers)
    notes = []
    for name, section in job.towers.items():
        inputs = call_of(name, job).inputs
        shapes = _shapes(checkpoint, job.checkpoint.object_path, section.call)
        order = tuple(_names(shapes, inputs))
        if section.arguments is not None or set(order) != set(inputs):
            continue
        if section.inputs not in ((), order):
            notes.append(
                f"towers.{name}.inputs lists {', '.join(section.inputs)}, and checkpoint "
                f"{checkpoint.name} records that the model was built with a dict of "
                f"{', '.join(order)}: a call that iterates over its inputs gets them in this order"
            )
        towers[name] = section.model_copy(update={"inputs": order})
    return job.model_copy(update={"towers": towers}), tuple(notes)


def _shapes(checkpoint: Checkpoint, object_path: str, call: str) -> Any:
    """Returns the shapes of the inputs that an object was built with; None: not recorded."""
    path = ".".join(step for step in (object_path.replace("/", "."), call) if step)
    storage = checkpoint.storage
    saved_layer = storage.layers.get(path, {})
    if "build_input_shape" in saved_layer:
        return saved_layer["build_input_shape"]
    build_config = storage.model.get("build_config")
    if path or not isinstance(build_config, Mapping):
        return None
    return build_config.get("input_shape")


def _names(shapes: Any, inputs: Collection[str], prefix: str = "") -> Iterator[str]:
    """Yields the inputs in a dict of shapes, in its order; a dot is a level of the dict."""
    if not isinstance(shapes, Mapping):
        return
    for key, shape in shapes.items():
        name = f"{prefix}{key}"
        if name in inputs:
            yield name
        else:
            yield from _names(shape, inputs, f"{name}.")
