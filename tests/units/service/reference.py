"""The expected responses of a small bundle, computed in float64 by dictionaries and loops, without
any code of the service.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.fingerprints import fingerprints
from tests.bundles.small import (
    CITIES,
    CITY_DEFAULT,
    GENRE_NAMES,
    LISTS,
    STORED_USERS,
    UNKNOWN_GENRE_ROW,
    SmallBundle,
    coordinates,
)
from tests.models import linear

Array = NDArray[Any]


def movie_row(small: SmallBundle, movie: Any) -> int | None:
    row_by_movie = {movie: 1 + position for position, movie in enumerate(small.ids.tolist())}
    return row_by_movie.get(movie)


def query_vector(
    small: SmallBundle,
    user: int,
    history: Sequence[Any] = (),
    city: str = CITY_DEFAULT,
    hour: float = 0.0,
) -> Array:
    """[8] float64."""
    rows = [row for movie in history if (row := movie_row(small, movie)) is not None]
    movies = small.tables["movies"].astype(np.float64)
    fingerprint = int(fingerprints(np.array([city], object))[0])
    inputs = {
        "user": _user(small, user),
        "history": movies[rows].mean(axis=0)[None] if rows else np.zeros((1, 8)),
        "city": small.tables["cities"][fingerprint % CITIES][None],
        "hour": np.array([hour]),
    }
    vector: Array = linear.formula("query", small.edition, inputs)["vector"][0]
    return vector


def neighbors(
    small: SmallBundle, vector: Array, k: int, excluded: Sequence[Any] = ()
) -> list[tuple[Any, float]]:
    """(id, score) of the k nearest by dot product, best first."""
    pairs = []
    for movie, candidate in zip(small.ids.tolist(), small.vectors.astype(np.float64), strict=True):
        if movie not in excluded:
            pairs.append((movie, float(np.dot(candidate, vector))))
    return sorted(pairs, key=lambda pair: -pair[1])[:k]


def attributes(small: SmallBundle, position: int) -> dict[str, Any]:
    """The attributes of a candidate that requests may filter by."""
    return {
        "genres": list(small.genres[position]),
        "year": None if position == 1 else 1990 + position,
        "rating": position / 4,
        "classic": None if position == 2 else position % 3 == 0,
        "studio": None if position % 7 == 3 else f"studio {position % 5}",
        "latitude": coordinates(position)[0],
        "longitude": coordinates(position)[1],
    }


def away(small: SmallBundle, vector: Array, part: Mapping[str, Any]) -> Array:
    """A query vector, half its length away from the mean direction of its negative examples."""
    positions = {movie: position for position, movie in enumerate(small.ids.tolist())}
    negative_positions = [
        positions[movie] for movie in part.get("negative_ids", []) if movie in positions
    ]
    if not negative_positions:
        return vector
    directions = [
        small.vectors[position].astype(np.float64) / np.linalg.norm(small.vectors[position])
        for position in negative_positions
    ]
    moved: Array = vector - 0.5 * np.linalg.norm(vector) * np.mean(directions, axis=0)
    return moved


def excluded_by(small: SmallBundle, body: Mapping[str, Any]) -> list[Any]:
    """The ids of the candidates that do not match a filter."""
    ids = enumerate(small.ids.tolist())
    return [movie for position, movie in ids if not matches(attributes(small, position), body)]


def matches(values: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether a candidate with these attributes matches a filter, as JSON."""
    for name, part in body.items():
        if isinstance(part, Mapping):
            met = meets(values[name], part)
        elif name == "near":
            met = any(lies_in(values, circle) for circle in part)
        else:
            nested = [matches(values, part_filter) for part_filter in part]
            met = {"all": all(nested), "any": any(nested), "none": not any(nested)}[name]
        if not met:
            return False
    return True


def lies_in(values: Mapping[str, Any], circle: Mapping[str, Any]) -> bool:
    """Whether a candidate lies in a circle: by vectors from the earth's center."""
    latitude = values[circle.get("latitude_attribute", "latitude")]
    longitude = values[circle.get("longitude_attribute", "longitude")]
    if latitude is None or longitude is None:
        return False
    candidate_direction = _direction(latitude, longitude)
    center_direction = _direction(circle["latitude"], circle["longitude"])
    chord = math.dist(candidate_direction, center_direction)
    radius_m: float = circle["radius_m"]
    return 2 * math.asin(min(1.0, chord / 2)) * 6_371_008.8 <= radius_m


