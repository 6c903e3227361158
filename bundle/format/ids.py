"""Manifest entries: how ids become rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bundle.format.fields import Count, Length, Name, Positive, StrictModel
from bundle.format.id_graphs import GraphIds
from bundle.format.input_lengths import InputLength

Role = Literal["context", "candidate"]

CROSS_KEY = 0xDECAFCAFFE
"""The `hash_key` that TensorFlow's crossed columns take by default."""


class CrossKey(StrictModel):
    """One of the inputs of a cross."""

    dtype: Literal["int64", "string", "float32"]
    """The type of the values that callers send."""
    role: Role = "context"
    """The role of the input. The feature belongs to the candidate as soon as one input does."""
    default: Any = None
    """The default of the input, like a feature's `default`."""
    input_length: InputLength | None = None
    """The length of the input, like a feature's `input_length`."""
    ids: GraphIds | None = None
    """The graph that computes the integer or the text that is crossed from each value; None: The
    value itself is crossed.
    """
    padding: int | str | None = None
    """The id that is left out, like a feature's `padding`."""

    @model_validator(mode="after")
    def _values_taken(self) -> CrossKey:
        if self.ids is not None and sent_dtype(self.ids.dtype) not in (
            self.dtype,
            "int64_or_string",
        ):
            raise ValueError(f"'dtype' is {self.dtype}, and 'ids' take {self.ids.dtype}")
        return self


class MultiInputIds(StrictModel):
    """Rows that are computed from one value of each of several inputs together."""

    kind: str
    keys: tuple[CrossKey, ...]
    """One for each of the feature's `inputs`, in their order."""


def sent_dtype(dtype: str) -> str:
    """Returns the type that callers send for an input whose operations take `dtype`."""
    # Requests have one type of integers.
    if dtype == "int32":
        return "int64"
    return dtype


class CrossedIds(MultiInputIds):
    """Row = hash of one value of each input together, as TensorFlow's crossed columns do, mod
    `buckets`.

    An example with several values of an input has a row for every combination.
    """

    kind: Literal["crossed"] = "crossed"
    buckets: Positive
    hash_key: Count = CROSS_KEY

    @model_validator(mode="after")
    def _values_crossed(self) -> CrossedIds:
        for key in self.keys:
            if key.ids is None and key.dtype == "float32":
                raise ValueError("numbers are crossed as the integers that 'ids' makes of them")
            if key.ids is not None and len(key.ids.inputs) != 1:
                raise ValueError("a key's 'ids' have one input")
        return self


class JoinedIds(MultiInputIds):
    """Rows that a graph computes from one value of each input together."""

    kind: Literal["joined"] = "joined"
    ids: GraphIds

    @model_validator(mode="after")
    def _inputs_taken(self) -> JoinedIds:
        if not self.keys or len(self.ids.inputs) != len(self.keys):
            raise ValueError("'ids' have an input for each of one or more 'keys'")
        if any(key.ids is not None or key.padding is not None for key in self.keys):
            raise ValueError("keys of joined ids have neither 'ids' nor 'padding'")
        for key, node in zip(self.keys, self.ids.inputs, strict=True):
            if key.dtype != sent_dtype(node.dtype):
                raise ValueError(f"'dtype' is {key.dtype}, and 'ids' take {node.dtype}")
        return self


class TextIds(StrictModel):
    """Rows of the words of one text: it is split, and `ids` makes a row of each word."""

    kind: Literal["text"] = "text"
    text: GraphIds | None = None
    """The graph that computes the text to split, such as its lower case; None: The text as sent."""
    split: Literal["whitespace", "characters", "separator"]
    """The rule of the split: at runs of ASCII whitespace, into Unicode characters, or at each
    `separator`.
    """
    separator: str | None = None
    """The separator, such as "|", around which there may be empty words; None: of other splits."""
    ngrams: tuple[Positive, ...] = ()
    """The numbers of consecutive words that are joined, with a space between them, into the ngrams
    that are taken instead of words. All ngrams of the first number come first.
    """
    length: Length | None = None
    """The maximum number of words, or ngrams, that are taken of a text."""
    padding: str | None = None
    """The word that texts of fewer words are filled up with to `length`; None: They stay short."""
    ids: GraphIds

    @model_validator(mode="after")
    def _check_separator_and_padding(self) -> TextIds:
        if (self.split == "separator") != bool(self.separator):
            raise ValueError("'separator' belongs to the split 'separator', and is not empty")
        if self.padding is not None and self.length is None:
            raise ValueError("'padding' needs a 'length'")
        return self


class KeyedIds(StrictModel):
    """Rows that a key index of the bundle (`keys`) holds for int64 ids: tables of dynamic keys."""

    kind: Literal["keyed"] = "keyed"
    keys: Name


IdRule = Annotated[
    GraphIds | CrossedIds | JoinedIds | TextIds | KeyedIds,
    Field(discriminator="kind"),
]


def graphs_of(rule: IdRule) -> tuple[GraphIds, ...]:
    """Returns the graphs that a rule consists of: in the order of their computation."""
    graphs = []
    if isinstance(rule, GraphIds):
        graphs.append(rule)
    if isinstance(rule, MultiInputIds):
        graphs += [key.ids for key in rule.keys if key.ids is not None]
    if isinstance(rule, TextIds) and rule.text is not None:
        graphs.append(rule.text)
    if isinstance(rule, JoinedIds | TextIds):
        graphs.append(rule.ids)
    return tuple(graphs)
