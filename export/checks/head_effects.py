"""What a precision does to the order by each output of a tower, and the recipe's limits of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from bundle.manifest import HeadEffect, Precision
from export.checks.rankings import measure_effect
from export.errors import UsageError, VerificationFailed
from export.settings import ExportJob

Values = Mapping[str, NDArray[Any]]

_LIMITS = ("kendall_tau_min", "overlap_min", "auc_loss_max")


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


def check_precisions(job: ExportJob) -> None:
    """Checks that each tower's precisions have what they need, and that limits speak of what is there.

    Raises:
      UsageError: a precision below f32 has no limit of its difference, one is to be served that is not made, or a limit
        is of a precision or needs a label that is not there.
    """
    _check_labels(job)
    for name, part in job.towers.items():
        for precision in part.precisions:
            if precision != "f32" and precision not in part.max_abs_error:
                raise UsageError(
                    f"towers.{name}.precisions has {precision!r}, which the parity rule does not bind; state its limit "
                    f"as towers.{name}.max_abs_error.{precision}"
                )
        if part.serve not in ("f32", *part.precisions):
            raise UsageError(
                f"towers.{name}.serve is {part.serve!r}, and towers.{name}.precisions has no {part.serve!r}"
            )
        limited = {(key, precision) for key in _LIMITS for precision in getattr(part, key)}
        for key, precision in sorted(limited):
            if precision not in part.precisions:
                raise UsageError(f"towers.{name}.{key} limits {precision!r}, and towers.{name}.precisions has none")
        if part.auc_loss_max and not set(part.outputs or ("result",)) & set(job.verify.labels):
            raise UsageError(f"towers.{name}.auc_loss_max needs labels: name their columns in verify.labels")


def _check_labels(job: ExportJob) -> None:
    every = [(tower, name) for tower, part in job.towers.items() for name in part.outputs or ("result",)]
    outputs = {name for _, name in every}
    for key, columns in (("labels", job.verify.labels), ("expected", job.verify.expected)):
        for output in columns:
            of = [tower for tower, name in every if name == output]
            if key == "expected" and len(of) > 1:
                raise UsageError(f"verify.expected.{output}: towers {', '.join(of)} have it; write '{of[0]}.{output}'")
            if key == "expected" and output in {f"{tower}.{name}" for tower, name in every}:
                continue
            if output not in outputs:
                raise UsageError(f"verify.{key} names output {output!r}; the towers have {', '.join(sorted(outputs))}")
        if columns and job.verify.examples is None:
            raise UsageError(f"verify.{key} names columns of verify.examples, which is not given")
