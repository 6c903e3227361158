"""The changes of rows, candidates and contexts, each declared once, as the fields that it has.

JSON bodies, messages, the OpenAPI document, commands and the client's functions follow from
`CHANGES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import STREAM_CHARACTERS_MAX, Action, Kind
from bundle.features.columns import Column
from service.contract.change_forms import (
    Attributes,
    Features,
    ItemForm,
    ItemIds,
    Position,
    Positions,
    RowVectors,
    Times,
    Vectors,
)
from service.contract.forms import Form, Scalar
from service.errors import FieldViolation, InvalidArgument

Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
Json = dict[str, Any]


@dataclass(frozen=True)
class ChangeRequest:
    """A request to change rows of a table, candidates of a corpus, or contexts of a store: decoded,
    and not yet checked against a model.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      target: The name of the table, the corpus or the store; "": the only one.
      ids: The ids of the m rows, candidates or contexts.
      feature: The feature by whose rule ids become rows, in a change of rows; "": the ids are rows.
      features: A column of m examples by input, in an upsert.
      attributes: [m] values by attribute, None where there is none.
      vectors: [m, dim] float32 by index; the vectors of rows by "".
      sequences: The sender's numbers of the ids' states, [m]; None: it has none.
      expires_s: The times when candidates expire, [m] Unix seconds, NaN: never; None: none of them
        expires.
      stream: The stream that the change was read from; "": it is from none.
      offset: The position in the stream behind the change.
      from_offset: The position in the stream before the change; None: the sender does not say.
    """

    kind: Kind
    action: Action
    ids: Ids
    target: str = ""
    feature: str = ""
    features: Mapping[str, Column] = field(default_factory=dict)
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    sequences: NDArray[np.int64] | None = None
    expires_s: NDArray[np.float64] | None = None
    stream: str = ""
    offset: int = 0
    from_offset: int | None = None

    def __post_init__(self) -> None:
        """Checks the stream, whose name and offset the log keeps for ever.

        Raises:
          InvalidArgument: Its name is too long, the change has an offset of no stream, or ends
            before it begins.
        """
        if len(self.stream) > STREAM_CHARACTERS_MAX:
            size = f"{len(self.stream)} characters"
            expected = f"a name of at most {STREAM_CHARACTERS_MAX} characters"
            raise InvalidArgument.of_field("stream", size, expected, "has")
        if self.offset and not self.stream:
            raise stream_without_offset(self.stream)
        if self.from_offset is None:
            return
        if not self.stream:
            expected = "a request with stream and offset"
            raise InvalidArgument.of_field("from_offset", self.from_offset, expected)
        if self.from_offset >= self.offset:
            value = f"{self.from_offset} with an offset of {self.offset}"
            raise InvalidArgument.of_field("from_offset", value, "a number below offset")


def stream_without_offset(stream: str) -> InvalidArgument:
    """Returns the error for a change with a stream or an offset, and without the other one."""
    message = "stream and offset are accepted only together"
    violation = FieldViolation("stream", "empty", "a stream beside offset")
    if stream:
        violation = FieldViolation("offset", "empty", "an offset beside stream")
    return InvalidArgument(message, violation)


@dataclass(frozen=True)
class ChangeResult:
    """The result of a request. The change is on the disk, and the process that responds serves it.

    Attributes:
      model: The name of the model.
      version: The version that the change was checked against.
      sequence: The sequence of the change in the log of the model; 0: nothing was changed.
      changed: The number of ids that were changed.
      outdated: The ids that were left alone, because their state of this sequence or a later one
        was applied before. Only the first ones, if they are many.
      unknown: The ids to delete, or to give attributes to, that do not exist. Only the first
        ones, if they are many.
      outdated_count: The number of outdated ids.
      unknown_count: The number of unknown ids.
      is_repeated: Whether the stream was applied up to the request's offset, or beyond its
        `from_offset`, before, so that all of the request was left alone.
      stream_offset: The offset up to which the stream of the request is applied; 0: the request is
        of none.
    """

    model: str
    version: int
    sequence: int
    changed: int
    outdated: tuple[int | str, ...] = ()
    unknown: tuple[int | str, ...] = ()
    outdated_count: int = 0
    unknown_count: int = 0
    is_repeated: bool = False
    stream_offset: int = 0


@dataclass(frozen=True)
class AppliedChanges:
    """The changes of a model so far.

    Attributes:
      model: The name of the model.
      sequence: The sequence of the last change in its log; 0: there is none.
      streams: The offset behind the last change of each stream that was applied.
    """

    model: str
    sequence: int
    streams: Mapping[str, int]


@dataclass(frozen=True)
class Field:
    """A field of a body, or of an item in it.

    Attributes:
      name: The name in JSON.
      column: The name in a ChangeRequest, and in the message.
      form: How its values look.
      schema: The type, as the document has it: a name in `_TYPES`.
      text: What the document says of it; "": what it says of the type.
    """

    name: str
    column: str
    form: Form
    schema: str
    text: str = ""


@dataclass(frozen=True)
class ItemField(Field):
    """A field of an item."""

    form: ItemForm


STREAM = (
    Field(
        "stream", "stream", Scalar(), "text", "The name of the stream, sent together with `offset`."
    ),
    Field(
        "offset", "offset", Position(), "Position", "The position in the stream behind the change."
    ),
    Field(
        "from_offset",
        "from_offset",
        Position(),
        "Position",
        "The position in the stream before the change.",
    ),
)
FEATURE = Field(
    "feature",
    "feature",
    Scalar(),
    "text",
    "Ids are those of this feature, whose rule makes rows of them; absent: ids are rows.",
)
ID = ItemField("id", "ids", ItemIds(), "Id")
SEQUENCE = ItemField(
    "sequence",
    "sequences",
    Positions(),
    "Position",
    "The sender's number of this state, which is left alone if a later one was applied before. All "
    "items of a body have one, or none has.",
)
VECTOR = ItemField(
    "vector", "vectors", RowVectors(), "numbers", "As many finite numbers as the table has dims."
)
FEATURES = ItemField("features", "features", Features(limit="max_features"), "Features")
ATTRIBUTES = ItemField("attributes", "attributes", Attributes(limit="max_names"), "AttributeValues")
VECTORS = ItemField(
    "vectors",
    "vectors",
    Vectors(),
    "Vectors",
    "Its vectors; else the candidate tower computes them.",
)
EXPIRES_S = ItemField(
    "expires_s",
    "expires_s",
    Times(),
    "number or null",
    "When it expires, in Unix seconds; null or absent: never.",
)
TARGETS: dict[Kind, str] = {"rows": "table", "candidates": "corpus", "contexts": "store"}
"""The field of a body that names the target of a change."""


@dataclass(frozen=True)
class Change:
    """What can be done to rows, candidates or contexts.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      summary: What it does, as an imperative sentence.
      item: The schema of an item of the body.
      item_text: What the document says of an item.
      required: What an item must have, beside its id.
      optional: What an item may have, beside its sequence.
      example: A body, for the quick start's model.
    """

    kind: Kind
    action: Action
    summary: str
    item: str
    item_text: str
    example: Json
    required: tuple[ItemField, ...] = ()
    optional: tuple[ItemField, ...] = ()

    @property
    def name(self) -> str:
        """The name of its operation, and of the client's function: `set_candidate_attributes`."""
        if self.action == "attributes":
            return f"set_{self.kind.removesuffix('s')}_attributes"
        return f"{self.action}_{self.kind}"

    @property
    def schema(self) -> str:
        """The name of the schema of its body."""
        return f"{self.name.title().replace('_', '')}Request"

    @property
    def options(self) -> tuple[Field, ...]:
        """The fields of a body beside its items."""
        text = "May be left out if there is only one."
        target = Field(TARGETS[self.kind], "target", Scalar(), "text", text)
        if self.kind == "rows":
            return (*STREAM, target, FEATURE)
        return (*STREAM, target)

    @property
    def fields(self) -> tuple[ItemField, ...]:
        """The fields of an item."""
        return (ID, SEQUENCE, *self.required, *self.optional)

    @property
    def columns(self) -> frozenset[str]:
        """The fields of its message, beside those that every change has."""
        return frozenset([known.column for known in (*self.options, *self.fields)])


