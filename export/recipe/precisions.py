"""Checks the precisions of a recipe's towers, and their limits and labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from export.errors import UsageError
from export.recipe.schema import ExportJob


def check_precisions(job: ExportJob) -> None:
    """Checks that each tower's precisions have limits, and that limits and labels refer to
    precisions and outputs that exist.

    Raises:
      UsageError: A precision below f32 has no limit for its error, the served precision is not
        written, a limit has no such precision, or a label no such output.
    """
    _check_labels(job)
    for name, tower in job.towers.items():
        for precision in tower.precisions:
            # How much a model may lose is the decision of its users, so there is no default.
            if precision != "f32" and precision not in tower.max_abs_error:
                raise UsageError(
                    f"towers.{name}.precisions has {precision!r}, which has no parity rule; state "
                    f"its limit as towers.{name}.max_abs_error.{precision}"
                )
        # f32 is always written, as a SavedModel.
        if tower.serve not in ("f32", *tower.precisions):
            raise UsageError(
                f"towers.{name}.serve is {tower.serve!r}, and towers.{name}.precisions has no "
                f"{tower.serve!r}"
            )
        for precision in tower.overlap_min:
            if precision not in tower.precisions:
                raise UsageError(
                    f"towers.{name}.overlap_min limits {precision!r}, and towers.{name}.precisions "
                    "has none"
                )


def _check_labels(job: ExportJob) -> None:
    """Checks the outputs that `verify.labels` and `verify.expected` name."""
    towers_by_output: dict[str, list[str]] = {}
    for tower_name, tower in job.towers.items():
        # A call that returns one tensor names it `result`.
        for output in tower.outputs or ("result",):
            towers_by_output.setdefault(output, []).append(tower_name)
    full_names = {
        f"{tower}.{output}" for output, towers in towers_by_output.items() for tower in towers
    }

    # A label is the truth about an output whatever the tower, so it needs no tower's name.
    _check_outputs(job, "labels", job.verify.labels, towers_by_output, ())
    # A recorded value is that of one tower, which a shared name of an output does not identify.
    for output in job.verify.expected:
        towers = towers_by_output.get(output, [])
        if len(towers) > 1:
            raise UsageError(
                f"verify.expected.{output}: towers {', '.join(towers)} have it; write "
                f"'{towers[0]}.{output}'"
            )
    _check_outputs(job, "expected", job.verify.expected, towers_by_output, full_names)


def _check_outputs(
    job: ExportJob,
    key: str,
    columns: Mapping[str, str],
    outputs: Collection[str],
    full_names: Collection[str],
) -> None:
    """Checks that the outputs of a table of columns exist, and that examples have columns."""
    for output in columns:
        if output not in outputs and output not in full_names:
            raise UsageError(
                f"verify.{key} names output {output!r}; the towers have "
                f"{', '.join(sorted(outputs))}"
            )
    if columns and job.verify.examples is None:
        raise UsageError(f"verify.{key} names columns of verify.examples, which is not given")
