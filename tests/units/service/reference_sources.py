"""What a recommendation from several sources must return, by loops: merged, ranked and picked one
after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.bundles.small import LISTS, SmallBundle
from tests.units.service import reference

Candidate = dict[str, Any]


def responses(small: SmallBundle, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of a JSON body with sources, one for each of its requests."""
    parts = body.get("requests", [body])
    return [_recommended(small, body, part, number) for number, part in enumerate(parts)]


def name_of(source: Mapping[str, Any]) -> str:
    default = source.get("index") or source.get("list") or "movies"
    if "ids" in source:
        default = "ids"
    return str(source.get("name") or default)


def _recommended(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any], number: int
) -> dict[str, Any]:
    sources = body["sources"]
    last = body.get("offset", 0) + (body.get("k") or 10)
    lists = {name_of(source): _candidates(small, body, part, number, source) for source in sources}
    main = [name_of(source) for source in sources if not source.get("fallback")]
    fallback = [name_of(source) for source in sources if source.get("fallback")]
    used = main or fallback
    pool = _in_turn({name: lists[name] for name in used})
    if main and len(pool) < last:
        used = main + fallback
        pool = _in_turn({name: lists[name] for name in used})
    having = [name_of(source) for source in sources if name_of(source) in used]
    owners = {movie: next(name for name in having if movie in lists[name]) for movie in pool}
    pool = _kept_by_stage(small, body, part, pool, owners)
    searched = next((source for source in sources if "index" in source), None)
    candidates = []
    for movie in pool:
        retrieval_score = 0.0
        if searched is not None:
            retrieval_score = _score(small, part, searched["index"], movie)
        values = {"retrieval_score": retrieval_score, **reference._numbers(small, movie)}
        features = reference._stored(part)
        outputs = reference._outputs(small, movie, features, body.get("formula", ""), **values)
        candidates.append(
            {
                "id": movie,
                "score": outputs["score"],
                "retrieval_score": retrieval_score,
                "source": owners[movie],
            }
        )
    return _picked(small, body, candidates)


def _kept_by_stage(
    small: SmallBundle,
    body: Mapping[str, Any],
    part: Mapping[str, Any],
    pool: list[Any],
    owners: Mapping[Any, str],
) -> list[Any]:
    """What the stage `quick` keeps: the best, and what a list by it has under the limits."""
    ratings = reference.ratings_of(small, body, part, pool)
    in_order = [
        {"id": movie, "score": rating, "retrieval_score": 0.0, "source": owners[movie]}
        for movie, rating in ratings.items()
    ]
    staged = reference.kept_by_stage(body, ratings)
    staged += _picked(small, reference.listed_by_stage(body), in_order)["ids"]
    return [movie for movie in ratings if movie in staged]


def _candidates(
    small: SmallBundle,
    body: Mapping[str, Any],
    part: Mapping[str, Any],
    number: int,
    source: Mapping[str, Any],
) -> list[Any]:
    unwanted = [*part.get("exclude_ids", []), *part.get("negative_ids", [])]
    excluded = {*unwanted, *reference.excluded_by(small, body.get("filter", {}))}
    k = body.get("k") or 10
    if "index" in source:
        most = source.get("pool_size") or body.get("pool_size") or max(100, 10 * k)
        every = sorted(
            small.ids.tolist(), key=lambda movie: -_score(small, part, source["index"], movie)
        )
        return [movie for movie in every if movie not in excluded][:most]
    if "list" in source:
        segments = LISTS[source["list"]]
        segment = str(reference._stored(part).get("city", ""))
        positions = segments.get(segment, segments[""])
        most = source.get("pool_size") or body.get("pool_size") or max(100, 10 * k)
        listed = [small.ids.tolist()[position] for position in positions]
        return [movie for movie in listed if movie not in excluded][:most]
    listed = source["ids"]
    if listed and isinstance(listed[0], list):
        listed = listed[number]
    corpus = set(small.ids.tolist())
    movies = [movie for movie in dict.fromkeys(listed) if movie in corpus - excluded]
    return movies[: source.get("pool_size") or len(movies)]


def _score(small: SmallBundle, part: Mapping[str, Any], index: str, movie: Any) -> float:
    vector = reference.away(small, reference._vector_of(small, part), part)
    position = small.ids.tolist().index(movie)
    sign = -1.0
    if index != "opposite":
        sign = 1.0
    elif part.get("negative_ids"):
        raise NotImplementedError
    return float(np.dot(sign * small.vectors[position].astype(np.float64), vector))


def _in_turn(lists: Mapping[str, list[Any]]) -> list[Any]:
    """The first of each list, then the second ones, and so on, each candidate once."""
    longest = max([len(candidates) for candidates in lists.values()], default=0)
    turns = [
        candidates[turn]
        for turn in range(longest)
        for candidates in lists.values()
        if turn < len(candidates)
    ]
    return list(dict.fromkeys(turns))


def _picked(
    small: SmallBundle, body: Mapping[str, Any], candidates: list[Candidate]
) -> dict[str, Any]:
    quotas = {name_of(source): source for source in body["sources"]}
    diversity = body.get("diversity", 0)
    first = body.get("offset", 0)
    last = first + (body.get("k") or 10)
    remaining = sorted(candidates, key=lambda candidate: -candidate["score"])
    remaining = [
        candidate
        for candidate in remaining
        if candidate["score"] >= body.get("min_score", -math.inf)
    ]
    every = remaining
    counts = {
        name: min(quota.get("min_count", 0), [movie["source"] for movie in every].count(name))
        for name, quota in quotas.items()
    }
    picked: list[Candidate] = []
    while remaining and len(picked) < last:
        missing = {
            name: count - sum(candidate["source"] == name for candidate in picked)
            for name, count in counts.items()
        }
        missing = {name: count for name, count in missing.items() if count > 0}
        eligible = remaining
        if missing and sum(missing.values()) >= last - len(picked):
            eligible = [movie for movie in remaining if movie["source"] in missing] or remaining
        ids = [candidate["id"] for candidate in picked]
        best = max(
            eligible,
            key=lambda candidate: reference._gain(small, diversity, every, ids, candidate["id"]),
        )
        picked.append(best)
        remaining = [
            candidate
            for candidate in remaining
            if candidate is not best and not _is_full(small, body, quotas, picked, candidate)
        ]
    if not diversity:
        picked.sort(key=lambda candidate: -candidate["score"])
    return {
        f"{column}s": [candidate[column] for candidate in picked[first:]]
        for column in ("id", "score", "retrieval_score", "source")
    }


def _is_full(
    small: SmallBundle,
    body: Mapping[str, Any],
    quotas: Mapping[str, Mapping[str, Any]],
    picked: list[Candidate],
    candidate: Candidate,
) -> bool:
    """Whether crowding, or the maximum of its source, leaves a candidate out."""
    source = candidate["source"]
    maximum = quotas[source].get("max_count", 0)
    if maximum and [movie["source"] for movie in picked].count(source) >= maximum:
        return True
    ids = small.ids.tolist()
    for name, most in body.get("crowding", {}).items():
        value = reference.attributes(small, ids.index(candidate["id"]))[name]
        values = [reference.attributes(small, ids.index(movie["id"]))[name] for movie in picked]
        if value is not None and values.count(value) >= most:
            return True
    return False
