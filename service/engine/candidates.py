"""Candidates as callers see them <-> positions as indexes do, over a corpus' store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.lookup import check_names, check_offsets
from service.engine.requests import Exclusion, Ids, Neighbors, Offsets
from service.errors import InvalidArgument
from service.generations.generation import LoadedCorpus

Positions = NDArray[np.int64]


class NoSuchCandidate(InvalidArgument):
    """A candidate that the corpus does not hold: data of the caller's, which another version may hold."""


def told(
    corpus: LoadedCorpus,
    positions: Positions,
    scores: NDArray[np.float32],
    offsets: Offsets,
    attributes: tuple[str, ...],
) -> Neighbors:
    """Lays positions out as a caller sees them: ids, scores and attributes."""
    values: dict[str, list[Any]] = corpus.store.attributes(positions, list(attributes)) if attributes else {}
    return Neighbors(corpus.store.ids(positions), scores, offsets, values)


def known_positions(corpus: LoadedCorpus, ids: Ids) -> Positions:
    """Returns the positions of candidates that must exist.

    Raises:
      NoSuchCandidate: one does not; names it and the corpus.
    """
    positions = corpus.store.positions(ids)
    if (positions < 0).any():
        unknown = ids[positions < 0][0]
        shown = repr(unknown[:128]) if isinstance(unknown, str) else str(unknown)
        raise NoSuchCandidate(f"candidate {shown} is not in corpus {corpus.name!r} of {corpus.page.size} candidates")
    return positions


def excluded_positions(corpus: LoadedCorpus, exclude: Exclusion | None, n: int) -> list[Positions] | None:
    """Returns the distinct positions that each of n queries must not be answered with; unknown ids exclude nothing.

    None: nothing is excluded.
    """
    if exclude is None:
        return None
    if exclude.offsets is not None:
        check_offsets(exclude.offsets, n, int(exclude.ids.size), "exclude")
    positions = corpus.store.positions(exclude.ids, "excluded candidate")
    if exclude.offsets is None:
        return [np.unique(positions[positions >= 0])] * n
    parts = np.split(positions, exclude.offsets[1:-1])
    return [np.unique(part[part >= 0]) for part in parts]


def check_attributes(corpus: LoadedCorpus, attributes: tuple[str, ...]) -> None:
    """Refuses attributes that a corpus does not hold."""
    check_names(attributes, corpus.page.attributes, "attribute", f"corpus {corpus.name!r}")
