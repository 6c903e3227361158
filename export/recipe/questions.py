"""Questions of a draft that its recipe leaves open."""

from __future__ import annotations

from export.errors import UsageError
from export.recipe.schema import ExportJob


def open_questions(job: ExportJob) -> tuple[str, ...]:
    """Returns the questions of a recipe, each with its key and what to do."""
    return tuple(
        f"inputs.{name}.question: {section.question.rstrip('.')}. Correct the input where training "
        "did otherwise, then remove 'question': until then, `run` publishes nothing"
        for name, section in job.inputs.items()
        if section.question
    )


def check_settled(job: ExportJob) -> None:
    """Checks that a recipe leaves no question open: with another answer, outputs would be others.

    Raises:
      UsageError: There is a question.
    """
    questions = open_questions(job)
    if questions:
        raise UsageError("; ".join(questions))
