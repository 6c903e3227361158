"""Checks the precisions of a recipe's towers, and their limits and labels."""

from __future__ import annotations

from export.errors import UsageError
from export.recipe.schema import ExportJob

_LIMITS = ("kendall_tau_min", "overlap_min", "auc_loss_max")


def check_precisions(job: ExportJob) -> None:
    """Checks that each tower's precisions have limits, and that limits and labels have what they
    refer to.

    Raises:
      UsageError: a precision below f32 has no limit for its error, the served precision is not
        written, or a limit has no such precision or label.
    """
    _check_labels(job)
    for name, part in job.towers.items():
        for precision in part.precisions:
            if precision != "f32" and precision not in part.max_abs_error:
                raise UsageError(
                    f"towers.{name}.precisions has {precision!r}, which has no parity rule; state "
                    f"its limit as towers.{name}.max_abs_error.{precision}"
                )
        if part.serve not in ("f32", *part.precisions):
            raise UsageError(
                f"towers.{name}.serve is {part.serve!r}, and towers.{name}.precisions has no "
                f"{part.serve!r}"
            )
        limited = {(key, precision) for key in _LIMITS for precision in getattr(part, key)}
        for key, precision in sorted(limited):
            if precision not in part.precisions:
                raise UsageError(
                    f"towers.{name}.{key} limits {precision!r}, and towers.{name}.precisions has "
                    "none"
                )
        if part.auc_loss_max and not set(part.outputs or ("result",)) & set(job.verify.labels):
            raise UsageError(
                f"towers.{name}.auc_loss_max needs labels: name their columns in verify.labels"
            )


def _check_labels(job: ExportJob) -> None:
    every = [
        (tower, name) for tower, part in job.towers.items() for name in part.outputs or ("result",)
    ]
    outputs = {name for _, name in every}
    for key, columns in (("labels", job.verify.labels), ("expected", job.verify.expected)):
        for output in columns:
            of = [tower for tower, name in every if name == output]
            if key == "expected" and len(of) > 1:
                raise UsageError(
                    f"verify.expected.{output}: towers {', '.join(of)} have it; write "
                    f"'{of[0]}.{output}'"
                )
            if key == "expected" and output in {f"{tower}.{name}" for tower, name in every}:
                continue
            if output not in outputs:
                raise UsageError(
                    f"verify.{key} names output {output!r}; the towers have "
                    f"{', '.join(sorted(outputs))}"
                )
        if columns and job.verify.examples is None:
            raise UsageError(f"verify.{key} names columns of verify.examples, which is not given")
