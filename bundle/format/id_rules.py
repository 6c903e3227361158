"""Manifest entries: how ids become rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from bundle.format.fields import Boundaries, Count, Int64, Length, Name, Positive, StrictModel
from bundle.format.id_graphs import (
    OPERATIONS_MAX,
    ConstantNode,
    InputNode,
    OperationNode,
    check_order,
    kind_of_node,
)
from bundle.format.input_lengths import InputLength

Role = Literal["context", "candidate"]

CROSS_KEY = 0xDECAFCAFFE
"""The `hash_key` that TensorFlow's crossed columns take by default."""


class IdentityIds(StrictModel):
    """The id is the row."""

    kind: Literal["identity"] = "identity"


class IdOperation(StrictModel):
    """One operation on integers of 64 bits, which wrap around."""

    do: Literal[
        "add",
        "multiply",
        "divide",
        "remainder",
        "truncated_remainder",
        "at_least",
        "at_most",
        "absolute",
        "int32",
    ]
    """divide: rounded down. remainder: never negative; truncated_remainder: as in C. int32: wraps
    around at 32 bits.
    """
    by: Int64 | None = None

    @model_validator(mode="after")
    def _by_given(self) -> IdOperation:
        if (self.by is None) != (self.do in ("absolute", "int32")):
            raise ValueError(
                f"'by' is given with every operation but absolute and int32; this is {self.do!r}"
            )
        if (
            self.by is not None
            and self.by <= 0
            and self.do in ("divide", "remainder", "truncated_remainder")
        ):
            raise ValueError(f"{self.do!r} is by a positive number, not {self.by}")
        return self


class ComputedIds(StrictModel):
    """Row = what some operations make of the id, one after the other."""

    kind: Literal["computed"] = "computed"
    operations: Annotated[tuple[IdOperation, ...], Field(min_length=1, max_length=64)]


class HashIds(StrictModel):
    """Row = `first_row` + hash(decimal string of an integer, or the string itself) mod `buckets`.

    The hash is FarmHash Fingerprint64, or with a `key` SipHash-2-4.
    """

    kind: Literal["hash"] = "hash"
    buckets: Positive
    first_row: Count = 0
    key: tuple[Int64, Int64] | None = None
    mask: int | str | None = None
    """The id that is row 0 instead, as the `mask_value` of a Keras Hashing layer."""


class VocabularyIds(StrictModel):
    """Row = `first_row` + position of the id in the named vocabulary; what is not in it may be
    hashed to other rows.
    """

    kind: Literal["vocabulary"] = "vocabulary"
    vocabulary: Name
    first_row: Count = 0
    oov_buckets: Count = 0
    """Rows for ids that the vocabulary does not hold: `oov_first_row` + their hash mod
    `oov_buckets`.
    """
    oov_first_row: Count = 0
    oov_hash: Literal["fingerprint", "modulo"] = "fingerprint"
    """fingerprint: as HashIds. modulo: an integer is its own hash, as Keras' lookup layers have it.
    """
    mask: int | str | None = None
    """The id that is row 0 whatever the vocabulary says, as a Keras lookup layer's `mask_token`."""


class BucketIds(StrictModel):
    """Row = `first_row` + number of `boundaries` that are <= the (float) value, or that are above
    it.
    """

    kind: Literal["buckets"] = "buckets"
    boundaries: Boundaries
    first_row: Annotated[int, Field(ge=-1, lt=1 << 62, strict=True)] = 0
    """-1: numbers below all boundaries are unknown."""
    falling: bool = False
    """Whether boundaries above the value are counted: rows fall as it rises."""


Node = Annotated[
    Annotated[InputNode, Tag("Input")]
    | Annotated[ConstantNode, Tag("Const")]
    | Annotated[OperationNode, Tag("operation")],
    Discriminator(kind_of_node),
]


class GraphIds(StrictModel):
    """Row = what the model's own operations compute of the id: the result of the last node."""

    kind: Literal["graph"] = "graph"
    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=OPERATIONS_MAX)]
    """In an order in which they can be computed; one of them is the input."""
    vocabularies: tuple[VocabularyIds, ...] = ()
    """That the operations look keys up in. A key's value is its position, from `first_row` on."""

    @property
    def dtype(self) -> str:
        """What callers send: int32, int64, float32 or string."""
        (dtype,) = {node.dtype for node in self.nodes if isinstance(node, InputNode)}
        return dtype

    @model_validator(mode="after")
    def _in_order(self) -> GraphIds:
        check_order(self.nodes)
        inputs = [node for node in self.nodes if isinstance(node, InputNode)]
        if len(inputs) != 1:
            raise ValueError(f"a graph has one input, not {len(inputs)}")
        if any(each.oov_buckets or each.mask is not None for each in self.vocabularies):
            raise ValueError("a graph's vocabularies have neither 'oov_buckets' nor 'mask'")
        return self


class ChainedIds(StrictModel):
    """Row = what rules make of the id, one after another; each takes the integer that the one
    before it made.

    That is -1 of what a vocabulary lacks, and may lie outside of any table.
    """

    kind: Literal["chained"] = "chained"
    rules: Annotated[
        tuple[
            Annotated[
                ComputedIds | HashIds | VocabularyIds | BucketIds | GraphIds,
                Field(discriminator="kind"),
            ],
            ...,
        ],
        Field(min_length=2, max_length=16),
    ]


