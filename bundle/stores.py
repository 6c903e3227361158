"""Features and attributes of candidates by id; the ONLY place that turns an id into an index position and back.

One Arrow IPC file: column `id`, `feature:<name>` (with `weights:<name>` beside a weighted bag) and `attribute:<name>`.
The position of a candidate in its indexes is its row in this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle import arrow
from bundle.errors import FeatureError, FormatError, RowOutOfRange
from bundle.features import Column
from bundle.ids import IntegerKeys, StringKeys, known_kind
from bundle.manifest import Corpus

Positions = NDArray[np.int64]
_CURE = "cast it to one of int64, double, string, bool or list<string> before the export"


@dataclass(frozen=True)
class WrittenStore:
    """What the manifest says of a store that was written."""

    size: int
    id_dtype: Literal["int64", "string"]
    features: tuple[str, ...]
    attributes: dict[str, str]
    """Arrow type by attribute: int64, double, string, bool or list<string>."""


def write_store(path: Path, ids: Any, features: Mapping[str, Column], attributes: Mapping[str, Any]) -> WrittenStore:
    """Writes a candidate store.

    Args:
      path: of the Arrow IPC file.
      ids: [size] distinct integers or strings without nulls: a numpy array or a `pyarrow.Array`.
      features: a column of `size` examples each, as a caller would send it.
      attributes: a `pyarrow.Array` of `size` values each: integers, floats (NaN becomes null), strings, bools or lists
        of strings; nulls allowed.
    Raises:
      FormatError: an id is null, comes twice or is no id; a column has another length; an attribute's type is none of
        those. Names the id or the attribute; nothing was written.
    """
    import pyarrow as pa

    keys = _distinct(ids)
    id_type = pa.int64() if keys.dtype == np.int64 else pa.large_string()
    columns = {"id": pa.array(keys, id_type)}
    for name, column in features.items():
        columns[f"feature:{name}"] = _feature_array(name, column, keys.size)
        if column.weights is not None:
            weights = Column(np.asarray(column.weights, np.float32), column.offsets)
            columns[f"weights:{name}"] = _feature_array(name, weights, keys.size)
    kinds = {}
    for name, values in attributes.items():
        columns[f"attribute:{name}"], kinds[name] = _attribute_array(name, values, keys.size)
    arrow.write(path, pa.table(columns))
    return WrittenStore(keys.size, "int64" if keys.dtype == np.int64 else "string", tuple(features), kinds)


class CandidateStore:
    """A corpus' candidates, memory-mapped. Safe for any number of threads.

    Attributes:
      size: candidates held.
    """

    def __init__(self, path: Path, corpus: Corpus) -> None:
        """Opens a store and holds it against the manifest.

        Raises:
          DigestMismatch: the file is missing.
          FormatError: it is no sound Arrow IPC file, or not what the manifest says.
        """
        table = arrow.open_mapped(path)
        where = f"candidate store {path.name!r}"
        self.size = table.num_rows
        if self.size != corpus.size:
            raise FormatError(f"{where} holds {self.size} candidates, the manifest says {corpus.size}")
        keys = arrow.column(table, "id", where)
        if keys.null_count or _kind(keys.type) != corpus.id_dtype:
            raise FormatError(
                f"{where} has ids of {keys.type} with {keys.null_count} nulls; {corpus.id_dtype} was expected"
            )
        integral = corpus.id_dtype == "int64"
        self._ids = arrow.integers(keys) if integral else arrow.texts(keys)
        self._keys = IntegerKeys(self._ids) if integral else StringKeys(self._ids.tolist())
        self._features = {name: _StoredFeature(table, name, where) for name in corpus.features}
        self._attributes = {}
        for name, kind in corpus.attributes.items():
            self._attributes[name] = arrow.column(table, f"attribute:{name}", where)
            if _kind(self._attributes[name].type) != kind:
                raise FormatError(f"{where} has attribute {name!r} of {self._attributes[name].type}, not {kind}")

    def ids(self, positions: Positions) -> NDArray[Any]:
        """Returns the ids at [m] int64 positions: [m] int64, or [m] object holding str.

        Raises:
          RowOutOfRange: a position is negative or past the end.
        """
        return self._ids[self._checked(positions)]

    def positions(self, ids: NDArray[Any]) -> Positions:
        """Returns [m] int64 positions of ids, -1 where the store does not hold one.

        Raises:
          FeatureError: a value is no id of this store's kind.
        """
        return self._keys.positions("id", ids)

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
        return {name: self._attributes[name].take(_indices(checked)).to_pylist() for name in names}

    def _checked(self, positions: Positions) -> Positions:
        positions = np.asarray(positions, np.int64)
        beyond = positions.view(np.uint64) >= np.uint64(self.size)
        if np.count_nonzero(beyond):
            wrong = positions[beyond][0]
            raise RowOutOfRange(f"position {wrong} asked; the store holds {self.size} candidates")
        return positions


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
            values = stored.flatten()
        if stored.null_count or values.null_count or _kind(values.type) not in ("int64", "string", "float"):
            raise FormatError(
                f"{where} has feature {name!r} of {stored.type} with {stored.null_count + values.null_count} nulls; "
                "int64, string or float, or lists of them, without nulls were expected"
            )
        self._text = _kind(values.type) == "string"
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
            return arrow.texts(self._values.take(_indices(places)))
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
        flat = stored.values if pa.types.is_large_list(stored.type) else stored.flatten() if lists else stored
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


def _distinct(ids: Any) -> NDArray[Any]:
    import pyarrow as pa

    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if isinstance(ids, pa.Array):
        if ids.null_count:
            row = ids.is_null().index(True).as_py()
            raise FormatError(f"id of candidate {row} is null; every candidate needs an id")
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        ids = arrow.texts(ids) if _kind(ids.type) == "string" else ids.to_numpy(zero_copy_only=False)
    try:
        keys = known_kind("id", ids)
    except FeatureError as problem:
        raise FormatError(f"candidate ids: {problem}") from problem
    if keys.dtype == np.int64:
        IntegerKeys(keys)
    else:
        StringKeys(keys.tolist())
    return keys


def _feature_array(name: str, column: Column, size: int) -> Any:
    import pyarrow as pa

    values, kind = column.values, column.values.dtype.kind
    if kind in "iu":
        flat = pa.array(known_kind(name, values), pa.int64())
    elif kind == "f":
        flat = pa.array(values.astype(np.float32, copy=False), pa.float32())
    else:
        try:
            flat = pa.array(known_kind(name, values), pa.large_string())
        except FeatureError as problem:
            raise FormatError(f"candidates: {problem}") from problem
    if column.offsets is not None:
        offsets = np.asarray(column.offsets, np.int64)
        sound = offsets.size == size + 1 and offsets[0] == 0 and offsets[-1] == values.size
        if not (sound and bool((offsets[1:] >= offsets[:-1]).all())):
            raise FormatError(
                f"feature {name!r}: offsets do not cut {values.size} values into lists of {size} candidates"
            )
        return pa.LargeListArray.from_arrays(pa.array(offsets), flat)
    width = values.size // size if size else 1
    if values.size != width * size or (size and not width):
        raise FormatError(
            f"feature {name!r} has {values.size} values for {size} candidates; equally many were expected"
        )
    return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _attribute_array(name: str, values: Any, size: int) -> tuple[Any, str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if len(array) != size:
        raise FormatError(f"attribute {name!r} has {len(array)} values for {size} candidates; one each was expected")
    kind = array.type
    try:
        if pa.types.is_integer(kind):
            array = array.cast(pa.int64())
        elif pa.types.is_floating(kind):
            array = array.cast(pa.float64())
            array = pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
            if pc.any(pc.is_inf(array)).as_py():
                raise FormatError(f"attribute {name!r} holds {math.inf}, which JSON cannot carry; write null instead")
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            array = array.cast(pa.large_string())
        elif _kind(kind) == "list<string>":
            array = array.cast(pa.large_list(pa.large_string()))
        elif not pa.types.is_boolean(kind):
            raise FormatError(f"attribute {name!r} has Arrow type {kind}; {_CURE}")
    except pa.ArrowInvalid as problem:
        raise FormatError(f"attribute {name!r} of Arrow type {kind}: {problem}; {_CURE}") from problem
    return array, _kind(array.type)


def _kind(arrow_type: Any) -> str:
    # The type's name in the manifest: the width of offsets and the names of items are no business of a caller.
    import pyarrow as pa

    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return f"list<{_kind(arrow_type.value_type)}>"
    return str(arrow_type).removeprefix("large_")


def _indices(positions: Positions) -> Any:
    import pyarrow as pa

    return pa.array(positions)
