"""Checks the precisions of a recipe's towers, and their limits and labels."""

from __future__ import annotations

from export.errors import UsageError
from export.recipe.schema import ExportJob


def check_precisions(job: ExportJob) -> None:
    """Checks that each tower's precisions have limits, and that limits and labels have what they
    refer to.

    Raises:
      UsageError: a precision below f32 has no limit for its error, the served precision is not
        written, a limit has no such precision, or a label no such output.
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
        for precision in part.overlap_min:
            if precision not in part.precisions:
                raise UsageError(
                    f"towers.{name}.overlap_min limits {precision!r}, and towers.{name}.precisions "
                    "has none"
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
