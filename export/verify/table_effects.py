"""What converted tables change in the answers: towers fed with the checkpoint's own rows beside the bundle's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format import manifest
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary
from export.errors import VerificationFailed
from export.graph.specs import WrittenForm
from export.verify import parity
from export.verify.reference_model import ReadRows, Replay, Results

Effects = dict[str, dict[str, float]]
"""Tower -> output -> the largest difference that converted tables alone make."""


class TrainedRows(TableReader):
    """Rows of a converted table as the checkpoint holds them, read where they lie; for a few, or in their order."""

    def __init__(self, name: str, table: manifest.Table, read_rows: ReadRows) -> None:
        self.rows, self.dim, self.dtype = table.rows, table.dim, "float32"
        self._name, self._read_rows = name, read_rows

    def take(self, rows: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
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


def trained_features(
    pages: Mapping[str, manifest.Feature],
    readers: Mapping[str, TableReader],
    tables: Mapping[str, manifest.Table],
    vocabularies: Mapping[str, Vocabulary],
    keys: Mapping[str, KeyIndex],
    read_rows: ReadRows,
) -> FeatureReader:
    """Returns a reader of features that takes the checkpoint's own rows where the bundle's were converted."""
    own = {name: TrainedRows(name, tables[name], read_rows) for name in converted(tables)}
    return FeatureReader(pages, {**readers, **own}, vocabularies, keys)


def converted(tables: Mapping[str, manifest.Table]) -> tuple[str, ...]:
    """Returns the names of the tables whose rows were converted."""
    return tuple(name for name, table in tables.items() if table.error is not None)


def measure_effects(
    replayed: Replay, trained: FeatureReader, root: Path, forms: Sequence[WrittenForm], expected: Results
) -> Effects:
    """Runs the SavedModels of towers that read converted tables on both kinds of rows.

    Args:
      replayed: the examples, and the bundle's own reader of their features.
      trained: what `trained_features` returned.
      root: directory of the staged bundle.
      forms: what was written.
      expected: what the original model gives for the examples.
    Returns:
      By tower and output, the largest difference between the two.
    Raises:
      VerificationFailed: with the checkpoint's own rows a tower breaks the parity rule, which is not the tables' doing;
        or the recipe states no limit for what they do, by far more than rounding.
    """
    values = {whose: parity.feature_values(replayed, whose) for whose in (trained, replayed.features)}
    effects: Effects = {}
    unstated = []
    for form in forms:
        plain = form.kind == "saved_model" and form.precision == "f32" and not form.part
        if not plain or not replayed.converted_tables(form.tower):
            continue
        opened = parity.open_form(replayed, form, root)
        parity.compare(opened, values[trained], expected[form.tower])
        right, found = (
            opened.tower.run(parity.inputs_of(opened.spec, each, replayed.examples.n)) for each in values.values()
        )
        apart = {output.name: np.abs(found[output.name] - right[output.name]) for output in opened.spec.outputs}
        effects[form.tower] = {name: float(each.max(initial=0.0)) for name, each in apart.items()}
        told = any((each > parity.allowed(right[name], None) / 2).any() for name, each in apart.items())
        if told and "f32" not in replayed.job.towers[form.tower].max_abs_error:
            unstated.append(form.tower)
    if unstated:
        raise VerificationFailed(_unstated(replayed, {name: effects[name] for name in unstated}))
    return effects


def _unstated(replayed: Replay, effects: Effects) -> str:
    tables = dict.fromkeys(table for tower in effects for table in replayed.converted_tables(tower))
    found = [f"towers.{tower}.max_abs_error.f32 (here {max(each.values()):.3g})" for tower, each in effects.items()]
    return (
        f"tables {', '.join(tables)} are converted, so the parity rule does not bind the towers that read them: state "
        f"what their answers may differ by as {', '.join(found)}; nothing is published"
    )
