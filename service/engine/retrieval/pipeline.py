"""The two calls that select candidates, in the same steps: sources -> pool -> stage -> ranking ->
the k best. A retrieval is a recommendation with one source, and without a stage and a ranking; its
score may be a formula.

sources.plan, queries   what is selected from, and for which queries; all of it checked
Retriever.retrieve      the pool: the candidates of all sources
pass_stage              the best of each context by a cheaper tower, which go on
Scorer.rank             the scores of a tower, a formula, or both
pick_best               the k best that min_score, crowding, quotas and diversity leave
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from bundle.tables.offsets import lengths_of
from service.config import ServiceSettings
from service.contract.messages import (
    K_DEFAULT,
    Columns,
    Explanation,
    RecommendationRequest,
    RetrievalRequest,
    RetrievalResult,
)
from service.engine import lookup
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.ranking.pool_scores import PoolTower
from service.engine.retrieval import checks, queries, sources, stages
from service.engine.retrieval.deadlines import plan_last_steps
from service.engine.retrieval.picking import pick_best
from service.engine.retrieval.pool import Pool, Selection
from service.engine.retrieval.queries import QueryVectors
from service.engine.retrieval.retriever import Retriever
from service.engine.retrieval.scoring import Scorer
from service.engine.retrieval.stages import ChosenStage
from service.engine.validation import check_k, check_names, choose_ranking_tower
from service.versions.version import LoadedStore, ModelVersion

_FORMULA_TYPES = ("int64", "double", "bool")
"""Types of attributes that a formula may take."""


async def retrieve(
    model_version: ModelVersion,
    request: RetrievalRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RetrievalResult:
    """Retrieves candidates for n queries with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    planned = sources.of_index(model_version, request.index)
    index = planned.index
    assert index is not None  # noqa: S101 - the only source
    context = request.context or {}
    checks.check_selection(index.corpus, request, settings, [request.ids], *context.values())
    checks.check_options(request, index.corpus, k)
    scorer = None
    formula = None
    if request.formula:
        names = {"score", *_numeric_attributes(index.corpus)}
        formula = formulas.parsed(request.formula, names, "a name", f"index {index.name!r}")
    n, vectors = queries.count(model_version, index, request, settings, execution)
    is_reordered = bool(formula or request.crowding or request.diversity)
    needs_pool = is_reordered or request.offset is not None
    selection = Selection(model_version, request, planned, n, k, needs_pool, settings, execution)
    checks.check_response(selection)

    features: Columns = {}
    inputs: Iterable[str] = ()
    query_vectors = None
    if request.ids is not None:
        query_vectors = await queries.of_candidates(index, request, request.ids, execution)
    elif vectors is not None:
        query_vectors = QueryVectors(vectors, request.query_offsets)
    else:
        inputs = model_version.towers[index.entry.query_tower].inputs
        features = lookup.complete(
            model_version, inputs, context, request.context_ids, n, execution
        )
    if formula is not None:
        scorer = Scorer(selection, None, formula, True, "score")
    with lookup.naming_all_not_sent(model_version, context=(inputs, features)):
        result = await _select(Retriever(selection, features, query_vectors), None, scorer)
    if query_vectors is None or query_vectors.not_found is None:
        return result
    count = query_vectors.not_found.ids.size
    execution.count("not_found_ids", count, model_version.model, execution.call)
    return replace(result, not_found=query_vectors.not_found)


