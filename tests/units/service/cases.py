"""The table of requests to which every transport responds alike: each as JSON, and as a protobuf
message with the same content.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.codec.stubs import embedding_service_pb2 as pb

MODEL = "movies"
LIMITS = {
    "max_k": 50,
    "max_candidates": 60,
    "max_queries": 8,
    "max_values": 300,
    "max_names": 10,
    "max_filter_terms": 10,
    "max_features": 20,
    "max_request_bytes": 16_384,
}
"""Of the service that is called."""
REQUESTS: dict[str, Any] = {
    "retrieve": pb.RetrieveRequest,
    "rank": pb.RankRequest,
    "recommend": pb.RecommendRequest,
    "embed": pb.EmbedRequest,
    "lookup": pb.LookupRequest,
}
BAD = "INVALID_ARGUMENT"
LARGE = "TOO_LARGE"
GONE = "NOT_FOUND"
NAN = float("nan")
_DENSE = {"hour", "mood", "year"}
"""Features whose columns have no offsets: their values are taken by shape."""


@dataclass(frozen=True)
class Case:
    """One request in both forms, and the code of its response.

    Attributes:
      json: A JSON value, or raw bytes.
      message: The fields of the message, or raw bytes; None: the message with the content of
        the JSON value.
    """

    call: str
    name: str
    json: Any
    code: str = "OK"
    message: Mapping[str, Any] | bytes | None = None
    model: str = MODEL
    version: int = 0

    def body(self) -> bytes:
        """Returns the protobuf body. It names the model, as gRPC has no other place for that."""
        if isinstance(self.message, bytes):
            return self.message
        fields = message_of(self.call, self.json) if self.message is None else self.message
        spec = pb.ModelSpec(name=self.model, version=self.version)
        return bytes(REQUESTS[self.call](model=spec, **fields).SerializeToString())


def i64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def offsets(entries: Sequence[Sequence[Any]]) -> bytes:
    ends = [0]
    for entry in entries:
        ends.append(ends[-1] + len(entry))
    return i32(*ends)


def ids(values: Sequence[Any]) -> pb.Ids:
    if any(isinstance(value, str) and not value.isdigit() for value in values):
        return pb.Ids(strings=pb.Strings(values=values))
    return pb.Ids(int64s=i64(*map(int, values)))


def column(entries: Sequence[Any], *, dense: bool = False) -> pb.Column:
    """The column of one entry for each example: a value, a list of values, or a list
    with weights.
    """
    weighted = [entry for entry in entries if isinstance(entry, dict)]
    weights = f32(*[weight for entry in weighted for weight in entry["weights"]])
    lists = [entry.get("ids", []) if isinstance(entry, dict) else entry for entry in entries]
    several = any(isinstance(entry, list) for entry in lists)
    lists = [entry if isinstance(entry, list) else [entry] for entry in lists]
    values = [value for entry in lists for value in entry]
    packed: dict[str, Any] = {
        "weights": weights,
        "offsets": offsets(lists) if several and not dense else b"",
    }
    if any(isinstance(value, str) for value in values):
        return pb.Column(strings=pb.Strings(values=values), **packed)
    if any(isinstance(value, float) for value in values):
        return pb.Column(float32s=f32(*values), **packed)
    return pb.Column(int64s=i64(*values), **packed)


def columns(examples: Sequence[Mapping[str, Any]]) -> dict[str, pb.Column]:
    return {
        name: column([example[name] for example in examples], dense=name in _DENSE)
        for name in examples[0]
    }


def condition(body: Mapping[str, Any]) -> pb.Condition:
    """The message of one condition of a filter."""
    lists = {
        name: [str(value).lower() if isinstance(value, bool) else value for value in body[name]]
        for name in body
        if name in {"allow", "deny"}
    }
    numbers = {
        name: pb.Number(**{"int64" if isinstance(body[name], int) else "float64": body[name]})
        for name in body
        if name in {"ge", "gt", "le", "lt"}
    }
    packed = pb.Condition(**{name: ids(values) for name, values in lists.items()}, **numbers)
    if "is_null" in body:
        packed.is_null = body["is_null"]
    return packed


def filter_message(body: Mapping[str, Any]) -> pb.Filter:
    """The message of a filter."""
    message = pb.Filter()
    for name, part in body.items():
        if isinstance(part, Mapping):
            message.conditions[name].CopyFrom(condition(part))
        elif name == "near":
            message.near.extend([pb.Circle(**circle) for circle in part])
        else:
            getattr(message, name).extend([filter_message(part_filter) for part_filter in part])
    return message


def message_of(call: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the message with the content of a JSON body, written apart from the service's
    readers.
    """
    options = {
        "k",
        "attributes",
        "index",
        "exact",
        "heads",
        "tower",
        "formula",
        "min_score",
        "recall",
    }
    if call == "lookup":
        options.add("feature")
    elif call != "rank":
        options |= {"pool_size", "diversity", "explain", "offset"}
    if call == "recommend":
        options |= {"keep", "skip_stage"}
    fields = {name: value for name, value in body.items() if name in options}
    if "not_found" in body:
        fields["not_found"] = f"NOT_FOUND_RULE_{body['not_found'].upper()}"
    if call == "lookup":
        return fields | ({"ids": column(body["ids"])} if "ids" in body else {})
    if "filter" in body:
        fields["filter"] = filter_message(body["filter"])
    if "crowding" in body:
        fields["crowding"] = body["crowding"]
    if "sources" in body:
        fields["sources"] = [*map(source, body["sources"])]
    parts = body.get("requests", [body])
    first = parts[0]
    for name in {"vectors", "ids"} & set(first):
        merged = [value for part in parts for value in part[name]]
        fields[name] = (
            ids(merged) if name == "ids" else f32(*[value for vector in merged for value in vector])
        )
        fields["query_offsets"] = offsets([part[name] for part in parts])
    if any("context_id" in part for part in parts):
        fields["context_ids"] = ids([part["context_id"] for part in parts])
    for name, field in (("exclude_ids", "exclude_offsets"), ("negative_ids", "negative_offsets")):
        if any(name in part for part in parts):
            lists = [part.get(name, []) for part in parts]
            fields[name] = ids([value for id_list in lists for value in id_list])
            fields[field] = offsets(lists) if len(parts) > 1 else b""
    for name in {"context", "features"} & set(first):
        fields[name] = columns([part[name] for part in parts])
    if "candidate_ids" in first:
        lists = [part["candidate_ids"] for part in parts]
        fields["candidate_ids"] = ids([value for id_list in lists for value in id_list])
        fields["offsets"] = offsets(lists) if len(parts) > 1 else b""
    if "candidate_features" in first:
        fields["candidate_features"] = {
            name: column(values, dense=name in _DENSE)
            for name, values in first["candidate_features"].items()
        }
    return fields


