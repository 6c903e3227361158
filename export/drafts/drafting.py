"""Drafts a recipe of a model and its checkpoint."""

from __future__ import annotations

from pathlib import Path

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.drafts.observed_calls import observe_calls
from export.drafts.recipe_text import columns_of, recipe_text
from export.locations import location_of
from export.recipe.schema import CheckpointSection, CodeSection, ExportJob, OutputSection
from export.verify.examples import read_table

EXAMPLES_READ = 256


def draft_recipe(factory: str, checkpoint: str, examples: Path | None, base: Path) -> str:
    """Returns the draft of a recipe, as TOML.

    Args:
      factory: the recipe's `code.factory`.
      checkpoint: path or URL of the checkpoint.
      examples: a file of raw examples.
      base: the folder of the recipe.

    Raises:
      UsageError: there is no such factory or file.
      CheckpointError: the checkpoint cannot be read.
      NotConvertible: the model cannot be built.
    """
    job = ExportJob(
        model="model",
        checkpoint=CheckpointSection(path=checkpoint),
        code=CodeSection(factory=factory),
        inputs={},
        towers={},
        output=OutputSection(root="bundles"),
    )
    opened = open_checkpoint(location_of(checkpoint, base))
    table = {} if examples is None else read_table(base / examples, EXAMPLES_READ, "--examples")
    columns = columns_of(table)
    calls = observe_calls(job, base, opened, columns)
    unknown = [name for name in table if name not in columns]
    examples_file = None if examples is None else str(examples)
    return recipe_text(
        factory, checkpoint, examples_file, calls, recognise(opened, Statements()), unknown
    )
