"""Changes that a model cannot take: the code of the error, and words that its message must have."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.codec.stubs import embedding_service_pb2 as pb
from tests.units.service.changes.making import candidate

BAD = "INVALID_ARGUMENT"
LARGE = "TOO_LARGE"
GONE = "NOT_FOUND"
VECTOR = [1.0] * 8
ITEM = {"id": 1000, "attributes": {"year": 2000}}
LIMITS = {
    "max_changed_candidates": 3,
    "max_features": 8,
    "max_changes_bytes": 1 << 20,
}


def featured(**features: Any) -> dict[str, Any]:
    """Returns a candidate with other features; None: without the feature."""
    item = candidate(1)
    item["features"] = {
        name: value for name, value in (item["features"] | features).items() if value is not None
    }
    return item


FEATURES: list[tuple[Any, ...]] = [
    ("movie", 7, "7"),
    ("movie", True, "true"),
    ("movie", "007", "007"),
    ("movie", [1000, 1007], "2 values"),
    ("genres", ["drama", None], "null"),
    ("genres", [["drama"], ["comedy", "action"]], "nested"),
    ("year", "1", "number"),
    ("year", [1.0, 2.0], "2 numbers"),
    ("year", [], "no value"),
    ("year", 1e39, "float32"),
]
"""Values that a feature does not take, and words of the message. Changes take the values that
rankings take, which have tables of their own.
"""
ATTRIBUTES: list[tuple[str, str, Any]] = [
    ("genres", "list<string>", "drama"),
    ("genres", "list<string>", ["drama", None]),
    ("genres", "list<string>", [["drama"]]),
    ("genres", "list<string>", [1]),
    ("year", "int64", "x"),
    ("year", "int64", "007"),
    ("year", "int64", 2027.9),
    ("year", "int64", -0.5),
    ("year", "int64", 2**63),
    ("year", "int64", -(2.0**63)),
    ("year", "int64", 2.0**54),
    ("year", "int64", 1e300),
    ("year", "int64", True),
    ("year", "int64", [2027]),
    ("rating", "double", "0.5"),
    ("rating", "double", True),
    ("title", "string", 5),
    ("title", "string", ["x"]),
    ("classic", "bool", 1),
    ("classic", "bool", "true"),
]
"""Values that are none of an attribute's type."""
Bodies = list[tuple[str, list[Any], dict[str, Any], str, list[str]]]
ITEMS: Bodies = [
    ("candidates/attributes", [], {}, BAD, ["items", "empty"]),
    ("candidates/attributes", [{"attributes": {"year": 1}}], {}, BAD, ["items[0]", "id"]),
    ("candidates/attributes", [{**ITEM, "atributes": {}}], {}, BAD, ["items[0]", "'atributes'"]),
    ("candidates/attributes", [ITEM, ITEM], {}, BAD, ["id 1000", "twice"]),
    ("candidates/attributes", [{**ITEM, "id": 2**63}], {}, BAD, [str(2**63)]),
    (
        "candidates/attributes",
        [{**ITEM, "sequence": 1}, {**ITEM, "id": 1007}],
        {},
        BAD,
        ["items[1]", "sequence"],
    ),
    ("candidates/attributes", [{**ITEM, "sequence": -1}], {}, BAD, ["items[0].sequence", "-1"]),
    (
        "candidates/attributes",
        [ITEM],
        {"stream": "s" * 300, "offset": 5},
        BAD,
        ["stream", "256"],
    ),
    (
        "candidates/attributes",
        [ITEM],
        {"stream": "s", "offset": 9, "from_offset": 9},
        BAD,
        ["from_offset", "9"],
    ),
]
CANDIDATES: Bodies = [
    ("candidates/upsert", [candidate(1)], {"corpus": "movie"}, GONE, ["'movie'", "'movies'"]),
    ("candidates/upsert", [candidate("a")], {}, BAD, ["ids"]),
    (
        "candidates/upsert",
        [featured(year=None)],
        {},
        BAD,
        ["'year'", "features", "all features of corpus 'movies'"],
    ),
    ("candidates/upsert", [featured(yeer=1)], {}, BAD, ["a feature of corpus 'movies'", "'yeer'"]),
    ("candidates/upsert", [featured(genres=[1])], {}, BAD, ["features.genres", "string"]),
    (
        "candidates/upsert",
        [{**candidate(1), "attributes": {"titel": "x"}}],
        {},
        BAD,
        ["attributes", "'titel'"],
    ),
    *[
        (
            "candidates/upsert",
            [featured(**{name: value})],
            {},
            BAD,
            [f"features.{name}", *words],
        )
        for name, value, *words in FEATURES
    ],
    *[
        (
            f"candidates/{action}",
            [{**item, "attributes": {name: value}}],
            {},
            BAD,
            [f"attributes.{name} holds", f"{kind} or null was expected"],
        )
        for action, item, values in (
            ("upsert", candidate(1), ATTRIBUTES[::5]),
            ("attributes", {"id": 1000}, ATTRIBUTES),
        )
        for name, kind, value in values
    ],
    *[
        (
            "candidates/upsert",
            [candidate(1), candidate(2, expires_s=time_s)],
            {},
            BAD,
            ["expires_s[1]", "Unix seconds", "2500"],
        )
        for time_s in (0, -1, 1.8e12, 1.8e15, 1e300)
    ],
    ("candidates/upsert", [candidate(1, expires_s="soon")], {}, BAD, ["items[0].expires_s"]),
    ("candidates/upsert", [candidate(1, expires_s=True)], {}, BAD, ["items[0].expires_s"]),
    (
        "candidates/upsert",
        [candidate(2), featured(year=1e30)],
        {},
        BAD,
        # Which tower is the first that fails depends on the weights of a short training.
        ["features", "not finite"],
    ),
    (
        "candidates/upsert",
        [{**featured(movie=7), "vectors": {"movies": VECTOR}}],
        {},
        BAD,
        ["features.movie", "7"],
    ),
    (
        "candidates/upsert",
        [candidate(1, vectors={"movies": [1] * 7})],
        {},
        BAD,
        ["vectors.movies", "[1, 8]"],
    ),
    (
        "candidates/upsert",
        [candidate(key, vectors={"movies": [1] * size}) for key, size in ((1, 8), (2, 7))],
        {},
        BAD,
        ["items[1].vectors.movies", "8"],
    ),
    (
        "candidates/upsert",
        [candidate(1, vectors={"movies": [1e39] * 8})],
        {},
        BAD,
        ["vectors.movies", "float32"],
    ),
    (
        "candidates/upsert",
        [candidate(1, vectors={"movies": "1 2"})],
        {},
        BAD,
        ["items[0].vectors.movies", "'1 2'"],
    ),
    (
        "candidates/upsert",
        [candidate(1, vectors={"movies": [1e19] * 8})],
        {},
        BAD,
        ["vectors.movies[0]", "id 1"],
    ),
    (
        "candidates/upsert",
        [candidate(key) for key in range(4)],
        {},
        LARGE,
        ["4", "corpus 'movies' would have", "max_changed_candidates"],
    ),
    (
        "candidates/upsert",
        [{"id": 1, "features": {"year": 0.5}}],
        {},
        BAD,
        ["'movie', 'genres'", "all features of corpus 'movies'"],
    ),
    ("candidates/attributes", [{"id": 1000, "attributes": {}}], {}, BAD, ["attributes", "empty"]),
    ("candidates/delete", [{"id": 1000, "features": {}}], {}, BAD, ["items[0]", "'features'"]),
    (
        "contexts/upsert",
        [{"id": 1, "features": {"user": 3}}],
        {},
        BAD,
        ["'liked'", "context store 'users'"],
    ),
    (
        "contexts/attributes",
        [{"id": 7, "attributes": {"title": "x"}}],
        {},
        BAD,
        ["an attribute of context store 'users'", "'title'"],
    ),
]

