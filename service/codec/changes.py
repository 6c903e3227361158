"""Changes of candidates and contexts: JSON bodies and messages to requests, and results to
both. What a change has is declared in `service/contract/changes.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from service.codec import protobuf
from service.codec.message_values import word_of
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.contract.change_forms import ABSENT, ItemForm
from service.contract.changes import (
    CHANGES,
    AppliedChanges,
    ChangeClass,
    ChangeRequest,
    ChangeResult,
    stream_without_offset,
)
from service.contract.columns import check_list, fields
from service.contract.layouts import layout_of
from service.contract.limits import check_count
from service.contract.messages import Target
from service.contract.packed import read_ids
from service.decoding import check_decoding, in_steps
from service.errors import InvalidArgument

_ALWAYS = ("model", "version", "sequence", "changed")
"""The fields of a result that are written even if they are 0."""
_NAMES = frozenset().union(*[layout_of(change).forms for change in CHANGES.values()])
"""The fields of all changes."""


def read_change(change: ChangeClass, body: Any, settings: ServiceSettings) -> ChangeRequest:
    """Returns the request that a parsed body holds:
    `{"corpus": "movies", "items": [{"id": 1, "features": {...}, "attributes": {...}}]}`.

    Args:
      change: The class of the request.
      body: The JSON value.
      settings: The limits.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or items that do not fit together.
      TooLarge: More features or attributes than the limits.
    """
    layout = layout_of(change)
    fields(body, (*layout.options, "items"), "body")
    items = check_list(body.get("items"), "items")
    if not items:
        raise InvalidArgument.of_field("items", "empty", "at least one item")
    names = tuple(layout.parts)
    for number, item in in_steps(items):
        fields(item, names, f"items[{number}]", layout.tables)
        if "id" not in item:
            raise InvalidArgument.of_field(f"items[{number}]", "no id", "an id", "has")

    content = {
        field.name: field.form.from_json(body[name], name)
        for name, field in layout.options.items()
        if name in body
    }
    if content.get("stream") and "offset" not in content:
        raise stream_without_offset(content["stream"])
    for name, field in layout.parts.items():
        check_decoding()
        values = [item.get(name, ABSENT) for item in items]
        # All items have the same names.
        check_count(field.form.limit, values[0], name, settings)
        content[field.name] = field.form.pack(values, name)
    request: ChangeRequest = change(**content)
    return request


def read_change_message(body: bytes, settings: ServiceSettings) -> tuple[Target, ChangeRequest]:
    """Reads a serialized ChangeRequest; returns the model and version, and what to change.

    Args:
      body: The message.
      settings: The limits.

    Raises:
      InvalidArgument: A field that this change does not have, packed bytes that are truncated, or
        another number of values than of ids; the message names the field.
      TooLarge: More fields or values than the limits.
    """
    protobuf.check_size(pb.ChangeRequest, body, settings)
    message = protobuf.parse(pb.ChangeRequest, body)
    change = _change_of(message)
    layout = layout_of(change)
    names = {descriptor.name for descriptor, _ in message.ListFields()}
    # A field that would be ignored is an error: the client expects it to have an effect.
    unexpected = sorted(names & _NAMES - layout.forms.keys())
    if unexpected:
        expected = f"a request without it for {change.action} of {change.kind}"
        raise InvalidArgument.of_field(unexpected[0], "sent", expected, "was")

    count = read_ids(message.ids, "ids").size
    if not count:
        raise InvalidArgument.of_field("ids", "empty", "at least one id")
    names.update([field.name for field in layout.required])
    content: dict[str, Any] = {}
    for name, form in layout.forms.items():
        if name not in names:
            continue
        value = getattr(message, name)
        check_decoding()
        check_count(form.limit, value, name, settings)
        if isinstance(form, ItemForm):
            content[name] = form.unpack(value, name, count)
        else:
            content[name] = form.from_message(value, name)
    return protobuf.target_of(message.model, None), change(**content)


def _change_of(message: pb.ChangeRequest) -> ChangeClass:
    """Returns which change a message requests.

    Raises:
      InvalidArgument: Its kind or action is missing, or of a newer contract; or the kind does not
        have the action.
    """
    kind = word_of(pb.ChangeKind.DESCRIPTOR, message.kind)
    action = word_of(pb.ChangeAction.DESCRIPTOR, message.action)
    actions = {change.action: change for change in CHANGES.values() if change.kind == kind}
    if not actions:
        raise InvalidArgument.of_field("kind", kind, "candidates or contexts")
    if action not in actions:
        raise InvalidArgument.of_field("action", action, f"{' or '.join(actions)} for {kind}")
    return actions[action]


def change_value(result: ChangeResult) -> dict[str, Any]:
    """Returns the JSON value of a result, without fields that are 0, false or empty."""
    content = asdict(result)
    return {name: field for name, field in content.items() if field or name in _ALWAYS}


def change_message(result: ChangeResult) -> pb.ChangeResponse:
    """Returns a result as its message."""
    content = asdict(result)
    model = pb.ModelSpec(name=content.pop("model"), version=content.pop("version"))
    for name in ("outdated", "unknown"):
        content[name] = _ids_message(content[name])
    return pb.ChangeResponse(model=model, **content)


def applied_message(applied: AppliedChanges) -> pb.GetChangesResponse:
    """Returns what was changed so far as its message."""
    return pb.GetChangesResponse(
        model=pb.ModelSpec(name=applied.model), sequence=applied.sequence, streams=applied.streams
    )


def _ids_message(ids: tuple[int | str, ...]) -> pb.Ids | None:
    if not ids:
        return None
    if isinstance(ids[0], str):
        return pb.Ids(strings=pb.Strings(values=map(str, ids)))
    return pb.Ids(int64s=np.array(ids, "<i8").tobytes())
