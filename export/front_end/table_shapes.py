"""Shapes of tables: those of the model, and those of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from export.checkpoint.inventory.specs import Inventory
from export.errors import CheckpointError
from export.front_end.specs import TableFacts
from export.user_lines import at_line


def check_shapes(
    inventory: Inventory,
    tables: Mapping[str, TableFacts],
    lines: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Checks that tables have the model's shapes in the checkpoint.

    Args:
      inventory: The tables of the checkpoint.
      tables: The tables of the model by their names in the inventory.
      lines: The user's line that made each table, as far as it is known.

    Raises:
      CheckpointError: A table has another shape.
    """
    for name, facts in tables.items():
        stored = inventory.table(name)
        if (stored.rows, stored.dim) != (facts.rows, facts.dim):
            line = at_line(lines.get(name, ""))
            raise CheckpointError(
                f"table {name!r} is [{facts.rows}, {facts.dim}] in the model{line} and "
                f"[{stored.rows}, {stored.dim}] in checkpoint {inventory.checkpoint} "
                f"({stored.key!r}); the model code is not the one that was saved"
            )
