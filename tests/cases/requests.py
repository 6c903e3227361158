"""The table of requests: forms of values that are accepted, and everything that is refused although
each value has its type. `bad_values` makes those whose values have not; `random_requests` draws
those that are accepted with any options.
"""

from __future__ import annotations

from typing import Any

from service.codec.stubs import embedding_service_pb2 as pb
from tests.cases.random_requests import random_request
from tests.units.service.cases import Case, f32, i32, i64, rank, user

BAD = "INVALID_ARGUMENT"
LARGE = "TOO_LARGE"
GONE = "NOT_FOUND"
NAN = float("nan")
_VECTOR = [0.5] * 8
_FILM = {"movie": [1000, 1007], "genres": [["drama"], []], "year": [0.5, 0.25]}
_INDEX = {"index": "", "pool_size": 6}
_RECENT = {"name": "recent", "ids": [1000, 1021, 5, 1021, 1273]}
Body = dict[str, Any]


def _filtered(**conditions: Any) -> Body:
    return {"filter": conditions, **user()}


def _nested(levels: int) -> Body:
    """A filter with a number of levels."""
    innermost: Body = {"year": {"ge": 1990}}
    for _ in range(levels - 1):
        innermost = {"all": [innermost]}
    return innermost


def _ranked(**features: Any) -> Body:
    return {"context": {"user": 5, **features}, "candidate_ids": [1000]}


def _sources(*sources: Body, **more: Any) -> Body:
    return {"k": 4, "sources": list(sources), **user(), **more}


ACCEPTED: dict[str, dict[str, Body]] = {
    "retrieve": {
        "k beyond the corpus": {"k": 50, **user()},
        "an integer as a decimal string": user("9007199254740993"),
        "an integer where a string is hashed": user(city=17),
        "a single value as a bag": user(history=1000),
        "empty lists": {"exclude_ids": [], "negative_ids": [], **user(history=[])},
        "integers and decimal strings": {"k": 50, **_filtered(year={"allow": [1995, "1996", 3]})},
        "decimal strings as ids": {"ids": [1000, "1014"], "k": 6},
        "a filter that denies nothing": {
            "k": 50,
            **_filtered(year={"deny": []}, genres={"deny": []}),
        },
        "bounds that contradict each other": _filtered(year={"ge": 2010, "lt": 2000}),
        "a filter nested as deep as it may be": _filtered(**_nested(8)),
        "an unknown rule that is the default": {"not_found": "error", **user()},
    },
    "rank": {
        "the same candidate twice": rank([1000, 1000, "1021"]),
        "a list of candidates longer than a sequence reads": _ranked(
            recent=[1000, 1007, 1014, 1021, 1028]
        ),
        "a list beside one with weights": {
            "requests": [
                _ranked(liked=[1000, 1007]),
                _ranked(liked={"ids": [1000], "weights": [0.5]}),
            ]
        },
        "a context by a decimal string": {"context_id": "21", "candidate_ids": [1007, 1014]},
    },
    "recommend": {
        "a list of the segment of a number": _sources({"list": "popular"}, **user(city=7)),
        "the first of a list": _sources({"list": "popular", "pool_size": 2}),
        "a fallback of some requests": {
            "k": 3,
            "sources": [
                {"name": "seen", "ids": [[1000, 1007], [], [1028]]},
                {**_INDEX, "fallback": True},
            ],
            "requests": [user(1), {**user(2), "exclude_ids": [1021]}, user(3)],
        },
        "no sources": {"k": 4, "sources": [], **user()},
    },
    "lookup": {
        "integers": {"feature": "user", "ids": [3, 3, 10**12, 0]},
        "strings": {"feature": "genres", "ids": ["drama", "x"]},
        "nothing": {"feature": "user", "ids": []},
        "ids to skip": {"feature": "user", "ids": [7, 999, 999], "not_found": "skip"},
    },
}
MESSAGES: dict[tuple[str, str], tuple[Body, Body]] = {
    ("retrieve", "int32s"): (
        user(5, hour=2),
        {"context": {"user": pb.Column(int32s=i32(5)), "hour": pb.Column(int32s=i32(2))}},
    ),
    ("retrieve", "offsets of everything"): (
        {
            "k": 3,
            "requests": [
                {**user(1), "exclude_ids": [1000], "negative_ids": []},
                {**user(2), "exclude_ids": [], "negative_ids": [1007]},
            ],
        },
        {
            "k": 3,
            "context": {"user": pb.Column(int64s=i64(1, 2), offsets=i32(0, 1, 2))},
            "exclude_ids": pb.Ids(int64s=i64(1000)),
            "exclude_offsets": i32(0, 1, 1),
            "negative_ids": pb.Ids(int64s=i64(1007)),
            "negative_offsets": i32(0, 0, 1),
        },
    ),
    ("lookup", "an empty rule"): (
        {"feature": "user", "ids": [3]},
        {"feature": "user", "ids": pb.Column(int64s=i64(3)), "not_found": 0},
    ),
}
"""Messages that the client does not send, each with the JSON body of the same content."""