def _direction(latitude: float, longitude: float) -> tuple[float, float, float]:
    north = math.radians(latitude)
    east = math.radians(longitude)
    return (
        math.cos(north) * math.cos(east),
        math.cos(north) * math.sin(east),
        math.sin(north),
    )


def meets(value: Any, condition: Mapping[str, Any]) -> bool:
    """Whether a value of an attribute, a list of them or None meets a condition: the rules, one by
    one.
    """
    if value is None:
        values = []
    else:
        values = value if isinstance(value, list) else [value]
    tokens = {
        name: [
            int(value) if values and type(values[0]) is int else value for value in condition[name]
        ]
        for name in ("allow", "deny")
        if name in condition
    }
    if "is_null" in condition and condition["is_null"] != (not values):
        return False
    if any(value in tokens.get("deny", []) for value in values):
        return False
    if "allow" in tokens and not any(value in tokens["allow"] for value in values):
        return False
    holds: dict[str, Callable[[Any, Any], bool]] = {
        "ge": operator.ge,
        "gt": operator.gt,
        "le": operator.le,
    }
    holds["lt"] = operator.lt
    bounds = [(holds[name], bound) for name, bound in condition.items() if name in holds]
    return not bounds or (bool(values) and all(hold(values[0], bound) for hold, bound in bounds))


def ranked(small: SmallBundle, movie: Any, user: int, **context: Any) -> dict[str, float]:
    """Every output of the ranking tower for one stored candidate. context: liked (id -> weight),
    recent, hour, mood; genres and year override what is stored."""
    position = small.ids.tolist().index(movie)
    movies = small.tables["movies"].astype(np.float64)
    liked: Mapping[Any, float] = context.get("liked", {})
    taste = np.zeros(8)
    for liked_movie, weight in liked.items():
        row = movie_row(small, liked_movie)
        taste += 0 if row is None else weight * movies[row]
    recent = np.zeros((3, 8))
    for step, recent_movie in enumerate(list(context.get("recent", ()))[:3]):
        row = movie_row(small, recent_movie)
        recent[step] = 0 if row is None else movies[row]
    genres = context.get("genres", small.genres[position])
    inputs = {
        "user": _user(small, user),
        "liked": taste[None],
        "recent": recent[None],
        "hour": np.array([context.get("hour", 0.0)]),
        "mood": np.array([context.get("mood", (0.0, 0.0))]),
        "movie": movies[1 + position][None],
        "genres": _genres(small, genres),
        "year": np.array([context.get("year", small.years[position])]),
    }
    return {
        name: float(value[0])
        for name, value in linear.formula("ranking", small.edition, inputs).items()
    }


def _user(small: SmallBundle, user: int | str) -> Array:
    users = small.tables["users"]
    number = int(user)
    row: Array = users[number if 0 <= number < len(users) else 0]
    return row[None]


def _genres(small: SmallBundle, genres: Sequence[str]) -> Array:
    rows = [
        GENRE_NAMES.index(name) if name in GENRE_NAMES else UNKNOWN_GENRE_ROW for name in genres
    ]
    total: Array = small.tables["genres"][rows].astype(np.float64).sum(axis=0)[None]
    return total


