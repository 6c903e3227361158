"""Features and attributes of candidates by id; the ONLY place that turns an id into an index
position and back.

One Arrow IPC file: column `id`, `feature:<name>` (with `weights:<name>` beside a weighted bag) and
`attribute:<name>`. The position of a candidate in its indexes is its row in this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import FeatureError, FormatError, RowOutOfRange, UnknownCandidate
from bundle.features.reader import Column
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores.writer import find_repeated
from bundle.tables.offsets import offsets_of
from bundle.tables.vocabularies import index_keys

Positions = NDArray[np.int64]

_NUMBER_TEXT_BYTES = 24
"""The longest number as JSON, with quotes and a comma: an int64 beyond 2^53."""


class StoredColumns:
    """Ids, features and attributes by position, memory-mapped and in no memory else, of a store
    that is trusted.

    Attributes:
      size: candidates held.
      release: drops the pages that were read from memory.
    """

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store that this program wrote.

        Raises:
          DigestMismatch: the file is missing.
          FormatError: it is no Arrow IPC file, or not what the manifest says.
        """
        table, self.release = arrow.open_trusted(path)
        self._open(table, path, corpus)

    def _open(self, table: Any, path: Path, corpus: Corpus) -> None:
        where = f"candidate store {path.name!r}"
        self.size = table.num_rows
        if self.size != corpus.size:
            raise FormatError(
                f"{where} holds {self.size} candidates, the manifest says {corpus.size}"
            )
        keys = arrow.column(table, "id", where)
        if keys.null_count or arrow.kind_of(keys.type) != corpus.id_dtype:
            raise FormatError(
                f"{where} has ids of {keys.type} with {keys.null_count} nulls; {corpus.id_dtype} "
                "was expected"
            )
        for name in corpus.features:
            _check_feature(table, name, where)
        for name, kind in corpus.attributes.items():
            stored = arrow.column(table, f"attribute:{name}", where)
            if arrow.kind_of(stored.type) != kind:
                raise FormatError(f"{where} has attribute {name!r} of {stored.type}, not {kind}")
        self._features = tuple(corpus.features)
        self._attributes = tuple(corpus.attributes)
        self._cardinalities: dict[str, tuple[int, int]] = {}
        self._text_bytes: dict[str, int] = {}
        self._batches = [
            dict(zip(table.column_names, batch.columns, strict=True))
            for batch in table.to_batches()
        ]
        self._starts = offsets_of([len(batch["id"]) for batch in self._batches])
        self._numbers = _number_views(self._batches, corpus.features)

    def ids(self, positions: Positions) -> NDArray[Any]:
        """Returns the ids at [m] int64 positions: [m] int64, or [m] object holding str.

        Raises:
          RowOutOfRange: a position is negative or past the end.
        """
        return arrow.values(self._taken(self._checked(positions), ["id"])["id"])

    def id_slices(self) -> Iterator[Any]:
        """Yields all ids as `pyarrow.Array`s of bounded size, dropping their pages from memory."""
        for batch in self._batches:
            yield batch["id"]
            self.release()

    def features(self, positions: Positions, names: Sequence[str]) -> dict[str, Column]:
        """Returns the named features of the candidates at [m] int64 positions, a column of m
        examples each.

        Raises:
          RowOutOfRange: a position is negative or past the end.
          FeatureError: the store does not hold a feature.
        """
        absent = [name for name in names if name not in self._features]
        if absent:
            raise FeatureError(
                absent[0],
                f"the candidate store does not hold it; it holds {', '.join(self._features)}",
            )
        positions = self._checked(positions)
        found = {}
        others = []
        for name in names:
            if name in self._numbers:  # in a tenth of the time that pyarrow takes
                found[name] = Column(self._numbers[name].take(positions))
            else:
                others.append(name)
        wanted = [f"feature:{name}" for name in others] + [f"weights:{name}" for name in others]
        taken = self._taken(positions, [name for name in wanted if name in self._batches[0]])
        for name in others:
            found[name] = _column(taken[f"feature:{name}"], taken.get(f"weights:{name}"))
        return found

    def attributes(self, positions: Positions, names: Sequence[str]) -> dict[str, list[Any]]:
        """Returns the named attributes of the candidates at [m] int64 positions: int, float, str,
        bool, list or None.

        Raises:
          RowOutOfRange: a position is negative or past the end.
          FeatureError: the store does not hold an attribute.
        """
        absent = [name for name in names if name not in self._attributes]
        if absent:
            raise FeatureError(
                absent[0],
                f"no such attribute; candidates have {', '.join(self._attributes) or 'none'}",
            )
        columns = [f"attribute:{name}" for name in names]
        taken = self._taken(self._checked(positions), columns)
        return {name: taken[f"attribute:{name}"].to_pylist() for name in names}

    def numbers(self, positions: Positions, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Returns attributes of numbers or bools of the candidates at [m] int64 positions, null as
        0.
        """
        columns = [f"attribute:{name}" for name in names]
        taken = self._taken(self._checked(positions), columns)
        return {
            name: taken[f"attribute:{name}"]
            .cast("float64", safe=False)
            .fill_null(0.0)
            .to_numpy(zero_copy_only=False)
            for name in names
        }

    def codes(self, positions: Positions, attribute: str) -> NDArray[np.int64]:
        """Returns what is equal for candidates with equal values of an attribute, [m] from 0; -1:
        it is null.
        """
        column = f"attribute:{attribute}"
        taken = self._taken(self._checked(positions), [column])[column]
        codes: NDArray[np.int64] = (
            taken.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
        )
        return codes

    def cardinality(self, attribute: str) -> tuple[int, int]:
        """Returns how many values an attribute has, and how many candidates have none; all are read
        once.
        """
        if attribute not in self._cardinalities:
            import pyarrow as pa

            column = pa.chunked_array([batch[f"attribute:{attribute}"] for batch in self._batches])
            self._cardinalities[attribute] = len(column.unique().drop_null()), column.null_count
        return self._cardinalities[attribute]

    def text_bytes(self, column: str) -> int:
        """Returns about how many bytes a value of a column, such as `id` or `attribute:title`, has
        as text: the longest for numbers, the average for strings and lists.
        """
        found = self._text_bytes.get(column)
        if found is None:
            kind = arrow.kind_of(self._batches[0][column].type)
            if "string" in kind or "list" in kind:
                # With its offsets, which take about as much as quotes and commas.
                stored = sum(batch[column].nbytes for batch in self._batches)
                found = ceil_div(stored, max(1, self.size))
                found *= 1 if "string" in kind else _NUMBER_TEXT_BYTES // 8
            else:
                found = _NUMBER_TEXT_BYTES
            self._text_bytes[column] = found
        return found

    def _checked(self, positions: Positions) -> Positions:
        positions = np.asarray(positions, np.int64)
        beyond = positions.view(np.uint64) >= np.uint64(self.size)
        if np.count_nonzero(beyond):
            raise RowOutOfRange(
                f"position {positions[beyond][0]} asked; the store holds {self.size} candidates"
            )
        return positions

    def _taken(self, positions: Positions, names: Sequence[str]) -> dict[str, Any]:
        """Copies what some columns hold at checked positions, a `pyarrow.Array` of each."""
        if not names:
            return {}
        import pyarrow as pa

        if len(self._batches) == 1:
            return {name: self._batches[0][name].take(pa.array(positions)) for name in names}
        # By batch: `take` of a table would join all its batches first.
        numbers = np.searchsorted(self._starts[1:], positions, side="right")
        order = np.argsort(numbers, kind="stable")
        found: list[list[Any]] = []
        for here in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            number = numbers[here[0]] if here.size else 0
            local = pa.array(positions[here] - self._starts[number])
            found.append([self._batches[number][name].take(local) for name in names])
        if len(found) == 1:
            return dict(zip(names, found[0], strict=True))
        inverse = pa.array(np.argsort(order))
        return {
            name: pa.concat_arrays(parts).take(inverse)
            for name, *parts in zip(names, *found, strict=True)
        }


class CandidateStore(StoredColumns):
    """A corpus' candidates by id and by position. Safe for any number of threads."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store, checks all of it and holds it against the manifest.

        Raises:
          DigestMismatch: the file is missing.
          FormatError: it is no sound Arrow IPC file, or not what the manifest says.
        """
        table = arrow.open_mapped(path)
        self._open(table, path, corpus)
        self._keys = index_keys(table["id"])
        self._integers: NDArray[np.int64] | None = None
        if corpus.id_dtype == "int64":
            self._integers = arrow.values(table["id"])

    def ids(self, positions: Positions) -> NDArray[Any]:
        """See `StoredColumns.ids`."""
        if self._integers is None:
            return super().ids(positions)
        # Ten times as fast as pyarrow's.
        return self._integers.take(self._checked(positions))

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
    """Checks all of a store as `CandidateStore` does, without an index of its ids: in 16 bytes of
    memory a candidate.

    Raises:
      DigestMismatch: the file is missing.
      FormatError: it is no sound Arrow IPC file, or not what the manifest says, or an id comes
        twice.
    """
    arrow.open_mapped(path)
    columns = StoredColumns(path, corpus)
    found = find_repeated(columns.id_slices, columns.size)
    if found is not None:
        raise FormatError(
            f"id {columns.ids(np.array(found)).tolist()[0]!r} comes twice; ids must be distinct"
        )


def _number_views(
    batches: Sequence[Mapping[str, Any]], features: Iterable[str]
) -> dict[str, NDArray[Any]]:
    """Returns views of the features of which each candidate has one number, by name; none where the
    candidates are in several batches.
    """
    if len(batches) != 1:
        return {}
    (batch,) = batches
    views = {}
    for name in features:
        stored = batch[f"feature:{name}"]
        if arrow.kind_of(stored.type) in {"int64", "float"} and f"weights:{name}" not in batch:
            views[name] = arrow.values(stored)
    return views


def _column(stored: Any, weights: Any) -> Column:
    """Returns what was taken of one feature: values, lists of one length, or lists of
    any length.
    """
    import pyarrow as pa

    flat = None if weights is None else arrow.values(_flat(weights))
    offsets = None
    if pa.types.is_large_list(stored.type):
        offsets = arrow.values(stored.offsets)
        offsets = offsets - offsets[0]
    return Column(arrow.values(_flat(stored)), offsets, flat)


def _check_feature(table: Any, name: str, where: str) -> None:
    """Raises FormatError where a feature, or the weights of one, are not stored as the
    format says.
    """
    import pyarrow as pa

    stored = arrow.column(table, f"feature:{name}", where)
    values = _flat(stored)
    if (
        stored.null_count
        or values.null_count
        or arrow.kind_of(values.type) not in ("int64", "string", "float")
    ):
        raise FormatError(
            f"{where} has feature {name!r} of {stored.type} with "
            f"{stored.null_count + values.null_count} nulls; "
            "int64, string or float, or lists of them, without nulls were expected"
        )
    if f"weights:{name}" not in table.column_names:
        return
    weights = arrow.column(table, f"weights:{name}", where)
    flat = _flat(weights)
    beside = (
        len(flat) == len(values)
        and flat.type == pa.float32()
        and not flat.null_count
        and not weights.null_count
    )
    if beside and pa.types.is_large_list(stored.type):
        beside = pa.types.is_large_list(weights.type) and all(
            mine.offsets.equals(theirs.offsets)
            for mine, theirs in zip(stored.chunks, weights.chunks, strict=True)
        )
    if not beside:
        raise FormatError(
            f"{where} has weights of feature {name!r} that do not lie beside its values, one float "
            "each"
        )


def _flat(stored: Any) -> Any:
    import pyarrow as pa

    if not (pa.types.is_large_list(stored.type) or pa.types.is_fixed_size_list(stored.type)):
        return stored
    if isinstance(stored, pa.ChunkedArray):
        return pa.chunked_array(
            [chunk.flatten() for chunk in stored.chunks], stored.type.value_type
        )
    return stored.flatten()
