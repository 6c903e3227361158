"""The states that changes leave: of each candidate or context as a whole, and of each attribute
that was changed by itself since. A later state replaces the one before.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

Kind = Literal["candidates", "contexts"]
Action = Literal["upsert", "delete", "attributes"]
"""The actions that clients request."""
Key = int | str
"""The id of a candidate or a context."""
Owner = tuple[str, str]
"""The kind and the name of a store."""

STREAM_CHARACTERS_MAX = 256
"""Maximum number of characters of the name of a stream."""
WHOLE = ""
"""In the place of the name of an attribute: the candidate or the context as a whole."""
VECTOR = "vector:"
"""The beginning of the names of vectors in the content of a state."""
_EMPTY: Mapping[str, Any] = {}


class State(NamedTuple):
    """One state, as the file has it.

    Attributes:
      sequence: Its sequence: that of the last state is the largest one.
      kind: What it is a state of: candidates, contexts, streams or marks (see `file.py`).
      store: The name of the corpus or the context store; "": of a stream or a mark.
      id: The id of the candidate or the context, or the name of the stream.
      attribute: The name of the attribute; `WHOLE`: all of the candidate or the context.
      number: The largest number of its sender that it counts for; None: none was sent.
      version: The version of the model that it was checked against, and whose vectors it has.
      is_sent: Whether vectors were sent. Others were computed by the version's candidate tower.
      expires_s: When the candidate expires, in Unix seconds; None: never.
      time_s: When it was accepted, in Unix seconds.
      content: The values as JSON; None: the candidate or the context was deleted.
    """

    sequence: int
    kind: str
    store: str
    id: Key
    attribute: str
    number: int | None
    version: int
    is_sent: bool
    expires_s: float | None
    time_s: float
    content: str | None

    @property
    def training(self) -> int:
        """The version that vectors which were sent belong to; 0: none were sent."""
        return self.version if self.is_sent else 0

    @property
    def is_left_out(self) -> bool:
        """Whether no bundle contains it: a bundle knows no expiry, and has vectors of its own."""
        return self.is_sent or self.expires_s is not None


class ChangedItem(NamedTuple):
    """A candidate or a context of which states have changed.

    Attributes:
      id: Its id.
      whole: Its state as a whole, if that counts; None: the bundle's candidate or context.
      attributes: The values that were set in it since, by name.
      values: The values of an upsert by the column of its store: `feature:*`, `weights:*` and
        `attribute:*`; and its vectors, `vector:*`. Empty without an upsert.
    """

    id: Key
    whole: State | None
    attributes: Mapping[str, Any]
    values: Mapping[str, Any]

    @classmethod
    def of(cls, key: Key, whole: State | None, parts: Sequence[State]) -> ChangedItem:
        """Returns an item.

        Args:
          key: Its id.
          whole: Its state as a whole, if that is new; None: it is not.
          parts: The states of its attributes that count.
        """
        values = _EMPTY
        if whole is not None and whole.content is not None:
            values = orjson.loads(whole.content)
        attributes = _EMPTY
        if parts:
            attributes = {state.attribute: orjson.loads(state.content or "null") for state in parts}
        return cls(key, whole, attributes, values)

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted."""
        return self.whole is not None and self.whole.content is None

    def has_vector(self, index: str, version: int) -> bool:
        """Returns whether it has the vector of an index that a version computed or was sent."""
        return (
            self.whole is not None
            and self.whole.version == version
            and f"{VECTOR}{index}" in self.values
        )

    def vector(self, index: str) -> bytes:
        """Returns the vector of an index, [dim] little-endian float32, which it has."""
        return binascii.a2b_base64(self.values[f"{VECTOR}{index}"])


def changed_items(
    states: Iterable[State],
    after: int,
    included: int,
    attributes: Mapping[Owner, Collection[str]],
) -> dict[Owner, list[ChangedItem]]:
    """Returns what has changed of each store, in the order of the last state that the store takes.

    A bundle that contains the changes up to a sequence lacks later states, and those of candidates
    that are left to the service.

    Args:
      states: All states of each candidate or context that has one behind `after`, ascending.
      after: The sequence behind which states are new.
      included: The sequence up to which the bundle contains the changes; 0: it contains none.
      attributes: The attributes of each store.
    """
    by_item: defaultdict[tuple[str, str, Key], list[State]] = defaultdict(list)
    for state in states:
        by_item[state.kind, state.store, state.id].append(state)
    ordered: defaultdict[Owner, list[tuple[int, ChangedItem]]] = defaultdict(list)
    for (kind, store, key), item_states in by_item.items():
        owner = (kind, store)
        whole, parts = _counting(item_states, included)
        last = 0
        if whole is not None:
            last = whole.sequence
        for state in parts:
            if state.attribute in attributes.get(owner, ()):
                last = max(last, state.sequence)
        if whole is None or whole.sequence <= after:
            # It has the others. To set one that no store takes would not move it.
            whole = None
            parts = [state for state in parts if state.sequence > after]
            if not parts:
                continue
        ordered[owner].append((last, ChangedItem.of(key, whole, parts)))
    items = {}
    for owner, pairs in ordered.items():
        pairs.sort(key=itemgetter(0))
        items[owner] = [item for _, item in pairs]
    return items


def _counting(states: Iterable[State], included: int) -> tuple[State | None, list[State]]:
    """Returns the states of a candidate or a context that a bundle lacks: the one as a whole, None:
    the bundle has it, and those of attributes.
    """
    whole = None
    parts = []
    for state in states:
        if state.attribute == WHOLE:
            whole = state
        else:
            parts.append(state)
    if whole is not None and (whole.is_left_out or whole.sequence > included):
        return whole, parts
    # The bundle has the candidate, with the values up to then.
    return None, [state for state in parts if state.sequence > included]


def contents_of(
    columns: Mapping[str, Any], vectors: Mapping[str, NDArray[np.float32]], count: int
) -> list[str]:
    """Returns the contents of the states of candidates or contexts that are upserted, [m].

    Args:
      columns: A `pyarrow.Array` of m values by column.
      vectors: [m, dim] by index.
      count: m.
    """
    values = {name: column.to_pylist() for name, column in columns.items()}
    for index, rows in vectors.items():
        values[f"{VECTOR}{index}"] = [
            base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows
        ]
    return [
        orjson.dumps({name: column[row] for name, column in values.items()}).decode()
        for row in range(count)
    ]
