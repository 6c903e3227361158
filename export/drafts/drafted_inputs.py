"""The inputs of a draft: what the model states of them, what examples show, and how the code of
training pads lists. What is assumed has a comment or a question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from export.drafts.example_columns import ColumnInput
from export.drafts.observed_calls import ObservedCall
from export.drafts.training_padding import TrainedPadding
from export.recipe.schema import InputSection, VocabularyRule

Origin = Literal["model", "examples", "nothing", "training"]


@dataclass(frozen=True)
class DraftedInput:
    """An input of a draft.

    Attributes:
      section: Its section.
      origin: What shows the section.
      comment: What is assumed of it; "": nothing is.
      is_read: Whether a result of a call may be computed from it.
      ids: How its ids become rows; None: they are rows, or the model makes rows of them.
      key_question: What nothing shows of the rows of its ids; "": nothing is open.
    """

    section: InputSection
    origin: Origin
    comment: str = ""
    is_read: bool = True
    ids: VocabularyRule | None = None
    key_question: str = ""

    @property
    def question(self) -> str:
        """What the recipe asks about it; "": nothing."""
        questions = [self.key_question, self.section.question]
        return "; ".join(question for question in questions if question)

    def changed(self, **changes: Any) -> DraftedInput:
        """Returns the input with other values of keys of its section."""
        return replace(self, section=self.section.model_copy(update=changes))


def drafted_inputs(
    calls: Sequence[ObservedCall], columns: Mapping[str, ColumnInput]
) -> dict[str, DraftedInput]:
    """Returns the inputs of the calls.

    Args:
      calls: What was observed of the model's calls.
      columns: The inputs that examples show.
    """
    sections: dict[str, InputSection] = {}
    stated: dict[str, InputSection] = {}
    assumed: set[str] = set()
    ids: set[str] = set()
    read: set[str] = set()
    # What a call that runs takes of an input is more than a guess.
    for call in sorted(calls, key=lambda call: not call.problem):
        sections |= call.inputs
        stated |= call.stated
        assumed |= call.assumed
        ids |= call.results.ids
        read.update(*call.results.reads.values())
        if call.problem:
            # Of a call that could not be run, nothing is known.
            read.update(call.inputs)

    inputs = {}
    for name, section in sections.items():
        column = columns.get(name)
        is_read = name in read
        if name in assumed:
            comment = "dtype and shape of training? Nothing states them"
            drafted = DraftedInput(section, "nothing", comment, is_read)
            if section.shape not in {(), (1,)}:
                drafted = drafted.changed(question="how many values did lists have in training?")
        elif section == stated.get(name):
            drafted = DraftedInput(section, "model", "", is_read)
            drafted = _fitted(drafted, column)
        else:
            comment = assumptions(section, column)
            if column is not None and column.dtype == "int64" and name not in ids:
                # A column of floats may hold whole numbers by chance, and a request with another
                # one would be rejected.
                comment += (
                    "; " * bool(comment) + "whole numbers in the examples: float32 in training?"
                )
            drafted = DraftedInput(section, "examples", comment, is_read)
        inputs[name] = drafted
    return inputs


def _fitted(drafted: DraftedInput, column: ColumnInput | None) -> DraftedInput:
    """Returns an input that the model states, with what makes the lists of examples fit."""
    section = drafted.section
    if column is None or section.kind != "dense" or len(section.shape) != 1 or not column.lengths:
        return drafted
    (length,) = section.shape
    if min(column.lengths) < length:
        drafted = drafted.changed(pad=column.filler)
    if max(column.lengths) > length:
        drafted = drafted.changed(keep="last")
    if drafted.section == section:
        return drafted
    return replace(drafted, comment="what filled up or cut other lists in training?")


def assumptions(section: InputSection, column: ColumnInput | None) -> str:
    """Returns what is assumed of the kind and the shape of an input that examples show."""
    if section.kind != "dense":
        return f"lists as they are in training, too? {_if_padded(column)}"
    if section.pad is not None and column is not None and column.filling is not None:
        return (
            "the examples seem to be filled up to this length: as in training? keep states what it "
            "cut from longer lists, which are rejected without"
        )
    if section.pad is not None:
        return "length, and value that filled up shorter lists, in training?"
    if section.shape and column is not None and len(column.shapes) > 1:
        return "the largest of the examples: requests need this size"
    if column is not None and column.are_lists:
        return "all lists of the examples have this shape: those of training, too?"
    return ""


def _if_padded(column: ColumnInput | None) -> str:
    """Returns what to write instead of the kind of an input if training filled up its lists."""
    if column is None:
        return "Else write their shape and pad instead of kind"
    shape = list(column.padded.shape)
    return (
        f"If they were filled up, write shape = {shape}, pad = {json.dumps(column.filler)} instead "
        "of kind"
    )


def padded_as_in_training(
    inputs: Mapping[str, DraftedInput],
    columns: Mapping[str, ColumnInput],
    paddings: Mapping[str | None, TrainedPadding],
) -> dict[str, DraftedInput]:
    """Returns the inputs with lists padded as the code of training pads them.

    Args:
      inputs: The inputs.
      columns: The inputs that examples show.
      paddings: How the code pads lists, by the name of the input; by None where no name shows.
    """
    padded = dict(inputs)
    for name, drafted in inputs.items():
        padding = paddings.get(name)
        question = ""
        is_of_any_length = drafted.section.kind != "dense" or drafted.section.pad is not None
        if padding is None and is_of_any_length and None in paddings:
            padding = paddings[None]
            question = f"{padding.where} fills up lists: this one, too?"
        if padding is not None:
            padded[name] = _padded(drafted, columns.get(name), padding, question)
    return padded


def _padded(
    drafted: DraftedInput, column: ColumnInput | None, padding: TrainedPadding, question: str
) -> DraftedInput:
    """Returns an input with lists padded as the code of training pads them, if they can be."""
    section = drafted.section
    is_single = section.kind == "dense" and not section.shape and drafted.origin != "nothing"
    if is_single or len(section.shape) > 1:
        return drafted
    length = padding.length
    if drafted.origin == "model":
        # Kinds and lengths that a model states are right, whatever else the code pads.
        if section.kind != "dense" or length not in (None, *section.shape):
            return drafted
        (length,) = section.shape
    if length is None and column is not None and column.lengths:
        length = max(column.lengths)
        question = f"{padding.where} fills up lists to the longest: which length is meant?"
    if length is None:
        return drafted

    value = padding.value
    if value is None:
        value = "" if section.dtype == "string" else 0
    if section.dtype in {"int32", "int64"} and isinstance(value, float):
        value = int(value)
    padded_section = InputSection(
        dtype=section.dtype,
        shape=(length,),
        pad=value,
        pad_side=padding.side,
        keep=padding.keep,
        question=question,
    )
    comment = f"filled up as in {padding.where}"
    return replace(drafted, section=padded_section, origin="training", comment=comment)