def source(body: Mapping[str, Any]) -> pb.Source:
    """The message of one source."""
    fields = {name: value for name, value in body.items() if name != "ids"}
    if "ids" in body:
        lists = [part for part in body["ids"] if isinstance(part, list)]
        fields["ids"] = ids([value for part in lists for value in part] or body["ids"])
        if lists:
            fields["offsets"] = offsets(lists)
    return pb.Source(**fields)


def user(value: Any = 5, **more: Any) -> dict[str, Any]:
    return {"context": {"user": value, **more}}


def circle(latitude: float, longitude: float, radius_m: float) -> dict[str, Any]:
    return {"latitude": latitude, "longitude": longitude, "radius_m": radius_m}


def nested(levels: int) -> dict[str, Any]:
    """A filter with a number of levels."""
    innermost: dict[str, Any] = {"year": {"ge": 1990}}
    for _ in range(levels - 1):
        innermost = {"all": [innermost]}
    return innermost


def filtered(**conditions: Any) -> dict[str, Any]:
    return {"filter": conditions, **user()}


def rank(candidates: Sequence[Any] = (1000,), **more: Any) -> dict[str, Any]:
    return {"context": {"user": 5}, "candidate_ids": list(candidates), **more}


def context(**features: Any) -> dict[str, Any]:
    return {"context": {"user": 5, **features}, "candidate_ids": [1000]}


