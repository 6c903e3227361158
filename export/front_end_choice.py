"""Chooses the front end of a recipe: the one module that knows which front ends there are."""

from __future__ import annotations

from export.front_end.interface import FrontEnd
from export.recipe.schema import ExportJob


def front_end_of(_job: ExportJob) -> FrontEnd:
    """Returns the front end that understands a recipe's model: today every one is of TensorFlow."""
    from export.tensorflow_models.front_end import TensorFlowFrontEnd

    return TensorFlowFrontEnd()