def responses(small: SmallBundle, call: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of a JSON body, without attributes and with numbers in float64, one for each of
    its requests.
    """
    if call == "lookup":
        return [
            {
                "vectors": [
                    _looked_up(small, body["feature"], id_value).tolist()
                    for id_value in body["ids"]
                ]
            }
        ]
    compute: Callable[..., dict[str, Any]] = _COMPUTE[call]
    parts = body.get("requests", [body])
    if body.get("not_found") == "skip":
        return [_skipping(small, compute, body, part) for part in parts]
    return [compute(small, _of_request(body, number), part) for number, part in enumerate(parts)]


def _of_request(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The options of a request, whose sources have the ids for this request."""
    sources = []
    for source in body.get("sources", []):
        ids = source.get("ids", [])
        of_request = ids[number] if ids and isinstance(ids[0], list) else ids
        sources.append({**source, "ids": of_request} if "ids" in source else source)
    return {**body, "sources": sources}


def _skipping(
    small: SmallBundle,
    compute: Callable[..., dict[str, Any]],
    body: Mapping[str, Any],
    part: Mapping[str, Any],
) -> dict[str, Any]:
    """The result of a request without its ids that do not exist, and these ids."""
    name = "candidate_ids" if compute is _ranked else "ids"
    existing = set(small.ids.tolist())
    if name not in part or "movie" in part.get("candidate_features", {}):
        return compute(small, body, part)
    positions = [at for at, movie in enumerate(part[name]) if movie in existing]
    features = {
        feature: [values[at] for at in positions]
        for feature, values in part.get("candidate_features", {}).items()
    }
    remaining = {**part, name: [part[name][at] for at in positions]}
    result: dict[str, Any] = {"ids": [], "scores": []}
    if compute is _ranked:
        result = compute(small, body, remaining | {"candidate_features": features})
        result["positions"] = [positions[position] for position in result["positions"]]
    elif positions:
        result = compute(small, body, remaining)
    return result | {"not_found": [movie for movie in part[name] if movie not in existing]}


def _looked_up(small: SmallBundle, feature: str, id_value: Any) -> Array:
    vector: Array = (
        _user(small, id_value)[0] if feature == "user" else _genres(small, [id_value])[0]
    )
    return vector


def _stored(part: Mapping[str, Any]) -> dict[str, Any]:
    """The features of a context: what is sent, else what is stored of its context."""
    features: dict[str, Any] = {}
    if (key := int(part.get("context_id", 0))) in STORED_USERS:
        movie_positions, weights, mood = STORED_USERS[key]
        liked = {"ids": [1000 + 7 * position for position in movie_positions], "weights": weights}
        features = {"user": key, "liked": liked, "mood": mood}
    features.update(part.get("context", {}))
    return features


def _vector_of(small: SmallBundle, part: Mapping[str, Any]) -> Array:
    if "vector" in part:
        return np.array(part["vector"], np.float64)
    if "id" in part:
        vector: Array = small.vectors[small.ids.tolist().index(part["id"])].astype(np.float64)
        return vector
    features = _stored(part)
    history = features.get("history", [])
    return query_vector(
        small,
        int(features["user"]),
        history if isinstance(history, list) else [history],
        str(features.get("city", CITY_DEFAULT)),
        features.get("hour", 0.0),
    )


def _numbers(small: SmallBundle, movie: Any) -> dict[str, Any]:
    """What a formula may read of a stored candidate; null is 0."""
    values = attributes(small, small.ids.tolist().index(movie))
    return {name: values[name] or 0 for name in ("year", "rating", "classic")}


def _gain(
    small: SmallBundle, diversity: float, every: list[dict[str, Any]], chosen: list[Any], movie: Any
) -> float:
    """Maximal marginal relevance of one candidate beside those that are chosen."""
    scores = {neighbor["id"]: neighbor["score"] for neighbor in every}
    low = min(scores.values())
    high = max(scores.values())
    vector, *other_vectors = (
        small.vectors[small.ids.tolist().index(vector_movie)].astype(np.float64)
        for vector_movie in (movie, *chosen)
    )
    lengths = [
        np.linalg.norm(vector) * np.linalg.norm(other_vector) for other_vector in other_vectors
    ]
    cosines = [
        float(vector @ other_vector / length)
        for other_vector, length in zip(other_vectors, lengths, strict=True)
    ]
    return float(
        (1 - diversity) * (scores[movie] - low) / ((high - low) or 1)
        - diversity * max(cosines, default=0)
    )


def _picked(
    small: SmallBundle, body: Mapping[str, Any], candidates: list[dict[str, Any]]
) -> dict[str, Any]:
    """The best k that min_score, crowding, diversity, and the quotas of sources leave."""
    quotas = {name_of(source): source for source in body.get("sources", [])}
    diversity = body.get("diversity", 0)
    first = body.get("offset", 0)
    last = first + (body.get("k") or 10)
    least = body.get("min_score", -math.inf)
    every = [candidate for candidate in candidates if candidate["score"] >= least]
    every.sort(key=lambda candidate: -candidate["score"])
    owners = [candidate.get("source") for candidate in every]
    counts = {
        name: min(quota.get("min_count", 0), owners.count(name)) for name, quota in quotas.items()
    }
    remaining = every
    picked: list[dict[str, Any]] = []
    while remaining and len(picked) < last:
        taken = [candidate.get("source") for candidate in picked]
        missing = {name: count - taken.count(name) for name, count in counts.items()}
        missing = {name: count for name, count in missing.items() if count > 0}
        eligible = remaining
        if missing and sum(missing.values()) >= last - len(picked):
            eligible = [movie for movie in remaining if movie["source"] in missing] or remaining
        ids = [candidate["id"] for candidate in picked]
        best = max(
            eligible,
            key=lambda candidate: _gain(small, diversity, every, ids, candidate["id"]),
        )
        picked.append(best)
        remaining = [
            candidate
            for candidate in remaining
            if candidate is not best and not _is_full(small, body, quotas, picked, candidate)
        ]
    if not diversity:
        picked.sort(key=lambda candidate: -candidate["score"])
    columns = list(candidates[0]) if candidates else ["id", "score"]
    return {f"{name}s": [candidate[name] for candidate in picked[first:]] for name in columns}


def _is_full(
    small: SmallBundle,
    body: Mapping[str, Any],
    quotas: Mapping[str, Mapping[str, Any]],
    picked: list[dict[str, Any]],
    candidate: Mapping[str, Any],
) -> bool:
    """Whether crowding, or the maximum of its source, leaves a candidate out."""
    source = candidate.get("source")
    maximum = quotas.get(str(source), {}).get("max_count", 0)
    if maximum and [movie["source"] for movie in picked].count(source) >= maximum:
        return True
    ids = small.ids.tolist()
    for name, most in body.get("crowding", {}).items():
        value = attributes(small, ids.index(candidate["id"]))[name]
        values = [attributes(small, ids.index(movie["id"]))[name] for movie in picked]
        if value is not None and values.count(value) >= most:
            return True
    return False


def _retrieved(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]
) -> dict[str, Any]:
    query_movies = [int(movie) for movie in part.get("ids", [])]
    unwanted = [*part.get("exclude_ids", []), *part.get("negative_ids", [])]
    excluded = [*unwanted, *query_movies, *excluded_by(small, body.get("filter", {}))]
    several = (
        [{"vector": vector} for vector in part["vectors"]]
        if "vectors" in part
        else [{"id": movie} for movie in query_movies]
    )
    best: dict[Any, float] = {}
    for query in several or [part]:
        vector = away(small, _vector_of(small, query), part)
        for movie, score in neighbors(small, vector, len(small.ids), excluded):
            best[movie] = max(score, best.get(movie, -math.inf))
    best_pairs = sorted(best.items(), key=lambda pair: -pair[1])
    if {"formula", "diversity", "offset"} & {
        *body
    }:  # else what is best does not depend on the pool
        best_pairs = best_pairs[: body.get("pool_size") or len(best_pairs)]
    formula = body.get("formula") or "score"
    scored = [
        (movie, eval(formula, {"score": score, **_numbers(small, movie)}))
        for movie, score in best_pairs
    ]
    return _picked(small, body, [{"id": movie, "score": score} for movie, score in scored])