async def recommend(
    model_version: ModelVersion,
    request: RecommendationRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RetrievalResult:
    """Retrieves candidates for n contexts and ranks them, with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    name, tower = choose_ranking_tower(model_version, request.tower)
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    planned = sources.plan(model_version, request, k)
    corpus = planned.corpus
    formula_names = _numeric_attributes(corpus)
    if planned.index is not None:
        formula_names.append("retrieval_score")
    order = formulas.ordering(tower, request.formula, formula_names)
    query_towers = [
        model_version.towers[index.entry.query_tower] for index in planned.indexes.values()
    ]
    stage = stages.choose(model_version, request, name, k)
    # One context serves all steps: the sources, the stage and the ranking.
    inputs = {*model_version.ranking_inputs(name, "context"), *planned.list_inputs}
    for query_tower in query_towers:
        inputs |= query_tower.inputs.keys()
    owner = f"{planned.owner} with tower {name!r}"
    check_names(request.context, inputs, "context", "a feature", owner)
    listed = [source.ids.ids for source in request.sources if source.ids is not None]
    checks.check_selection(corpus, request, settings, listed, *request.context.values())
    # Everything is validated before anything is computed: an error costs little.
    n = lookup.count_queries(
        model_version, request.context, request.context_ids, settings, execution
    )
    selection = Selection(model_version, request, planned, n, k, True, settings, execution)
    checks.check_response(selection)
    checks.check_options(request, corpus, k)
    planned.check_count(request, n, settings, execution)

    plan = tower.plan(frozenset(order.outputs))
    # Of these inputs, only what the request computes with is read from the store.
    needed = dict.fromkeys([*plan.inputs["context"], *planned.list_inputs])
    if stage is not None:
        needed |= dict.fromkeys(stage.plan.inputs["context"])
    for query_tower in query_towers:
        needed |= dict.fromkeys(query_tower.inputs)
    features = lookup.complete(
        model_version, needed, request.context, request.context_ids, n, execution
    )
    pool_tower = PoolTower(model_version, tower, plan, features)
    scorer = Scorer(selection, pool_tower, order.formula, bool(request.formula))
    with lookup.naming_all_not_sent(model_version, context=(needed, features)):
        return await _select(Retriever(selection, features), stage, scorer)


def _numeric_attributes(corpus: LoadedStore) -> list[str]:
    """Returns the attributes that a formula may take."""
    return [name for name, kind in corpus.entry.attributes.items() if kind in _FORMULA_TYPES]


async def _select(
    retriever: Retriever, stage: ChosenStage | None, scorer: Scorer | None
) -> RetrievalResult:
    """Returns the best candidates of a request, of which all is checked.

    Args:
      retriever: Retrieves the candidates.
      stage: The stage before the ranking; None: there is none.
      scorer: Gives the candidates the scores that are returned; None: those of the retrieval are.
    """
    selection = retriever.selection
    request = selection.request
    execution = selection.execution
    pool = await retriever.retrieve()
    examples = selection.n
    if retriever.query_vectors is not None:
        examples = len(retriever.query_vectors.vectors)
    execution.count_examples(examples)
    if stage is not None:
        pool = await stages.pass_stage(selection, stage, pool, retriever.features)

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
    return _result(selection, stage, pool, best)


def _result(
    selection: Selection, stage: ChosenStage | None, pool: Pool, best: Pool
) -> RetrievalResult:
    """Returns the best candidates of a pool as clients see them: ids, scores and attributes."""
    request = selection.request
    version = selection.model_version
    corpus = selection.sources.corpus
    attributes: dict[str, list[Any]] = {}
    if request.attributes:
        attributes = corpus.store.attributes(best.positions, list(request.attributes))
    explanations: tuple[Explanation, ...] = ()
    if request.explain:
        explanations = _explain(selection, stage, pool, best)
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
    names = selection.sources.names
    source_numbers = None
    if names:
        source_numbers = best.sources
    return replace(
        result,
        retrieval_scores=best.retrieval_scores,
        degraded=bool(best.reasons),
        degraded_reason="; ".join(best.reasons),
        source_names=names,
        sources=source_numbers,
    )


def _explain(
    selection: Selection, stage: ChosenStage | None, pool: Pool, best: Pool
) -> tuple[Explanation, ...]:
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
        elif selection.sources.names and request.offset is not None:
            shortfall = f"the pool of {count} candidates has no more"
        elif selection.sources.names:
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
        if dropped and stage is not None:
            shortfall += f"; stage {stage.name!r} has dropped {dropped} candidates of the pool"
        explanations.append(explanation._replace(shortfall=shortfall))
    return tuple(explanations)


def _only(count: int) -> str:
    if not count:
        return "no"
    return f"only {count}"
