"""Features and attributes of candidates by id; the ONLY place that turns an id into an index position and back.

One Arrow IPC file: column `id`, `feature:<name>` (with `weights:<name>` beside a weighted bag) and `attribute:<name>`.
The position of a candidate in its indexes is its row in this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError, RowOutOfRange, UnknownCandidate
from bundle.features.reader import Column
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores.spools import BLOCK_ROWS
from bundle.stores.writer import find_repeated
from bundle.tables.vocabularies import IntegerKeys, StringKeys

Positions = NDArray[np.int64]


class StoredColumns:
    """Ids, features and attributes by position, memory-mapped and in no memory else, of a store that is trusted.

    Attributes:
      size: candidates held.
      release: lets go of the pages that were read.
    """

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store that this program wrote.

        Raises:
          DigestMismatch: the file is missing.
          FormatError: it is no Arrow IPC file, or not what the manifest says.
        """
        table, self.release = arrow.open_streamed(path)
        self._open(table, path, corpus)

    def _open(self, table: Any, path: Path, corpus: Corpus) -> None:
        where = f"candidate store {path.name!r}"
        self.size = table.num_rows
        if self.size != corpus.size:
            raise FormatError(f"{where} holds {self.size} candidates, the manifest says {corpus.size}")
        keys = arrow.column(table, "id", where)
        if keys.null_count or arrow.kind_of(keys.type) != corpus.id_dtype:
            raise FormatError(
                f"{where} has ids of {keys.type} with {keys.null_count} nulls; {corpus.id_dtype} was expected"
            )
        self._id_column = keys
        self._ids = arrow.integers(keys) if corpus.id_dtype == "int64" else keys
        self._features = {name: _StoredFeature(table, name, where) for name in corpus.features}
        self._attributes = {}
        for name, kind in corpus.attributes.items():
            self._attributes[name] = arrow.column(table, f"attribute:{name}", where)
            if arrow.kind_of(self._attributes[name].type) != kind:
                raise FormatError(f"{where} has attribute {name!r} of {self._attributes[name].type}, not {kind}")

    def ids(self, positions: Positions) -> NDArray[Any]:
        """Returns the ids at [m] int64 positions: [m] int64, or [m] object holding str.

        Raises:
          RowOutOfRange: a position is negative or past the end.
        """
        checked = self._checked(positions)
        if isinstance(self._ids, np.ndarray):
            return self._ids[checked]
        return arrow.texts(arrow.taken(self._ids, checked))

    def id_slices(self) -> Iterator[Any]:
        """Yields all ids as `pyarrow.Array`s of bounded size, letting go of their pages."""
        for first in range(0, self.size, BLOCK_ROWS):
            yield self._id_column.slice(first, BLOCK_ROWS)
            self.release()

    def features(self, positions: Positions, names: Sequence[str]) -> dict[str, Column]:
        """Returns the named features of the candidates at [m] int64 positions, a column of m examples each.

        Raises:
          RowOutOfRange: a position is negative or past the end.
          FeatureError: the store does not hold a feature.
        """
        checked = self._checked(positions)
        absent = [name for name in names if name not in self._features]
        if absent:
            raise FeatureError(absent[0], f"the candidate store does not hold it; it holds {', '.join(self._features)}")
        return {name: self._features[name].take(checked) for name in names}

    def attributes(self, positions: Positions, names: Sequence[str]) -> dict[str, list[Any]]:
        """Returns the named attributes of the candidates at [m] int64 positions: int, float, str, bool, list or None.

        Raises:
          RowOutOfRange: a position is negative or past the end.
          FeatureError: the store does not hold an attribute.
        """
        checked = self._checked(positions)
        absent = [name for name in names if name not in self._attributes]
        if absent:
            raise FeatureError(absent[0], f"no such attribute; candidates have {', '.join(self._attributes) or 'none'}")
        return {name: arrow.taken(self._attributes[name], checked).to_pylist() for name in names}

    def _checked(self, positions: Positions) -> Positions:
        positions = np.asarray(positions, np.int64)
        beyond = positions.view(np.uint64) >= np.uint64(self.size)
        if np.count_nonzero(beyond):
            wrong = positions[beyond][0]
            raise RowOutOfRange(f"position {wrong} asked; the store holds {self.size} candidates")
        return positions


