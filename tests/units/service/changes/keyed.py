"""Small bundles whose users and movies have dynamic keys, changes of their rows, and what services
respond.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import EmbeddedFeature, Feature, KeyedIds, Unknown
from service.engine.calls import (
    EmbeddingRequest,
    LookupRequest,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
)
from tests.bundles.small import USERS, SmallBundle, candidate_ids, write_small_bundle
from tests.units.service.changes.making import TARGET, change
from tests.units.service.running import RunningService, column

Array = NDArray[Any]

USER_KEYS = 3 * np.arange(USERS)
MISSING = 1028
"""The id of a candidate whose key the table of movies does not have."""
MOVIE_KEYS = np.where(candidate_ids("int64", 40) == MISSING, 5, candidate_ids("int64", 40))
KEYS = {"users": USER_KEYS, "movies": np.append(1, MOVIE_KEYS)}
SIZES = {name: keys.size for name, keys in KEYS.items()}


def keyed_features(**users: Any) -> dict[str, Feature]:
    """Returns the features of users and movies by keys; `users`: fields of the first."""
    fields: dict[str, Any] = {"unknown": Unknown(rule="row", row=0), **users}
    user = EmbeddedFeature(
        kind="single", table="users", role="context", ids=KeyedIds(keys="users"), **fields
    )
    movie = EmbeddedFeature(
        kind="single",
        table="movies",
        role="candidate",
        ids=KeyedIds(keys="movies"),
        unknown=Unknown(rule="row", row=0),
    )
    return {"user": user, "movie": movie}


class KeyedBundles:
    """Writes bundles of dynamic keys under a root."""

    def __init__(self, root: Path, towers: Path) -> None:
        self.root = root
        self._towers = towers

    def write(self, version: int = 1, **options: Any) -> SmallBundle:
        fields = {"features": keyed_features(), "keys": KEYS, **options}
        return write_small_bundle(self.root, self._towers, version=version, **fields)


def set_rows(service: RunningService, feature: str, vectors: dict[int, Array]) -> Any:
    items = [{"id": key, "vector": vector.tolist()} for key, vector in vectors.items()]
    return change(service, "rows/upsert", *items, feature=feature)


def looked_up(service: RunningService, *keys: int) -> tuple[list[bool], list[list[float]]]:
    result = service.execute(LookupRequest(TARGET, "user", column(*keys)), "lookup")
    return result.found.tolist(), result.vectors.tolist()


def responses(
    service: RunningService,
    small: SmallBundle,
    candidates: Sequence[int] = (1000, MISSING, 1035, 9000, 9001),
) -> list[Any]:
    """Returns what a service responds to calls that read users and movies, as values.

    Args:
      service: The service.
      small: The bundle that it serves.
      candidates: The ids that rankings and retrievals name.
    """
    users = column(0, 3, 7, 100_000, 2**40, 11)
    ids = np.array(candidates)
    calls = [
        (LookupRequest(TARGET, "user", users), "lookup"),
        (LookupRequest(TARGET, "movie", column(1, 5, 1000, MISSING, 77)), "lookup"),
        (EmbeddingRequest(TARGET, "query", {"user": users}), "embed"),
        (EmbeddingRequest(TARGET, "candidate", candidate_columns(1000, MISSING, 77, 5)), "embed"),
        (RetrievalRequest(TARGET, context={"user": users}, k=100, exact=True), "retrieve"),
        (RetrievalRequest(TARGET, vectors=small.vectors[:3], k=100), "retrieve"),
        (RetrievalRequest(TARGET, ids=ids, k=100), "retrieve"),
        (RankingRequest(TARGET, {"user": column(7)}, ids), "rank"),
        (RecommendationRequest(TARGET, context={"user": column(7)}, k=20), "recommend"),
    ]
    return [values_of(service.execute(call, name)) for call, name in calls]


def candidate_columns(*movies: int) -> dict[str, Any]:
    return {
        "movie": column(*movies),
        "genres": column(*["drama"] * len(movies), offsets=range(len(movies) + 1)),
        "year": column(*[0.5] * len(movies)),
    }


def values_of(result: Any) -> dict[str, Any]:
    values = dict(vars(result))
    for name, value in vars(result).items():
        if isinstance(value, np.ndarray):
            values[name] = value.tolist()
    return values
