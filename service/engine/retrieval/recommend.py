"""Retrieves candidates, then ranks them, with one model version and under one deadline.

If ranking all candidates is expected to take longer than what the deadline leaves, by what rankings
took before, only the best retrieved are ranked, and the others follow in the order of retrieval.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.config import ServiceSettings
from service.engine.calls import K_DEFAULT, Columns, Recommendation, Recommended
from service.engine.context import Execution
from service.engine.features import embed, lookup
from service.engine.limits import check_k
from service.engine.names import check_names
from service.engine.ranking import formulas, scoring
from service.engine.retrieval import reordering, retrieve, search
from service.engine.selection import choose_index, choose_ranking_tower
from service.versions.loaded_towers import TowerPlan
from service.versions.version import LoadedStore, ModelVersion

_MARGIN = 2
"""Times what ranking is expected to take: an average, after which the answer is still to be
written.
"""


def recommend(
    model_version: ModelVersion,
    request: Recommendation,
    settings: ServiceSettings,
    execution: Execution,
) -> Recommended:
    """Answers a Recommendation with one model version.

    Raises:
      InvalidArgument, TooLarge, NotFound: see service/errors.py.
      FeatureError: a column does not fit its feature.
    """
    index_name, index = choose_index(model_version, request.index)
    name, tower = choose_ranking_tower(model_version, request.tower)
    query_tower = model_version.towers[index.entry.query_tower]
    corpus = index.corpus
    order = formulas.ordering(
        tower, request.formula, ("retrieval_score", *reordering.numeric_attributes(corpus))
    )
    known = {**query_tower.inputs, **tower.by_role["context"]}
    check_names(request.features, known, "feature", f"index {index_name!r} with tower {name!r}")
    retrieve.check_selection(index, request, settings, None, *request.features.values())
    n = lookup.count_queries(model_version, request.features, request.context_ids, settings)
    k = check_k(request.k, K_DEFAULT, settings.max_k)
    reordering.check(request, corpus, k)

    allowed = retrieve.allowed(index, request, n, execution)
    plan = tower.plan(frozenset(order.outputs))
    needed = dict.fromkeys((*query_tower.inputs, *plan.inputs["context"]))
    features = lookup.complete(
        model_version, needed, request.features, request.context_ids, n, execution
    )
    vectors = embed.result(model_version, query_tower, features, n, execution)
    found = retrieve.pool(
        index, retrieve.Queries(vectors, allowed), request, k, settings, execution
    )
    ranker = _Ranker(model_version, order, plan, corpus, features)
    scores, ranked, degraded = ranker.score(found, execution)
    if degraded:
        execution.count("degraded", 1, model_version.model)
        degraded += ", without diversity" if request.diversity else ""
    chosen, offsets = reordering.best(index, found, scores, k, request, execution, ranked)
    with execution.phase("lookup"):
        best = found._replace(
            positions=found.positions[chosen], scores=scores[chosen], offsets=offsets
        )
        neighbors = retrieve.neighbors(corpus, best, request.attributes)
    explanations = search.explained(best, request, k) if request.explain else ()
    return Recommended(
        model_version.model,
        model_version.version,
        neighbors,
        found.scores[chosen],
        explanations,
        degraded,
    )


@dataclass(frozen=True)
class _Ranker:
    """Ranks what was retrieved, as far as time allows. `context`: features of the n contexts."""

    model_version: ModelVersion
    order: formulas.Ordering
    plan: TowerPlan
    corpus: LoadedStore
    context: Columns

    def score(
        self, found: search.Found, execution: Execution
    ) -> tuple[scoring.Scores, NDArray[np.bool_] | None, str]:
        """Scores the best retrieved candidates of each context; the others keep the score of their
        retrieval.

        Returns:
          [m] scores; [m] whether they are of the ranking, None if all are; and why not all are, in
          a sentence.
        """
        m = int(found.positions.size)
        counts = np.diff(found.offsets)
        left_s = execution.left_s
        expected_s = self._expected_s(m, execution)
        if expected_s * _MARGIN <= left_s:
            return self._rank(found, execution), None, ""
        each = int(m * max(0.0, left_s) / (expected_s * _MARGIN)) // counts.size
        ranked = np.arange(m) - np.repeat(found.offsets[:-1], counts) < each
        scores = found.scores.copy()
        if each:
            offsets = offsets_of(np.minimum(counts, each))
            part = found._replace(
                positions=found.positions[ranked], scores=found.scores[ranked], offsets=offsets
            )
            scores[ranked] = self._rank(part, execution)
        else:
            # Else one that is too high would never change.
            execution.estimates.observe((*self._kind, "seconds"), 0.0)
        degraded = (
            f"{np.count_nonzero(ranked)} of {m} candidates are ranked: {left_s * 1000:.0f} ms "
            f"remained, and ranking all takes about {expected_s * 1000:.0f} ms; the others follow "
            "in the order of retrieval"
        )
        return scores, ranked, degraded

    @property
    def _kind(self) -> tuple[object, ...]:
        version = self.model_version
        return "ranking", version.model, version.version, self.order.tower.name, self.plan.outputs

    def _expected_s(self, m: int, execution: Execution) -> float:
        """Returns how long m candidates are expected to take; 0.0: nothing is known yet."""
        seconds = execution.estimates.expected_s((*self._kind, "seconds"))
        candidates = execution.estimates.expected_s((*self._kind, "candidates"))
        return m * seconds / candidates if seconds and candidates else 0.0

    def _rank(self, found: search.Found, execution: Execution) -> scoring.Scores:
        """Returns [m] scores of candidates; measures what that took."""
        execution.computed(int(found.offsets.size) - 1, int(found.positions.size))
        values = {}
        formula = self.order.formula
        began = time.perf_counter()
        if self.plan.outputs:
            candidates = scoring.Candidates(found.offsets, {}, self.corpus, found.positions)
            tower = self.order.tower
            version = self.model_version
            values = scoring.score(version, tower, self.plan, self.context, candidates, execution)
            if found.positions.size:
                seconds = time.perf_counter() - began
                execution.estimates.observe((*self._kind, "seconds"), seconds)
                execution.estimates.observe(
                    (*self._kind, "candidates"), float(found.positions.size)
                )
        others = [] if formula is None else [name for name in formula.names if name not in values]
        attributes = [name for name in others if name != "retrieval_score"]
        numbers = self.corpus.store.numbers(found.positions, attributes) if attributes else {}
        return self.order.scores(
            {"retrieval_score": found.scores, **numbers, **values},
            reordering.id_of(self.corpus, found),
        )