class TextStep(StrictModel):
    """One change of a text, on its UTF-8 bytes."""

    do: Literal["lower", "upper", "strip", "replace_any", "replace"]
    """lower, upper: ASCII letters. strip: ASCII whitespace at both ends. replace_any: each of the
    ASCII characters of `what`. replace: wherever `what` stands, from the left."""
    what: str = ""
    by: str = ""

    @model_validator(mode="after")
    def _what_given(self) -> TextStep:
        if bool(self.what) != self.do.startswith("replace") or (self.by and not self.what):
            raise ValueError(
                f"'what' is given with what replaces, and 'by' only then; this is {self.do!r}"
            )
        if self.do == "replace_any" and not self.what.isascii():
            raise ValueError(f"'replace_any' replaces ASCII characters, not {self.what!r}")
        return self


class CrossKey(StrictModel):
    """One of the inputs of a cross."""

    dtype: Literal["int64", "string", "float32"]
    """Of what is sent; float32 where `ids` are buckets, or begin with them."""
    role: Role = "context"
    """Of the input. The feature itself is the candidate's as soon as one of its inputs is."""
    default: Any = None
    """Of the input, as a feature's `default`."""
    input_length: InputLength | None = None
    """Of the input, as a feature's `input_length`."""
    ids: (
        Annotated[
            IdentityIds | ComputedIds | HashIds | VocabularyIds | BucketIds | ChainedIds,
            Field(discriminator="kind"),
        ]
        | None
    ) = None
    """What makes rows of its values; what is crossed is the row, -1 of a value that has none."""
    rows: Positive | None = None
    """How many rows there are; None: what `ids` makes is crossed as it is."""
    unknown_row: Count | None = None
    """Crossed in place of -1."""
    padding: int | str | None = None
    """As a feature's `padding`."""
    steps: tuple[TextStep, ...] = ()
    """How a text is changed before all that."""

    @model_validator(mode="after")
    def _rows_of_ids(self) -> CrossKey:
        if self.steps and (self.dtype != "string" or self.padding is not None):
            raise ValueError("'steps' change a text, without 'padding'")
        if (self.rows is not None and self.ids is None) or (
            self.unknown_row is not None and self.rows is None
        ):
            raise ValueError("'rows' are given with 'ids' only, and 'unknown_row' with 'rows'")
        if (self.dtype == "float32") != isinstance(first_of(self.ids), BucketIds):
            raise ValueError(
                "'dtype' is float32 where 'ids' are buckets, or begin with them, and nowhere else"
            )
        return self


class MultiInputIds(StrictModel):
    """Row of one value of each of several inputs together."""

    kind: str
    keys: tuple[CrossKey, ...]
    """One for each of the feature's `inputs`, in their order."""


class CrossedIds(MultiInputIds):
    """Row = hash of one value of each input together, as TensorFlow's crossed columns do, mod
    `buckets`.

    An example with several values of an input has a row for every combination.
    """

    kind: Literal["crossed"] = "crossed"
    buckets: Positive
    hash_key: Count = CROSS_KEY


class JoinedIds(MultiInputIds):
    """Row = what `ids` makes of the string that one value of each input and `texts` are, one after
    another.

    Integers, and the rows that keys make of values, are written in decimal.
    """

    kind: Literal["joined"] = "joined"
    texts: tuple[str, ...]
    """Before the first value, between one and the next, and behind the last."""
    ids: Annotated[HashIds | VocabularyIds, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _texts_around(self) -> JoinedIds:
        if not self.keys or len(self.texts) != len(self.keys) + 1:
            raise ValueError(
                "'texts' stand around and between the values of one or more 'keys': one more than "
                "those"
            )
        return self


class TextIds(StrictModel):
    """Rows of the words of one text: it is changed by `steps`, split, and `ids` makes a row of each
    word.
    """

    kind: Literal["text"] = "text"
    steps: tuple[TextStep, ...] = ()
    split: Literal["whitespace", "characters"] | None = None
    """At runs of ASCII whitespace, or into Unicode characters. None: the text is one word, perhaps
    an empty one.
    """
    ngrams: tuple[Positive, ...] = ()
    """Instead of words: so many that follow one another, with a space between them; all of the
    first number first.
    """
    length: Length | None = None
    """How many words, or ngrams, are taken of a text at most."""
    ids: Annotated[HashIds | VocabularyIds, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _split_first(self) -> TextIds:
        if self.split is None and (self.ngrams or self.length is not None):
            raise ValueError("'ngrams' and 'length' are of texts that are split")
        return self


class KeyedIds(StrictModel):
    """Row = what a key index of the bundle (`keys`) holds for the int64 id: tables of
    dynamic keys.
    """

    kind: Literal["keyed"] = "keyed"
    keys: Name


IdRule = Annotated[
    IdentityIds
    | ComputedIds
    | HashIds
    | VocabularyIds
    | BucketIds
    | GraphIds
    | ChainedIds
    | CrossedIds
    | JoinedIds
    | TextIds
    | KeyedIds,
    Field(discriminator="kind"),
]


def first_of(rule: IdRule | None) -> IdRule | None:
    """Returns the rule that takes what is sent: the first of a chain, else the rule itself."""
    return rule.rules[0] if isinstance(rule, ChainedIds) else rule