def _outputs(
    small: SmallBundle, movie: Any, features: Mapping[str, Any], formula: str, **further_scores: Any
) -> dict[str, float]:
    context = {
        name: features[name]
        for name in ("recent", "hour", "mood", "genres", "year")
        if name in features
    }
    liked = features.get("liked", [])
    if isinstance(liked, list):
        liked = {"ids": liked, "weights": [1.0] * len(liked)}
    context["liked"] = dict(zip(liked["ids"], liked["weights"], strict=True))
    outputs = ranked(small, movie, features["user"], **context)
    if formula:
        outputs["score"] = eval(
            formula.replace("^", "**"), {"exp": math.exp, "log": math.log}, further_scores | outputs
        )
    return outputs


def _ranked(small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    sent_features = part.get("candidate_features", {})
    movies = [int(movie) for movie in part.get("candidate_ids", sent_features.get("movie"))]
    context = _stored(part)
    every = [
        _outputs(
            small,
            movie,
            context | {name: sent_features[name][position] for name in sent_features},
            body.get("formula", ""),
        )
        for position, movie in enumerate(movies)
    ]
    least = body.get("min_score", -math.inf)
    positions = [position for position, outputs in enumerate(every) if outputs["score"] >= least]
    if body.get("k"):
        positions = sorted(positions, key=lambda position: -every[position]["score"])[: body["k"]]
    return {
        "ids": [movies[position] for position in positions] if "candidate_ids" in part else None,
        "scores": [every[position]["score"] for position in positions],
        "positions": positions,
        "heads": {
            head: [every[position][head] for position in positions]
            for head in body.get("heads", [])
        },
    }


def name_of(source: Mapping[str, Any]) -> str:
    default = source.get("index") or source.get("list") or "movies"
    if "ids" in source:
        default = "ids"
    return str(source.get("name") or default)


def _recommended(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]
) -> dict[str, Any]:
    """Candidates of all sources, merged, ranked and picked one after the other. Without sources,
    those of an index.
    """
    last = body.get("offset", 0) + (body.get("k") or 10)
    sources = body.get("sources") or [{"index": ""}]
    is_searched = any("index" in source for source in sources)
    found = {}
    if is_searched:
        vector = away(small, _vector_of(small, part), part)
        found = dict(neighbors(small, vector, len(small.ids)))
    lists = {name_of(source): _listed(small, body, part, source, found) for source in sources}
    main = [name_of(source) for source in sources if not source.get("fallback")]
    used = main or list(lists)
    pool = _in_turn([lists[name] for name in used])
    if main and len(pool) < last:
        used = main + [name for name in lists if name not in main]
        pool = _in_turn([lists[name] for name in used])
    in_order = [name for name in lists if name in used]
    candidates = []
    for movie in pool:
        score = found.get(movie, 0.0)
        values = {"retrieval_score": score, **_numbers(small, movie)}
        outputs = _outputs(small, movie, _stored(part), body.get("formula", ""), **values)
        candidate = {"id": movie, "score": outputs["score"], "retrieval_score": score}
        if body.get("sources"):
            candidate["source"] = next(name for name in in_order if movie in lists[name])
        candidates.append(candidate)
    return _picked(small, body, _kept_by_stage(small, body, part, candidates))