REFUSED: dict[str, dict[str, tuple[str, str, Body]]] = {
    "retrieve": {
        "nothing": (BAD, "request", {}),
        "an id and a vector": (BAD, "request", {"ids": [1000], "vectors": [_VECTOR]}),
        "k over its limit": (BAD, "k", {"k": 51, **user()}),
        "a required feature missing": (BAD, "context.user", {"context": {"hour": 1}}),
        "an unknown feature": (BAD, "context", user(usr=1)),
        "an unknown attribute": (BAD, "attributes", {"attributes": ["titel"], **user()}),
        "an unknown index": (GONE, "index", {"index": "x", **user()}),
        "too many attributes": (LARGE, "attributes", {"attributes": ["title"] * 11, **user()}),
        "too many features": (LARGE, "context", user(**{f"f{n}": 1 for n in range(20)})),
        "too many queries": (LARGE, "request", {"requests": [user(n) for n in range(9)]}),
        "too many values": (LARGE, "request", user(history=[1000] * 301)),
        "too many exclusions": (LARGE, "request", {"exclude_ids": [7] * 301, **user()}),
        "too many vectors": (LARGE, "request", {"vectors": [_VECTOR] * 9}),
        "no vectors of one": (
            BAD,
            "vectors",
            {"requests": [{"vectors": [_VECTOR]}, {"vectors": []}]},
        ),
        "different features": (BAD, "context", {"requests": [user(1), user(2, hour=3)]}),
        "a vector of another dim": (BAD, "vectors", {"vectors": [[1.0] * 7]}),
        "vectors of several dims": (BAD, "vectors", {"vectors": [_VECTOR, [1.0] * 7]}),
        "a vector whose scores overflow": (BAD, "vectors", {"vectors": [[3e38] * 8]}),
        "a dense number that overflows": (BAD, "request", user(hour=3e38)),
        "a number beyond float32": (BAD, "context.hour", user(hour=1e39)),
        "the id of no candidate": (BAD, "ids", {"ids": [3]}),
        "a word where integers are ids": (BAD, "context.user", user("ann")),
        "a number where strings are ids": (BAD, "context.city", user(city=1.5)),
        "several values of a single": (BAD, "context.user", user([1, 2])),
        "weights where none are taken": (
            BAD,
            "context.history",
            user(history={"ids": [1000], "weights": [1]}),
        ),
        "a page of no pool": (BAD, "pool_size", {"k": 4, "offset": 4, **user()}),
        "a page past the pool": (BAD, "offset", {"k": 4, "offset": 9, "pool_size": 12, **user()}),
        "a pool below k": (BAD, "pool_size", {"k": 5, "pool_size": 4, **user()}),
        "too many candidates": (
            LARGE,
            "request",
            {"diversity": 0.5, "requests": [user(1), user(2)]},
        ),
        "a recall beyond one": (BAD, "recall", {"recall": 1.5, **user()}),
        "a formula of no number": (BAD, "formula", {"formula": "title", **user()}),
        "a formula without a value": (BAD, "formula", {"formula": "log(0 * score)", **user()}),
        "crowding of no attribute": (BAD, "crowding", {"crowding": {"x": 1}, **user()}),
        "crowding of lists": (BAD, "crowding.genres", {"crowding": {"genres": 1}, **user()}),
        "crowding of fractions": (BAD, "crowding.rating", {"crowding": {"rating": 1}, **user()}),
        "too deep a filter": (LARGE, "filter.all[0].all[0].all", _filtered(**_nested(9))),
        "too many conditions": (
            LARGE,
            "filter",
            _filtered(**{f"a{n}": {"ge": 1} for n in range(11)}),
        ),
        "too many values of a filter": (LARGE, "request", _filtered(year={"allow": [7] * 301})),
        "no filters": (BAD, "filter.any", _filtered(any=[])),
        "a filter by no attribute": (BAD, "filter.yer", _filtered(yer={"ge": 1990})),
        "a nested one": (
            BAD,
            "filter.any[0].none[0].yer",
            _filtered(any=[{"none": [{"yer": {"ge": 1}}]}]),
        ),
        "a filter by what has no index": (BAD, "filter.title", _filtered(title={"allow": ["x"]})),
        "a filter that allows nothing": (BAD, "filter.year.allow", _filtered(year={"allow": []})),
        "integers of words": (BAD, "filter.genres.deny", _filtered(genres={"deny": [5]})),
        "integers of truth": (BAD, "filter.classic.allow", _filtered(classic={"allow": [1]})),
        "bounds of words": (BAD, "filter.genres.ge", _filtered(genres={"ge": 5})),
        "a distance of words": (
            BAD,
            "filter.near[0].latitude_attribute",
            _filtered(
                near=[
                    {"latitude": 1, "longitude": 2, "radius_m": 3, "latitude_attribute": "studio"}
                ]
            ),
        ),
        "no latitude": (
            BAD,
            "filter.near[0].latitude",
            _filtered(near=[{"latitude": 91, "longitude": 2, "radius_m": 3}]),
        ),
        "a candidate to skip of another rule": (
            BAD,
            "filter.yer",
            {"not_found": "skip", "ids": [1], "filter": {"yer": {"ge": 1}}},
        ),
    },
    "rank": {
        "nothing to rank": (BAD, "request", {"context": {"user": 5}}),
        "no such candidate": (BAD, "candidate_ids[0]", rank([7])),
        "an unknown context": (BAD, "context_ids", {"context_id": 999, "candidate_ids": [1000]}),
        "a feature missing": (
            BAD,
            "candidate_features.genres",
            {"context": {"user": 5}, "candidate_features": {"movie": [1000]}},
        ),
        "features of other lengths": (
            BAD,
            "candidate_features.year",
            rank([1000, 1007], candidate_features={"year": [0.5]}),
        ),
        "an id that its feature rejects": (
            BAD,
            "candidate_features.movie",
            {"context": {"user": 5}, "candidate_features": {**_FILM, "movie": [1000, 5]}},
        ),
        "a candidate's feature as context": (
            BAD,
            "context",
            {"context": {"year": 0.5}, "candidate_ids": [1000]},
        ),
        "too many features": (
            LARGE,
            "request",
            {**user(), "candidate_features": {f"f{n}": [1] for n in range(20)}},
        ),
        "too many heads": (LARGE, "heads", rank(heads=["watch"] * 11)),
        "an unknown head": (BAD, "heads", rank(heads=["x"])),
        "an unknown tower": (GONE, "tower", rank(tower="x")),
        "too many candidates": (LARGE, "request", rank([1000] * 61)),
        "a formula that ends early": (BAD, "formula", rank(formula="watch *")),
        "a formula without a value": (BAD, "formula", rank(formula="log(-watch)")),
        "fewer weights than ids": (
            BAD,
            "context.liked",
            _ranked(liked={"ids": [1000, 1007], "weights": [1]}),
        ),
        "a dense value of another shape": (BAD, "context.mood", _ranked(mood=[1.0, 2.0, 3.0])),
        "weights that overflow": (
            BAD,
            "request",
            _ranked(liked={"ids": [1000] * 4, "weights": [3e38] * 4}),
        ),
    },
    "recommend": {
        "too many to rank": (LARGE, "request", {"requests": [user(1), user(2)]}),
        "a formula of what is no output": (BAD, "formula", {"formula": "wach", **user()}),
        "a pool below k": (BAD, "pool_size", {"k": 5, "pool_size": 2, **user()}),
        "an unknown list": (GONE, "list", _sources({"list": "old"})),
        "a source of nothing": (BAD, "sources[0]", _sources({"name": "x"})),
        "a source of two kinds": (BAD, "sources[0]", _sources({"index": "", "ids": [1000]})),
        "two sources of one name": (BAD, "sources", _sources(_INDEX, _INDEX)),
        "an index beside sources": (BAD, "index", _sources(_INDEX, index="movies")),
        "too many sources": (LARGE, "sources", _sources(*[_RECENT] * 17)),
        "too many candidates": (LARGE, "sources", _sources(_INDEX, {"ids": [7] * 60})),
        "a minimum above k": (BAD, "sources", _sources({**_INDEX, "min_count": 5})),
        "a minimum above the maximum": (
            BAD,
            "min_count",
            _sources({**_INDEX, "min_count": 2, "max_count": 1}),
        ),
        "a minimum of a page": (
            BAD,
            "offset",
            _sources({**_INDEX, "min_count": 1}, offset=0, pool_size=8),
        ),
        "diversity without an index": (BAD, "diversity", _sources(_RECENT, diversity=0.5)),
        "negatives without an index": (BAD, "negative_ids", _sources(_RECENT, negative_ids=[1000])),
        "an explanation without one": (BAD, "explain", _sources(_RECENT, explain=True)),
        "ids of fewer requests": (
            BAD,
            "sources[0]",
            {"sources": [{"ids": [[1000], [], [1028]]}], "requests": [user(1), user(2)]},
        ),
        "fewer to keep than k": (BAD, "keep", {"k": 5, "keep": 4, **user()}),
        "a page behind what is kept": (
            BAD,
            "keep",
            {"k": 10, "offset": 35, "pool_size": 50, **user()},
        ),
        "keep without the stage": (BAD, "keep", {"keep": 9, "skip_stage": True, **user()}),
        "a tower without a stage": (BAD, "keep", {"tower": "quick", "keep": 9, **user()}),
    },
    "embed": {
        "a tower that is not named": (BAD, "tower", {"features": {"user": 5}}),
        "an unknown tower": (GONE, "tower", {"tower": "x", "features": {"user": 5}}),
        "an unknown feature": (BAD, "features", {"tower": "query", "features": {"usr": 5}}),
    },
    "lookup": {
        "an id that its feature rejects": (BAD, "ids", {"feature": "movie", "ids": [1000, 5]}),
        "an unknown feature": (GONE, "feature", {"feature": "x", "ids": [1]}),
        "too many ids": (LARGE, "request", {"feature": "user", "ids": [1] * 301}),
    },
}

