"""What a precision does to the order of examples, and the recipe's limit of it.

Measured are Kendall's tau-b, the share of the best that stay the best, and the area under the ROC
curve.
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

_BEST_SHARE = 10
_BEST_MAX = 100
"""The best tenth are compared, at most 100."""
_PAIRED_MAX = 10_000


def order_effects(
    found: Mapping[str, Values], original: Mapping[str, Values], labels: Mapping[str, Values]
) -> dict[str, HeadEffect]:
    """Compares, of every output that is one number for each example, its order with the reference
    model's.

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
    """Holds effects to the recipe's limit of the overlap.

    Raises:
      VerificationFailed: fewer of the best stay the best; names output, figure and limit.
    """
    if precision == "f32" or precision not in job.towers[tower].overlap_min:
        return
    limit = job.towers[tower].overlap_min[precision]
    for output, effect in effects.items():
        if effect.overlap < limit:
            raise VerificationFailed(
                f"{where}, output {output!r}: {effect.overlap:.4f} of the original's best "
                f"{effect.k} stay the best, towers.{tower}.overlap_min.{precision} = {limit:g}; "
                f"change the limit, or leave {precision!r} out of its precisions"
            )


def measure_effect(original: Values, found: Values, labels: Values | None = None) -> HeadEffect:
    """Compares the order that one output gives with the original's.

    Args:
      original: [n] values of the original model, n >= 1.
      found: [n] values of a form of less precision.
      labels: [n] 0 or 1, if examples have them.
    """
    best = max(1, min(_BEST_MAX, original.size // _BEST_SHARE))
    # A curve needs labels of both classes.
    both = labels is not None and 0 < np.count_nonzero(labels) < labels.size
    return HeadEffect(
        kendall_tau=kendall_tau(original, found),
        overlap=overlap(original, found, best),
        k=best,
        auc=area_under_curve(found, labels) if labels is not None and both else None,
        auc_original=area_under_curve(original, labels) if labels is not None and both else None,
    )


def kendall_tau(first: Values, second: Values) -> float:
    """Returns Kendall's tau-b of two orders, by all pairs of at most _PAIRED_MAX; 1 where the first
    has no order.
    """
    first = first[:_PAIRED_MAX]
    second = second[:_PAIRED_MAX]
    agreeing = 0.0
    ordered = 0
    kept = 0
    for place in range(first.size - 1):
        signs, others = (np.sign(values[place + 1 :] - values[place]) for values in (first, second))
        agreeing += float(signs @ others)
        ordered += int(np.count_nonzero(signs))
        kept += int(np.count_nonzero(others))
    if not ordered:
        return 1.0
    return agreeing / math.sqrt(ordered * kept) if kept else 0.0


def overlap(first: Values, second: Values, k: int) -> float:
    """Returns the share of the k largest of `first` that are among the k largest of `second`; ties
    at the edge count.

    Equals are as good as each other: one of the first's best is kept if its second value reaches
    the second's k-th.
    """
    best = np.argpartition(-first, k - 1)[:k]
    reached = np.partition(second, second.size - k)[second.size - k]
    return float(np.count_nonzero(second[best] >= reached) / k)


def area_under_curve(values: Values, labels: Values) -> float:
    """Returns the chance that an example labelled 1 has a larger value than one labelled 0; a tie
    counts half.
    """
    ones = values[labels > 0]
    zeros = np.sort(values[labels <= 0])
    below = np.searchsorted(zeros, ones, "left") + np.searchsorted(zeros, ones, "right")
    return float(below.mean() / (2 * zeros.size))