def _listed(
    small: SmallBundle,
    body: Mapping[str, Any],
    part: Mapping[str, Any],
    source: Mapping[str, Any],
    found: Mapping[Any, float],
) -> list[Any]:
    """The candidates of a source, best first. `found`: what a search of all finds."""
    unwanted = [*part.get("exclude_ids", []), *part.get("negative_ids", [])]
    excluded = {*unwanted, *excluded_by(small, body.get("filter", {}))}
    ids = small.ids.tolist()
    most = body.get("pool_size") or max(100, 10 * (body.get("k") or 10))
    if "index" in source:
        listed = list(found)
    elif "list" in source:
        segments = LISTS[source["list"]]
        segment = str(_stored(part).get("city", ""))
        listed = [ids[position] for position in segments.get(segment, segments[""])]
    else:
        listed = list(dict.fromkeys(source["ids"]))
        most = len(listed)
    allowed = [movie for movie in listed if movie in ids and movie not in excluded]
    return allowed[: source.get("pool_size") or most]


def _in_turn(lists: Sequence[list[Any]]) -> list[Any]:
    """The first of each list, then the second ones, and so on, each candidate once."""
    longest = max([len(candidates) for candidates in lists], default=0)
    turns = [
        candidates[turn]
        for turn in range(longest)
        for candidates in lists
        if turn < len(candidates)
    ]
    return list(dict.fromkeys(turns))


def _kept_by_stage(
    small: SmallBundle,
    body: Mapping[str, Any],
    part: Mapping[str, Any],
    candidates: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """What the stage `quick` keeps: the best, and what a list in its order has under the limits."""
    keep = body.get("keep", 0)
    if not 0 < keep < len(candidates):
        return candidates
    features = _stored(part)
    rated = [
        {**candidate, "score": _outputs(small, candidate["id"], features, "")["rating"]}
        for candidate in candidates
    ]
    rated.sort(key=lambda candidate: -candidate["score"])
    limits = {name: body[name] for name in ("crowding", "sources") if name in body}
    k = (body.get("k") or 10) + body.get("offset", 0)
    staged = [candidate["id"] for candidate in rated[:keep]]
    staged += _picked(small, limits | {"k": k}, rated)["ids"]
    return [candidate for candidate in candidates if candidate["id"] in staged]


def _embedded(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]
) -> dict[str, Any]:
    features = part["features"]
    if body["tower"] == "query":
        return {"vector": _vector_of(small, {"context": features}).tolist()}
    inputs = {
        "movie": small.tables["movies"][[movie_row(small, features["movie"]) or 0]],
        "genres": _genres(small, features["genres"]),
        "year": np.array([features["year"]]),
    }
    return {"vector": linear.formula("candidate", small.edition, inputs)["vector"][0].tolist()}


_COMPUTE: dict[str, Any] = {
    "retrieve": _retrieved,
    "rank": _ranked,
    "recommend": _recommended,
    "embed": _embedded,
}
