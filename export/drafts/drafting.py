"""Drafts a recipe of a model and its checkpoint."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.drafts.example_columns import columns_of
from export.drafts.observed_calls import observe_calls
from export.drafts.recipe_text import recipe_text
from export.errors import CheckpointError, ExportError
from export.jobs.preparation import prepare
from export.locations import location_of
from export.recipe.schema import CheckpointSection, CodeSection, ExportJob, OutputSection
from export.recipe.settings import ExportSettings
from export.row_errors import row_errors
from rows.batches import read_batches
from rows.cells import plain_values
from rows.files import source_file

EXAMPLES_READ = 256
"""The number of examples that show the types and shapes of inputs."""
_OBJECT_PATHS_MAX = 3
"""The maximum number of objects of a checkpoint that are tried as the model."""
_NO_MODELS = {"optimizer", "save_counter", "step", "epoch"}
"""Names of objects that programs save beside the model."""


@dataclass(frozen=True)
class Draft:
    """A draft of a recipe.

    Attributes:
      text: The recipe, as TOML.
      problem: Why a call could not be run, or what `plan` says of the draft; "": nothing is known
        to be wrong.
    """

    text: str
    problem: str


def draft_recipe(factory: str, checkpoint: str, examples: Path | None, base: Path) -> Draft:
    """Returns the draft of a recipe.

    Args:
      factory: The recipe's `code.factory`.
      checkpoint: The path or URL of the checkpoint.
      examples: A file of raw examples; None: there is none.
      base: The folder of the recipe.

    Raises:
      UsageError: There is no such factory or file.
      CheckpointError: The checkpoint cannot be read.
      NotConvertible: The model cannot be built.
    """
    job = ExportJob(
        model="model",
        checkpoint=CheckpointSection(path=checkpoint),
        code=CodeSection(factory=factory),
        inputs={},
        towers={},
        output=OutputSection(root="bundles"),
    )
    # Most fields are placeholders: they only make a recipe of which the model's code can be run.
    opened = open_checkpoint(location_of(checkpoint, base))
    table: Mapping[str, Sequence[object]] = {}
    examples_file = None
    if examples is not None:
        with row_errors("--examples"):
            file = source_file(base / examples, otherwise="jsonl")
            rows = next(read_batches(file, batch_rows=EXAMPLES_READ), None)
        if rows is not None:
            table = plain_values(rows, EXAMPLES_READ)
        examples_file = str(examples)
    columns = columns_of(table)
    calls = observe_calls(job, base, opened, columns)
    inventory = recognize(opened, Statements())
    unread_columns = [name for name in table if name not in columns]

    def text_with(object_path: str) -> str:
        return recipe_text(
            factory, checkpoint, object_path, examples_file, calls, inventory, unread_columns
        )

    text = text_with("")
    for call in calls:
        if call.problem:
            return Draft(text, call.problem)
    problem = _problem_of(text, base)
    # A checkpoint often holds the model below its top, beside an optimizer and a step.
    if isinstance(problem, CheckpointError):
        for object_path in _object_paths(opened):
            other_text = text_with(object_path)
            other_problem = _problem_of(other_text, base)
            if not isinstance(other_problem, CheckpointError):
                return Draft(other_text, str(other_problem or ""))
    return Draft(text, str(problem or ""))


def _object_paths(checkpoint: Checkpoint) -> list[str]:
    """Returns the objects at the top of a checkpoint that may be the model, the largest first."""
    sizes = Counter[str]()
    for key, entry in checkpoint.entries.items():
        name, separator, _ = key.partition("/")
        if separator and name not in _NO_MODELS:
            sizes[name] += entry.bytes
    return [name for name, _ in sizes.most_common(_OBJECT_PATHS_MAX)]


def _problem_of(text: str, base: Path) -> ExportError | None:
    """Returns what `plan` says of a draft; None if it can be planned."""
    try:
        job = ExportJob.model_validate(tomllib.loads(text))
        prepare(job, base, ExportSettings())
    except ExportError as problem:
        return problem
    return None
