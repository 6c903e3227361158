"""Messages of a topic, and the changes that they describe.

The key is the id of a candidate or a context, as JSON: `300001` or `"tt0111161"`. So all
states of an id lie in one partition, in order. The value is a JSON object, such as
`{"attributes": {"year": 2027}, "action": "attributes"}`; none at all (a tombstone) deletes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, TypeAdapter, ValidationError

Kind = Literal["candidates", "contexts"]
Action = Literal["upsert", "delete", "attributes"]
Key = int | str

_KEY: TypeAdapter[Key] = TypeAdapter(StrictInt | StrictStr)
_FIELDS: dict[tuple[Kind, Action], frozenset[str]] = {
    ("candidates", "upsert"): frozenset({"features", "attributes", "vectors", "expires_s"}),
    ("candidates", "attributes"): frozenset({"attributes"}),
    ("candidates", "delete"): frozenset(),
    ("contexts", "upsert"): frozenset({"features", "attributes"}),
    ("contexts", "attributes"): frozenset({"attributes"}),
    ("contexts", "delete"): frozenset(),
}
"""The fields of a value by kind and action, beside _COMMON_FIELDS."""
_COMMON_FIELDS = frozenset({"kind", "action", "target", "sequence"})


class UnreadableMessage(Exception):
    """A message describes no change of a model; the text says why."""


class Value(BaseModel):
    """The value of a message.

    Attributes:
      kind: The kind of the changed object; None: the kind in the consumer's options.
      action: The action on the object.
      target: The name of the corpus or the context store; "": the only one.
      features: For an upsert, all features of the corpus or the store, by name.
      attributes: The attributes by name; None: no value.
      vectors: The [dim] numbers by index, instead of the candidate tower's vectors.
      expires_s: The time at which the candidate expires, in Unix seconds; None: never.
      sequence: The sender's number of this state of the id; None: the sender does not number them.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind | None = None
    action: Action = "upsert"
    target: str = ""
    features: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    vectors: dict[str, list[float]] = {}
    expires_s: float | None = None
    sequence: int | None = None


@dataclass(frozen=True)
class Item:
    """A message that was read.

    Attributes:
      offset: The offset of the message in its partition.
      key: The id.
      kind: The kind of the changed object.
      value: The new state.
    """

    offset: int
    key: Key
    kind: Kind
    value: Value

    @property
    def shape(self) -> tuple[Any, ...]:
        """The properties that all items of one request share: the changed object and the fields."""
        value = self.value
        return (
            self.kind,
            value.action,
            value.target,
            frozenset(value.features),
            frozenset(value.attributes),
            frozenset(value.vectors),
            value.sequence is None,
        )


def read_item(offset: int, key: bytes | None, value: bytes | None, kind: Kind) -> Item:
    """Reads a message.

    Args:
      offset: The offset of the message in its partition.
      key: The id, as JSON.
      value: A JSON object; None: a tombstone.
      kind: The kind of change if the message names none.

    Raises:
      UnreadableMessage: The message describes no change of a model.
    """
    if key is None:
        raise UnreadableMessage("the message has no key; its id, as JSON, was expected")
    try:
        item_key = _KEY.validate_json(key)
    except ValidationError:
        raise UnreadableMessage(
            f"the key is {_shown(key)}; an id was expected, as a JSON number or string"
        ) from None
    content = Value(action="delete")
    if value is not None:
        try:
            content = Value.model_validate_json(value)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or "the value"
            raise UnreadableMessage(f"{field}: {first['msg']}") from None
    item = Item(offset, item_key, content.kind or kind, content)
    _check_fields(item)
    return item


def _check_fields(item: Item) -> None:
    fields = _FIELDS[item.kind, item.value.action]
    wrong = sorted(item.value.model_fields_set - fields - _COMMON_FIELDS)
    if wrong:
        raise UnreadableMessage(
            f"{wrong[0]} was sent, which {item.value.action} of {item.kind} does not have"
        )


def _shown(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace"))
