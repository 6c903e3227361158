"""Asks how training gave lists to the model, where that makes a difference: runs the original model
on the examples as a draft reads them, and as training may have read them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bundle.errors import BundleError
from export.drafts.drafted_inputs import DraftedInput, assumptions
from export.drafts.example_columns import ColumnInput
from export.errors import ExportError
from export.front_end.interface import Results
from export.jobs.preparation import trace_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from export.verify.original_results import original_results

EXAMPLES_COMPARED = 64
"""The number of examples on which the model is run."""
_TOLERANCE = 1e-4
"""The difference, as a share of the largest number of an output, that rounding does not explain."""

Inputs = Mapping[str, DraftedInput]
MakeJob = Callable[[Inputs], ExportJob]
"""(inputs of a draft) -> its recipe."""


def with_questions(
    inputs: Inputs, columns: Mapping[str, ColumnInput], make_job: MakeJob, base: Path
) -> dict[str, DraftedInput]:
    """Returns the inputs of a draft with a question at each whose lists can be read in several ways
    that give different outputs.

    Args:
      inputs: The inputs of a draft that can be planned.
      columns: The inputs that examples show.
      make_job: Returns the recipe of a draft.
      base: The folder of the recipe.
    """
    open_names = [name for name in inputs if _is_open(inputs[name], columns.get(name))]
    asked = dict(inputs)
    if not open_names:
        return asked
    results = _results(make_job(inputs), base)
    if results is None:
        # A call may be traced with lists that it cannot compute.
        arrays = {name: _as_array(inputs[name], columns[name]) for name in open_names}
        asked |= {name: array for name, array in arrays.items() if array is not None}
        results = _results(make_job(asked), base)
    if results is None:
        # The model does not run on these examples, so that nothing shows which reading is right.
        return with_open_questions(inputs, columns)
    inputs = dict(asked)
    for reading in _READINGS:
        unasked = [name for name in open_names if not asked[name].section.question]
        read = {name: reading.read(inputs[name], columns[name]) for name in unasked}
        others = {name: other for name, other in read.items() if other is not None}
        for name, difference in _differences(inputs, others, results, make_job, base).items():
            words = reading.words[0].format(others[name].section)
            own_words = "as they are"
            if inputs[name].section.kind == "dense":
                own_words = reading.words[1].format(inputs[name].section)
            question = (
                f"how did training fill up and cut lists? {words.capitalize()}, "
                f"{difference.where} {difference.other}; {own_words}, {difference.drafted}"
            )
            asked[name] = inputs[name].changed(question=question)
    return asked


def with_open_questions(
    inputs: Inputs, columns: Mapping[str, ColumnInput]
) -> dict[str, DraftedInput]:
    """Returns the inputs of a draft that cannot be run, with a question at each whose lists can be
    read in several ways.
    """
    asked = dict(inputs)
    for name, drafted in inputs.items():
        if _is_open(drafted, columns.get(name)):
            asked[name] = drafted.changed(question="how did training fill up and cut lists?")
    return asked


def _differences(
    inputs: Inputs, others: Inputs, results: Results, make_job: MakeJob, base: Path
) -> dict[str, _Difference]:
    """Returns how outputs differ if inputs are read otherwise, by the inputs that matter.

    Args:
      inputs: The inputs of the draft.
      others: Some of them, as they are read otherwise.
      results: The outputs of the draft.
      make_job, base: See `with_questions`.
    """
    if not others:
        return {}
    # Together first: most models give the same for all, and some take lists of one kind alone.
    together = _results(make_job({**inputs, **others}), base)
    common: _Difference | None = None
    if together is not None:
        common = _difference(results, together)
        if common is None:
            return {}
    differences = {}
    for name, other in others.items():
        difference = common
        if len(others) > 1:
            alone = _results(make_job({**inputs, name: other}), base)
            if alone is not None:
                difference = _difference(results, alone)
        if difference is not None:
            differences[name] = difference
    return differences


def _is_open(drafted: DraftedInput, column: ColumnInput | None) -> bool:
    """Returns whether the reading of an input is a guess, and its lists are not of one length."""
    section = drafted.section
    if column is None or len(column.lengths) < 2 or not drafted.is_read or section.question:
        return False
    if drafted.origin == "training":
        return False
    if drafted.origin == "model" and section.kind != "dense":
        # The model itself takes lists of any length.
        return False
    return section.kind != "dense" or section.pad is not None or section.keep is not None


def _as_array(drafted: DraftedInput, column: ColumnInput) -> DraftedInput | None:
    """Returns a list of any length as one that is filled up."""
    padded = column.padded
    if drafted.section.kind == "dense" or drafted.origin == "model" or padded.pad is None:
        return None
    comment = assumptions(padded, column)
    return replace(
        drafted.changed(kind="dense", shape=padded.shape, pad=padded.pad), comment=comment
    )


def _from_other_side(drafted: DraftedInput, column: ColumnInput) -> DraftedInput | None:
    filled = _as_array(drafted, column) or drafted
    if filled.section.pad is None:
        return None
    side = "end" if filled.section.pad_side == "start" else "start"
    return filled.changed(pad_side=side)


def _longer(drafted: DraftedInput, column: ColumnInput) -> DraftedInput | None:
    filled = _as_array(drafted, column) or drafted
    if filled.section.pad is None or drafted.origin == "model":
        return None
    (length,) = filled.section.shape
    return filled.changed(shape=(length + math.ceil(length / 2),))


def _cut_otherwise(drafted: DraftedInput, _: ColumnInput) -> DraftedInput | None:
    if drafted.section.keep is None:
        return None
    keep = "first" if drafted.section.keep == "last" else "last"
    return drafted.changed(keep=keep)


class _Reading(NamedTuple):
    """Another way to read an input.

    Attributes:
      read: Returns the input as it is read so; None: it cannot be.
      words: The words for a section that is read so, and for the one of the draft.
    """

    read: Callable[[DraftedInput, ColumnInput], DraftedInput | None]
    words: tuple[str, str]


_READINGS = (
    _Reading(_as_array, ("filled up with {0.pad!r} to {0.shape[0]} values", "")),
    _Reading(_from_other_side, ("filled up at the {0.pad_side}", "at the {0.pad_side}")),
    _Reading(_longer, ("filled up to {0.shape[0]} values", "to {0.shape[0]}")),
    _Reading(_cut_otherwise, ("with the {0.keep} of longer lists", "with the {0.keep}")),
)


def _results(job: ExportJob, base: Path) -> Results | None:
    """Returns the outputs of the original model on the examples of a recipe; None: it does not take
    them.
    """
    verify = job.verify.model_copy(update={"count": EXAMPLES_COMPARED})
    job = job.model_copy(update={"verify": verify})
    try:
        with warnings.catch_warnings():
            # Most readings are only tried; the export itself shows the warnings of the right one.
            warnings.simplefilter("ignore")
            opened = trace_job(job, base, ExportSettings(), None, Progress())
            with original_results(
                opened.job, base, opened.checkpoint, opened.inventory, opened.traced, opened.entries
            ) as (_, results):
                return results
    except (ExportError, BundleError):
        return None


class _Difference(NamedTuple):
    """Where two results differ, and the values there in words."""

    where: str
    drafted: str
    other: str


def _difference(drafted: Results, other: Results) -> _Difference | None:
    """Returns how two results differ by more than rounding; None: they do not."""
    for tower, outputs in drafted.items():
        for output, values in outputs.items():
            other_values = other[tower][output]
            if values.shape != other_values.shape:
                shapes = str([*values.shape[1:]]), str([*other_values.shape[1:]])
                return _Difference(f"output {output!r} has the shape", *shapes)
            if not values.size:
                continue
            differences = np.abs(values - other_values)
            largest = np.unravel_index(int(differences.argmax()), differences.shape)
            if differences[largest] > _TOLERANCE * np.abs(values).max():
                numbers = f"{values[largest]:.3g}", f"{other_values[largest]:.3g}"
                example = int(largest[0]) + 1
                return _Difference(f"output {output!r} of example {example} is", *numbers)
    return None
