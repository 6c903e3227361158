"""The combiners that training recorded beside the layout of tables, compared with those of the
model: another one would serve other vectors than training used.
"""

from __future__ import annotations

from collections.abc import Iterable

from export.checkpoint.inventory.specs import TableSpec
from export.errors import NotConvertible
from export.front_end.specs import FeatureSpec, ModelSpec


def check_combiners(model: ModelSpec, tables: Iterable[TableSpec]) -> None:
    """Checks that the bags of a model combine rows as training did.

    Args:
      model: The model, which states the combiner of each bag.
      tables: The tables of the checkpoint.

    Raises:
      NotConvertible: A bag has another combiner than its table in the checkpoint.
    """
    recorded = {table.name: table.combiner for table in tables if table.combiner}
    for name, feature in model.features.items():
        if not isinstance(feature, FeatureSpec) or feature.entry.kind != "bag":
            continue
        table = feature.entry.table
        combiner = recorded.get(table, feature.entry.combiner)
        if combiner != feature.entry.combiner:
            raise NotConvertible(
                f"feature {name!r} combines rows of table {table!r} by {feature.entry.combiner!r}, "
                f"and the checkpoint records that training combined them by {combiner!r}: write "
                f"{combiner!r} in the model"
            )
