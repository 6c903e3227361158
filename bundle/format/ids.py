"""Manifest entries: how ids become rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bundle.format.fields import Length, Name, Positive, StrictModel
from bundle.format.id_graphs import GraphIds


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
    GraphIds | TextIds | KeyedIds,
    Field(discriminator="kind"),
]


def graphs_of(rule: IdRule) -> tuple[GraphIds, ...]:
    """Returns the graphs that a rule consists of: in the order of their computation."""
    graphs = []
    if isinstance(rule, GraphIds):
        graphs.append(rule)
    if isinstance(rule, TextIds) and rule.text is not None:
        graphs.append(rule.text)
    if isinstance(rule, TextIds):
        graphs.append(rule.ids)
    return tuple(graphs)