HINTS: list[tuple[str, str, Body]] = [
    ("history", "retrieve", user(histori=[1000])),
    ("title", "retrieve", {"attributes": ["titel"], **user()}),
    ("year", "retrieve", _filtered(yer={"ge": 1990})),
    ("ge", "retrieve", _filtered(year={"gee": 1990})),
    ("movies", "retrieve", {"index": "movie", **user()}),
    ("attributes", "retrieve", {"atributes": [], **user()}),
    ("watch", "rank", rank(heads=["wach"])),
    ("watch", "recommend", {"formula": "wach", **user()}),
    ("history", "recommend", _sources(_INDEX, **user(histori=[1000]))),
    ("recent", "rank", rank(context={"user": 5, "recnt": [1000]})),
    ("ranking", "rank", rank(tower="rankin")),
    ("popular", "recommend", _sources({"list": "populr"})),
    ("index", "recommend", _sources({"indx": ""})),
    ("user", "lookup", {"feature": "usr", "ids": [1]}),
    # By their letters, gte and $gte are as near to gt.
    ("ge", "retrieve", _filtered(year={"gte": 1990})),
    ("ge", "retrieve", _filtered(year={"$gte": 1990})),
    ("allow", "retrieve", _filtered(genres={"in": ["drama"]})),
    ("k", "retrieve", {"top_k": 5, **user()}),
    ("any", "retrieve", _filtered(any_of=[{"year": {"ge": 1990}}])),
]
"""Names that are there, and requests that misspell them, or have other services' words."""
REMEDIES: list[tuple[str, str, Body | list[Body]]] = [
    ('{"allow": ["drama"]}', "retrieve", _filtered(genres="drama")),
    ('{"allow": ["drama", "comedy"]}', "retrieve", _filtered(genres=["drama", "comedy"])),
    ('{"allow": [1995]}', "recommend", _filtered(year=1995)),
    (
        "filter.attribute: corpus 'movies' has no attribute 'attribute'; a filter is such as ",
        "retrieve",
        _filtered(attribute="year", min=1990),
    ),
    ("'yer'; a filter is such as {", "recommend", _filtered(all=[{"yer": [1995]}])),
    ("unknown names 'genre', 'yer'; ", "retrieve", _filtered(yer={"ge": 1}, genre={"ge": 1})),
    ('{"allow": [...]}', "retrieve", _filtered(genres="x" * 100)),
    ("filter.any is 'drama'; a list", "retrieve", _filtered(any="drama")),
    ('write an object such as {"genres": ', "retrieve", {"filter": ["drama"], **user()}),
    ('such as {"year": 3}', "retrieve", {"crowding": ["year"], **user()}),
    ('(as in {"year": 3}) was', "retrieve", {"crowding": {"attribute": "year"}, **user()}),
    ('write an object such as {"index": ', "recommend", {"sources": ["movies"], **user()}),
    ("feature is empty; one of ", "lookup", {"ids": [1]}),
    ("features of a model go into 'context'", "retrieve", {"user": 5, "k": 3}),
    ("features of a model go into 'context'", "recommend", {"user": 5}),
    ("go into 'context'", "retrieve", {"requests": [{"user": 5}, {"user": 7}]}),
    ("'context' or 'candidate_features'", "rank", {"user": 5, "candidate_ids": [1000]}),
    ("features of a model go into 'features'", "embed", {"tower": "query", "user": 5}),
    (
        "context.user, candidate_features.movie, candidate_features.genres: no values",
        "rank",
        {"context": {"hour": 1}, "candidate_features": {"year": [0.5]}},
    ),
    (
        "near[0].latitude is null; a number was expected; filter.near[0].longitude is null",
        "retrieve",
        _filtered(near=[{"radius_m": 5}]),
    ),
    ("unknown names 'usr', 'hr'; ", "retrieve", {"context": {"usr": 5, "hr": 1}}),
    ("did you mean 'user' instead of 'usr'?", "recommend", user(usr=5, histori=[1000])),
    ("unknown fields 'atributes', 'indx'; ", "retrieve", {"atributes": [], "indx": "", **user()}),
    ('write {"requests": [...]}', "retrieve", [user()]),
    ("features.movie.unknown of the recipe", "lookup", {"feature": "movie", "ids": [1000, 5]}),
]
"""What the error of a usual mistake says to write, and requests with the mistake."""
_USER = pb.Column(int64s=i64(5))
BROKEN: dict[str, tuple[str, str, str, bytes | Body]] = {
    "bytes that are no message": ("retrieve", BAD, "body", b"\xff\xff\xff"),
    "a JSON body": ("retrieve", BAD, "body", b'{"k": 5}'),
    "nothing": ("rank", BAD, "request", b""),
    "a column without values": (
        "retrieve",
        BAD,
        "context.user",
        {"context": {"user": pb.Column()}},
    ),
    "half a number": ("retrieve", BAD, "vectors", {"vectors": b"12345"}),
    "half an offset": (
        "retrieve",
        BAD,
        "context.user.offsets",
        {"context": {"user": pb.Column(int64s=i64(5), offsets=b"1")}},
    ),
    "a number that is not finite": (
        "retrieve",
        BAD,
        "context.hour",
        {"context": {"user": _USER, "hour": pb.Column(float32s=f32(NAN))}},
    ),
    "an id that is not finite": (
        "retrieve",
        BAD,
        "context.user",
        {"context": {"user": pb.Column(float32s=f32(NAN))}},
    ),
    "a vector that is not finite": ("retrieve", BAD, "vectors", {"vectors": f32(NAN, *[0] * 7)}),
    "a weight that is not finite": (
        "rank",
        BAD,
        "context.liked",
        {
            "context": {"user": _USER, "liked": pb.Column(int64s=i64(1000), weights=f32(NAN))},
            "candidate_ids": pb.Ids(int64s=i64(1000)),
        },
    ),
    "ids of no kind": ("retrieve", BAD, "ids", {"ids": pb.Ids()}),
    "offsets without ids": ("retrieve", BAD, "exclude_ids", {"exclude_offsets": i32(0, 1)}),
    "negative offsets without ids": (
        "retrieve",
        BAD,
        "negative_ids",
        {"negative_offsets": i32(0, 1)},
    ),
    "offsets that end early": (
        "rank",
        BAD,
        "offsets",
        {"candidate_ids": pb.Ids(int64s=i64(1000, 1007)), "offsets": i32(0, 1)},
    ),
    "queries that end early": (
        "retrieve",
        BAD,
        "query_offsets",
        {"ids": pb.Ids(int64s=i64(1000, 1007)), "query_offsets": i32(0, 1)},
    ),
    "two ids for one context": (
        "rank",
        BAD,
        "context_ids",
        {
            "context": {"user": _USER},
            "context_ids": pb.Ids(int64s=i64(7, 3)),
            "candidate_ids": pb.Ids(int64s=i64(1000)),
        },
    ),
    "offsets of an index": (
        "recommend",
        BAD,
        "sources[0].ids",
        {"context": {"user": _USER}, "sources": [pb.Source(index="", offsets=b"12345678")]},
    ),
    "half an offset of a source": (
        "recommend",
        BAD,
        "sources[0].ids",
        {"context": {"user": _USER}, "sources": [pb.Source(ids=pb.Ids(), offsets=b"123")]},
    ),
    "an unknown rule": (
        "lookup",
        BAD,
        "not_found",
        {"ids": _USER, "feature": "user", "not_found": 9},
    ),
    "an unknown rule of a query": (
        "retrieve",
        BAD,
        "not_found",
        {"ids": pb.Ids(int64s=i64(1000)), "not_found": 9},
    ),
    "a negative version": (
        "retrieve",
        BAD,
        "model.version",
        pb.RetrieveRequest(model=pb.ModelSpec(version=-1)).SerializeToString(),
    ),
    "an oversized body": ("retrieve", LARGE, "body", bytes(16_385)),
}
"""Messages that no client sends."""

RANDOM = 150
CASES = (
    *[Case(call, name, body) for call, bodies in ACCEPTED.items() for name, body in bodies.items()],
    *[
        Case(call, name, body, message=message)
        for (call, name), (body, message) in MESSAGES.items()
    ],
    *map(random_request, range(RANDOM)),
)
"""Requests that are accepted, but for some of the random ones."""
REFUSALS = (
    *[
        Case(call, name, body, code, field=field)
        for call, refused in REFUSED.items()
        for name, (code, field, body) in refused.items()
    ],
    Case("embed", "an unknown model", {"features": {}}, GONE, model="x", field="model"),
    Case("retrieve", "an unknown version", user(), GONE, version=7, field="version"),
)
