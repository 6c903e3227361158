"""The changes of candidates and contexts, each declared once: decoded, and not yet checked against
a model.

JSON bodies, messages, the OpenAPI document, commands and the client's functions follow from
`CHANGES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bundle.changes.states import STREAM_CHARACTERS_MAX, Action, Kind
from bundle.features.columns import Column
from service.contract import change_forms
from service.contract.forms import Axis, Scalar
from service.contract.layouts import Body
from service.errors import FieldViolation, InvalidArgument

EXAMPLE = Axis.EXAMPLE
Ids = NDArray[Any]
"""[m] int64, or [m] object holding str."""
Features = Mapping[str, Column]
Attributes = Mapping[str, Sequence[Any]]
"""[m] values by attribute, None where there is none."""
Vectors = Mapping[str, NDArray[np.float32]]
"""[m, dim] by index."""
Times = NDArray[np.float64]
"""[m] Unix seconds, NaN: never."""

FeaturesByName = Annotated[Features, change_forms.Features(EXAMPLE, limit="max_features")]
AttributesByName = Annotated[Attributes, change_forms.Attributes(EXAMPLE, limit="max_names")]
VectorsByIndex = Annotated[Vectors, change_forms.Vectors(EXAMPLE, limit="max_names")]
Expiries = Annotated[Times | None, change_forms.Times(EXAMPLE)]
_NO_FEATURES: Features = {}
_NO_ATTRIBUTES: Attributes = {}
_NO_VECTORS: Vectors = {}
_NEVER: Times | None = None
_ANY_ATTRIBUTES_DOC = (
    "Attributes of a candidate or a context. All items of a body have the same ones."
)
_DELETED_DOC = "An item by its id. A change that deletes has nothing else of it."


@dataclass(frozen=True, kw_only=True, eq=False)
class ChangeRequest:
    """What every change has.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      target: The name of the corpus or the store; "": the only one.
    """

    body: ClassVar[Body]
    kind: ClassVar[Kind]
    action: ClassVar[Action]

    # What only some changes have. Those that must have it say so by `field()`.
    target = ""
    features = _NO_FEATURES
    attributes = _NO_ATTRIBUTES
    vectors = _NO_VECTORS
    expires_s = _NEVER

    ids: Annotated[Ids, change_forms.ItemIds(EXAMPLE, name="id")]
    sequences: Annotated[
        NDArray[np.int64] | None, change_forms.Positions(EXAMPLE, name="sequence")
    ] = None
    """The sender's number of this state, which is left alone if a later one was applied before. All
    items of a body have one, or none has.
    """
    stream: str = ""
    """The name of the stream, sent together with `offset`."""
    offset: Annotated[int, change_forms.Position()] = 0
    """The position in the stream behind the change."""
    from_offset: Annotated[int | None, change_forms.Position()] = None
    """The position in the stream before the change."""

    def __post_init__(self) -> None:
        """Checks the stream, whose name and offset are kept for ever.

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


@dataclass(frozen=True, kw_only=True, eq=False)
class _OfCandidates(ChangeRequest):
    kind = "candidates"
    target: Annotated[str, Scalar(name="corpus")] = ""
    """May be left out if there is only one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _OfContexts(ChangeRequest):
    kind = "contexts"
    target: Annotated[str, Scalar(name="store")] = ""
    """May be left out if there is only one."""


def _body(
    call: str, item: str, item_doc: str, items: Sequence[Mapping[str, Any]], **target: str
) -> Body:
    example = {**target, "items": items}
    return Body(call, "items", is_list=True, part_name=item, part_doc=item_doc, example=example)


@dataclass(frozen=True, kw_only=True, eq=False)
class UpsertCandidates(_OfCandidates):
    """Add candidates, or replace those with the same ids."""

    body = _body(
        "upsert_candidates",
        "CandidateItem",
        "A candidate. All items of a body have the same features, attributes and vectors.",
        [
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
        corpus="movies",
    )
    action = "upsert"
    features: FeaturesByName = field(default_factory=dict)
    attributes: AttributesByName = field(default_factory=dict)
    vectors: VectorsByIndex = field(default_factory=dict)
    """Its vectors; else the candidate tower computes them."""
    expires_s: Expiries = None
    """When it expires, in Unix seconds; null or absent: never."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeleteCandidates(_OfCandidates):
    """Delete candidates."""

    body = _body(
        "delete_candidates", "ChangedItem", _DELETED_DOC, [{"id": 300001}], corpus="movies"
    )
    action = "delete"


@dataclass(frozen=True, kw_only=True, eq=False)
class SetCandidateAttributes(_OfCandidates):
    """Change some attributes of candidates."""

    body = _body(
        "set_candidate_attributes",
        "AttributesItem",
        _ANY_ATTRIBUTES_DOC,
        [{"id": 151, "attributes": {"year": 2007}, "sequence": 13}],
        corpus="movies",
    )
    action = "attributes"
    attributes: AttributesByName = field()


@dataclass(frozen=True, kw_only=True, eq=False)
class UpsertContexts(_OfContexts):
    """Add contexts, or replace those with the same ids."""

    body = _body(
        "upsert_contexts",
        "ContextItem",
        "A context. All items of a body have the same features and attributes.",
        [{"id": 7, "features": {"user_id": 7, "history": [1, 260]}}],
        store="users",
    )
    action = "upsert"
    features: FeaturesByName = field(default_factory=dict)
    attributes: AttributesByName = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeleteContexts(_OfContexts):
    """Delete contexts."""

    body = _body("delete_contexts", "ChangedItem", _DELETED_DOC, [{"id": 7}], store="users")
    action = "delete"


@dataclass(frozen=True, kw_only=True, eq=False)
class SetContextAttributes(_OfContexts):
    """Change some attributes of contexts."""

    body = _body(
        "set_context_attributes",
        "AttributesItem",
        _ANY_ATTRIBUTES_DOC,
        [{"id": 7, "attributes": {"segment": "students"}}],
        store="users",
    )
    action = "attributes"
    attributes: AttributesByName = field()


ChangeClass = Any
"""A class of a change: mypy does not take `type[ChangeRequest]` for hashable."""
CHANGES: Mapping[tuple[Kind, Action], ChangeClass] = {
    (change.kind, change.action): change
    for change in (
        UpsertCandidates,
        DeleteCandidates,
        SetCandidateAttributes,
        UpsertContexts,
        DeleteContexts,
        SetContextAttributes,
    )
}
"""The changes by what is changed and what is done to it."""


@dataclass(frozen=True)
class ChangeResult:
    """The result of a request. The change is on the disk, and the process that responds serves it.

    Attributes:
      model: The name of the model.
      version: The version that the change was checked against.
      sequence: The sequence of the last state of the change; 0: nothing was changed.
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
      sequence: The sequence of the last state; 0: there is none.
      streams: The offset behind the last change of each stream that was applied.
    """

    model: str
    sequence: int
    streams: Mapping[str, int]
