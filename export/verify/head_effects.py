"""What a precision does to the order by each output of a tower, and the recipe's limits of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from bundle.format.manifest import HeadEffect, Precision
from export.errors import VerificationFailed
from export.recipe.schema import ExportJob
from export.verify.rankings import measure_effect

Values = Mapping[str, NDArray[Any]]


def order_effects(found: Values, original: Values, labels: Values) -> dict[str, HeadEffect]:
    """Compares, of every output that is one number for each example, its order with the original's.

    Args:
      found: what a form of less precision gives, by output.
      original: what the original model gives.
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
    part = job.towers[tower]
    for output, effect in effects.items():
        lost = None if effect.auc is None or effect.auc_original is None else effect.auc_original - effect.auc
        figures: list[tuple[str, float | None, Mapping[Any, float], int]] = [
            ("kendall_tau_min", effect.kendall_tau, part.kendall_tau_min, 1),
            ("overlap_min", effect.overlap, part.overlap_min, 1),
            ("auc_loss_max", lost, part.auc_loss_max, -1),
        ]
        for key, figure, limits, better in figures:
            limit = limits.get(precision)
            if limit is None or figure is None or not better * figure < better * limit:
                continue
            raise VerificationFailed(
                f"{where}, output {output!r}: {_told(key, figure, effect)}, towers.{tower}.{key}.{precision} = "
                f"{limit:g}; change the limit, or leave {precision!r} out of its precisions: nothing is published"
            )


def _told(key: str, figure: float, effect: HeadEffect) -> str:
    if key == "kendall_tau_min":
        return f"Kendall's tau to the original's order is {figure:.4f}"
    if key == "overlap_min":
        return f"{figure:.4f} of the original's best {effect.k} stay the best"
    return f"the area under the ROC curve falls by {figure:.4f}, from {effect.auc_original:.4f}"
