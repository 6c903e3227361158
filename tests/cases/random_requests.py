"""Random requests of every call, as JSON bodies: with any options, for one context or for several.

The bundle that they are for has parts, contexts, lists and a stage, as `written` writes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bundles.small import GENRE_NAMES, STORED_USERS, SmallBundle, write_small_bundle
from tests.units.service.cases import MODEL, REQUESTS, Case

MOVIES = [1000 + 7 * position for position in range(40)]
FORMULAS = {
    "retrieve": ["score * 2 - rating + (year - 2000) / 5", "-score", "score + 5 * classic"],
    "rank": ["watch^0.7 * exp(-rating)", "watch * 2"],
    "recommend": ["watch + 0.1 * retrieval_score + year / 100", "retrieval_score - year"],
}
TOKENS: dict[str, list[Any]] = {
    "genres": [*GENRE_NAMES, "western"],
    "year": list(range(1985, 2035)),
    "studio": [*(f"studio {number}" for number in range(5)), "none"],
    "classic": [True, False],
}
"""What attributes may hold, and what none holds."""
NUMBERS: dict[str, list[Any]] = {
    "year": [*range(1985, 2035), 1999.5, -(2**60)],
    "rating": [-1, 0, 2.5, 7, 99.75],
}
Draw = random.Random


def written(root: Path, towers: Path) -> SmallBundle:
    """Writes the bundle that the requests are for."""
    return write_small_bundle(root, towers, MODEL, parts=True, users=True, lists=True, keep=40)


def random_request(seed: int) -> Case:
    """Returns a request; it may be one that the service rejects."""
    draw = random.Random(seed)
    call = draw.choice(["retrieve", "retrieve", "rank", "recommend", "recommend", "embed"])
    return Case(call, f"seed {seed}", _DRAWN[call](draw))


def _some(draw: Draw, options: dict[str, Callable[[], Any]], share: float) -> dict[str, Any]:
    return {name: value() for name, value in options.items() if draw.random() < share}


def _number(draw: Draw) -> float:
    return draw.randint(-8, 8) / 4


def _vector(draw: Draw) -> list[float]:
    return [_number(draw) for _ in range(8)]


def _movies(draw: Draw, most: int = 4) -> list[int]:
    """Returns ids, of which some do not exist."""
    return draw.sample([*MOVIES, 5, 10**12], draw.randint(0, most))


def _features(draw: Draw, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the features of one example, or of several, which have the same names."""
    liked = _movies(draw)
    values: dict[str, Callable[[], Any]] = {
        "user": lambda: draw.choice([0, 1, 5, 7, 49, 10**15, -3]),
        "history": lambda: _movies(draw),
        "city": lambda: draw.choice(["oslo", "bern", ""]),
        "hour": lambda: _number(draw),
        "liked": lambda: {"ids": liked, "weights": [_number(draw) for _ in liked]},
        "recent": lambda: _movies(draw, 5),
        "mood": lambda: [_number(draw), _number(draw)],
        "movie": lambda: draw.choice(MOVIES),
        "genres": lambda: draw.sample([*GENRE_NAMES, "opera"], draw.randint(0, 3)),
        "year": lambda: _number(draw),
    }
    chosen = [name for name in names if name in {"user", *_CANDIDATE} or draw.random() < 0.4]
    return [{name: values[name]() for name in chosen} for _ in range(draw.choice([1, 1, 2, 3]))]


