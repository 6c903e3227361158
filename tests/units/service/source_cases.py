"""The requests of `cases` for recommendations from several sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.codec.stubs import embedding_service_pb2 as pb
from tests.units.service.cases import BAD, GONE, LARGE, Case, column, f32, ids, user

_INDEX = {"index": "", "pool_size": 6}
_RECENT = {"name": "recent", "ids": [1000, 1021, 5, 1021, 1273]}
_POPULAR = {"list": "popular"}
_EACH = {"ids": [[1000, 1007], [], [1028]]}
_THREE = [user(1), {**user(2), "exclude_ids": [1021]}, user(3)]


def sources(*entries: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"k": 4, "sources": list(entries), **user(), **more}


def of_source(**fields: Any) -> dict[str, Any]:
    """Fields of a message with one source."""
    return {"context": {"user": column([5])}, "sources": [pb.Source(**fields)]}


def _both(title: str, source: Any, code: str, **fields: Any) -> Case:
    """A request with one source, and the fields of its message."""
    return Case("recommend", title, sources(source), code, of_source(**fields))


CASES = (
    Case("recommend", "an index and ids", sources(_INDEX, _RECENT)),
    Case("recommend", "ids before an index", sources(_RECENT, _INDEX, k=30)),
    Case("recommend", "ids alone", sources(_RECENT)),
    Case("recommend", "no ids", sources(_INDEX, {"ids": []})),
    Case("recommend", "ids that are all unknown", sources({"ids": [1, 2]})),
    Case("recommend", "no sources", {"k": 4, "sources": [], **user()}),
    Case("recommend", "two sources of one index", sources(_INDEX, {**_INDEX, "name": "again"})),
    Case(
        "recommend",
        "ids of each request",
        {"k": 3, "sources": [_INDEX, _EACH], "requests": _THREE},
    ),
    Case(
        "recommend",
        "a fallback of some requests",
        {
            "k": 3,
            "sources": [{**_EACH, "name": "seen"}, {**_INDEX, "fallback": True}],
            "requests": _THREE,
        },
    ),
    Case(
        "recommend",
        "quotas",
        sources({**_INDEX, "max_count": 2}, {**_RECENT, "min_count": 2}, k=5),
    ),
    Case(
        "recommend",
        "quotas of a diverse list",
        sources({**_INDEX, "max_count": 2}, {**_RECENT, "min_count": 2}, k=5, diversity=0.4),
    ),
    Case(
        "recommend", "a filter of sources", sources(_INDEX, _RECENT, filter={"year": {"lt": 2020}})
    ),
    Case(
        "recommend", "negative examples of sources", sources(_INDEX, _RECENT, negative_ids=[1273])
    ),
    Case(
        "recommend",
        "a page of sources",
        sources(_INDEX, {**_RECENT, "max_count": 2}, k=2, offset=2, pool_size=8),
    ),
    Case(
        "recommend",
        "attributes and a formula of sources",
        sources(_RECENT, _INDEX, attributes=["title"], formula="watch + retrieval_score"),
    ),
    Case("recommend", "a list of strangers", sources(_POPULAR)),
    Case("recommend", "a list of a segment", {**sources(_POPULAR), **user(city="oslo")}),
    Case(
        "recommend", "a list of a segment that is a number", {**sources(_POPULAR), **user(city=7)}
    ),
    Case("recommend", "the first of a list", sources({**_POPULAR, "pool_size": 2})),
    Case("recommend", "a list, ids and an index", sources(_POPULAR, _RECENT, _INDEX, k=12)),
    Case(
        "recommend",
        "a list as the fallback of some requests",
        {
            "k": 2,
            "sources": [{**_EACH, "name": "seen"}, {"list": "new", "fallback": True}],
            "requests": _THREE,
        },
    ),
    Case("recommend", "an unknown list", sources({"list": "old"}), GONE),
    Case("recommend", "one of two lists without its name", sources({"list": ""}), BAD),
    Case("recommend", "an unknown index as a source", sources({"index": "x"}), GONE),
    Case("recommend", "a source of nothing", sources({"name": "x"}), BAD),
    Case(
        "recommend",
        "a source of two kinds",
        sources({"index": "", "ids": [1000]}),
        BAD,
        of_source(),
    ),
    Case("recommend", "two sources of one name", sources(_INDEX, _INDEX), BAD),
    Case("recommend", "an index beside sources", sources(_INDEX, index="movies"), BAD),
    Case("recommend", "too many sources", sources(*[_RECENT] * 17), LARGE),
    Case("recommend", "too many candidates of sources", sources(_INDEX, {"ids": [7] * 60}), LARGE),
    Case("recommend", "a minimum above k", sources({**_INDEX, "min_count": 5}), BAD),
    Case(
        "recommend",
        "a minimum above the maximum",
        sources({**_INDEX, "min_count": 2, "max_count": 1}),
        BAD,
    ),
    Case(
        "recommend",
        "a minimum of a page",
        sources({**_INDEX, "min_count": 1}, offset=0, pool_size=8),
        BAD,
    ),
    Case("recommend", "a negative quota", sources({**_INDEX, "max_count": -1}), BAD),
    Case("recommend", "a long name of a source", sources({**_INDEX, "name": "x" * 129}), BAD),
    Case("recommend", "diversity without an index", sources(_RECENT, diversity=0.5), BAD),
    Case("recommend", "negatives without an index", sources(_RECENT, negative_ids=[1000]), BAD),
    Case("recommend", "an explanation without an index", sources(_RECENT, explain=True), BAD),
    Case("recommend", "ids of another type in a source", sources({"ids": ["a"]}), BAD),
    Case(
        "recommend",
        "ids of fewer requests",
        {"sources": [_EACH], "requests": [user(1), user(2)]},
        BAD,
    ),
    _both("a source that is no object", 5, BAD, index="", min_count=-1),
    _both("a source with an unknown field", {"indx": ""}, BAD, name="x"),
    _both("a pool size that is no integer", {"index": "", "pool_size": 1.5}, BAD, pool_size=-1),
    _both("a huge pool size", {"index": "", "pool_size": 2**31}, BAD, pool_size=-1),
    _both(
        "ids that mix lists",
        {"ids": [[1000], 1007]},
        BAD,
        ids=ids([1000, 1007]),
        offsets=f32(0.5),
    ),
    _both("offsets of an index", {"index": 7}, BAD, index="", offsets=b"12345678"),
)
