"""The JSON of changes as pydantic models, for the OpenAPI document. `service.codec.changes` reads
the bodies, and a test keeps both in agreement.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypeAliasType

from bundle.changes.records import Action, Kind
from service.openapi import ABSENT, Features, Id, Int64, ResponseSchema, Schema, example

Position = TypeAliasType(
    "Position",
    Annotated[
        Int64 | str,
        Field(description="An integer from 0. Beyond 2^53 it travels as a decimal string."),
    ],
)
AttributeValues = TypeAliasType(
    "AttributeValues",
    Annotated[
        dict[str, Any],
        Field(description="By name: a value, a list of them, or null where there is none."),
    ],
)
Vectors = TypeAliasType(
    "Vectors", Annotated[dict[str, list[float]], Field(description="By name of the index.")]
)


class ChangedItem(Schema):
    """An item by its id. A change that deletes has nothing else of it."""

    id: Id
    sequence: Position = ABSENT
    """The sender's number of this state, which is left alone if a later one was applied before. All
    items of a body have one, or none has.
    """


class AttributesItem(ChangedItem):
    """Attributes of a candidate or a context. All items of a body have the same ones."""

    attributes: AttributeValues


class RowItem(ChangedItem):
    """A row of a table."""

    vector: list[float]
    """As many finite numbers as the table has dims."""


class ContextItem(ChangedItem):
    """A context. All items of a body have the same features and attributes."""

    features: Features = ABSENT
    attributes: AttributeValues = ABSENT


class CandidateItem(ContextItem):
    """A candidate. All items of a body have the same features, attributes and vectors."""

    vectors: Vectors = ABSENT
    """Its vectors; else the candidate tower computes them."""
    expires_s: float | None = ABSENT
    """When it expires, in Unix seconds; null or absent: never."""


class StreamPosition(Schema):
    """Where a change was read from, so that it is made once."""

    stream: str = ABSENT
    """The name of the stream, sent together with `offset`."""
    offset: Position = ABSENT
    """The position in the stream behind the change."""
    from_offset: Position = ABSENT
    """The position in the stream before the change."""


class UpsertRowsRequest(StreamPosition):
    """New vectors of rows."""

    model_config = example(
        feature="user_id", items=[{"id": 7, "vector": [0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, 0.8]}]
    )

    table: str = ABSENT
    """May be left out if there is only one."""
    feature: str = ABSENT
    """Ids are those of this feature, whose rule makes rows of them; absent: ids are rows."""
    items: list[RowItem]


class OfCorpus(StreamPosition):
    """A change of candidates."""

    corpus: str = ABSENT
    """May be left out if there is only one."""


class UpsertCandidatesRequest(OfCorpus):
    """Candidates to add, or to replace."""

    model_config = example(
        corpus="movies",
        items=[
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
    )

    items: list[CandidateItem]


class SetCandidateAttributesRequest(OfCorpus):
    """Attributes of candidates to change."""

    model_config = example(
        corpus="movies", items=[{"id": 151, "attributes": {"year": 2007}, "sequence": 13}]
    )

    items: list[AttributesItem]


class DeleteCandidatesRequest(OfCorpus):
    """Candidates to delete."""

    model_config = example(corpus="movies", items=[{"id": 300001}])

    items: list[ChangedItem]


class OfStore(StreamPosition):
    """A change of contexts."""

    store: str = ABSENT
    """May be left out if there is only one."""


class UpsertContextsRequest(OfStore):
    """Contexts to add, or to replace."""

    model_config = example(
        store="users", items=[{"id": 7, "features": {"user_id": 7, "history": [1, 260]}}]
    )

    items: list[ContextItem]


class SetContextAttributesRequest(OfStore):
    """Attributes of contexts to change."""

    model_config = example(store="users", items=[{"id": 7, "attributes": {"segment": "students"}}])

    items: list[AttributesItem]


class DeleteContextsRequest(OfStore):
    """Contexts to delete."""

    model_config = example(store="users", items=[{"id": 7}])

    items: list[ChangedItem]


class ChangeResponse(ResponseSchema):
    """What became of a change. It is on the disk, and the process that responds serves it."""

    model: str
    """The name of the model."""
    version: Int64
    """The version that the change was checked against: the current one."""
    sequence: Int64
    """The number of the change in the log; 0: nothing was written."""
    changed: Int64
    """How many ids were changed."""
    outdated: list[Id] = ABSENT
    """Ids that were left alone, because a later state of theirs was applied before; at most 100."""
    outdated_count: Int64 = ABSENT
    """How many ids are outdated."""
    unknown: list[Id] = ABSENT
    """Ids to delete, or to give attributes to, that no loaded version has; at most 100. This is no
    error: the log has them for later versions.
    """
    unknown_count: Int64 = ABSENT
    """How many ids are unknown."""
    is_repeated: bool = ABSENT
    """The stream was applied up to this offset, or beyond `from_offset`, before: nothing was
    changed.
    """
    stream_offset: Int64 = ABSENT
    """Up to which offset the stream is applied."""


StreamOffsets = TypeAliasType(
    "StreamOffsets",
    Annotated[
        dict[str, Int64],
        Field(description="By name of a stream: the offset behind what was applied of it."),
    ],
)


class ChangesResponse(ResponseSchema):
    """What was changed of a model so far."""

    model: str
    sequence: Int64
    """The number of the last change in the log; 0: there is none."""
    streams: StreamOffsets


CHANGE_SCHEMAS: dict[tuple[Kind, Action], type[Schema]] = {
    ("rows", "upsert"): UpsertRowsRequest,
    ("candidates", "upsert"): UpsertCandidatesRequest,
    ("candidates", "delete"): DeleteCandidatesRequest,
    ("candidates", "attributes"): SetCandidateAttributesRequest,
    ("contexts", "upsert"): UpsertContextsRequest,
    ("contexts", "delete"): DeleteContextsRequest,
    ("contexts", "attributes"): SetContextAttributesRequest,
}
"""The request by what is changed and what is done to it."""
