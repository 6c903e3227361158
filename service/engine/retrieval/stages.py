"""A stage before the ranking of a recommendation: a cheaper ranking tower orders the pool, and the
best candidates of each context go on to the ranking.

A context keeps its best candidates. Beyond these, it keeps those that a list in the order of the
stage would have under the crowding and the quotas of the request: so these leave no list short that
the pool could fill, and no source without its minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bundle.tables.offsets import lengths_of, offsets_of
from service.contract.messages import Columns, RecommendationRequest
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Ordering, Scores
from service.engine.ranking.pool_scores import PoolTower
from service.engine.retrieval.picking import pick_best
from service.engine.retrieval.pool import Pool, PoolPositions, Selection
from service.engine.retrieval.scoring import Scorer
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import ModelVersion, TowerPlan


@dataclass(frozen=True)
class ChosenStage:
    """The stage of a request.

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


def choose(
    model_version: ModelVersion, request: RecommendationRequest, tower: str, k: int
) -> ChosenStage | None:
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
    return ChosenStage(order, stage_tower.plan(frozenset(order.outputs)), keep)


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


async def pass_stage(
    selection: Selection, stage: ChosenStage, pool: Pool, features: Columns
) -> Pool:
    """Returns the candidates of a pool that a stage keeps, best first; without the time for the
    stage, those that were retrieved first.

    Args:
      selection: The request.
      stage: The stage.
      pool: The candidates.
      features: The features of the n contexts.
    """
    execution = selection.execution
    order = stage.order
    tower = PoolTower(selection.model_version, order.tower, stage.plan, features)
    scorer = Scorer(selection, tower, order.formula)
    # Contexts that have no more candidates than the stage keeps need no scores.
    sizes = lengths_of(pool.offsets)
    needed = (sizes > stage.keep).repeat(sizes).nonzero()[0]
    if not needed.size:
        return pool._replace(dropped=[0] * selection.n)
    late = scorer.latency(int(needed.size)).late()
    if late:
        pool = pool.because(
            f"stage {stage.name!r} is left out: {late}; of each context, the first {stage.keep} "
            "candidates are kept in the order of retrieval"
        )
        nothing = needed[:0]
        return await _drop(selection, stage, pool, nothing, np.empty(0, np.float32))

    scored = await scorer.score(pool.only(needed))
    if scored.left_out:
        lost = np.delete(needed, scored.positions)
        pool = pool.only(np.delete(np.arange(pool.positions.size), lost))
        needed = needed[scored.positions]
        needed -= lost.searchsorted(needed)
    contexts = int(np.count_nonzero(sizes > stage.keep))
    execution.count_scores(order.tower, scored.scores, contexts)
    staged_pool = await _drop(selection, stage, pool, needed, scored.scores)
    dropped = sum(staged_pool.dropped)
    model = selection.model_version.model
    for outcome, count in (("dropped", dropped), ("kept", int(needed.size) - dropped)):
        execution.count("stage_candidates", count, model, stage.name, outcome)
    return staged_pool.because(*scored.left_out)


async def _drop(
    selection: Selection,
    stage: ChosenStage,
    pool: Pool,
    scored: PoolPositions,
    stage_scores: Scores,
) -> Pool:
    """Returns a pool without the candidates that a stage drops, best first.

    Args:
      selection: The request.
      stage: The stage.
      pool: The candidates.
      scored: [c] positions of the candidates that the stage has scored, ascending: all of a
        context, or none, whose candidates then stay in the order of the retrieval.
      stage_scores: [c] float32, their scores.
    """
    sort_scores = np.zeros(pool.scores.size, np.float32)
    sort_scores[scored] = stage_scores
    offsets = pool.offsets
    sizes = lengths_of(offsets)
    contexts = np.arange(sizes.size).repeat(sizes)
    # The sort is stable: candidates that the stage has not scored stay in the order of the
    # retrieval.
    order = np.lexsort((-sort_scores, contexts))
    is_kept = np.arange(order.size) - offsets[:-1].repeat(sizes) < stage.keep

    has_quotas = any(
        source.entry.min_count or source.entry.max_count for source in selection.sources.planned
    )
    if selection.request.crowding or has_quotas:
        # The scores are those of the stage, to which the options of the ranking do not apply.
        shaped = selection.with_options(min_score=None, diversity=0.0, offset=None)
        shaped = shaped._replace(k=selection.end)
        required, _ = await pick_best(shaped, pool._replace(scores=sort_scores))
        is_required = np.zeros(order.size, np.bool_)
        is_required[required] = True
        is_kept |= is_required[order]

    counts = np.bincount(contexts[is_kept], minlength=sizes.size)
    scores = pool.scores.copy()
    scores[scored] = stage_scores
    staged_pool = pool._replace(scores=scores, dropped=(sizes - counts).tolist())
    if scored.size:
        staged_pool = staged_pool._replace(order=f"the order of stage {stage.name!r}")
    return staged_pool.select(order[is_kept], offsets_of(counts))
