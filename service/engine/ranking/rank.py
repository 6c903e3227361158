"""Ranks candidates: scores them for each context, and returns all of them or the best.

The features of a context are looked up once and repeated for its candidates. Many candidates are
divided over the idle compute threads. Rows of tables and of compiled towers do not depend on each
other, so that scores have the same bits either way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, NotSent
from bundle.features.columns import Column, checked_offsets, checked_weights, repeated
from bundle.features.diagnosis import NonFiniteRow
from bundle.features.input_lengths import value_counts
from bundle.features.sources import Fetched
from bundle.format.formula import Formula
from bundle.tables.offsets import lengths_of, offsets_of
from service.config import ServiceSettings
from service.contract.limits import at_most
from service.contract.messages import (
    Columns,
    FailedCandidate,
    Ids,
    NotFoundRule,
    Offsets,
    RankingRequest,
    RankingResult,
    check_offsets,
)
from service.engine import lookup, towers
from service.engine.execution import Execution
from service.engine.ranking import formulas
from service.engine.ranking.formulas import Scores
from service.engine.validation import (
    NUMBER_BYTES,
    NotFinite,
    check_bytes,
    check_k,
    check_names,
    check_queries,
    check_values,
    choose_corpus,
    choose_ranking_tower,
    prepared,
)
from service.errors import InvalidArgument, RowNotFinite
from service.versions.version import LoadedStore, LoadedTower, ModelVersion, TowerPlan

_INTEGER_BYTES = 24
"""The longest int64 in JSON, which is quoted beyond 2^53, with its separators."""
_POSITION_BYTES = 12
"""The longest position of a candidate among those of its request, with its comma."""
_RANGE_MIN = 512
"""Minimum number of candidates of a range: to divide a request takes about 0.3 ms, as long as a
small tower computes these.
"""


@dataclass(frozen=True)
class Candidates:
    """m candidates of n contexts.

    Attributes:
      offsets: [n + 1]; context i owns the candidates offsets[i]:offsets[i + 1].
      request_columns: The features that the request sends, by input.
      corpus: The store that has the other features; None: none is needed.
      positions: [m] int64, the positions in the store; -1: the store does not have the candidate.
    """

    offsets: Offsets
    request_columns: Columns
    corpus: LoadedStore | None = None
    positions: NDArray[np.int64] | None = None

    @property
    def input_names(self) -> set[str]:
        """The inputs that are sent or stored."""
        names = {*self.request_columns}
        if self.corpus is not None:
            names.update(self.corpus.entry.features)
        return names

    def columns(self, names: Iterable[str], start: int, stop: int) -> Columns:
        """Returns the features of the candidates from `start` to `stop`; of `names`, those that are
        stored too.
        """
        m = int(self.offsets[-1])
        columns = self.request_columns
        # To cut columns takes numpy calls for each feature: most requests are not divided.
        if stop - start < m:
            columns = {name: _rows(column, m, start, stop) for name, column in columns.items()}
        if self.corpus is None or self.positions is None:
            return columns
        stored_names = set(self.corpus.entry.features).difference(columns)
        read_names = [name for name in names if name in stored_names]
        return {**columns, **self.corpus.store.features(self.positions[start:stop], read_names)}

    def only(self, selected: NDArray[np.int64]) -> Candidates:
        """Returns some of the candidates, by their ascending positions among all."""
        counts = np.zeros(int(self.offsets[-1]), np.int64)
        counts[selected] = 1
        columns = {
            name: repeated(name, column, counts) for name, column in self.request_columns.items()
        }
        positions = self.positions
        if positions is not None:
            positions = positions[selected]
        return Candidates(selected.searchsorted(self.offsets), columns, self.corpus, positions)


@dataclass(frozen=True, eq=False)
class _Statement:
    """What rankings of one shape have in common: names, since stores are others after each change.

    Attributes:
      tower: The ranking tower.
      outputs: The outputs of the tower that the request needs: its heads, and those of the formula.
      formula: Gives the score that candidates are ordered by; None: the result of the tower.
      corpus: The store that has features of candidates that are not sent; None: none is needed.
    """

    tower: str
    outputs: frozenset[str]
    formula: Formula | None
    corpus: str | None


class RankingPlan(NamedTuple):
    """What a ranking computes, checked.

    Attributes:
      tower: The ranking tower.
      outputs: The outputs of the tower that the request needs.
      formula: Gives the score that candidates are ordered by; None: the result of the tower.
      k: The number of candidates to return per context; 0: all of them, in the order sent.
      corpus: The store that has the features that the request does not send; None: none is needed.
      offsets: [n + 1]; context i owns the candidates offsets[i]:offsets[i + 1].
    """

    tower: LoadedTower
    outputs: TowerPlan
    formula: Formula | None
    k: int
    corpus: LoadedStore | None
    offsets: Offsets

    def scores(self, outputs: Mapping[str, Scores], ids: Ids | None) -> Scores:
        """Returns [m] scores of candidates by the outputs of the tower.

        Raises:
          InvalidArgument: The formula has no finite value for a candidate.
        """
        if self.formula is None:
            return outputs[self.tower.entry.result]
        id_of = None
        if ids is not None:
            id_of = ids.__getitem__
        return formulas.evaluated(self.formula, outputs, id_of)


def plan_ranking(
    model_version: ModelVersion,
    request: RankingRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RankingPlan:
    """Returns the plan of a request: what its names stand for, and that its sizes are within the
    limits.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
    """
    ids = request.candidate_ids
    features = request.candidate_features
    shape = (
        RankingRequest,
        request.tower,
        request.heads,
        request.formula,
        frozenset(request.context),
        frozenset(features),
        ids is None,
    )
    statement = prepared(model_version, shape, lambda: _prepare(model_version, request))
    k = check_k(request.k, 0, settings.max_k)
    columns = [*request.context.values(), *features.values()]
    check_values(settings, columns, ids, request.context_ids)
    if ids is None:
        count = lookup.count_examples(model_version.manifest, features)
    else:
        count = int(ids.size)
    offsets = request.offsets
    at_most(settings, "max_candidates", execution.largest(count, offsets), "request")
    if offsets is None:
        offsets = np.array([0, count], np.int64)
    else:
        context_count = max(0, int(offsets.size) - 1)
        check_queries(execution.largest(context_count), settings)
        check_offsets(offsets, context_count, count, "offsets")

    tower = model_version.towers[statement.tower]
    outputs = tower.plan(statement.outputs)
    corpus = None
    if statement.corpus is not None:
        corpus = model_version.corpora[statement.corpus]
    return RankingPlan(tower, outputs, statement.formula, k, corpus, offsets)


def _prepare(model_version: ModelVersion, request: RankingRequest) -> _Statement:
    """Checks the names of a request."""
    name, tower = choose_ranking_tower(model_version, request.tower)
    where = f"tower {name!r}"
    check_names(request.context, tower.by_role["context"], "context", "a feature", where)
    features = request.candidate_features
    check_names(features, tower.by_role["candidate"], "candidate_features", "a feature", where)
    check_names(request.heads, tower.heads, "heads", "a head", where)
    formula = formulas.formula_of(tower, request.formula)
    if request.candidate_ids is None and not features:
        expected = "candidate_ids, candidate_features, or both"
        raise InvalidArgument.of_field("request", "no candidates", expected, "has")

    # Only the parts of the tower run that give these.
    outputs = formulas.outputs_of(tower, formula).union(request.heads)
    corpus_name = None
    if request.candidate_ids is not None:
        # What a request sends wins over the store, so that a client can try another value.
        missing = set(tower.plan(outputs).inputs["candidate"]) - features.keys()
        corpus = choose_corpus(model_version, missing)
        if corpus is not None:
            corpus_name = corpus.name
    return _Statement(name, outputs, formula, corpus_name)


async def rank(
    model_version: ModelVersion,
    request: RankingRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RankingResult:
    """Scores the candidates of each context and returns them, or the k best, best first.

    Raises:
      InvalidArgument, TooLarge, NotFound: See service/errors.py.
      FeatureError: A column does not fit its feature.
    """
    plan = plan_ranking(model_version, request, settings, execution)
    offsets = plan.offsets
    context_count = offsets.size - 1
    m = int(offsets[-1])
    ids = request.candidate_ids
    positions = None
    if plan.corpus is not None and ids is not None:
        positions = lookup.candidate_positions(
            plan.corpus, ids, request.not_found, "candidate_ids", offsets
        )
    scorable = np.arange(m)
    not_found = None
    if request.not_found is NotFoundRule.SKIP and ids is not None:
        if positions is not None:
            scorable = np.flatnonzero(positions >= 0)
        not_found = lookup.not_found_ids(ids, scorable, offsets)
    # The limit is one of each request of a batch, and merging must not change who is rejected.
    for first, end in execution.parts(context_count):
        _check_response(request, plan.k, offsets[first : end + 1], scorable, settings)
    execution.count_examples(context_count, scorable.size)
    columns = lookup.fit(model_version, request.candidate_features, m, execution)
    candidates = Candidates(offsets, columns, plan.corpus, positions)

    context = lookup.complete(
        model_version,
        plan.outputs.inputs["context"],
        request.context,
        request.context_ids,
        context_count,
        execution,
    )
    outputs, scorable, messages = await _score_scorable(
        model_version, plan, context, candidates, scorable, execution
    )

    if ids is not None and scorable.size < m:
        ids = ids[scorable]
    scores = plan.scores(outputs, ids)
    if not request.formula:
        execution.count_scores(plan.tower, scores, context_count)
    heads = {head: outputs[head] for head in request.heads}
    # Everything is scored before anything is dropped: a formula may need all heads.
    ranked = _select(model_version, ids, scorable, offsets, scores, heads, request)
    if not_found is not None:
        execution.count("not_found_ids", not_found.ids.size, model_version.model, execution.call)
        ranked = replace(ranked, not_found=not_found)
    if messages:
        ranked = replace(ranked, failed=_failed_candidates(messages, offsets))
    return ranked


async def _score_scorable(
    model_version: ModelVersion,
    plan: RankingPlan,
    context: Columns,
    candidates: Candidates,
    scorable: NDArray[np.int64],
    execution: Execution,
) -> tuple[dict[str, Scores], NDArray[np.int64], dict[int, str]]:
    """Returns outputs of the candidates that can be scored, which those are, and why the others
    cannot be, by their positions among all.

    Args:
      scorable: The positions of the candidates to score, ascending.

    Raises:
      FeatureError: A column does not fit its feature.
      RowNotFinite: An output is not finite because of a row that a context reads.
      NotFinite: An output holds NaN or an infinity, and no row does.
    """
    messages: dict[int, str] = {}
    while True:
        scored = candidates
        if scorable.size < candidates.offsets[-1]:
            scored = candidates.only(scorable)
        try:
            outputs = await scores_unchecked(
                model_version, plan.tower, plan.outputs, context, scored, execution
            )
            towers.check_outputs(plan.tower, outputs)
        except NotFinite:
            rows = await rows_not_finite(model_version, plan.outputs, context, scored, execution)
            if not rows:
                raise
            execution.check_alone()
            failed = {row.example: str(RowNotFinite(row.table, row.id)) for row in rows}
        except FeatureError as problem:
            execution.check_alone()
            failed = await _misfits(
                model_version, plan, context, scored, problem.feature, execution
            )
            if not failed:
                if isinstance(problem, NotSent):
                    inputs = plan.outputs.inputs
                    candidate_inputs = inputs["candidate"] if candidates.offsets[-1] else ()
                    stored_or_sent = {*context, *candidates.input_names}
                    lookup.name_all_not_sent(
                        problem,
                        model_version,
                        context=(inputs["context"], context),
                        candidate_features=(candidate_inputs, stored_or_sent),
                    )
                raise
        else:
            return outputs, scorable, messages
        messages |= {int(scorable[position]): text for position, text in failed.items()}
        scorable = np.delete(scorable, [*failed])


async def _misfits(
    model_version: ModelVersion,
    plan: RankingPlan,
    context: Columns,
    candidates: Candidates,
    feature: str,
    execution: Execution,
) -> dict[int, str]:
    """Returns why candidates cannot be ranked whose stored features do not fit, by their positions:
    the client has sent ids alone. Another version, or a changed corpus, may hold such features.

    Args:
      feature: The feature that does not fit; if the client has sent it, there are no such
        candidates.
    """
    corpus = candidates.corpus
    if corpus is None or feature not in corpus.entry.features:
        return {}
    if feature in candidates.request_columns:
        return {}

    async def score_some(selected: Candidates) -> None:
        await scores_unchecked(
            model_version, plan.tower, plan.outputs, context, selected, execution
        )

    unfit = await find_unfit(score_some, candidates, (FeatureError,))
    if not unfit.size:
        return {}
    assert candidates.positions is not None  # noqa: S101 - they are of a corpus
    execution.leave_out("features", corpus.store.ids(candidates.positions[unfit]))
    message = f"its features in corpus {corpus.name!r} do not fit tower {plan.tower.name!r}"
    return dict.fromkeys(unfit.tolist(), message)


async def find_unfit(
    score_some: Callable[[Candidates], Awaitable[object]],
    candidates: Candidates,
    problems: tuple[type[Exception], ...],
) -> NDArray[np.int64]:
    """Returns the positions of candidates that cannot be scored, ascending: halves of those that
    cannot be scored together are scored by themselves.

    Args:
      score_some: Scores some of the candidates.
      candidates: The candidates.
      problems: What `score_some` raises because of a candidate.
    """
    unfit = []
    ranges = [(0, int(candidates.offsets[-1]))]
    while ranges:
        first, end = ranges.pop()
        try:
            await score_some(candidates.only(np.arange(first, end)))
        except problems:
            if end - first == 1:
                unfit.append(first)
                continue
            middle = (first + end) // 2
            ranges += [(middle, end), (first, middle)]
    return np.array(unfit, np.int64)


def _failed_candidates(
    messages: Mapping[int, str], offsets: Offsets
) -> tuple[FailedCandidate, ...]:
    """Returns the candidates that cannot be ranked; context i owns offsets[i]:offsets[i + 1]."""
    failed = []
    for candidate, message in sorted(messages.items()):
        context = int(offsets.searchsorted(candidate, side="right")) - 1
        failed.append(FailedCandidate(context, candidate - int(offsets[context]), message))
    return tuple(failed)


async def rows_not_finite(
    model_version: ModelVersion,
    plan: TowerPlan,
    context: Columns,
    candidates: Candidates,
    execution: Execution,
) -> list[NonFiniteRow]:
    """Returns the rows with NaN or an infinity that candidates read; arguments as of
    `scores_unchecked`.

    Raises:
      RowNotFinite: A context reads such a row.
    """
    offsets = candidates.offsets
    m = int(offsets[-1])
    n = offsets.size - 1
    frames = towers.Contexts.of(plan.layout, offsets).frames
    await lookup.check_rows_finite(model_version, frames, context, n, execution)
    blocks = towers.Inputs(plan.layout, 0).blocks
    candidates = _with_crossed(plan, context, candidates)
    columns = candidates.columns(plan.inputs["candidate"], 0, m)
    return await lookup.rows_not_finite(model_version, blocks, columns, m, execution)


def _with_crossed(plan: TowerPlan, context: Columns, candidates: Candidates) -> Candidates:
    """Returns candidates with what their features read of their contexts."""
    crossed = [name for name in plan.crossed if name in context]
    if not crossed:
        return candidates
    # A crossed feature has a row for each pair of context and candidate.
    counts = lengths_of(candidates.offsets)
    copies = {name: repeated(name, context[name], counts) for name in crossed}
    return replace(candidates, request_columns={**candidates.request_columns, **copies})


async def scores_unchecked(
    model_version: ModelVersion,
    tower: LoadedTower,
    plan: TowerPlan,
    context: Columns,
    candidates: Candidates,
    execution: Execution,
) -> dict[str, Scores]:
    """Computes outputs of a ranking tower for contexts and candidates; by name, [m] float32 each,
    which may not be finite.

    Raises:
      FeatureError: A column does not fit its feature.
    """
    candidates = _with_crossed(plan, context, candidates)
    offsets = candidates.offsets
    m = int(candidates.offsets[-1])
    n = offsets.size - 1
    contexts = towers.Contexts.of(plan.layout, offsets)
    read = plan.inputs["candidate"]
    fetched = None
    execution.begin("lookup")
    # Contexts and candidates in one call of each shard: a call costs more than its rows.
    if model_version.shards is not None:
        candidates = Candidates(offsets, candidates.columns(read, 0, m))
        fetched = await _fetch(model_version, plan, contexts, context, candidates, execution)
        # Whoever looks for the candidates that fail calls no shard again for rows of these.
        execution.fetched_before = fetched
    lookup.write(model_version, contexts.frames, context, n, execution, fetched)
    scores = {name: np.empty(m, np.float32) for name in plan.outputs}
    if m == 0:
        return scores
    if any(plan.layout.once):
        execution.begin("compute")
        event_counts = value_counts(context, plan.histories, n)
        towers.run_contexts(tower, plan, contexts, execution, event_counts)

    def look_up(start: int, stop: int) -> towers.Inputs:
        inputs = towers.Inputs(plan.layout, stop - start)
        columns = candidates.columns(read, start, stop)
        lookup.write(model_version, inputs.blocks, columns, inputs.m, execution, fetched)
        return inputs

    def run(start: int, stop: int, inputs: towers.Inputs) -> None:
        range_contexts = contexts
        if inputs.m < m:
            range_contexts = contexts.rows(start, stop)
        for name, array in towers.run(tower, plan, inputs, execution, range_contexts).items():
            scores[name][start:stop] = array.reshape(inputs.m)

    # Parts in another form than LiteRT may give a candidate other bits in another range.
    count = min(execution.idle_threads + 1, m // _RANGE_MIN)
    if count > 1 and all(part.form.kind == "litert" for part in plan.parts):
        ranges = list(pairwise(m * number // count for number in range(count + 1)))
        try:
            _check_divisible(candidates.request_columns, m)
            execution.begin("compute")  # lookups included
            execution.parallel(count, lambda number: run(*ranges[number], look_up(*ranges[number])))
            return scores
        except FeatureError:  # computed as a whole, it names the right example
            pass
    execution.begin("lookup")
    inputs = look_up(0, m)
    execution.begin("compute")
    run(0, m, inputs)
    return scores


def pick_best(scores: Scores, offsets: Offsets, k: int) -> tuple[NDArray[np.int64], Offsets]:
    """Picks the k best candidates of each context, best first; equal scores in the order sent.

    Returns:
      [m'] int64 indices into `scores`, and the [n + 1] int64 offsets of each context's.
    """
    counts = lengths_of(offsets)
    owners = np.arange(counts.size).repeat(counts)
    order = np.lexsort((-scores, owners))
    rank_in_context = np.arange(scores.size) - offsets[:-1].repeat(counts)
    return order[rank_in_context < k], offsets_of(np.minimum(counts, k))


def _check_response(
    request: RankingRequest,
    k: int,
    offsets: Offsets,
    scorable: NDArray[np.int64],
    settings: ServiceSettings,
) -> None:
    """Rejects a request whose response would have more bytes than `max_response_bytes`.

    Args:
      request: The request, or several that were merged.
      k: The number of candidates that are returned of each context; 0: all.
      offsets: The offsets of the candidates of one request.
      scorable: The positions of the candidates that can be scored, of all requests, ascending.
      settings: The limit.
    """
    first, end = offsets[[0, -1]].tolist()
    returned = end - first
    if k:  # ids that do not exist are in the response, whatever k is
        scorable_count = np.diff(scorable.searchsorted([first, end])).item()
        not_found_count = end - first - scorable_count
        returned = int(np.minimum(lengths_of(offsets), k).sum()) + not_found_count
    heads = len(request.heads)
    candidate_bytes = _POSITION_BYTES + (1 + heads) * NUMBER_BYTES
    ids = request.candidate_ids
    if ids is not None and end > first:
        id_bytes = _INTEGER_BYTES
        if ids.dtype == object:
            # The average id, with two quotes and a comma: which ids the k best have is not known.
            id_bytes = sum(map(len, ids[first:end].tolist())) // (end - first) + 3
        candidate_bytes += id_bytes
    what = f"{returned} candidates with {heads} heads"
    remedy = "lower k, or send fewer candidates or heads at a time"
    check_bytes(returned * candidate_bytes, what, settings, remedy)


def _select(
    model_version: ModelVersion,
    ids: Ids | None,
    scored: NDArray[np.int64],
    offsets: Offsets,
    scores: Scores,
    heads: Mapping[str, Scores],
    request: RankingRequest,
) -> RankingResult:
    """Returns the k best candidates of each context, or all of them in the order sent, without
    those below the minimum score.

    Args:
      model_version: The model version.
      ids: The ids of the candidates with a score.
      scored: The positions of these among all candidates.
      offsets: [n + 1]; context i owns offsets[i]:offsets[i + 1] of all candidates.
      scores, heads: The scores, and the heads by name, of the candidates with a score.
      request: The request, with its k and its minimum score.
    """
    positions = np.arange(scores.size)
    if request.min_score is not None:
        with np.errstate(over="ignore"):  # beyond float32 it is above, or below, every score
            positions = np.flatnonzero(scores >= np.float32(request.min_score))
    selected_offsets = scored[positions].searchsorted(offsets)
    if request.k:
        best, selected_offsets = pick_best(scores[positions], selected_offsets, request.k)
        positions = positions[best]
    if request.k or positions.size < scores.size:
        if ids is not None:
            ids = ids[positions]
        scores = scores[positions]
        heads = {head: values[positions] for head, values in heads.items()}

    # Clients count positions within each context.
    first_of_context = offsets[:-1].repeat(lengths_of(selected_offsets))
    return RankingResult(
        model=model_version.model,
        version=model_version.version,
        ids=ids,
        positions=(scored[positions] - first_of_context).astype(np.int32),
        scores=scores,
        heads=heads,
        offsets=selected_offsets,
    )


async def _fetch(
    model_version: ModelVersion,
    plan: TowerPlan,
    contexts: towers.Contexts,
    context: Columns,
    candidates: Candidates,
    execution: Execution,
) -> Fetched:
    """Fetches the remote rows of contexts and candidates, in one call of each shard."""
    offsets = candidates.offsets
    m = int(offsets[-1])
    groups = [(contexts.frames, context, offsets.size - 1)]
    if m:
        groups.append((towers.Inputs(plan.layout, 0).blocks, candidates.request_columns, m))
    return await lookup.fetch(model_version, groups, execution)


def _check_divisible(columns: Columns, m: int) -> None:
    """Raises FeatureError if a column of m candidates cannot be divided."""
    for name, column in columns.items():
        checked_offsets(name, column, m)
        if column.weights is not None:
            checked_weights(name, column)


def _rows(column: Column, m: int, start: int, stop: int) -> Column:
    """Returns the examples from `start` to `stop` of a column of m."""
    values, offsets, weights = column
    if offsets is None:
        per_example = values.size // m
        first = start * per_example
        last = stop * per_example
    else:
        first = int(offsets[start])
        last = int(offsets[stop])
        offsets = offsets[start : stop + 1] - first
    if weights is not None:
        weights = weights[first:last]
    return Column(values[first:last], offsets, weights)