EXAMPLE = {"features": {"user": 5}}
_FILM = {"movie": [1000, 1007], "genres": [["drama"], []], "year": [0.5, 0.25]}
_LISTED = {
    "k": 4,
    "requests": [
        {"context": {"user": 1, "history": [1000]}, "exclude_ids": [1014]},
        {"context": {"user": 2, "history": [1007, 1014]}},
        {"context": {"user": 3, "history": []}, "exclude_ids": [1000, 1007]},
    ],
}
_RANKED = {
    "k": 2,
    "requests": [
        {"context": {"user": 1, "mood": [0.5, 1.0]}, "candidate_ids": [1000]},
        {"context": {"user": 2, "mood": [2.0, 3.0]}, "candidate_ids": [1007, 1014, 1021]},
    ],
}
_EVERY_KIND = {
    "liked": {"ids": [1000, 1007], "weights": [0.5, 2]},
    "recent": [1000, 1007, 1014, 1021],
    "hour": 0.5,
    "mood": [0.25, -1.0],
}
_ATTRIBUTES = ["title", "year", "rating", "genres"]
_STORED = [
    {"context_id": 7, "context": {"hour": 0.5}, "candidate_ids": [1000]},
    {"context_id": "21", "context": {"hour": 2.0}, "candidate_ids": [1007, 1014]},
]
_HOURS = [{"context_id": 7, "context": {"hour": 1}}, {"context_id": 3, "context": {"hour": 2}}]
_NAN_WEIGHT = (
    b'{"context": {"user": 5, "liked": {"ids": [1000], "weights": [NaN]}}, "candidate_ids": [1000]}'
)
_EXCLUDING = [{**user(1), "exclude_ids": [1000]}, user(2)]
_MOVIES = [
    {"movie": 1000, "genres": ["drama", "x"], "year": 0.5},
    {"movie": 1007, "genres": [], "year": 1.0},
]