class CandidateStore(StoredColumns):
    """A corpus' candidates by id and by position. Safe for any number of threads."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store, checks all of it and holds it against the manifest.

        Raises:
          DigestMismatch: the file is missing.
          FormatError: it is no sound Arrow IPC file, or not what the manifest says.
        """
        self._open(arrow.open_mapped(path), path, corpus)
        integral = isinstance(self._ids, np.ndarray)
        if not integral:
            self._ids = arrow.texts(self._ids)
        self._keys = IntegerKeys(self._ids) if integral else StringKeys(self._ids.tolist())

    def positions(self, ids: NDArray[Any], what: str = "candidate") -> Positions:
        """Returns [m] int64 positions of ids, -1 where the store does not hold one.

        Args:
          ids: [m] int64, or [m] object holding str.
          what: they are of, for the error.
        Raises:
          UnknownCandidate: a value is no id of this store's kind.
        """
        try:
            return self._keys.positions("id", ids)
        except FeatureError as error:
            raise UnknownCandidate(f"{what} {error.problem}") from error


def check_store(path: Path, corpus: Corpus) -> None:
    """Checks all of a store as `CandidateStore` does, without an index of its ids: in 16 bytes of memory a candidate.

    Raises:
      DigestMismatch: the file is missing.
      FormatError: it is no sound Arrow IPC file, or not what the manifest says, or an id comes twice.
    """
    arrow.open_mapped(path)
    columns = StoredColumns(path, corpus)
    found = find_repeated(columns.id_slices, columns.size)
    if found is not None:
        raise FormatError(f"id {columns.ids(np.array(found)).tolist()[0]!r} comes twice; ids must be distinct")


class _StoredFeature:
    """One feature's values: a plain column, lists of one length, or lists of any length with weights or without."""

    def __init__(self, table: Any, name: str, where: str) -> None:
        import pyarrow as pa

        stored = arrow.column(table, f"feature:{name}", where)
        self._width = 1
        self._offsets: NDArray[np.int64] | None = None
        values = stored
        if pa.types.is_large_list(stored.type):
            self._offsets = arrow.integers(stored.offsets)
            values = stored.values
        elif pa.types.is_fixed_size_list(stored.type):
            self._width = stored.type.list_size
            values = arrow.items(stored)
        if stored.null_count or values.null_count or arrow.kind_of(values.type) not in ("int64", "string", "float"):
            raise FormatError(
                f"{where} has feature {name!r} of {stored.type} with {stored.null_count + values.null_count} nulls; "
                "int64, string or float, or lists of them, without nulls were expected"
            )
        self._text = arrow.kind_of(values.type) == "string"
        self._values = values if self._text else values.to_numpy(zero_copy_only=True)
        self._weights = self._opened_weights(table, name, where)

    def take(self, positions: Positions) -> Column:
        """Copies the values of some candidates into a column."""
        if self._offsets is None:
            places = positions
            if self._width > 1:
                places = (positions[:, np.newaxis] * self._width + np.arange(self._width)).reshape(-1)
            return Column(self._taken(places), None, self._taken_weights(places))
        starts = self._offsets[positions]
        lengths = self._offsets[positions + 1] - starts
        offsets = np.zeros(positions.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Column(self._taken(places), offsets, self._taken_weights(places))

    def _taken(self, places: Positions) -> NDArray[Any]:
        if self._text:
            return arrow.texts(arrow.taken(self._values, places))
        result: NDArray[Any] = self._values[places]
        return result

    def _taken_weights(self, places: Positions) -> NDArray[np.float32] | None:
        return None if self._weights is None else self._weights[places]

    def _opened_weights(self, table: Any, name: str, where: str) -> NDArray[np.float32] | None:
        import pyarrow as pa

        if f"weights:{name}" not in table.column_names:
            return None
        stored = arrow.column(table, f"weights:{name}", where)
        lists = pa.types.is_large_list(stored.type) or pa.types.is_fixed_size_list(stored.type)
        flat = stored.values if pa.types.is_large_list(stored.type) else arrow.items(stored) if lists else stored
        beside = len(flat) == len(self._values) and flat.type == pa.float32() and not flat.null_count
        if beside and self._offsets is not None:
            beside = pa.types.is_large_list(stored.type) and np.array_equal(
                arrow.integers(stored.offsets), self._offsets
            )
        if not beside:
            raise FormatError(
                f"{where} has weights of feature {name!r} that do not lie beside its values, one float each"
            )
        weights: NDArray[np.float32] = flat.to_numpy(zero_copy_only=True)
        return weights