_ATTRIBUTES_ITEM = (
    "AttributesItem",
    "Attributes of a candidate or a context. All items of a body have the same ones.",
)
_DELETED_ITEM = (
    "ChangedItem",
    "An item by its id. A change that deletes has nothing else of it.",
)
_CHANGES = (
    Change(
        "rows",
        "upsert",
        "Replace the vectors of rows",
        "RowItem",
        "A row of a table.",
        {
            "feature": "user_id",
            "items": [{"id": 7, "vector": [0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, 0.8]}],
        },
        required=(VECTOR,),
    ),
    Change(
        "candidates",
        "upsert",
        "Add candidates, or replace those with the same ids",
        "CandidateItem",
        "A candidate. All items of a body have the same features, attributes and vectors.",
        {
            "corpus": "movies",
            "items": [
                {
                    "id": 300001,
                    "features": {
                        "movie_id": 151,
                        "genres": ["Children", "Thriller"],
                        "year": 2026.0,
                        "companions": [12, 90308, 136999],
                        "closeness": [1.956, 1.774, 1.591],
                    },
                    "attributes": {
                        "title": "Silent Mirror 3",
                        "year": 2026,
                        "genres": ["Children", "Thriller"],
                    },
                }
            ],
        },
        optional=(FEATURES, ATTRIBUTES, VECTORS, EXPIRES_S),
    ),
    Change(
        "candidates",
        "delete",
        "Delete candidates",
        *_DELETED_ITEM,
        {"corpus": "movies", "items": [{"id": 300001}]},
    ),
    Change(
        "candidates",
        "attributes",
        "Change some attributes of candidates",
        *_ATTRIBUTES_ITEM,
        {
            "corpus": "movies",
            "items": [{"id": 151, "attributes": {"year": 2007}, "sequence": 13}],
        },
        required=(ATTRIBUTES,),
    ),
    Change(
        "contexts",
        "upsert",
        "Add contexts, or replace those with the same ids",
        "ContextItem",
        "A context. All items of a body have the same features and attributes.",
        {
            "store": "users",
            "items": [{"id": 7, "features": {"user_id": 7, "history": [1, 260]}}],
        },
        optional=(FEATURES, ATTRIBUTES),
    ),
    Change(
        "contexts",
        "delete",
        "Delete contexts",
        *_DELETED_ITEM,
        {"store": "users", "items": [{"id": 7}]},
    ),
    Change(
        "contexts",
        "attributes",
        "Change some attributes of contexts",
        *_ATTRIBUTES_ITEM,
        {"store": "users", "items": [{"id": 7, "attributes": {"segment": "students"}}]},
        required=(ATTRIBUTES,),
    ),
)
CHANGES: Mapping[tuple[Kind, Action], Change] = {
    (change.kind, change.action): change for change in _CHANGES
}
"""The changes by what is changed and what is done to it."""

