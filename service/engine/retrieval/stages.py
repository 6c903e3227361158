"""A stage before the ranking of a recommendation: a cheaper ranking tower orders the pool, and the
best candidates of each context go on to the ranking.

A context keeps its best candidates. Beyond these, it keeps those that a list in the order of the
stage would have under the crowding and the quotas of the request: so these leave no list short that
the pool could fill, and no source without its minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import lengths_of, offsets_of
from service.engine.calls import RecommendationRequest
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Ordering, Scores
from service.engine.retrieval.pool import Pool
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import ModelVersion, TowerPlan

PoolPositions = NDArray[np.int64]

ORDER_OF_RETRIEVAL = "the order of retrieval"
"""The name of the order that candidates have before a stage has scored them."""


@dataclass(frozen=True)
class Stage:
    """A stage of a request.

    Attributes:
      order: The cheaper tower, and the formula of its score, or else its result.
      plan: The parts of the tower that the score needs.
      keep: The number of candidates of each context that go on.
    """

    order: Ordering
    plan: TowerPlan
    keep: int

    @property
    def name(self) -> str:
        """The name of its tower."""
        return self.order.tower.name

    def candidates_to_score(self, pool: Pool) -> PoolPositions:
        """Returns the ascending positions in the pool of the candidates that the stage has to
        score: those of contexts that have more candidates than it keeps.
        """
        sizes = lengths_of(pool.neighbors.offsets)
        return (sizes > self.keep).repeat(sizes).nonzero()[0]


class StagedPool(NamedTuple):
    """A pool of which a stage may have dropped candidates.

    Attributes:
      pool: The candidates that the stage keeps, in its order.
      scores: [m] float32 that order the candidates where they are not ranked: those of the stage,
        or of the retrieval.
      order: The name of that order in messages.
      dropped: The number of candidates of each context that were not kept, [n].
      reasons: What the stage leaves out, and why; a sentence each.
    """

    pool: Pool
    scores: Scores
    order: str
    dropped: NDArray[np.int64]
    reasons: tuple[str, ...] = ()

    @classmethod
    def of_retrieval(cls, pool: Pool) -> StagedPool:
        """Returns a whole pool, in the order of the retrieval."""
        dropped = np.zeros(pool.neighbors.offsets.size - 1, np.int64)
        return cls(pool, pool.neighbors.scores, ORDER_OF_RETRIEVAL, dropped)

    def only(self, candidates: PoolPositions) -> StagedPool:
        """Returns some of the candidates, by their ascending positions in the pool."""
        return self._replace(pool=self.pool.only(candidates), scores=self.scores[candidates])


def choose(
    model_version: ModelVersion, request: RecommendationRequest, tower: str, k: int
) -> Stage | None:
    """Returns the stage of a request; None: it has none.

    Args:
      model_version: The model version.
      request: The request.
      tower: The name of the tower that ranks.
      k: The number of recommendations.

    Raises:
      InvalidArgument: `keep` is out of range, or there is no stage that keeps candidates.
    """
    if request.keep < 0:
        raise InvalidArgument.of_field("keep", request.keep, "at least 0")
    entry = model_version.manifest.stages.get(tower)
    if request.keep and (entry is None or request.skip_stage):
        reason = f"no stage comes before {tower!r}"
        if entry is not None:
            reason = "skip_stage is true"
        violation = FieldViolation("keep", str(request.keep), "a stage that keeps candidates")
        raise InvalidArgument(f"keep is {request.keep}, and {reason}; leave it out", violation)
    if entry is None or request.skip_stage:
        return None
    # What a request sends holds as it is; what the bundle says grows to the length of the list.
    keep = request.keep or entry.keep
    if request.offset is None and not request.keep:
        keep = max(keep, k)
    # A stage that kept fewer than k would make every list short.
    _check_keep(request, keep, k)
    stage_tower = model_version.towers[entry.tower]
    order = formulas.ordering(stage_tower, "")
    return Stage(order, stage_tower.plan(frozenset(order.outputs)), keep)


def _check_keep(request: RecommendationRequest, keep: int, k: int) -> None:
    """Checks that a stage keeps what a list, or a page, returns."""
    wanted = k + (request.offset or 0)
    if keep >= wanted:
        return
    minimum = f"k, which is {k}"
    expected = "at least k"
    if request.offset is not None:
        minimum = f"offset + k, which is {wanted}"
        expected = "at least offset + k, the same for each page,"
    field = "keep of the bundle"
    if request.keep:
        field = "keep"
    violation = FieldViolation("keep", str(keep), expected.rstrip(","))
    message = f"{field} is {keep}, fewer than {minimum}; {expected} was expected"
    raise InvalidArgument(message, violation)


def scores_by_stage(pool: Pool, scored: PoolPositions, stage_scores: Scores) -> Scores:
    """Returns [m] scores that order the candidates of each context as a stage does.

    Args:
      pool: The candidates.
      scored: [c] positions of the candidates that the stage has scored, ascending:
        all of a context, or none, whose candidates then stay in the order of the retrieval.
      stage_scores: [c] float32, their scores.
    """
    scores = np.zeros(pool.neighbors.scores.size, np.float32)
    scores[scored] = stage_scores
    return scores


def drop_candidates(
    stage: Stage, pool: Pool, scored: PoolPositions, stage_scores: Scores, required: PoolPositions
) -> StagedPool:
    """Returns a pool without the candidates that a stage drops, best first.

    Args:
      stage: The stage.
      pool: The candidates.
      scored: See `scores_by_stage`.
      stage_scores: See `scores_by_stage`.
      required: Positions of candidates that the stage keeps even if they are not among the best.
    """
    scores = pool.neighbors.scores.copy()
    scores[scored] = stage_scores
    is_required = np.zeros(scores.size, np.bool_)
    is_required[required] = True

    offsets = pool.neighbors.offsets
    sizes = lengths_of(offsets)
    contexts = np.arange(sizes.size).repeat(sizes)
    # The sort is stable: candidates that the stage has not scored stay in the order of the
    # retrieval.
    order = np.lexsort((-scores_by_stage(pool, scored, stage_scores), contexts))
    is_best = np.arange(order.size) - offsets[:-1].repeat(sizes) < stage.keep
    is_kept = is_best | is_required[order]
    chosen = order[is_kept]
    counts = np.bincount(contexts[is_kept], minlength=sizes.size)

    order_name = ORDER_OF_RETRIEVAL
    if scored.size:
        order_name = f"the order of stage {stage.name!r}"
    staged_pool = pool.select(chosen, offsets_of(counts))
    return StagedPool(staged_pool, scores[chosen], order_name, sizes - counts)
