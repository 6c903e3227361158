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
"""One in this number of examples counts as one of the best: a tenth."""
_BEST_MAX = 100
"""The largest number of best examples that are compared."""
_PAIRED_MAX = 10_000
"""The largest number of examples whose pairs are compared: the time grows with its square."""


def order_effects(
    results: Mapping[str, Values], original: Mapping[str, Values], labels: Mapping[str, Values]
) -> dict[str, HeadEffect]:
    """Compares, of every output that is one number for each example, its order with the reference
    model's.

    Args:
      results: The outputs of a form of less precision.
      original: The outputs of the reference model.
      labels: [n] 0 or 1, the labels of the outputs that have some.
    """
    effects = {}
    for name, expected in original.items():
        # Vectors have no order.
        is_one_number = expected.size == len(expected)
        if name in results and is_one_number:
            effects[name] = measure_effect(
                expected.reshape(-1), results[name].reshape(-1), labels.get(name)
            )
    return effects


def check_effects(
    where: str, tower: str, precision: Precision, effects: Mapping[str, HeadEffect], job: ExportJob
) -> None:
    """Compares effects with the recipe's limit of the overlap.

    Raises:
      VerificationFailed: Fewer of the best stay the best; names output, figure and limit.
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


def measure_effect(original: Values, values: Values, labels: Values | None = None) -> HeadEffect:
    """Compares the order that one output gives with the original's.

    Args:
      original: [n] values of the original model, n >= 1.
      values: [n] values of a form of less precision.
      labels: [n] 0 or 1, if examples have them.
    """
    best_count = max(1, min(_BEST_MAX, original.size // _BEST_SHARE))
    auc = None
    auc_original = None
    # A curve needs labels of both classes.
    if labels is not None and 0 < np.count_nonzero(labels) < labels.size:
        auc = area_under_curve(values, labels)
        auc_original = area_under_curve(original, labels)
    return HeadEffect(
        kendall_tau=kendall_tau(original, values),
        overlap=overlap(original, values, best_count),
        k=best_count,
        auc=auc,
        auc_original=auc_original,
    )


def kendall_tau(first: Values, second: Values) -> float:
    """Returns Kendall's tau-b of two orders, by all pairs of at most _PAIRED_MAX; 1 where the first
    has no order.
    """
    first = first[:_PAIRED_MAX]
    second = second[:_PAIRED_MAX]
    agreement = 0.0
    first_untied = 0
    second_untied = 0
    # One value against all later ones: a matrix of all pairs would need 100 million numbers.
    for i in range(first.size - 1):
        first_signs = np.sign(first[i + 1 :] - first[i])
        second_signs = np.sign(second[i + 1 :] - second[i])
        agreement += float(first_signs @ second_signs)
        first_untied += int(np.count_nonzero(first_signs))
        second_untied += int(np.count_nonzero(second_signs))
    if not first_untied:
        return 1.0
    if not second_untied:
        return 0.0
    return agreement / math.sqrt(first_untied * second_untied)


def overlap(first: Values, second: Values, k: int) -> float:
    """Returns the share of the k largest of `first` that are among the k largest of `second`; ties
    at the edge count.

    Equals are as good as each other: one of the first's best is kept if its second value reaches
    the second's k-th.
    """
    best = np.argpartition(-first, k - 1)[:k]
    threshold = np.partition(second, second.size - k)[second.size - k]
    return float(np.count_nonzero(second[best] >= threshold) / k)


def area_under_curve(values: Values, labels: Values) -> float:
    """Returns the chance that an example labelled 1 has a larger value than one labelled 0; a tie
    counts half.
    """
    positives = values[labels > 0]
    negatives = np.sort(values[labels <= 0])
    # Smaller negatives count on both sides, equal ones on the right side only, so as a half.
    smaller = np.searchsorted(negatives, positives, "left")
    smaller_or_equal = np.searchsorted(negatives, positives, "right")
    return float((smaller + smaller_or_equal).mean() / (2 * negatives.size))