_INTEGER_OR_TEXT = [{"type": "integer", "format": "int64"}, {"type": "string"}]
_SIMPLE_TYPES: Mapping[str, Json] = {
    "text": {"type": "string"},
    "numbers": {"items": {"type": "number"}, "type": "array"},
    "number or null": {"anyOf": [{"type": "number"}, {"type": "null"}]},
}
_TYPES: Mapping[str, Json] = {
    "Id": {
        "anyOf": _INTEGER_OR_TEXT,
        "description": "Integers beyond 2^53 travel as decimal strings.",
    },
    "Position": {
        "anyOf": _INTEGER_OR_TEXT,
        "description": "An integer from 0. Beyond 2^53 it travels as a decimal string.",
    },
    "Features": {
        "additionalProperties": True,
        "type": "object",
        "description": "By feature name: a scalar; a list (bag, sequence, dense); or "
        "{ids, weights} of a weighted bag.",
    },
    "AttributeValues": {
        "additionalProperties": True,
        "type": "object",
        "description": "By name: a value, a list of them, or null where there is none.",
    },
    "Vectors": {
        "additionalProperties": _SIMPLE_TYPES["numbers"],
        "type": "object",
        "description": "By name of the index.",
    },
}
"""The types that have a name in the document."""


def change_schemas() -> dict[str, Json]:
    """Returns the schemas of bodies and of what is in them, by name, for the OpenAPI document."""
    schemas = dict(_TYPES)
    for change in _CHANGES:
        required = [known.name for known in (ID, *change.required)]
        schemas[change.item] = _object(change.item, change.item_text, change.fields, required)
        body = _object(change.schema, f"{change.summary}.", change.options, ["items"])
        items = {"items": _reference(change.item), "type": "array", "title": "Items"}
        body["properties"]["items"] = items
        schemas[change.schema] = body | {"examples": [change.example]}
    return schemas


def _object(title: str, text: str, fields: Sequence[Field], required: Sequence[str]) -> Json:
    properties = {}
    for known in fields:
        if known.schema in _TYPES:
            described = _reference(known.schema)
        else:
            title_of_field = known.name.replace("_", " ").title()
            described = _SIMPLE_TYPES[known.schema] | {"title": title_of_field}
        if known.text:
            described["description"] = known.text
        properties[known.name] = described
    return {
        "properties": properties,
        "additionalProperties": False,
        "type": "object",
        "required": required,
        "title": title,
        "description": text,
    }


def _reference(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}