def _contexts(draw: Draw, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns contexts by their features, by their ids, or by both."""
    if draw.random() < 0.2:
        parts = [{"context_id": key} for key in draw.sample(list(STORED_USERS), draw.randint(1, 3))]
        if draw.random() < 0.5:
            return [{**part, "context": {"hour": _number(draw)}} for part in parts]
        return parts
    return [{"context": features} for features in _features(draw, names)]


def _body(draw: Draw, parts: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    if len(parts) == 1 and draw.random() < 0.8:
        return {**options, **parts[0]}
    return {**options, "requests": parts}


def _condition(draw: Draw, attribute: str) -> dict[str, Any]:
    """Returns a condition of at least one part."""
    tokens = TOKENS.get(attribute, [])
    condition: dict[str, Any] = {}
    if draw.random() < 0.1:
        condition["is_null"] = draw.random() < 0.5
    while not condition:
        if tokens and draw.random() < 0.6:
            condition["allow"] = draw.choices(tokens, k=draw.randint(1, 4))
        if tokens and draw.random() < 0.4:
            condition["deny"] = draw.choices(tokens, k=draw.randint(0, 4))
        for name in ("ge", "gt", "le", "lt"):
            if attribute in NUMBERS and draw.random() < 0.3:
                condition[name] = draw.choice(NUMBERS[attribute])
    return condition


def _circle(draw: Draw) -> dict[str, Any]:
    """Returns a circle anywhere, of any size: some hold a pole, some cross the date line."""
    circle: dict[str, Any] = {
        "latitude": draw.uniform(-90, 90),
        "longitude": draw.uniform(-180, 180),
        "radius_m": 10 ** draw.uniform(4, 7.4),
    }
    if draw.random() < 0.2:
        circle |= {"latitude_attribute": "rating", "longitude_attribute": "rating"}
    return circle


def random_filter(draw: Draw, levels: int = 3) -> dict[str, Any]:
    """Returns a filter of conditions, circles and filters; most have few of them."""
    attributes = draw.sample([*TOKENS, "rating"], draw.choice([0, 0, 1, 1, 2, 3]))
    drawn: dict[str, Any] = {name: _condition(draw, name) for name in attributes}
    if draw.random() < 0.1:
        drawn["near"] = [_circle(draw) for _ in range(draw.randint(1, 3))]
    for group in ("all", "any", "none"):
        if levels > 1 and draw.random() < 0.25:
            filters = [random_filter(draw, levels - 1) for _ in range(draw.randint(1, 3))]
            drawn[group] = filters
    return drawn


def _options(draw: Draw, call: str) -> dict[str, Any]:
    """Returns some of the options that the request of a call has."""
    values: dict[str, Callable[[], Any]] = {
        "k": lambda: draw.choice([0, 1, 3, 7, 12]),
        "attributes": lambda: draw.sample(["title", "year", "rating", "genres"], 2),
        "filter": lambda: random_filter(draw),
        "formula": lambda: draw.choice(FORMULAS[call]),
        "crowding": lambda: draw.choice([{"studio": 2}, {"classic": 4, "studio": 3}]),
        "diversity": lambda: draw.choice([0.3, 0.5]),
        "min_score": lambda: draw.choice([-1, 0.5]),
        "exact": lambda: True,
        "explain": lambda: True,
        "heads": lambda: draw.sample(["watch", "rating"], draw.randint(1, 2)),
        "index": lambda: MODEL,
        "keep": lambda: draw.choice([0, 9, 40, 4000]),
        "pool_size": lambda: draw.choice([14, 18]),
        "recall": lambda: 0.9,
        "skip_stage": lambda: draw.random() < 0.5,
        "tower": lambda: "ranking",
    }
    declared = REQUESTS[call].DESCRIPTOR.fields_by_name
    return _some(draw, {name: value for name, value in values.items() if name in declared}, 0.2)


def _selected(draw: Draw, call: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    for part in parts:
        lists = dict.fromkeys(("exclude_ids", "negative_ids"), lambda: _movies(draw))
        part.update(_some(draw, lists, 0.2))
    options = _options(draw, call)
    if draw.random() < 0.15:
        options |= {"offset": draw.choice([0, 2]), "pool_size": 18}
    # The pool is widened until crowding leaves enough, up to all candidates.
    if "crowding" in options:
        options["pool_size"] = 40
        del parts[1:]
    return options


def _add_unknown(draw: Draw, parts: list[dict[str, Any]], name: str) -> None:
    """Adds ids that do not exist to some of the lists, and leaves others without one that does."""
    for part in parts:
        ids = [*draw.sample([1, 2, 3], draw.randint(0, 2)), *part[name][: draw.randint(0, 4)]]
        part[name] = draw.sample(ids, len(ids)) or [1]


def _retrieval(draw: Draw) -> dict[str, Any]:
    parts = _contexts(draw, _QUERY)
    kind = draw.choice(["context", "vectors", "ids"])
    if kind == "ids":
        parts = [{"ids": draw.sample(MOVIES, draw.randint(1, 2))} for _ in parts]
    if kind == "vectors":
        sizes = [draw.randint(1, 2) for _ in parts]
        parts = [{"vectors": [_vector(draw) for _ in range(size)]} for size in sizes]
    options = _selected(draw, "retrieve", parts)
    if kind == "ids" and draw.random() < 0.4:
        _add_unknown(draw, parts, "ids")
        options["not_found"] = "skip"
    return _body(draw, parts, options)


def _ranking(draw: Draw) -> dict[str, Any]:
    parts = _contexts(draw, _RANKING)
    form = draw.choice(["ids", "ids", "features", "both"])
    for part in parts:
        movies = draw.sample(MOVIES, draw.randint(1, 4))
        years = [_number(draw) for _ in movies]
        if form != "features":
            part["candidate_ids"] = movies
        if form == "both":
            part["candidate_features"] = {"year": years}
        if form == "features":
            genres = [draw.sample(GENRE_NAMES, 2) for _ in movies]
            part["candidate_features"] = {"movie": movies, "genres": genres, "year": years}
    options = _options(draw, "rank")
    if form == "ids" and draw.random() < 0.4:
        _add_unknown(draw, parts, "candidate_ids")
        options["not_found"] = "skip"
    return _body(draw, parts, options)


def _recommendation(draw: Draw) -> dict[str, Any]:
    parts = _contexts(draw, (*_QUERY, "liked", "recent", "mood"))
    options = _selected(draw, "recommend", parts)
    if draw.random() < 0.4:
        options.pop("index", None)
        options["sources"] = _sources(draw, len(parts))
    if len(parts) > 1:
        options["pool_size"] = 18
    return _body(draw, parts, options)


def _sources(draw: Draw, parts: int) -> list[dict[str, Any]]:
    quotas: dict[str, Callable[[], Any]] = {
        "min_count": lambda: 1,
        "max_count": lambda: 2,
        "pool_size": lambda: 6,
        "fallback": lambda: True,
    }
    listed = [_movies(draw) for _ in range(parts)]
    kinds: list[dict[str, Any]] = [
        {"index": ""},
        {"index": MODEL, "name": "again", "pool_size": 4},
        {"list": "popular"},
        {"list": "new"},
        {"ids": _movies(draw)},
        {"name": "recent", "ids": listed},
    ]
    chosen = draw.sample(kinds, draw.randint(0, 3))
    return [{"pool_size": 8, **kind, **_some(draw, quotas, 0.2)} for kind in chosen]


def _embedding(draw: Draw) -> dict[str, Any]:
    tower = draw.choice(["query", "candidate"])
    names = _QUERY if tower == "query" else _CANDIDATE
    parts = [{"features": features} for features in _features(draw, names)]
    return _body(draw, parts, {"tower": tower})


_QUERY = ("user", "history", "city", "hour")
_RANKING = ("user", "liked", "recent", "hour", "mood")
_CANDIDATE = ("movie", "genres", "year")
_DRAWN: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "retrieve": _retrieval,
    "rank": _ranking,
    "recommend": _recommendation,
    "embed": _embedding,
}
