"""Compares candidates and contexts of a finished bundle with their files, and vectors with the
reference model.

Sampled candidates are read from the file anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column, checked_offsets
from bundle.format.manifest import Manifest
from bundle.storage import files
from bundle.stores.reader import StoredColumns
from export.corpora.files import CorpusFile, locate_corpus, read_rows
from export.errors import VerificationFailed
from export.recipe.schema import CorpusPart, ExportJob
from export.verify.examples import Examples
from export.verify.forms import allowed

SAMPLE = 256
"""Candidates compared of each corpus and index."""

Positions = NDArray[np.int64]
Original = Callable[[str, Examples], NDArray[Any]]
"""(candidate tower, candidates as examples) -> [n, dim] vectors of the reference model."""


def check_candidates(
    root: Path, manifest: Manifest, job: ExportJob, base: Path, original: Original
) -> None:
    """Compares a sample of every corpus with its file, and of every index with the reference model.

    Args:
      root: directory of the staged bundle.
      manifest: of the bundle.
      job: the recipe.
      base: its folder.
      original: gives vectors of the reference model.
    Raises:
      VerificationFailed: an id, feature, attribute or vector is another candidate's, or wrong;
        names the candidate.
    """
    stores = {}
    for kind, parts, entries in (
        ("corpora", job.corpora, manifest.corpora),
        ("contexts", job.contexts, manifest.contexts),
    ):
        for name, part in parts.items():
            file = entries[name].file
            stores[kind, name] = StoredColumns(files.locate(root, file), entries[name])
            sources = locate_corpus(base, name, part, kind)
            _check_store(stores[kind, name], name, part.stored, sources, file)
    for name, index in manifest.indexes.items():
        store = stores["corpora", index.corpus]
        corpus = manifest.corpora[index.corpus]
        positions = _sample(store.size)
        taken = manifest.inputs_of(
            source
            for tensor in manifest.towers[index.candidate_tower].inputs
            for source in tensor.sources
        )
        columns = store.features(positions, [each for each in corpus.features if each in taken])
        right = original(index.candidate_tower, Examples(positions.size, columns))
        written = np.memmap(
            files.locate(root, index.vectors), "<f4", "r", shape=(store.size, index.dim)
        )[positions]
        limit = job.towers[index.candidate_tower].max_abs_error.get("f32")
        missed = ~(np.abs(written.astype(np.float64) - right) <= allowed(right, limit))
        if missed.any():
            place = int(np.argmax(missed.any(axis=1)))
            raise VerificationFailed(
                f"index {name!r}: the vector of candidate {store.ids(positions).tolist()[place]!r} "
                f"(row {positions[place] + 1} of corpus {index.corpus!r}) is not what the original "
                "model gives; "
                f"{int(missed.any(axis=1).sum())} of {positions.size} compared are wrong",
                steps=[index.vectors],
            )


def _sample(size: int) -> Positions:
    return np.unique(np.linspace(0, size - 1, min(size, SAMPLE)).round().astype(np.int64))


def _check_store(
    store: StoredColumns, name: str, part: CorpusPart, files: list[CorpusFile], step: str
) -> None:
    positions = _sample(store.size)
    columns_read = [part.id, *part.features.values(), *part.attributes]
    rows = read_rows(files, name, part, positions, columns_read)
    if len(rows) != positions.size:
        raise VerificationFailed(
            f"corpus {name!r}: its files do not hold the {store.size} candidates of the bundle",
            steps=[step],
        )
    told = files[0].path.name if len(files) == 1 else f"the {len(files)} files"
    ids = store.ids(positions).tolist()
    columns = store.features(positions, list(part.features))
    values = {key: _values(key, column, len(rows)) for key, column in columns.items()}
    attributes = store.attributes(positions, list(part.attributes))
    for place, row in enumerate(rows):
        held: dict[str, tuple[str, Any]] = {"id": (part.id, ids[place])}
        for key, column in part.features.items():
            held[f"feature {key!r}"] = column, values[key][place]
        for key in part.attributes:
            held[f"attribute {key!r}"] = key, attributes[key][place]
        for what, (column, value) in held.items():
            if not _same(row[column], value, part.list_separator):
                raise VerificationFailed(
                    f"corpus {name!r}, row {positions[place] + 1}: {what} is {value!r} in the "
                    f"bundle, column {column!r} of {told} says {row[column]!r}",
                    steps=[step],
                )


def _values(name: str, column: Column, n: int) -> list[list[Any]]:
    offsets = checked_offsets(name, column, n)
    return [each.tolist() for each in np.split(column.values, offsets[1:-1])]


def _same(cell: Any, value: Any, separator: str) -> bool:
    """Tells whether a cell of the file, text or a value, says what the bundle holds."""
    if isinstance(cell, list) and not isinstance(value, list):  # of an Example
        cell = cell[0] if cell else None
    if isinstance(value, list):
        cells = cell.split(separator) if isinstance(cell, str) and len(value) > 1 else cell
        if cells is None or cells == "":
            cells = []
        elif not isinstance(cells, list):
            cells = [cells]
        return len(cells) == len(value) and all(
            _same(*pair, separator) for pair in zip(cells, value, strict=True)
        )
    if value is None:
        return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    if isinstance(value, float):
        return bool(np.isclose(float(cell), value, rtol=1e-6, atol=0))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(cell) == value
    return str(cell) == str(value)
