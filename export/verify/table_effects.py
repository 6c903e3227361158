"""Measures what converted tables change in the outputs of towers: they run on the checkpoint's own
rows, and on the bundle's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.tables.reader import TableReader
from export.bounds import allowed, differ, largest_at
from export.checkpoint.inventory.specs import TableSpec
from export.errors import VerificationFailed
from export.front_end.interface import ReadRows, Results
from export.verify.forms import compare, open_saved_model, run
from export.verify.parity import feature_values
from export.verify.reference_inputs import Reference

Effects = dict[str, dict[str, float]]
"""Tower -> output -> the largest difference that converted tables alone make."""


class TrainedRows(TableReader):
    """Reads rows of a table from the checkpoint: a few, or many in their order."""

    def __init__(self, name: str, table: manifest.Table | TableSpec, read_rows: ReadRows) -> None:
        self.rows = table.rows
        self.dim = table.dim
        self.dtype = "float32"
        self._name = name
        self._read_rows = read_rows

    def take(
        self, rows: NDArray[np.int64], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """See TableReader.take."""
        # Each row is read once: a checkpoint may have to decode a whole chunk for it.
        distinct, inverse = np.unique(np.maximum(rows, 0), return_inverse=True)
        values: NDArray[np.float32] = self._read_rows(self._name, distinct)[:, : self.dim]
        if out is None:
            out = np.empty((rows.size, self.dim), np.float32)
        out[...] = values[inverse.reshape(-1)]
        out[rows < 0] = 0
        return out

    def release(self) -> None:
        """See TableReader.release."""

    def close(self) -> None:
        """See TableReader.close."""


def converted(tables: Mapping[str, manifest.Table]) -> frozenset[str]:
    """Returns the names of the tables whose rows were converted."""
    return frozenset(name for name, table in tables.items() if table.error is not None)


def trained_tables(
    tables: Mapping[str, manifest.Table], read_rows: ReadRows
) -> dict[str, TableReader]:
    """Returns readers of the checkpoint's own rows, for the tables whose rows were converted."""
    return {name: TrainedRows(name, tables[name], read_rows) for name in converted(tables)}


def measure_effects(
    reference: Reference,
    trained: FeatureReader,
    root: Path,
    towers: Mapping[str, manifest.Tower],
    expected: Results,
) -> Effects:
    """Runs the SavedModels of towers that read converted tables on both kinds of rows.

    Args:
      reference: The examples, and the bundle's own reader of their features.
      trained: The reader of the same features from `trained_tables`.
      root: The directory of the staged bundle.
      towers: The towers' entries in the manifest.
      expected: The outputs of the reference model for the examples.
    Returns:
      By tower and output, the largest difference between the two.
    Raises:
      VerificationFailed: A tower breaks the parity rule with the checkpoint's own rows, so that
        the tables are not the cause; or the tables change outputs by more than rounding, and the
        recipe states no limit.
    """
    affected = {name: tower for name, tower in towers.items() if reference.converted_tables(name)}
    if not affected:
        return {}
    trained_values = feature_values(reference, trained)
    converted_values = feature_values(reference, reference.features)
    effects: Effects = {}
    without_limit = []
    for name, tower in affected.items():
        opened = open_saved_model(reference, root, name, tower)
        with_trained, _ = compare([opened], trained_values, expected[name], own_rows=True)
        with_converted = run([opened], converted_values, reference.examples.n)

        effects[name] = {}
        is_within_rule = True
        for output in tower.outputs:
            right = with_trained[output.name]
            result = with_converted[output.name]
            effects[name][output.name], _ = largest_at(result, right)
            # The tower itself may use the other half of what the parity rule allows.
            if differ(result, right, allowed(right, None) / 2).any():
                is_within_rule = False
        if opened.limit is None and not is_within_rule:
            without_limit.append(name)
    if without_limit:
        tables = dict.fromkeys(
            table for tower in without_limit for table in reference.converted_tables(tower)
        )
        limits = [
            f"towers.{name}.max_abs_error.f32 (measured: {max(effects[name].values()):.3g})"
            for name in without_limit
        ]
        raise VerificationFailed(
            f"tables {', '.join(tables)} are stored with lower precision, so outputs of the towers "
            "that read them differ from the model's; set the largest difference that you accept: "
            f"{', '.join(limits)}"
        )
    return effects
