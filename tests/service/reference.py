"""What a small bundle must answer, computed in float64 by dictionaries and loops, without any code of the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.service import small_model
from tests.service.small_bundle import CITIES, CITY_DEFAULT, GENRE_NAMES, UNKNOWN_GENRE_ROW, SmallBundle
from tests.service.small_pieces import STORED_USERS

Array = NDArray[Any]


def movie_row(small: SmallBundle, movie: Any) -> int | None:
    known = {each: 1 + place for place, each in enumerate(small.ids.tolist())}
    return known.get(movie)


def query_vector(
    small: SmallBundle, user: int, history: Sequence[Any] = (), city: str = CITY_DEFAULT, hour: float = 0.0
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
    vector: Array = small_model.formula("query", small.edition, inputs)["vector"][0]
    return vector


def neighbors(small: SmallBundle, vector: Array, k: int, excluded: Sequence[Any] = ()) -> list[tuple[Any, float]]:
    """(id, score) of the k nearest by dot product, best first."""
    pairs = []
    for movie, candidate in zip(small.ids.tolist(), small.vectors.astype(np.float64), strict=True):
        if movie not in excluded:
            pairs.append((movie, float(np.dot(candidate, vector))))
    return sorted(pairs, key=lambda pair: -pair[1])[:k]


def ranked(small: SmallBundle, movie: Any, user: int, **context: Any) -> dict[str, float]:
    """Every output of the ranking tower for one stored candidate. context: liked (id -> weight), recent, hour, mood;
    genres and year override what is stored."""
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
    return {name: float(value[0]) for name, value in small_model.formula("ranking", small.edition, inputs).items()}


def _user(small: SmallBundle, user: int) -> Array:
    users = small.tables["users"]
    row: Array = users[user if 0 <= user < len(users) else 0]
    return row[None]


def _genres(small: SmallBundle, genres: Sequence[str]) -> Array:
    rows = [GENRE_NAMES.index(name) if name in GENRE_NAMES else UNKNOWN_GENRE_ROW for name in genres]
    total: Array = small.tables["genres"][rows].astype(np.float64).sum(axis=0)[None]
    return total


def answers(small: SmallBundle, call: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of a JSON body, without attributes and with numbers in float64, one for each of its requests."""
    if call == "lookup":
        return [{"vectors": [_looked_up(small, body["feature"], each).tolist() for each in body["ids"]]}]
    compute: Callable[..., dict[str, Any]] = _COMPUTE[call]
    return [compute(small, body, each) for each in body.get("requests", [body])]


def _looked_up(small: SmallBundle, feature: str, each: Any) -> Array:
    vector: Array = _user(small, each)[0] if feature == "user" else _genres(small, [each])[0]
    return vector


def _stored(part: Mapping[str, Any], sent: str) -> dict[str, Any]:
    """The features of a request: what is sent, else what is stored of its context."""
    features: dict[str, Any] = {}
    if (key := int(part.get("context_id", 0))) in STORED_USERS:
        places, weights, mood = STORED_USERS[key]
        liked = {"ids": [1000 + 7 * place for place in places], "weights": weights}
        features = {"user": key, "liked": liked, "mood": mood}
    features.update(part.get(sent, {}))
    return features


def _vector_of(small: SmallBundle, part: Mapping[str, Any]) -> Array:
    if "vector" in part:
        return np.array(part["vector"], np.float64)
    if "id" in part:
        vector: Array = small.vectors[small.ids.tolist().index(int(part["id"]))].astype(np.float64)
        return vector
    features = _stored(part, "features")
    history = features.get("history", [])
    return query_vector(
        small,
        int(features["user"]),
        history if isinstance(history, list) else [history],
        str(features.get("city", CITY_DEFAULT)),
        features.get("hour", 0.0),
    )


def _retrieved(small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    excluded = [*part.get("exclude", []), *([int(part["id"])] if "id" in part else [])]
    found = neighbors(small, _vector_of(small, part), body.get("k") or 10, excluded)
    return {"neighbors": [{"id": each, "score": score} for each, score in found]}


def _outputs(small: SmallBundle, movie: Any, features: Mapping[str, Any], formula: str) -> dict[str, float]:
    context = {name: features[name] for name in ("recent", "hour", "mood", "genres", "year") if name in features}
    liked = features.get("liked", {"ids": [], "weights": []})
    context["liked"] = dict(zip(liked["ids"], liked["weights"], strict=True))
    outputs = ranked(small, movie, features["user"], **context)
    if formula:
        outputs["score"] = eval(formula.replace("^", "**"), {"exp": math.exp, "log": math.log}, outputs)
    return outputs


def _ranked(small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    sent = part.get("features", {})
    movies = [int(each) for each in part.get("candidates", sent.get("movie"))]
    context = _stored(part, "context")
    every = [
        _outputs(small, movie, context | {name: sent[name][place] for name in sent}, body.get("formula", ""))
        for place, movie in enumerate(movies)
    ]
    positions = list(range(len(movies)))
    if body.get("k"):
        positions = sorted(positions, key=lambda place: -every[place]["score"])[: body["k"]]
    return {
        "ids": [movies[place] for place in positions] if "candidates" in part else None,
        "scores": [every[place]["score"] for place in positions],
        "positions": positions,
        "heads": {head: [every[place][head] for place in positions] for head in body.get("heads", [])},
    }


def _recommended(small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    k = body.get("k") or 10
    count = body.get("candidates") or max(100, 10 * k)
    features = _stored(part, "features")
    scored = [
        {
            "id": each,
            "score": _outputs(small, each, features, body.get("formula", ""))["score"],
            "retrieval_score": found,
        }
        for each, found in neighbors(small, _vector_of(small, part), count, part.get("exclude", []))
    ]
    return {"neighbors": sorted(scored, key=lambda neighbor: -neighbor["score"])[:k]}


def _embedded(small: SmallBundle, body: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    if body["tower"] == "query":
        return {"vector": _vector_of(small, part).tolist()}
    features = part["features"]
    inputs = {
        "movie": small.tables["movies"][[movie_row(small, features["movie"]) or 0]],
        "genres": _genres(small, features["genres"]),
        "year": np.array([features["year"]]),
    }
    return {"vector": small_model.formula("candidate", small.edition, inputs)["vector"][0].tolist()}


_COMPUTE: dict[str, Any] = {"retrieve": _retrieved, "rank": _ranked, "recommend": _recommended, "embed": _embedded}
