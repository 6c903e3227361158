"""Where pydantic found a mistake in a document, as the keys of the document."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

Location = Sequence[int | str]
"""The `loc` of an error of pydantic: keys, positions in lists and, at each union, the name of the
member that was tried; behind the key of a dict that is wrong itself, `[key]`.
"""


class KeyPath(NamedTuple):
    """Where a value stands in a document.

    Attributes:
      keys: The keys and positions that lead to it.
      type: The type that a value has there; None: it is not known.
    """

    keys: list[int | str]
    type: Any = None

    def __str__(self) -> str:
        return ".".join(map(str, self.keys))


def key_path(model: Any, location: Location) -> KeyPath:
    """Returns where a mistake is, without the names of members of unions.

    Args:
      model: The type of the whole document.
      location: The location of the mistake, or the beginning of one.
    """
    return _path(model, list(location)) or KeyPath(list(location))


def _path(expected: Any, location: Sequence[int | str]) -> KeyPath | None:
    """Returns a path from a type on; None if the location does not fit it."""
    if get_origin(expected) is Annotated:
        return _path(get_args(expected)[0], location)
    if not location:
        return KeyPath([], expected)
    part, *rest = location
    if get_origin(expected) in {Union, types.UnionType}:
        members = [member for member in get_args(expected) if member is not types.NoneType]
        if len(members) > 1:
            members.sort(key=lambda member: not _has_name(member, part))
            location = rest
        paths = (_path(member, location) for member in members)
        return next((path for path in paths if path is not None), None)

    if rest == ["[key]"]:
        return KeyPath([part])
    inner = _type_at(expected, part)
    behind = None
    if inner is not None or not rest:
        behind = _path(inner, rest)
    if behind is None:
        return None
    return KeyPath([part, *behind.keys], behind.type)


def _type_at(expected: Any, part: int | str) -> Any:
    """Returns the type of a field of a model, or of the values of a collection; None: it is not
    known.
    """
    fields = getattr(expected, "model_fields", None)
    if fields is not None:
        return fields[part].annotation if part in fields else None
    arguments = get_args(expected)
    if not arguments:
        return None
    if arguments[-1] is ...:
        return arguments[0]
    if get_origin(expected) is tuple and isinstance(part, int):
        return arguments[part]
    return arguments[-1]


def _has_name(member: Any, name: int | str) -> bool:
    """Returns whether pydantic calls a member of a union by a name: of its class, or its tag."""
    while get_origin(member) is Annotated:
        member = get_args(member)[0]
    fields = getattr(member, "model_fields", {})
    tags = [tag for field in fields.values() for tag in get_args(field.annotation)]
    return name == getattr(member, "__name__", None) or name in tags
