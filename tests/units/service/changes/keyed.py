"""Small bundles whose users and movies have dynamic keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import EmbeddedFeature, Feature, KeyedIds, Unknown
from tests.bundles.small import USERS, SmallBundle, candidate_ids, write_small_bundle

Array = NDArray[Any]

USER_KEYS = 3 * np.arange(USERS)
MISSING = 1028
"""The id of a candidate whose key the table of movies does not have."""
MOVIE_KEYS = np.where(candidate_ids("int64", 40) == MISSING, 5, candidate_ids("int64", 40))
KEYS = {"users": USER_KEYS, "movies": np.append(1, MOVIE_KEYS)}
FIRST_ROW = Unknown(rule="row", row=0)


def keyed_features(unknown_movie: Unknown = FIRST_ROW, **users: Any) -> dict[str, Feature]:
    """Returns the features of users and movies by keys.

    Args:
      unknown_movie: What a movie reads whose key has no row.
      users: Fields of the feature of users.
    """
    fields: dict[str, Any] = {"unknown": FIRST_ROW, **users}
    user = EmbeddedFeature(
        kind="single", table="users", role="context", ids=KeyedIds(keys="users"), **fields
    )
    movie = EmbeddedFeature(
        kind="single",
        table="movies",
        role="candidate",
        ids=KeyedIds(keys="movies"),
        unknown=unknown_movie,
    )
    return {"user": user, "movie": movie}


STRICT = keyed_features(Unknown(rule="refuse"))
"""Features of which one rejects the keys that have no row yet."""


class KeyedBundles:
    """Writes bundles of dynamic keys under a root."""

    def __init__(self, root: Path, towers: Path) -> None:
        self.root = root
        self._towers = towers

    def write(self, version: int = 1, **options: Any) -> SmallBundle:
        fields = {"features": keyed_features(), "keys": KEYS, **options}
        return write_small_bundle(self.root, self._towers, version=version, **fields)
