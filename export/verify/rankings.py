"""What a precision does to the order of examples, and the recipe's limits of it.

Measured are Kendall's tau-b, the share of the best that stay the best, and the area under the ROC curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import HeadEffect, Precision
from export.errors import VerificationFailed
from export.recipe.schema import ExportJob

Values = NDArray[Any]

_BEST_SHARE, _BEST_MAX = 10, 100
"""The best tenth are compared, at most 100."""


def order_effects(
    found: Mapping[str, Values], original: Mapping[str, Values], labels: Mapping[str, Values]
) -> dict[str, HeadEffect]:
    """Compares, of every output that is one number for each example, its order with the reference model's.

    Args:
      found: what a form of less precision gives, by output.
      original: what the reference model gives.
      labels: [n] 0 or 1 by output, of those that have them.
    """
    return {
        name: measure_effect(expected.reshape(-1), found[name].reshape(-1), labels.get(name))
        for name, expected in original.items()
        if name in found and expected.size == len(expected)
    }


def check_effects(
    where: str, tower: str, precision: Precision, effects: Mapping[str, HeadEffect], job: ExportJob
) -> None:
    """Holds effects to the recipe's limits.

    Raises:
      VerificationFailed: one is beyond its limit; names output, figure and limit.
    """
    for output, effect in effects.items():
        agrees = f"Kendall's tau to the original's order is {effect.kendall_tau:.4f}"
        kept = f"{effect.overlap:.4f} of the original's best {effect.k} stay the best"
        figures = [("kendall_tau_min", effect.kendall_tau, 1, agrees), ("overlap_min", effect.overlap, 1, kept)]
        if effect.auc is not None and effect.auc_original is not None:
            lost = effect.auc_original - effect.auc
            told = f"the area under the ROC curve falls by {lost:.4f}, from {effect.auc_original:.4f}"
            figures.append(("auc_loss_max", lost, -1, told))
        for key, figure, better, told in figures:
            limit = getattr(job.towers[tower], key).get(precision)
            if limit is not None and better * figure < better * limit:
                raise VerificationFailed(
                    f"{where}, output {output!r}: {told}, towers.{tower}.{key}.{precision} = {limit:g}; change the "
                    f"limit, or leave {precision!r} out of its precisions: nothing is published"
                )


def measure_effect(original: Values, found: Values, labels: Values | None = None) -> HeadEffect:
    """Compares the order that one output gives with the original's.

    Args:
      original: [n] values of the original model, n >= 1.
      found: [n] values of a form of less precision.
      labels: [n] 0 or 1, if examples have them.
    """
    best = max(1, min(_BEST_MAX, original.size // _BEST_SHARE))
    both = labels is not None and 0 < np.count_nonzero(labels) < labels.size  # else there is no curve
    return HeadEffect(
        kendall_tau=kendall_tau(original, found),
        overlap=overlap(original, found, best),
        k=best,
        auc=area_under_curve(found, labels) if labels is not None and both else None,
        auc_original=area_under_curve(original, labels) if labels is not None and both else None,
    )


def kendall_tau(first: Values, second: Values) -> float:
    """Returns Kendall's tau-b of two orders in O(n log n); 1 where the first has no order that could be lost.

    Source: Knight, JASA 61 (1966), p. 436: pairs in the wrong order are the swaps that sorting by `second` takes once
    sorted by `first`.
    """
    order = np.lexsort((second, first))
    ranks = [np.unique(values, return_inverse=True)[1].reshape(-1)[order] for values in (first, second)]
    pairs = first.size * (first.size - 1) / 2
    tied = [_tied_pairs(rank) for rank in ranks]
    both = _tied_pairs(ranks[0].astype(np.int64) * (int(ranks[1].max(initial=0)) + 1) + ranks[1])
    if tied[0] == pairs:
        return 1.0
    agreeing = pairs - tied[0] - tied[1] + both - 2 * _inversions(ranks[1])
    whole = math.sqrt((pairs - tied[0]) * (pairs - tied[1]))
    return float(agreeing / whole) if whole else 0.0


def overlap(first: Values, second: Values, k: int) -> float:
    """Returns the share of the k largest of `first` that are among the k largest of `second`; ties at the edge count.

    Equals are as good as each other: one of the first's best is kept if its second value reaches the second's k-th.
    """
    best = np.argpartition(-first, k - 1)[:k]
    reached = np.partition(second, second.size - k)[second.size - k]
    return float(np.count_nonzero(second[best] >= reached) / k)


def area_under_curve(values: Values, labels: Values) -> float:
    """Returns the chance that an example labelled 1 has a larger value than one labelled 0; a tie counts half.

    Source: Mann and Whitney, Annals of Mathematical Statistics 18 (1947), p. 50.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[place.reshape(-1)]
    positive = labels > 0
    ones = int(np.count_nonzero(positive))
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * (labels.size - ones)))


def _tied_pairs(ranks: Values) -> float:
    counts = np.unique(ranks, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1) / 2).sum())


def _inversions(ranks: Values) -> int:
    """Counts the pairs that stand in falling order, bit by bit: a 1 before a 0 among those equal in the bits above."""
    found, kept = 0, ranks.astype(np.int64)
    for bit in reversed(range(int(kept.max(initial=0)).bit_length())):
        kept = kept[np.argsort(kept >> (bit + 1), kind="stable")]
        above, ones = kept >> (bit + 1), (kept >> bit) & 1
        starts = np.searchsorted(above, above)  # where the group of each begins
        before = np.cumsum(ones) - ones
        found += int((before - before[starts])[ones == 0].sum())
        kept = kept[np.argsort(kept >> bit, kind="stable")]
    return found
