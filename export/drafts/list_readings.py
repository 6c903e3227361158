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
from export.bounds import ANOTHER_ORDER, largest_at
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

Inputs = Mapping[str, DraftedInput]
Run = Callable[[Inputs], Results | None]
"""(inputs of a draft) -> the outputs of the original model on the examples; None: it does not take
them so.
"""


def with_questions(
    inputs: Inputs, columns: Mapping[str, ColumnInput], run: Run
) -> dict[str, DraftedInput]:
    """Returns the inputs of a draft with a question at each whose lists can be read in several ways
    that give different outputs.

    Args:
      inputs: The inputs of a draft that can be planned.
      columns: The inputs that examples show.
      run: Runs the original model.
    """
    open_names = [name for name in inputs if _is_open(inputs[name], columns.get(name))]
    drafted = dict(inputs)
    if not open_names:
        return drafted
    results = run(drafted)
    if results is None:
        # A call may be traced with lists that it cannot compute.
        for name in open_names:
            drafted[name] = _as_array(inputs[name], columns[name]) or inputs[name]
        results = run(drafted)
    if results is None:
        # The model does not run on these examples, so that nothing shows which reading is right.
        return with_open_questions(inputs, columns)

    questioned = dict(drafted)
    for reading in _READINGS:
        alternatives = {}
        for name in open_names:
            alternative = reading.read(drafted[name], columns[name])
            if alternative is not None and not questioned[name].section.question:
                alternatives[name] = alternative
        for name, difference in _differences(drafted, alternatives, results, run).items():
            drafted_words = "as they are"
            if drafted[name].section.kind == "dense":
                drafted_words = reading.drafted_words.format(drafted[name].section)
            other_words = reading.other_words.format(alternatives[name].section)
            question = (
                f"how did training fill up and cut lists? {other_words}, {difference.location} "
                f"{difference.alternative}; {drafted_words}, {difference.drafted}"
            )
            questioned[name] = drafted[name].changed(question=question)
    return questioned


def with_open_questions(
    inputs: Inputs, columns: Mapping[str, ColumnInput]
) -> dict[str, DraftedInput]:
    """Returns the inputs of a draft that cannot be run, with a question at each whose lists can be
    read in several ways.
    """
    questioned = dict(inputs)
    for name, drafted in inputs.items():
        if _is_open(drafted, columns.get(name)):
            questioned[name] = drafted.changed(question="how did training fill up and cut lists?")
    return questioned


def _differences(
    inputs: Inputs, alternatives: Inputs, results: Results, run: Run
) -> dict[str, _Difference]:
    """Returns how outputs differ if inputs are read otherwise, by the inputs that matter.

    Args:
      inputs: The inputs of the draft.
      alternatives: Some of them, as they are read otherwise.
      results: The outputs of the draft.
      run: Runs the original model.
    """
    if not alternatives:
        return {}
    # Together first: most models give the same for all, and some take lists of one kind alone.
    results_of_all = run({**inputs, **alternatives})
    difference_of_all = None
    if results_of_all is not None:
        difference_of_all = _difference(results, results_of_all)
        if difference_of_all is None:
            return {}
    differences = {}
    for name, alternative in alternatives.items():
        difference = difference_of_all
        if len(alternatives) > 1:
            results_of_one = run({**inputs, name: alternative})
            if results_of_one is not None:
                difference = _difference(results, results_of_one)
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
      other_words, drafted_words: What a question says of the section that is read so, and of the
        one of the draft.
    """

    read: Callable[[DraftedInput, ColumnInput], DraftedInput | None]
    other_words: str
    drafted_words: str


_READINGS = (
    _Reading(_as_array, "Filled up with {0.pad!r} to {0.shape[0]} values", ""),
    _Reading(_from_other_side, "Filled up at the {0.pad_side}", "at the {0.pad_side}"),
    _Reading(_longer, "Filled up to {0.shape[0]} values", "to {0.shape[0]}"),
    _Reading(_cut_otherwise, "With the {0.keep} of longer lists", "with the {0.keep}"),
)


def results_on_examples(job: ExportJob, base: Path) -> Results | None:
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

    location: str
    drafted: str
    alternative: str


def _difference(drafted: Results, alternative: Results) -> _Difference | None:
    """Returns how two results differ by more than rounding; None: they do not."""
    for tower, outputs in drafted.items():
        for output, values in outputs.items():
            other_values = alternative[tower][output]
            if values.shape != other_values.shape:
                shapes = str([*values.shape[1:]]), str([*other_values.shape[1:]])
                return _Difference(f"output {output!r} has the shape", *shapes)
            difference, position = largest_at(other_values, values)
            if difference > ANOTHER_ORDER * np.abs(values).max(initial=0.0):
                largest = np.unravel_index(position, values.shape)
                numbers = f"{values[largest]:.3g}", f"{other_values[largest]:.3g}"
                example = int(largest[0]) + 1
                return _Difference(f"output {output!r} of example {example} is", *numbers)
    return None
