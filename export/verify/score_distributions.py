"""How the scores of the recipe's examples are distributed: what live scores are compared with.

A bin has about a tenth of the examples. Its ends lie half way between two scores that occur, so
that a compiled tower, whose scores differ in the last bits, has the same scores in each bin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormulaUndefined
from bundle.format.formula import parse_formula
from bundle.format.towers import SCORE_BINS_MAX, ScoreDistribution, Tower
from export.front_end.interface import Results
from export.recipe.schema import VerifySection
from export.verify.forms import Values

_EXAMPLES_MIN = 100
"""With fewer, chance alone moves the population stability index by more than 0.09: by about
(bins - 1) / examples.
"""
_SHARE_MIN = 0.05
"""The smallest share of the examples in a bin: where many scores are equal, there are fewer bins.
"""


def with_score_distributions(
    towers: Mapping[str, Tower], expected: Results, section: VerifySection
) -> dict[str, Tower]:
    """Returns the entries of towers, ranking towers with the distribution of their scores.

    Args:
      towers: The towers' entries by name.
      expected: The outputs of the reference model for the examples.
      section: The section of the recipe that names the examples.
    """
    # Scores of synthetic examples say nothing about live ones.
    if section.examples is None:
        return dict(towers)
    entries = {}
    for name, tower in towers.items():
        distribution = None
        if tower.role == "ranking":
            scores = _scores(tower, expected[name])
            if scores is not None:
                distribution = score_distribution(scores)
        entries[name] = tower.model_copy(update={"scores": distribution})
    return entries


def score_distribution(scores: NDArray[np.floating]) -> ScoreDistribution | None:
    """Returns the distribution of [n] scores; None: they are too few, or all alike."""
    if scores.size < _EXAMPLES_MIN:
        return None
    # Responses have scores in float32: values that are equal there are one value.
    values, counts = np.unique(scores.astype(np.float32), return_counts=True)
    values = values.astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    shares_below = np.cumsum(counts)[:-1] / scores.size
    if not middles.size:
        return None

    # The edge of a bin is the middle that comes nearest to a decile.
    deciles = np.arange(1, SCORE_BINS_MAX) / SCORE_BINS_MAX
    distances = np.abs(shares_below[:, np.newaxis] - deciles)
    nearest = np.unique(distances.argmin(axis=0))
    edges = list[float]()
    ends = [0.0]
    for position in nearest.tolist():
        end = float(shares_below[position])
        # The bin before the edge and the one behind it, up to the end, must be large enough.
        if min(end - ends[-1], 1 - end) >= _SHARE_MIN:
            edges.append(float(middles[position]))
            ends.append(end)
    if not edges:
        return None
    shares = np.diff([*ends, 1.0])
    return ScoreDistribution(
        edges=tuple(edges), shares=tuple(shares.tolist()), examples=scores.size
    )


def _scores(tower: Tower, outputs: Values) -> NDArray[np.floating] | None:
    """Returns [n] the scores by which a service orders candidates; None: examples have none."""
    if tower.formula is None:
        scores = outputs[tower.result]
        if scores.size != len(scores):
            return None
        return scores.reshape(-1)
    heads = {name: values.reshape(-1) for name, values in outputs.items()}
    try:
        return parse_formula(tower.formula).evaluate(heads)
    except FormulaUndefined:
        # A request for such an example is rejected, so it has no score to compare with.
        return None
