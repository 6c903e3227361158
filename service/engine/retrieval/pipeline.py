"""The two calls that select candidates, in the same steps: plan -> pool -> stage -> ranking -> the
k best. A retrieval is a recommendation with one source, and without a stage and a ranking; its
score may be a formula.

plan                 what is selected from, and for which queries; all of it checked
Retriever.retrieve   the pool: the candidates of all sources
pass_stage           the best of each context by a cheaper tower, which go on
Scorer.rank          the scores of a tower, a formula, or both
pick_best            the k best that min_score, crowding, quotas and diversity leave
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from bundle.errors import NotSent
from bundle.tables.offsets import lengths_of
from service.config import ServiceSettings
from service.contract.messages import (
    Columns,
    Explanation,
    RecommendationRequest,
    RetrievalRequest,
    RetrievalResult,
)
from service.engine import lookup
from service.engine.execution import Execution
from service.engine.retrieval import queries
from service.engine.retrieval.pick import Pool, pick_best
from service.engine.retrieval.plan import Selection, plan
from service.engine.retrieval.rank import Scorer, pass_stage, plan_last_steps
from service.engine.retrieval.sources import Retriever
from service.versions.version import ModelVersion


async def select(
    model_version: ModelVersion,
    request: RetrievalRequest | RecommendationRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RetrievalResult:
    """Selects candidates for n queries, or contexts, with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    selection = plan(model_version, request, settings, execution)
    features: Columns = {}
    query_vectors = None
    if selection.has_queries:
        query_vectors = await queries.of_request(selection)
    else:
        features = lookup.complete(
            model_version,
            selection.inputs,
            request.context or {},
            request.context_ids,
            selection.n,
            execution,
        )
    scorer = None
    if selection.ranking is not None:
        scorer = Scorer.of(selection, selection.ranking, features, bool(request.formula))
    elif selection.formula is not None:
        scorer = Scorer(selection, None, selection.formula, True, "score")
    retriever = Retriever(selection, features, query_vectors)
    try:
        result = await _select(selection, retriever, scorer)
    except NotSent as problem:
        context = (selection.inputs, features)
        lookup.name_all_not_sent(problem, model_version, context=context)
        raise
    if query_vectors is None or query_vectors.not_found is None:
        return result
    count = query_vectors.not_found.ids.size
    execution.count("not_found_ids", count, model_version.model, execution.call)
    return replace(result, not_found=query_vectors.not_found)


async def _select(
    selection: Selection, retriever: Retriever, scorer: Scorer | None
) -> RetrievalResult:
    """Returns the best candidates of a request.

    Args:
      selection: The plan of the request.
      retriever: Retrieves the candidates.
      scorer: Gives the candidates the scores that are returned; None: those of the retrieval are.
    """
    request = selection.request
    execution = selection.execution
    stage = selection.stage
    pool = await retriever.retrieve()
    examples = selection.n
    if retriever.query_vectors is not None:
        examples = len(retriever.query_vectors.vectors)
    execution.count_examples(examples)
    if stage is not None:
        pool = await pass_stage(selection, stage, pool, retriever.features)

    ranked_max = None
    diversifying: AbstractContextManager[None] = nullcontext()
    # Responses of retrievals cannot say that something is left out.
    if scorer is not None and scorer.tower is not None:
        steps = plan_last_steps(selection, pool, scorer.latency(int(pool.positions.size)))
        ranked_max = steps.ranked_max
        if steps.diversity:
            diversifying = steps.diversifying.measured()
        selection = selection.with_options(diversity=steps.diversity)
        pool = pool.because(steps.reason)
        if pool.reasons:
            execution.check_alone()
            execution.count("degraded", 1, selection.model_version.model)
    if scorer is not None:
        pool = await scorer.rank(pool, ranked_max)
        if scorer.tower is not None and ranked_max is None and not request.formula:
            execution.count_scores(scorer.tower.tower, pool.scores, selection.n)

    best = pool
    if selection.needs_pool or request.min_score is not None:
        with diversifying:
            chosen, offsets = await pick_best(selection, pool)
        best = pool.select(chosen, offsets)
    execution.begin("lookup")
    return _result(selection, pool, best)


def _result(selection: Selection, pool: Pool, best: Pool) -> RetrievalResult:
    """Returns the best candidates of a pool as clients see them: ids, scores and attributes."""
    request = selection.request
    version = selection.model_version
    corpus = selection.corpus
    attributes: dict[str, list[Any]] = {}
    if request.attributes:
        attributes = corpus.store.attributes(best.positions, list(request.attributes))
    explanations: tuple[Explanation, ...] = ()
    if request.explain:
        explanations = _explain(selection, pool, best)
    result = RetrievalResult(
        version.model,
        version.version,
        corpus.store.ids(best.positions),
        best.scores,
        best.offsets,
        attributes=attributes,
        explanations=explanations,
        searched=round(selection.execution.searched_share * corpus.count),
    )
    if isinstance(request, RetrievalRequest):
        return result
    names: tuple[str, ...] = ()
    source_numbers = None
    if selection.has_sources:
        names = tuple([source.name for source in selection.sources])
        source_numbers = best.sources
    return replace(
        result,
        retrieval_scores=best.retrieval_scores,
        degraded=bool(best.reasons),
        degraded_reason="; ".join(best.reasons),
        source_names=names,
        sources=source_numbers,
    )


def _explain(selection: Selection, pool: Pool, best: Pool) -> tuple[Explanation, ...]:
    """Returns how queries were searched in the first index, and why they have fewer than k
    candidates.
    """
    request = selection.request
    sizes = lengths_of(best.offsets).tolist()
    dropped_counts = pool.dropped or [0] * selection.n
    counts = lengths_of(pool.offsets) + dropped_counts
    explanations = []
    for explanation, size, count, dropped in zip(
        pool.explanations, sizes, counts.tolist(), dropped_counts, strict=True
    ):
        if size >= selection.k:
            explanations.append(explanation._replace(shortfall=""))
            continue
        allowed = "pass the filter, the exclusions and the deny list"
        if explanation.shortfall:  # nothing was searched
            shortfall = explanation.shortfall
        elif selection.has_sources and request.offset is not None:
            shortfall = f"the pool of {count} candidates has no more"
        elif selection.has_sources:
            shortfall = (
                f"the sources have {count} candidates that {allowed}; min_score, crowding and "
                f"max_count leave {size}"
            )
        elif request.offset is not None:
            shortfall = f"the pool of {request.pool_size} candidates has no more neighbors"
        elif size < min(selection.k, explanation.matches):
            options = {"min_score": request.min_score is not None, "crowding": request.crowding}
            named = " and ".join(name for name, is_sent in options.items() if is_sent)
            shortfall = f"{_only(size)} candidates pass {named}"
        else:
            shortfall = f"{_only(explanation.matches)} candidates {allowed}"
        if dropped and selection.stage is not None:
            stage = selection.stage.tower.name
            shortfall += f"; stage {stage!r} has dropped {dropped} candidates of the pool"
        explanations.append(explanation._replace(shortfall=shortfall))
    return tuple(explanations)


def _only(count: int) -> str:
    if not count:
        return "no"
    return f"only {count}"
