"""Inputs that the recipe declares and no tower reads, such as the length of a list that the model
pads itself.

Clients that were written for the model send them, so the service takes them, and ignores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob

_SHOWN = 5


def unread_inputs(model: ModelSpec, job: ExportJob) -> tuple[str, ...]:
    """Returns the names of such inputs, in the order of the recipe. Weights are none of them: they
    are sent with their ids.
    """
    return tuple(
        name
        for name, part in job.inputs.items()
        if part.weights_for is None and name not in model.inputs
    )


def note_unread_inputs(names: Sequence[str], consequence: str) -> tuple[str, ...]:
    """Returns a note that names these inputs, if there are any.

    Args:
      names: of the inputs.
      consequence: what becomes of them in a request, as the end of a sentence.
    """
    if not names:
        return ()
    listed = ", ".join(repr(name) for name in names[:_SHOWN])
    if len(names) > _SHOWN:
        listed += f" and {len(names) - _SHOWN} more"
    return (f"no tower reads {listed}, which the recipe declares as inputs: {consequence}",)
