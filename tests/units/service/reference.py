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

from tests.bundles.small import (
    CITIES,
    CITY_DEFAULT,
    GENRE_NAMES,
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
    import farmhash

    rows = [row for movie in history if (row := movie_row(small, movie)) is not None]
    movies = small.tables["movies"].astype(np.float64)
    inputs = {
        "user": _user(small, user),
        "history": movies[rows].mean(axis=0)[None] if rows else np.zeros((1, 8)),
        "city": small.tables["cities"][farmhash.fingerprint64(city) % CITIES][None],
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
    if body.get("sources"):
        from tests.units.service import reference_sources

        return reference_sources.responses(small, body)
    compute: Callable[..., dict[str, Any]] = _COMPUTE[call]
    parts = body.get("requests", [body])
    if body.get("not_found") == "skip":
        return [_skipping(small, compute, body, part) for part in parts]
    return [compute(small, body, part) for part in parts]


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


def _chosen(
    small: SmallBundle, body: Mapping[str, Any], found_neighbors: list[dict[str, Any]]
) -> dict[str, Any]:
    """The best k of what was found that min_score, crowding and diversity leave."""
    remaining = sorted(found_neighbors, key=lambda neighbor: -neighbor["score"])
    remaining = [
        neighbor for neighbor in remaining if neighbor["score"] >= body.get("min_score", -math.inf)
    ]
    chosen = list[dict[str, Any]]()
    every = remaining
    crowding = body.get("crowding", {})
    first = body.get("offset", 0)
    while remaining and len(chosen) < first + (body.get("k") or 10):
        ids = [neighbor["id"] for neighbor in chosen]
        best = max(
            remaining,
            key=lambda neighbor: _gain(small, body.get("diversity", 0), every, ids, neighbor["id"]),
        )
        chosen.append(best)
        remaining = [neighbor for neighbor in remaining if neighbor is not best]
        for name, maximum in crowding.items():
            positions = {movie: position for position, movie in enumerate(small.ids.tolist())}
            value_by_movie = {}
            for neighbor in every:
                position = positions[neighbor["id"]]
                value_by_movie[neighbor["id"]] = attributes(small, position)[name]
            chosen_values = [value_by_movie[neighbor["id"]] for neighbor in chosen]
            full = {
                value
                for value in chosen_values
                if value is not None and chosen_values.count(value) >= maximum
            }
            remaining = [
                neighbor for neighbor in remaining if value_by_movie[neighbor["id"]] not in full
            ]
    columns = ["id", "score"]
    if found_neighbors and "retrieval_score" in found_neighbors[0]:
        columns.append("retrieval_score")
    return {f"{name}s": [neighbor[name] for neighbor in chosen[first:]] for name in columns}


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
    return _chosen(small, body, [{"id": movie, "score": score} for movie, score in scored])


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
    positions = list(range(len(movies)))
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


def _recommended(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]
) -> dict[str, Any]:
    k = body.get("k") or 10
    count = body.get("pool_size") or max(100, 10 * k)
    features = _stored(part)
    unwanted = [*part.get("exclude_ids", []), *part.get("negative_ids", [])]
    excluded = [*unwanted, *excluded_by(small, body.get("filter", {}))]
    scored = []
    vector = away(small, _vector_of(small, part), part)
    formula = body.get("formula", "")
    for candidate_id, retrieval_score in neighbors(small, vector, count, excluded):
        further_scores = {"retrieval_score": retrieval_score, **_numbers(small, candidate_id)}
        score = _outputs(small, candidate_id, features, formula, **further_scores)["score"]
        scored.append({"id": candidate_id, "score": score, "retrieval_score": retrieval_score})
    ratings = ratings_of(small, body, part, [candidate["id"] for candidate in scored])
    staged = kept_by_stage(body, ratings)
    in_order = [{"id": movie, "score": ratings[movie]} for movie in ratings]
    staged += _chosen(small, listed_by_stage(body), in_order)["ids"]
    return _chosen(small, body, [movie for movie in scored if movie["id"] in staged])


def ratings_of(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any], pool: Sequence[Any]
) -> dict[Any, float]:
    """What the stage `quick` orders a pool by, in its order: the ratings, best first; if it keeps
    all of them, they are all equal.
    """
    if not 0 < body.get("keep", 0) < len(pool):
        return dict.fromkeys(pool, 0.0)
    features = _stored(part)
    ratings = {movie: _outputs(small, movie, features, "")["rating"] for movie in pool}
    return dict(sorted(ratings.items(), key=lambda pair: -pair[1]))


def kept_by_stage(body: Mapping[str, Any], ratings: Mapping[Any, float]) -> list[Any]:
    """The best candidates of a stage."""
    return list(ratings)[: body.get("keep") or len(ratings)]


def listed_by_stage(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request whose list, in the order of the stage, the stage keeps besides."""
    names = ("crowding", "sources")
    limits = {name: body[name] for name in names if name in body}
    return limits | {"k": (body.get("k") or 10) + body.get("offset", 0)}


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
