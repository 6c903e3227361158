"""Inputs that the recipe declares and no tower reads, such as the length of a list that the model
pads itself.

Clients that were written for the model send them, so the service accepts them, and ignores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from bundle.shown_values import shown_first
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob

_SHOWN = 5
"""Names that a note lists; a note is one line."""


def unread_inputs(model: ModelSpec, job: ExportJob) -> tuple[str, ...]:
    """Returns the names of inputs that no tower reads, in the order of the recipe.

    Weights are not among them: they are sent with their ids.
    """
    return tuple(
        name
        for name, section in job.inputs.items()
        if section.weights_for is None and name not in model.inputs
    )


def note_unread_inputs(names: Sequence[str], consequence: str) -> tuple[str, ...]:
    """Returns a note that names these inputs, if there are any.

    Args:
      names: The names of the inputs.
      consequence: What a service does with them, as the end of a sentence.
    """
    if not names:
        return ()
    listed = shown_first([*map(repr, names)], _SHOWN)
    return (f"no tower reads {listed}, which the recipe declares as inputs: {consequence}",)
