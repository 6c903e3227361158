"""The number of values that a dense input of a model has, and the recipe's rule for longer and
shorter lists.

The tensors of ragged and sparse inputs hold lists of any length: there the model itself cuts and
pads, as by `max_sequence_length`, and the features of a bundle do as it does.
"""

from __future__ import annotations

import math

from bundle.errors import FeatureError
from bundle.features.input_lengths import fitted_default
from bundle.format.manifest import InputLength
from export.errors import UsageError
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec
from export.recipe import schema


def input_lengths(model: ModelSpec, job: schema.ExportJob) -> dict[str, InputLength]:
    """Returns the number of values of each input that has a fixed number of them.

    An input of numbers alone, or of one value, is left out if the recipe does not pad or cut it:
    its features accept no other number of values.

    Raises:
      UsageError: What pads an input is no value of it, or the default of an input has another
        number of values.
    """
    lengths = {}
    for name in model.inputs:
        section = job.inputs.get(name)
        # Ragged and sparse inputs hold lists of any length: the model's own layer cuts them.
        if section is None or section.kind != "dense" or not section.shape:
            continue
        is_stated = section.pad is not None or section.keep is not None
        if not is_stated and not _is_listed(name, model):
            continue

        pad = section.pad
        if pad is None:
            pad = _padding(name, model, job)
        lengths[name] = InputLength(
            values=math.prod(section.shape),
            pad=pad,
            pad_side=section.pad_side,
            keep=section.keep,
        )
        _check_default(name, lengths[name], job)
    return lengths


def _is_listed(name: str, model: ModelSpec) -> bool:
    """Returns whether a feature reads several ids of each example."""
    embedded = [spec for spec in model.inputs[name] if isinstance(spec, FeatureSpec)]
    return any(not spec.entry.one_each or spec.entry.place is not None for spec in embedded)


def _padding(name: str, model: ModelSpec, job: schema.ExportJob) -> int | str | None:
    """Returns the id that every feature of an input leaves out, as feature columns do -1 and "";
    None: there is none, or the recipe makes rows of what clients send.
    """
    paddings = set()
    is_row_stated = job.features.get(name, schema.FeatureSection()).ids.kind != "identity"
    for spec in model.inputs[name]:
        # Lengths count the values that are left without padding, whatever the padding is.
        if isinstance(spec, DenseSpec) and spec.entry.take == "lengths":
            continue
        padding = None
        if isinstance(spec, FeatureSpec):
            # Where the recipe makes rows of ids, the model's padding is a row, not an id.
            is_row = is_row_stated and not spec.has_rule
            padding = None if is_row else spec.padding_of(name)
        paddings.add(padding)
    if len(paddings) != 1:
        return None
    return paddings.pop()


def _check_default(name: str, length: InputLength, job: schema.ExportJob) -> None:
    default = job.features.get(name, schema.FeatureSection()).default
    # A default is padded and cut as the lists that clients send are.
    try:
        fitted_default(name, length, default)
    except FeatureError as problem:
        raise UsageError(
            f"features.{name}.default: {problem.problem}; write a default of that length, or "
            f"what pads a shorter one as inputs.{name}.pad"
        ) from problem
