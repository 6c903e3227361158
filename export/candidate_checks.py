"""The judge of candidates: what a finished bundle holds of them, against the corpus' file and the original model.

Sampled candidates are read from the file anew, by plain readers, and their vectors computed by the original model.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle import files
from bundle.features import Column
from bundle.manifest import Manifest
from bundle.stores import CandidateStore
from export.errors import VerificationFailed
from export.examples import Examples
from export.replay import allowed
from export.settings import CorpusPart, ExportJob

SAMPLE = 256
"""Candidates compared of each corpus and index."""

Positions = NDArray[np.int64]
Original = Callable[[str, Examples], NDArray[Any]]
"""(candidate tower, candidates as examples) -> [n, dim] vectors of the original model."""


def check_candidates(root: Path, page: Manifest, job: ExportJob, base: Path, original: Original) -> None:
    """Compares a sample of every corpus with its file, and of every index with the original model.

    Args:
      root: directory of the staged bundle.
      page: its manifest.
      job: the recipe.
      base: its folder.
      original: the original model.
    Raises:
      VerificationFailed: an id, feature, attribute or vector is another candidate's, or wrong; names the candidate.
    """
    stores = {name: CandidateStore(files.locate(root, each.file), each) for name, each in page.candidates.items()}
    for name, part in job.candidates.items():
        _check_store(stores[name], _sample(stores[name].size), name, part, base / part.file)
    for name, index in page.indexes.items():
        store, corpus = stores[index.corpus], page.candidates[index.corpus]
        positions = _sample(store.size)
        taken = {tensor.feature for tensor in page.towers[index.candidate_tower].inputs}
        columns = store.features(positions, [each for each in corpus.features if each in taken])
        right = original(index.candidate_tower, Examples(positions.size, columns))
        written = np.memmap(files.locate(root, index.vectors), "<f4", "r", shape=(store.size, index.dim))[positions]
        limit = job.towers[index.candidate_tower].max_abs_error.get("f32")
        missed = ~(np.abs(written.astype(np.float64) - right) <= allowed(right, limit))
        if missed.any():
            place = int(np.argmax(missed.any(axis=1)))
            raise VerificationFailed(
                f"index {name!r}: the vector of candidate {store.ids(positions).tolist()[place]!r} (row "
                f"{positions[place] + 1} of corpus {index.corpus!r}) is not what the original model gives; "
                f"{int(missed.any(axis=1).sum())} of {positions.size} compared are wrong; nothing is published"
            )


def _sample(size: int) -> Positions:
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).round().astype(np.int64))


def _check_store(store: CandidateStore, positions: Positions, name: str, part: CorpusPart, path: Path) -> None:
    rows = _rows(path, positions, [part.id, *part.features.values(), *part.attributes])
    ids = store.ids(positions).tolist()
    if store.positions(store.ids(positions)).tolist() != positions.tolist():
        raise VerificationFailed(f"corpus {name!r}: ids do not lead to the positions that hold them")
    columns = store.features(positions, list(part.features))
    attributes = store.attributes(positions, list(part.attributes))
    for place, row in enumerate(rows):
        held = {"id": (part.id, ids[place])}
        held |= {
            f"feature {key!r}": (column, _values(columns[key], place, len(rows)))
            for key, column in part.features.items()
        }
        held |= {f"attribute {key!r}": (key, attributes[key][place]) for key in part.attributes}
        for what, (column, value) in held.items():
            if not _same(row[column], value, part.list_separator):
                raise VerificationFailed(
                    f"corpus {name!r}, row {positions[place] + 1}: {what} is {value!r} in the bundle, column "
                    f"{column!r} of {path.name} says {row[column]!r}; nothing is published"
                )


def _rows(path: Path, positions: Positions, columns: list[str]) -> list[dict[str, Any]]:
    """Returns the cells of rows in ascending order: text of a CSV file, values of a Parquet file."""
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        taken = parquet.read_table(path, columns=list(dict.fromkeys(columns))).take(positions)
        return list(taken.to_pylist())
    csv.field_size_limit(1 << 30)
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = iter(csv.DictReader(lines))
        skipped = np.diff(positions, prepend=-1) - 1
        return [next(islice(reader, int(count), None)) for count in skipped]


def _values(column: Column, place: int, n: int) -> list[Any]:
    each = column.values.size // n
    start, stop = (place * each, (place + 1) * each) if column.offsets is None else column.offsets[place : place + 2]
    return list(column.values[int(start) : int(stop)].tolist())


def _same(cell: Any, value: Any, separator: str) -> bool:
    """Tells whether a cell of the file, text or a value, says what the bundle holds."""
    if isinstance(value, list):
        cells = cell.split(separator) if isinstance(cell, str) and cell and len(value) > 1 else cell or []
        cells = cells if isinstance(cells, list) else [cells]
        return len(cells) == len(value) and all(_same(*pair, separator) for pair in zip(cells, value, strict=True))
    if value is None:
        return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    if isinstance(value, float):
        return bool(np.isclose(float(cell), value, rtol=1e-6, atol=0))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(cell) == value
    return str(cell) == str(value)
