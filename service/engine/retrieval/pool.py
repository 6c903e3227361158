"""A pool: the candidates of n queries on their way to a result. Each step takes a pool and returns
one with fewer candidates, in another order, or with other scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.contract.messages import Explanation, Offsets
from service.engine.neighbors import Positions
from service.engine.ranking.formulas import Scores

PoolPositions = NDArray[np.int64]
"""Positions among the candidates of a pool."""
ORDER_OF_RETRIEVAL = "the order of retrieval"
"""The name of the order that candidates have before a stage or a ranking has scored them."""


class Pool(NamedTuple):
    """The candidates of n queries; query i owns offsets[i]:offsets[i + 1].

    Attributes:
      positions: [m] int64 in the corpus.
      offsets: [n + 1].
      sources: [m] int32, the number of the source of each.
      retrieval_scores: [m] float32.
      scores: [m] float32 that order the candidates: those of the ranking, of a stage, or of the
        retrieval.
      order: The name of that order in messages.
      explanations: How the neighbors of each query were found in the first index.
      is_ranked: [m], which candidates the ranking has scored; the others follow these in their
        order. None: all that have the same kind of score.
      dropped: [n], the number of candidates that a stage has dropped; (): there was none.
      has_vectors: Whether the vectors of all candidates can be read.
      reasons: What was left out, and why; a sentence each.
    """

    positions: Positions
    offsets: Offsets
    sources: NDArray[np.int32]
    retrieval_scores: Scores
    scores: Scores
    explanations: tuple[Explanation, ...] = ()
    order: str = ORDER_OF_RETRIEVAL
    is_ranked: NDArray[np.bool_] | None = None
    dropped: Sequence[int] = ()
    has_vectors: bool = True
    reasons: tuple[str, ...] = ()

    def only(self, candidates: PoolPositions) -> Pool:
        """Returns some of the candidates, by their ascending positions in the pool."""
        return self.select(candidates, candidates.searchsorted(self.offsets))

    def select(self, candidates: PoolPositions, offsets: Offsets) -> Pool:
        """Returns some of the candidates in another order.

        Args:
          candidates: [c] positions in the pool, those of one query after those of another.
          offsets: [n + 1], which of these belong to each query.
        """
        is_ranked = self.is_ranked
        if is_ranked is not None:
            is_ranked = is_ranked[candidates]
        return self._replace(
            positions=self.positions[candidates],
            offsets=offsets,
            sources=self.sources[candidates],
            retrieval_scores=self.retrieval_scores[candidates],
            scores=self.scores[candidates],
            is_ranked=is_ranked,
        )

    def because(self, *reasons: str) -> Pool:
        """Returns the pool with further reasons; an empty one is none."""
        added = [reason for reason in reasons if reason]
        if not added:
            return self
        return self._replace(reasons=(*self.reasons, *added))
