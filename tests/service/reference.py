"""What a small bundle must answer, computed in float64 by dictionaries and loops, without any code
of the service.
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
    known = {each: 1 + place for place, each in enumerate(small.ids.tolist())}
    return known.get(movie)


def query_vector(
    small: SmallBundle,
    user: int,
    history: Sequence[Any] = (),
    city: str = CITY_DEFAULT,
    hour: float = 0.0,
) -> Array:
    """[8] float64."""
    import farmhash

    known = [row for movie in history if (row := movie_row(small, movie)) is not None]
    movies = small.tables["movies"].astype(np.float64)
    inputs = {
        "user": _user(small, user),
        "history": movies[known].mean(axis=0)[None] if known else np.zeros((1, 8)),
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


def attributes(small: SmallBundle, place: int) -> dict[str, Any]:
    """The attributes of a candidate that requests may filter by."""
    return {
        "genres": list(small.genres[place]),
        "year": None if place == 1 else 1990 + place,
        "rating": place / 4,
        "classic": None if place == 2 else place % 3 == 0,
        "studio": None if place % 7 == 3 else f"studio {place % 5}",
        "latitude": coordinates(place)[0],
        "longitude": coordinates(place)[1],
    }


def away(small: SmallBundle, vector: Array, part: Mapping[str, Any]) -> Array:
    """A query vector, half its length away from the mean direction of its negative examples."""
    places = {movie: place for place, movie in enumerate(small.ids.tolist())}
    known = [places[movie] for movie in part.get("negative_ids", []) if movie in places]
    if not known:
        return vector
    directions = [
        small.vectors[place].astype(np.float64) / np.linalg.norm(small.vectors[place])
        for place in known
    ]
    moved: Array = vector - 0.5 * np.linalg.norm(vector) * np.mean(directions, axis=0)
    return moved


def excluded_by(small: SmallBundle, body: Mapping[str, Any]) -> list[Any]:
    """The ids of the candidates that do not match a filter."""
    ids = enumerate(small.ids.tolist())
    return [movie for place, movie in ids if not matches(attributes(small, place), body)]


def matches(values: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether a candidate with these attributes matches a filter, as JSON."""
    for name, part in body.items():
        if isinstance(part, Mapping):
            met = meets(values[name], part)
        elif name == "near":
            met = any(lies_in(values, circle) for circle in part)
        else:
            nested = [matches(values, each) for each in part]
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
    place = _direction(latitude, longitude)
    center = _direction(circle["latitude"], circle["longitude"])
    chord = math.dist(place, center)
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
        name: [int(each) if values and type(values[0]) is int else each for each in condition[name]]
        for name in ("allow", "deny")
        if name in condition
    }
    if "is_null" in condition and condition["is_null"] != (not values):
        return False
    if any(each in tokens.get("deny", []) for each in values):
        return False
    if "allow" in tokens and not any(each in tokens["allow"] for each in values):
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
    place = small.ids.tolist().index(movie)
    movies = small.tables["movies"].astype(np.float64)
    liked: Mapping[Any, float] = context.get("liked", {})
    taste = np.zeros(8)
    for each, weight in liked.items():
        row = movie_row(small, each)
        taste += 0 if row is None else weight * movies[row]
    recent = np.zeros((3, 8))
    for step, each in enumerate(list(context.get("recent", ()))[:3]):
        row = movie_row(small, each)
        recent[step] = 0 if row is None else movies[row]
    genres = context.get("genres", small.genres[place])
    inputs = {
        "user": _user(small, user),
        "liked": taste[None],
        "recent": recent[None],
        "hour": np.array([context.get("hour", 0.0)]),
        "mood": np.array([context.get("mood", (0.0, 0.0))]),
        "movie": movies[1 + place][None],
        "genres": _genres(small, genres),
        "year": np.array([context.get("year", small.years[place])]),
    }
    return {
        name: float(value[0])
        for name, value in linear.formula("ranking", small.edition, inputs).items()
    }


def _user(small: SmallBundle, user: int) -> Array:
    users = small.tables["users"]
    row: Array = users[user if 0 <= user < len(users) else 0]
    return row[None]


def _genres(small: SmallBundle, genres: Sequence[str]) -> Array:
    rows = [
        GENRE_NAMES.index(name) if name in GENRE_NAMES else UNKNOWN_GENRE_ROW for name in genres
    ]
    total: Array = small.tables["genres"][rows].astype(np.float64).sum(axis=0)[None]
    return total