IDS = pb.Ids(int64s=np.array([5000, 5001], "<i8").tobytes())
UPSERT: dict[str, Any] = {
    "kind": pb.CHANGE_KIND_CANDIDATES,
    "action": pb.CHANGE_ACTION_UPSERT,
    "ids": IDS,
}
DELETION: dict[str, Any] = {**UPSERT, "action": pb.CHANGE_ACTION_DELETE}
COLUMN = pb.Column(int64s=bytes(16))
VALUES = pb.Attribute()
MESSAGES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("candidates/upsert", {**UPSERT, "kind": 99}, BAD, ["kind", "99"]),
    ("candidates/upsert", {**UPSERT, "action": 99}, BAD, ["action", "99", "upsert"]),
    ("candidates/upsert", {**UPSERT, "ids": pb.Ids()}, BAD, ["ids", "empty"]),
    ("candidates/upsert", {**UPSERT, "ids": pb.Ids(int64s=b"1")}, BAD, ["ids.int64s", "1"]),
    ("candidates/delete", {**DELETION, "features": {"x": COLUMN}}, BAD, ["features", "delete"]),
    ("candidates/delete", {**DELETION, "attributes": {"y": VALUES}}, BAD, ["attributes"]),
    ("candidates/upsert", {**UPSERT, "vectors": {"movies": bytes(12)}}, BAD, ["vectors", "3"]),
    ("candidates/upsert", {**UPSERT, "sequences": b"12"}, BAD, ["sequences", "8"]),
    (
        "candidates/upsert",
        {**UPSERT, "sequences": np.array([1, -1], "<i8").tobytes()},
        BAD,
        ["sequences", "-1"],
    ),
    ("candidates/upsert", {**UPSERT, "offset": 4}, BAD, ["stream", "offset"]),
    ("candidates/upsert", {**UPSERT, "stream": "s", "offset": -4}, BAD, ["offset", "-4"]),
    (
        "candidates/upsert",
        {**UPSERT, "attributes": {"year": pb.Attribute(nulls=[2])}},
        BAD,
        ["attributes.year", "2"],
    ),
    (
        "candidates/upsert",
        {**UPSERT, "features": {str(number): COLUMN for number in range(9)}},
        LARGE,
        ["features", "8"],
    ),
]