CASES = (
    Case("retrieve", "by features", user()),
    Case("retrieve", "k", {"k": 3, **user()}),
    Case("retrieve", "k of zero is the default", {"k": 0, **user()}),
    Case("retrieve", "k beyond the corpus", {"k": 50, **user()}),
    Case("retrieve", "a version", user(), version=1),
    Case("retrieve", "attributes of every type", {"k": 40, "attributes": _ATTRIBUTES, **user()}),
    Case("retrieve", "exclusions", {"exclude_ids": [1000, 1007, 5], **user()}),
    Case("retrieve", "negative examples", {"negative_ids": [1000, 1007, 5], **user()}),
    Case("retrieve", "no negative examples", {"negative_ids": [], **user()}),
    Case(
        "retrieve",
        "negative examples of some requests",
        {"k": 5, "requests": [{**user(1), "negative_ids": [1000, 1014]}, user(2)]},
    ),
    Case(
        "retrieve",
        "negative examples beside ids that are merged",
        {"k": 5, "ids": [1000, 1014], "negative_ids": [1021, 1028], "exclude_ids": [1007]},
    ),
    Case("retrieve", "too many negative examples", {"negative_ids": [7] * 61, **user()}, LARGE),
    Case("retrieve", "the first page", {"k": 4, "offset": 0, "pool_size": 12, **user()}),
    Case("retrieve", "a page", {"k": 4, "offset": 4, "pool_size": 12, **user()}),
    Case(
        "retrieve",
        "a page of a diverse list",
        {"k": 4, "offset": 3, "pool_size": 12, "diversity": 0.5, **user()},
    ),
    Case("retrieve", "a page of no pool", {"k": 4, "offset": 4, **user()}, BAD),
    Case("retrieve", "a page before the first", {"offset": -1, "pool_size": 12, **user()}, BAD),
    Case("retrieve", "a page past the pool", {"k": 4, "offset": 9, "pool_size": 12, **user()}, BAD),
    Case("recommend", "negative examples", {"k": 5, "negative_ids": [1000], **user()}),
    Case("recommend", "a page", {"k": 4, "offset": 4, "pool_size": 12, **user()}),
    Case("retrieve", "an empty exclusion", {"exclude_ids": [], **user()}),
    Case("retrieve", "exact", {"exact": True, **user()}),
    Case("retrieve", "an index", {"index": "movies", **user()}),
    Case("retrieve", "an unknown integer", user(10**15)),
    Case("retrieve", "a negative integer", user(-3)),
    Case("retrieve", "an integer as a decimal string", user("9007199254740993")),
    Case("retrieve", "a string", user(city="oslo")),
    Case("retrieve", "an integer where a string is hashed", user(city=17)),
    Case("retrieve", "a bag", user(history=[1000, 1007])),
    Case("retrieve", "a bag of one as a scalar", user(history=1000)),
    Case("retrieve", "an empty bag", user(history=[])),
    Case("retrieve", "unknown ids in a bag", user(history=[1, 1000])),
    Case("retrieve", "a dense number", user(hour=7.0)),
    Case(
        "retrieve",
        "a dense number as int32",
        user(hour=7),
        "OK",
        {"context": {"user": column([5]), "hour": pb.Column(int32s=i32(7))}},
    ),
    Case("retrieve", "a list", _LISTED),
    Case("retrieve", "a vector", {"vectors": [[0.5] * 8]}),
    Case(
        "retrieve",
        "vectors",
        {"requests": [{"vectors": [[0.5] * 8]}, {"vectors": [[1, 0, 0, 0, 0, 0, 0, -1]]}]},
    ),
    Case("retrieve", "an id", {"ids": [1000]}),
    Case("retrieve", "ids", {"requests": [{"ids": [1000]}, {"ids": ["1014"]}]}),
    Case("retrieve", "a context by id", {"k": 3, "context_id": 7}),
    Case("retrieve", "contexts by id beside a feature", {"k": 3, "requests": _HOURS}),
    Case("retrieve", "a context beside a vector", {"context_id": 7, "vectors": [[1] * 8]}, BAD),
    Case("retrieve", "a negative k", {"k": -1, **user()}, BAD),
    Case("retrieve", "k over its limit", {"k": 51, **user()}, BAD),
    Case("retrieve", "a huge k", {"k": 2**31 - 1, **user()}, BAD),
    Case("retrieve", "nothing", {}, BAD),
    Case("retrieve", "no feature", {"context": {}}, BAD),
    Case("retrieve", "an id and a vector", {"ids": [1000], "vectors": [[0.5] * 8]}, BAD),
    Case("retrieve", "an unknown feature", user(age=3), BAD),
    Case("retrieve", "a required feature missing", {"context": {"hour": 3.0}}, BAD),
    Case("retrieve", "an unknown index", {"index": "x", **user()}, GONE),
    Case("retrieve", "an unknown attribute", {"attributes": ["x"], **user()}, BAD),
    Case("retrieve", "too many attributes", {"attributes": ["title"] * 11, **user()}, LARGE),
    Case("retrieve", "too many features", {"context": {f"f{n}": 1 for n in range(21)}}, LARGE),
    Case("retrieve", "an unknown model", user(), GONE, model="books"),
    Case("retrieve", "an unknown version", user(), GONE, version=7),
    Case("retrieve", "an empty filter", {"filter": {}, **user()}),
    Case(
        "retrieve",
        "a filter by values of a list",
        filtered(genres={"allow": ["drama", "horror", "opera"]}),
    ),
    Case(
        "retrieve",
        "a filter by a value too many have",
        {"k": 50, **filtered(genres={"deny": ["drama"]})},
    ),
    Case(
        "retrieve",
        "a filter in which deny wins",
        {"k": 50, **filtered(genres={"allow": ["drama", "comedy"], "deny": ["comedy"]})},
    ),
    Case(
        "retrieve",
        "a filter by integers",
        filtered(year={"allow": [1995, "1996", 3], "deny": [1996]}),
    ),
    Case(
        "retrieve",
        "a filter by bounds",
        {"k": 50, **filtered(year={"ge": 1991, "lt": 2010}, rating={"gt": 0.5})},
    ),
    Case(
        "retrieve",
        "a filter by fractions of integers",
        {"k": 50, **filtered(year={"gt": 1994.5, "le": 1999.5})},
    ),
    Case("retrieve", "a filter by truth", {"k": 50, **filtered(classic={"allow": [True]})}),
    Case(
        "retrieve",
        "a filter by bounds, allow and deny",
        {
            "k": 50,
            **filtered(
                year={"ge": 1991, "allow": [1989, 1992, 93], "deny": [93]}, classic={"deny": [True]}
            ),
        },
    ),
    Case("retrieve", "a filter that denies nothing", {"k": 50, **filtered(year={"deny": []})}),
    Case("retrieve", "a filter that denies no words", {"k": 50, **filtered(genres={"deny": []})}),
    Case("retrieve", "bounds that contradict each other", filtered(year={"ge": 2010, "lt": 2000})),
    Case(
        "retrieve",
        "a filter of a list and exclusions",
        {
            "k": 9,
            "filter": {"year": {"ge": 2000}},
            "requests": [{**user(1), "exclude_ids": [1105]}, user(2)],
        },
    ),
    Case(
        "retrieve",
        "a filter beside an id",
        {"k": 50, "ids": [1000], "filter": {"classic": {"allow": [True]}}},
    ),
    Case(
        "retrieve",
        "an exact search with a filter",
        {"exact": True, **filtered(genres={"allow": ["drama"]})},
    ),
    Case(
        "retrieve",
        "a filter of alternatives over attributes",
        {"k": 50, **filtered(any=[{"year": {"lt": 1995}}, {"genres": {"allow": ["horror"]}}])},
    ),
    Case(
        "retrieve",
        "a filter of filters at several levels",
        {
            "k": 50,
            **filtered(
                rating={"lt": 9},
                all=[{"any": [{"year": {"ge": 2015}}, {"classic": {"allow": [True]}}]}],
                none=[{"genres": {"allow": ["drama"]}, "year": {"lt": 2000}}],
            ),
        },
    ),
    Case("retrieve", "a filter by nulls", {"k": 50, **filtered(studio={"is_null": True})}),
    Case(
        "retrieve",
        "a filter by what is not null",
        {"k": 50, **filtered(genres={"is_null": False}, year={"is_null": False, "ge": 2000})},
    ),
    Case(
        "retrieve",
        "a filter by distance",
        {"k": 50, **filtered(near=[circle(10, 20, 5e6), circle(-60, 175, 3e6)])},
    ),
    Case(
        "retrieve",
        "a filter by distance from a pole",
        {"k": 50, **filtered(near=[circle(-89, 0, 4e6)])},
    ),
    Case(
        "retrieve",
        "a filter by distances of other attributes",
        {
            "k": 50,
            **filtered(
                near=[
                    circle(5, 5, 9e5)
                    | {"latitude_attribute": "rating", "longitude_attribute": "rating"}
                ]
            ),
        },
    ),
    Case("retrieve", "a filter nested too deep", filtered(**nested(9)), LARGE),
    Case("retrieve", "a filter nested as deep as it may be", filtered(**nested(8))),
    Case("retrieve", "a filter of too many filters", filtered(any=[{}] * 11), LARGE),
    Case(
        "retrieve",
        "a nested filter by no attribute",
        filtered(any=[{"none": [{"yer": {"ge": 1990}}]}]),
        BAD,
    ),
    Case("retrieve", "a filter by a negative radius", filtered(near=[circle(1, 2, -3)]), BAD),
    Case("retrieve", "a filter by no latitude", filtered(near=[circle(91, 2, 3)]), BAD),
    Case(
        "retrieve",
        "a filter by a distance of words",
        filtered(near=[circle(1, 2, 3) | {"latitude_attribute": "studio"}]),
        BAD,
    ),
    Case("retrieve", "a filter by no attribute", filtered(yer={"ge": 1990}), BAD),
    Case("retrieve", "a filter by what has no index", filtered(title={"allow": ["x"]}), BAD),
    Case("retrieve", "a filter with nothing in it", filtered(year={}), BAD),
    Case("retrieve", "a filter that allows nothing", filtered(year={"allow": []}), BAD),
    Case("retrieve", "a filter by words of integers", filtered(year={"allow": ["late"]}), BAD),
    Case("retrieve", "a filter by integers of words", filtered(genres={"deny": [5]}), BAD),
    Case("retrieve", "a filter by integers of truth", filtered(classic={"allow": [1]}), BAD),
    Case("retrieve", "a filter by bounds of words", filtered(genres={"ge": 5}), BAD),
    Case("retrieve", "a filter by bounds of truth", filtered(classic={"le": 1}), BAD),
    Case("retrieve", "a filter by single doubles", filtered(rating={"allow": [1]}), BAD),
    Case(
        "retrieve",
        "a filter by a bound that is no number",
        b'{"filter": {"rating": {"ge": NaN}}, "context": {"user": 5}}',
        BAD,
        message_of("retrieve", filtered(rating={"ge": NAN})),
    ),
    Case(
        "retrieve",
        "a filter by an infinite bound",
        b'{"filter": {"rating": {"lt": 1e999}}, "context": {"user": 5}}',
        BAD,
        message_of("retrieve", filtered(rating={"lt": float("inf")})),
    ),
    Case("retrieve", "a filter of too many values", filtered(year={"allow": [7] * 301}), LARGE),
    Case(
        "retrieve",
        "a filter by too many attributes",
        filtered(**{f"a{n}": {"ge": 1} for n in range(11)}),
        LARGE,
    ),
    Case("retrieve", "a recall", {"recall": 0.9, **user()}),
    Case("retrieve", "a recall beyond one", {"recall": 1.5, **user()}, BAD),
    Case("retrieve", "a negative recall", {"recall": -0.5, **user()}, BAD),
    Case("retrieve", "vectors merged", {"k": 6, "vectors": [[0.5] * 8, [1, 0, 0, 0, 0, 0, 0, -1]]}),
    Case(
        "retrieve",
        "ids merged, in a list",
        {"k": 6, "requests": [{"ids": [1000, "1014"]}, {"ids": [1007]}]},
    ),
    Case(
        "retrieve",
        "ids merged with a filter and exclusions",
        {"k": 50, "ids": [1000, 1014], "exclude_ids": [1021], "filter": {"year": {"ge": 1991}}},
    ),
    Case(
        "retrieve",
        "no vectors to merge",
        {"requests": [{"vectors": [[0.5] * 8]}, {"vectors": []}]},
        BAD,
    ),
    Case("retrieve", "too many vectors to merge", {"vectors": [[0.5] * 8] * 9}, LARGE),
    Case("retrieve", "a vector of another dim", {"vectors": [[1.0] * 7]}, BAD),
    Case(
        "retrieve",
        "a vector with NaN",
        b'{"vectors": [[NaN,0,0,0,0,0,0,0]]}',
        BAD,
        {"vectors": f32(NAN, *[0] * 7)},
    ),
    Case(
        "retrieve",
        "a vector with infinity",
        b'{"vectors": [[1e999,0,0,0,0,0,0,0]]}',
        BAD,
        {"vectors": f32(float("inf"), *[0] * 7)},
    ),
    Case("retrieve", "a vector whose scores overflow", {"vectors": [[3e38] * 8]}, BAD),
    Case("retrieve", "a dense number that overflows", user(hour=3e38), BAD),
    Case("retrieve", "the id of no candidate", {"ids": [3]}, BAD),
    Case("retrieve", "a fraction as id", user(1.5), BAD),
    Case(
        "retrieve",
        "NaN as id",
        b'{"context": {"user": NaN}}',
        BAD,
        {"context": {"user": column([NAN])}},
    ),
    Case("retrieve", "a word where integers are ids", user("ann"), BAD),
    Case("retrieve", "a number where strings are ids", user(city=1.5), BAD),
    Case("retrieve", "a string as number", user(hour="7"), BAD),
    Case(
        "retrieve",
        "NaN as number",
        b'{"context": {"user": 5, "hour": NaN}}',
        BAD,
        {"context": columns([{"user": 5, "hour": NAN}])},
    ),
    Case("retrieve", "several values of a single", user([1, 2]), BAD),
    Case("retrieve", "no value of a single", user([]), BAD),
    Case("retrieve", "a word in a bag of integers", user(history=["x"]), BAD),
    Case(
        "retrieve",
        "weights where none are taken",
        user(history={"ids": [1000], "weights": [1]}),
        BAD,
    ),
    Case(
        "retrieve", "too many queries", {"requests": [user(number) for number in range(9)]}, LARGE
    ),
    Case("retrieve", "too many values", user(history=[1000] * 301), LARGE),
    Case("retrieve", "too many exclusions", {"exclude_ids": [7] * 301, **user()}, LARGE),
    Case("retrieve", "an undecodable body", b"{", BAD, b"\xff\xff\xff"),
    Case("retrieve", "bytes of the other form", b"\x18\x05", BAD, b'{"k": 5}'),
    Case("retrieve", "an oversized body", b" " * 16_385, LARGE, bytes(16_385)),
    Case("rank", "ids", rank([1000, 1021])),
    Case("rank", "the same candidate twice", rank([1000, 1000])),
    Case(
        "rank",
        "the best k with heads",
        rank([1000, 1007, 1014, "1021"], k=2, heads=["watch", "rating"]),
    ),
    Case("rank", "features alone", {"context": {"user": 5}, "candidate_features": _FILM}),
    Case(
        "rank",
        "ids with a feature overridden",
        rank([1000, 1007], candidate_features={"year": [0.5, 0.75]}),
    ),
    Case("rank", "every kind of context feature", context(**_EVERY_KIND)),
    Case("rank", "a list", _RANKED),
    Case(
        "rank",
        "a context by id",
        {"context_id": 7, "candidate_ids": [1000, 1021], "heads": ["watch"]},
    ),
    Case("rank", "contexts by id, one feature overridden", {"requests": _STORED}),
    Case("rank", "an unknown context beside what has no default", {"context_id": 999, **rank()}),
    Case(
        "rank",
        "a formula with heads",
        rank([1000, 1007, 1014], formula="watch^0.7 * exp(-rating)", heads=["rating"], k=2),
    ),
    Case("rank", "an unknown context", {"context_id": 999, "candidate_ids": [1000]}, BAD),
    Case(
        "rank",
        "two contexts for one request",
        {"requests": [{"context_id": 7, "candidate_ids": [1000]}, rank()]},
        BAD,
        {"context_ids": ids([7, 3]), "candidate_ids": ids([1000])},
    ),
    Case(
        "rank",
        "context ids of another type",
        {"context_id": 0.5, "candidate_ids": [1000]},
        BAD,
        {"context_ids": ids(["seven"]), "candidate_ids": ids([1000])},
    ),
    Case("rank", "a formula that ends early", rank(formula="watch *"), BAD),
    Case("rank", "a formula without a value", rank(formula="log(-watch)"), BAD),
    Case("rank", "no such candidate", rank([7]), BAD),
    Case(
        "rank",
        "a fraction as candidate",
        rank([1.5]),
        BAD,
        {"context": columns([{"user": 5}]), "candidate_features": {"movie": column([1.5])}},
    ),
    Case(
        "rank",
        "a candidate feature missing",
        {"context": {"user": 5}, "candidate_features": {"movie": [1000]}},
        BAD,
    ),
    Case(
        "rank",
        "candidate features of different lengths",
        rank([1000, 1007], candidate_features={"year": [0.5]}),
        BAD,
    ),
    Case(
        "rank",
        "an unknown id that its feature rejects",
        {"context": {"user": 5}, "candidate_features": {**_FILM, "movie": [1000, 5]}},
        BAD,
    ),
    Case("rank", "nothing to rank", {"context": {"user": 5}}, BAD),
    Case("rank", "an unknown head", rank(heads=["x"]), BAD),
    Case("rank", "an unknown tower", rank(tower="x"), GONE),
    Case(
        "rank",
        "a candidate feature as context",
        {"context": {"year": 0.5}, "candidate_ids": [1000]},
        BAD,
    ),
    Case("rank", "a negative k", rank(k=-1), BAD),
    Case("rank", "too many candidates", rank([1000] * 61), LARGE),
    Case(
        "rank",
        "a weight that is no number",
        _NAN_WEIGHT,
        BAD,
        message_of("rank", context(liked={"ids": [1000], "weights": [NAN]})),
    ),
    Case(
        "rank", "fewer weights than ids", context(liked={"ids": [1000, 1007], "weights": [1]}), BAD
    ),
    Case("rank", "weights without ids", context(liked={"weights": [1]}), BAD),
    Case("rank", "a dense value of another shape", context(mood=[1.0, 2.0, 3.0]), BAD),
    Case(
        "rank",
        "weights whose sum overflows",
        context(liked={"ids": [1000] * 4, "weights": [3e38] * 4}),
        BAD,
    ),
    Case("rank", "an empty body", b"", BAD, b""),
    Case("recommend", "features", {"k": 5, "attributes": ["title"], **user()}),
    Case("recommend", "a list", {"k": 2, "pool_size": 5, "requests": _EXCLUDING}),
    Case(
        "recommend",
        "contexts by id",
        {
            "k": 3,
            "pool_size": 20,
            "requests": [{"context_id": 7}, {"context_id": 21}],
            "formula": "watch * 2",
        },
    ),
    Case(
        "recommend",
        "a filter",
        {"k": 5, "pool_size": 20, **filtered(genres={"deny": ["drama"]}, year={"gt": 1992})},
    ),
    Case("recommend", "a filter with nothing in it", filtered(year={}), BAD),
    Case("recommend", "fewer candidates than k", {"k": 5, "pool_size": 2, **user()}, BAD),
    Case("recommend", "negative candidates", {"pool_size": -1, **user()}, BAD),
    Case("recommend", "no features", {}, BAD),
    Case("recommend", "a candidate feature", user(year=1.0), BAD),
    Case("recommend", "too many to rank", {"requests": [user(1), user(2)]}, LARGE),
    Case("recommend", "a formula of what is no output", {"formula": "wach", **user()}, BAD),
    Case("embed", "a query", {"tower": "query", **EXAMPLE}),
    Case(
        "embed",
        "candidates in a list",
        {
            "tower": "candidate",
            "requests": [{"features": movie_features} for movie_features in _MOVIES],
        },
    ),
    Case("embed", "a tower that is not named", EXAMPLE, BAD),
    Case("embed", "an unknown tower", {"tower": "x", **EXAMPLE}, GONE),
    Case("embed", "an unknown model", {"tower": "query", **EXAMPLE}, GONE, model="x"),
    Case("lookup", "integers", {"feature": "user", "ids": [3, 3, 10**12, 0]}),
    Case("lookup", "strings", {"feature": "genres", "ids": ["drama", "x"]}),
    Case("lookup", "nothing", {"feature": "user", "ids": []}),
    Case(
        "lookup",
        "an unknown id that its feature rejects",
        {"feature": "movie", "ids": [1000, 5]},
        BAD,
    ),
    Case("lookup", "an unknown feature", {"feature": "x", "ids": [1]}, GONE),
    Case("lookup", "a dense feature", {"feature": "hour", "ids": [1]}, BAD),
    Case("lookup", "no ids", {"feature": "user"}, BAD),
    Case("lookup", "too many ids", {"feature": "user", "ids": [1] * 301}, LARGE),
)
