"""What a precision does to the order of examples: Kendall's tau-b, the best that stay the best, area under the ROC."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import HeadEffect

Values = NDArray[Any]

_BEST_SHARE, _BEST_MAX = 10, 100
"""The best tenth are compared, at most 100."""


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
