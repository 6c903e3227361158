"""Request headers as one mapping, and the forms of bodies that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.errors import InvalidArgument

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
_JSON_TYPES = (JSON, "", "application/x-www-form-urlencoded")
"""The last is what `curl -d` sends with any body: no call accepts forms, so JSON is meant."""
_PROTOBUF_TYPES = (PROTOBUF, "application/protobuf")

Headers = Mapping[bytes, bytes]
"""Values by name in lower case."""


def joined(raw: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Returns the headers of an ASGI scope; one that comes more than once is the list of its values."""
    headers = dict(raw)
    if len(headers) == len(raw):
        return headers
    values: dict[bytes, list[bytes]] = {}
    for name, value in raw:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(each) for name, each in values.items()}


def text_of(headers: Headers, name: str) -> str | None:
    """Returns the text of a header; None if it was not sent."""
    value = headers.get(name.encode())
    return None if value is None else value.decode("latin-1")


def is_protobuf(headers: Headers) -> bool:
    """Returns whether the body is a protobuf message; else it is JSON, also without a content type.

    Raises:
      InvalidArgument: it is neither.
    """
    content_type = (text_of(headers, "content-type") or "").strip()
    media_type, _, parameters = content_type.partition(";")
    if media_type.strip().lower() in _PROTOBUF_TYPES:
        return True
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() not in _JSON_TYPES or charset not in {"", "utf-8", "utf8"}:
        raise InvalidArgument(f"content-type is {content_type[:80]!r}; {JSON} (UTF-8) or {PROTOBUF} was expected")
    return False


def accepts_protobuf(headers: Headers) -> bool:
    """Returns whether the answer is a protobuf message: the first form that `accept` names, else that of the body."""
    for entry in (text_of(headers, "accept") or "").lower().split(","):
        media_type = entry.partition(";")[0].strip()
        if media_type in {JSON, *_PROTOBUF_TYPES}:
            return media_type != JSON
    media_type = (text_of(headers, "content-type") or "").partition(";")[0]
    return media_type.strip().lower() in _PROTOBUF_TYPES
