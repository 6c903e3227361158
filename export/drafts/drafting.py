"""Drafts a recipe of a model and its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.drafts.observed_calls import observe_calls
from export.drafts.recipe_text import columns_of, recipe_text
from export.locations import location_of
from export.recipe.schema import CheckpointSection, CodeSection, ExportJob, OutputSection
from export.verify.examples import read_table

EXAMPLES_READ = 256
"""The number of examples that show the types and shapes of inputs."""


def draft_recipe(factory: str, checkpoint: str, examples: Path | None, base: Path) -> str:
    """Returns the draft of a recipe, as TOML.

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
        table = read_table(base / examples, EXAMPLES_READ, "--examples")
        examples_file = str(examples)
    columns = columns_of(table)
    calls = observe_calls(job, base, opened, columns)
    inventory = recognize(opened, Statements())
    unread_columns = [name for name in table if name not in columns]
    return recipe_text(factory, checkpoint, examples_file, calls, inventory, unread_columns)