def answers(small: SmallBundle, call: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of a JSON body, without attributes and with numbers in float64, one for each of
    its requests.
    """
    if call == "lookup":
        return [
            {"vectors": [_looked_up(small, body["feature"], each).tolist() for each in body["ids"]]}
        ]
    if body.get("sources"):
        from tests.service import reference_sources

        return reference_sources.answers(small, body)
    compute: Callable[..., dict[str, Any]] = _COMPUTE[call]
    return [compute(small, body, each) for each in body.get("requests", [body])]


def _looked_up(small: SmallBundle, feature: str, each: Any) -> Array:
    vector: Array = _user(small, each)[0] if feature == "user" else _genres(small, [each])[0]
    return vector


def _stored(part: Mapping[str, Any]) -> dict[str, Any]:
    """The features of a context: what is sent, else what is stored of its context."""
    features: dict[str, Any] = {}
    if (key := int(part.get("context_id", 0))) in STORED_USERS:
        places, weights, mood = STORED_USERS[key]
        liked = {"ids": [1000 + 7 * place for place in places], "weights": weights}
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
    held = attributes(small, small.ids.tolist().index(movie))
    return {name: held[name] or 0 for name in ("year", "rating", "classic")}


def _gain(
    small: SmallBundle, diversity: float, every: list[dict[str, Any]], chosen: list[Any], movie: Any
) -> float:
    """Maximal marginal relevance of one candidate beside those that are chosen."""
    scores = {each["id"]: each["score"] for each in every}
    low = min(scores.values())
    high = max(scores.values())
    own, *others = (
        small.vectors[small.ids.tolist().index(each)].astype(np.float64)
        for each in (movie, *chosen)
    )
    lengths = [np.linalg.norm(own) * np.linalg.norm(other) for other in others]
    cosines = [float(own @ other / length) for other, length in zip(others, lengths, strict=True)]
    return float(
        (1 - diversity) * (scores[movie] - low) / ((high - low) or 1)
        - diversity * max(cosines, default=0)
    )


def _chosen(
    small: SmallBundle, body: Mapping[str, Any], found: list[dict[str, Any]]
) -> dict[str, Any]:
    """The best k of what was found that min_score, crowding and diversity leave."""
    left = sorted(found, key=lambda each: -each["score"])
    left = [each for each in left if each["score"] >= body.get("min_score", -math.inf)]
    chosen = list[dict[str, Any]]()
    every = left
    crowding = body.get("crowding", {})
    first = body.get("offset", 0)
    while left and len(chosen) < first + (body.get("k") or 10):
        ids = [each["id"] for each in chosen]
        best = max(
            left, key=lambda each: _gain(small, body.get("diversity", 0), every, ids, each["id"])
        )
        chosen.append(best)
        left = [each for each in left if each is not best]
        for name, maximum in crowding.items():
            places = {movie: place for place, movie in enumerate(small.ids.tolist())}
            own = {each["id"]: attributes(small, places[each["id"]])[name] for each in every}
            taken = [own[each["id"]] for each in chosen]
            full = {value for value in taken if value is not None and taken.count(value) >= maximum}
            left = [each for each in left if own[each["id"]] not in full]
    columns = ["id", "score"]
    if found and "retrieval_score" in found[0]:
        columns.append("retrieval_score")
    return {f"{name}s": [each[name] for each in chosen[first:]] for name in columns}


def _retrieved(
    small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]
) -> dict[str, Any]:
    own = [int(each) for each in part.get("ids", [])]
    unwanted = [*part.get("exclude_ids", []), *part.get("negative_ids", [])]
    excluded = [*unwanted, *own, *excluded_by(small, body.get("filter", {}))]
    several = (
        [{"vector": each} for each in part["vectors"]]
        if "vectors" in part
        else [{"id": each} for each in own]
    )
    best: dict[Any, float] = {}
    for each in several or [part]:
        vector = away(small, _vector_of(small, each), part)
        for movie, score in neighbors(small, vector, len(small.ids), excluded):
            best[movie] = max(score, best.get(movie, -math.inf))
    found = sorted(best.items(), key=lambda pair: -pair[1])
    if {"formula", "diversity", "offset"} & {
        *body
    }:  # else what is best does not depend on the pool
        found = found[: body.get("pool_size") or len(found)]
    formula = body.get("formula") or "score"
    scored = [
        (movie, eval(formula, {"score": score, **_numbers(small, movie)})) for movie, score in found
    ]
    return _chosen(small, body, [{"id": movie, "score": score} for movie, score in scored])


def _outputs(
    small: SmallBundle, movie: Any, features: Mapping[str, Any], formula: str, **others: Any
) -> dict[str, float]:
    context = {
        name: features[name]
        for name in ("recent", "hour", "mood", "genres", "year")
        if name in features
    }
    liked = features.get("liked", {"ids": [], "weights": []})
    context["liked"] = dict(zip(liked["ids"], liked["weights"], strict=True))
    outputs = ranked(small, movie, features["user"], **context)
    if formula:
        outputs["score"] = eval(
            formula.replace("^", "**"), {"exp": math.exp, "log": math.log}, others | outputs
        )
    return outputs


def _ranked(small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    sent = part.get("candidate_features", {})
    movies = [int(each) for each in part.get("candidate_ids", sent.get("movie"))]
    context = _stored(part)
    every = [
        _outputs(
            small,
            movie,
            context | {name: sent[name][place] for name in sent},
            body.get("formula", ""),
        )
        for place, movie in enumerate(movies)
    ]
    positions = list(range(len(movies)))
    if body.get("k"):
        positions = sorted(positions, key=lambda place: -every[place]["score"])[: body["k"]]
    return {
        "ids": [movies[place] for place in positions] if "candidate_ids" in part else None,
        "scores": [every[place]["score"] for place in positions],
        "positions": positions,
        "heads": {
            head: [every[place][head] for place in positions] for head in body.get("heads", [])
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
    for each, found in neighbors(small, vector, count, excluded):
        others = {"retrieval_score": found, **_numbers(small, each)}
        score = _outputs(small, each, features, body.get("formula", ""), **others)["score"]
        scored.append({"id": each, "score": score, "retrieval_score": found})
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
