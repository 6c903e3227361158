"""What converted tables change in the answers: towers fed with the checkpoint's own rows beside the
bundle's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.specs import TableSpec
from export.errors import VerificationFailed
from export.front_end.interface import ReadRows, Results
from export.verify.forms import allowed, compare, open_form, run
from export.verify.parity import feature_values
from export.verify.reference_inputs import Reference
from runtime.towers import find_form

Effects = dict[str, dict[str, float]]
"""Tower -> output -> the largest difference that converted tables alone make."""


class TrainedRows(TableReader):
    """Rows of a table as the checkpoint holds them, read where they lie; for a few, or in their
    order.
    """

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
        wanted, place = np.unique(np.maximum(rows, 0), return_inverse=True)
        values: NDArray[np.float32] = self._read_rows(self._name, wanted)[:, : self.dim]
        found = np.empty((rows.size, self.dim), np.float32) if out is None else out
        found[...] = values[place.reshape(-1)]
        found[rows < 0] = 0
        return found

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
    """Returns readers that give the checkpoint's own rows of the tables whose rows were
    converted.
    """
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
      reference: the examples, and the bundle's own reader of their features.
      trained: reads them from `trained_tables`.
      root: directory of the staged bundle.
      towers: as the manifest describes them.
      expected: what the reference model gives for the examples.
    Returns:
      By tower and output, the largest difference between the two.
    Raises:
      VerificationFailed: with the checkpoint's own rows a tower breaks the parity rule, which is
        not the tables' doing; or the recipe states no limit for what they do, by far more than
        rounding.
    """
    reading = {name: tower for name, tower in towers.items() if reference.converted_tables(name)}
    own, lost = (
        feature_values(reference, each) if reading else {} for each in (trained, reference.features)
    )
    effects: Effects = {}
    unstated = []
    for name, tower in reading.items():
        form = find_form(tower.forms, ("saved_model", "f32"))
        assert form is not None  # noqa: S101 - every tower has one
        opened = open_form(reference, root, name, tower, form)
        right, _ = compare([opened], own, expected[name], own_rows=True)
        found = run([opened], lost, reference.examples.n)
        apart = {
            output.name: np.abs(found[output.name] - right[output.name]) for output in tower.outputs
        }
        effects[name] = {output: float(each.max(initial=0.0)) for output, each in apart.items()}
        if opened.limit is None and any(
            (each > allowed(right[key], None) / 2).any() for key, each in apart.items()
        ):
            unstated.append(name)
    if unstated:
        tables = dict.fromkeys(
            table for tower in unstated for table in reference.converted_tables(tower)
        )
        here = [
            f"towers.{name}.max_abs_error.f32 (here {max(effects[name].values()):.3g})"
            for name in unstated
        ]
        raise VerificationFailed(
            f"tables {', '.join(tables)} are converted, so the parity rule does not bind the "
            f"towers that read them: state what their answers may differ by as {', '.join(here)}"
        )
    return effects
