"""Random changes of every kind, with every field that the contract declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rowcast_client import Client

from service.codec.stubs import embedding_service_pb2 as pb
from service.contract.changes import CHANGES
from service.contract.layouts import layout_of
from tests.bundles.small import GENRE_NAMES, STORED_USERS
from tests.differential.random_requests import Draws
from tests.units.service.changes.keyed import MISSING, USER_KEYS

Change = tuple[str, dict[str, Any]]
"""What is done, such as `candidates/upsert`, and the body."""

STORED = [1000 + 7 * number for number in range(40)]
NEW = [*range(5000, 5030)]
CONTEXTS = [*STORED_USERS, 99]
KEYS = {
    "user": [*USER_KEYS[:8].tolist(), 7, 8, 10, 100_000, 2**40, 2**63 - 1],
    "movie": [1, *STORED[:8], MISSING, 77, 78, 2**33],
}
"""Keys that the tables have, and others."""
NEVER_S = 4e9
FIELDS = {field.name for field in pb.ChangeRequest.DESCRIPTOR.fields}
NAMES = {f"{kind}/{action}" for kind, action in CHANGES} | (
    # The path names the others.
    FIELDS - {"model", "kind", "action"}
)
"""All that a change can have."""
REJECTED = {"contexts/attributes"}
"""What every service rejects: the contexts of small bundles have no attributes."""
PLURALS = {
    "id": "ids",
    "sequence": "sequences",
    "corpus": "target",
    "store": "target",
}
"""Fields of JSON bodies and their items, by which the contract has others."""


class RandomChanges(Draws):
    """Draws changes. Those of one kind follow each other, as a start applies them at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._offset = 0
        paths = sorted(name for name in NAMES if "/" in name)
        self._paths = [*paths, *["candidates/upsert"] * 3]
        self._path = self._paths[0]

    def draw(self) -> Change:
        if self._chance(0.6):
            self._path = self._pick(self._paths)
        kind, action = self._path.split("/")
        items = [self._item(kind, action, key) for key in self._keys(kind)]
        body: dict[str, Any] = {"items": items}
        if self._path == "candidates/upsert" and self._chance(0.2):
            for item in items:
                item["vectors"] = {"movies": self._vector()}
        name, target = {"candidates": ("corpus", "movies"), "contexts": ("store", "users")}[kind]
        if self._chance(0.2):
            body[name] = target
        if self._chance(0.2):
            for item in items:
                item["sequence"] = self._number(0, 5)
        if self._chance(0.2):
            body |= self._part_of_stream()
        return self._path, body

    def _several(self, values: Sequence[Any], most: int) -> list[Any]:
        count = self._number(1, most + 1)
        order = self._random.permutation(len(values))
        return [values[position] for position in order[:count]]

    def _vector(self) -> list[float]:
        return self._random.standard_normal(8).astype(np.float32).tolist()  # type: ignore[no-any-return]

    def _keys(self, kind: str) -> list[int]:
        if kind == "contexts":
            return self._several(CONTEXTS, 2)
        return self._several(STORED + NEW, 4)

    def _item(self, kind: str, action: str, key: int) -> dict[str, Any]:
        item: dict[str, Any] = {"id": key}
        if action == "attributes":
            item["attributes"] = self._attributes()
        if (kind, action) == ("candidates", "upsert"):
            genres = self._several(GENRE_NAMES, 3)
            features = {"movie": self._pick(STORED), "genres": genres}
            item["features"] = {**features, "year": float(self._random.random())}
            item["attributes"] = self._attributes()
            item["expires_s"] = self._pick([None, NEVER_S])
        if (kind, action) == ("contexts", "upsert"):
            liked = {"ids": [self._pick(STORED)], "weights": [float(self._random.random())]}
            item["features"] = {"user": key, "liked": liked, "mood": self._vector()[:2]}
        return item

    def _attributes(self) -> dict[str, Any]:
        return {
            "title": f"New {self._number(0, 1000)}",
            "year": self._pick([None, self._number(1990, 2040)]),
            "genres": self._several(GENRE_NAMES, 2),
            "rating": float(self._random.random()),
            "classic": self._chance(0.5),
        }

    def _part_of_stream(self) -> dict[str, Any]:
        """Returns where in a stream a change lies; some overlap with what was applied."""
        self._offset += self._number(-2, 6)
        part = {"stream": self._pick(["a", "b"]), "offset": max(self._offset, 1)}
        if self._chance(0.5):
            part["from_offset"] = self._number(0, part["offset"])
        return part


def names_of(change: Change) -> set[str]:
    """Returns what a change has, by the names of `NAMES`."""
    path, body = change
    fields = {*body, *[name for item in body["items"] for name in item]} - {"items"}
    return {path, *[PLURALS.get(field, field) for field in fields]}


def send(client: Client, change: Change) -> Any:
    """Makes a change by the Python client; returns its result.

    Raises:
      ValueError: Its items differ in their fields, or have others than the client takes.
    """
    path, body = change
    kind, action = path.split("/")
    change_class = CHANGES[kind, action]  # type: ignore[index]
    parts = layout_of(change_class).parts
    items = body["items"]
    arguments = {name: value for name, value in body.items() if name != "items"}
    if not are_alike(items) or "id" not in items[0]:
        raise ValueError("the items have no ids, or different fields")
    for name, first in items[0].items():
        if name not in parts:
            raise ValueError(f"no change has {name}")
        values = [item[name] for item in items]
        arguments[parts[name].name] = values
        if isinstance(first, dict):
            arguments[parts[name].name] = {key: [value[key] for value in values] for key in first}
    method = getattr(client, change_class.body.call)
    return method(model="movies", **arguments)


def are_alike(items: Sequence[Any]) -> bool:
    """Returns whether there are items, all with the same fields and the same names in them."""
    shapes = [
        {name: set(value) if isinstance(value, dict) else set() for name, value in item.items()}
        for item in items
    ]
    return bool(items) and all(shape == shapes[0] for shape in shapes)
