"""The layouts that a recipe states, or that it has derived from ids of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from export.checkpoint.inventory.layout_file import read_layouts
from export.checkpoint.inventory.specs import FileTable, Inventory, StatedTable
from export.checkpoint.trained_rows import TrainedRows
from export.front_end.specs import TableFacts
from export.recipe.schema import DERIVE, ExportJob


def is_derived(job: ExportJob) -> bool:
    """Returns whether layouts that nothing records are to be derived."""
    return job.checkpoint.layout == DERIVE


def recipe_layouts(job: ExportJob, base: Path) -> dict[str, FileTable]:
    """Returns the tables of a recipe's layout file; {} if it has none.

    Raises:
      UsageError: The file cannot be read.
    """
    layout = job.checkpoint.layout
    if layout is None or is_derived(job):
        return {}
    return dict(read_layouts(base / layout))


def to_derive(key: str, facts: TableFacts) -> StatedTable:
    """Returns a table of the model whose layout in a variable is to be derived."""
    return StatedTable(key=key, kind="derive", rows=facts.rows, dim=facts.dim)


def stack_key(inventory: Inventory, table: str) -> str | None:
    """Returns the key of the stack that holds a table; None if there is no such stack.

    It is the only stack, or the only one whose name contains the name of the table.
    """
    # The name of a table of keras-rs begins with the name of its layer, which no stack's name has.
    short_name = table.rpartition(".")[2]
    stacks = [rejected for rejected in inventory.rejected if rejected.is_stack]
    if len(stacks) > 1:
        stacks = [stack for stack in stacks if f"_{short_name}_" in f"_{stack.name}_"]
    if len(stacks) != 1:
        return None
    return stacks[0].key


def with_config_names(
    trained: Mapping[str, TrainedRows], tables: Mapping[str, TableFacts]
) -> dict[str, TrainedRows]:
    """Returns trained rows by the names of the tables, and also by the names that checkpoints and
    layout files use for them.
    """
    by_config_name = {
        facts.config_name: trained[name] for name, facts in tables.items() if name in trained
    }
    # A table whose name is the configuration's name of another one keeps its name.
    return by_config_name | dict(trained)
