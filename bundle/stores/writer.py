"""Writes a candidate store in batches: columns grow on disk, then become one Arrow record batch."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import farmhash
import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column
from bundle.storage import arrow
from bundle.stores.spools import Spool
from bundle.tables.id_values import known_kind

_CURE = "cast it to one of int64, double, string, bool or list<string> before the export"


@dataclass(frozen=True)
class WrittenStore:
    """What the manifest says of a store that was written."""

    size: int
    id_dtype: Literal["int64", "string"]
    features: tuple[str, ...]
    attributes: dict[str, str]
    """Arrow type by attribute: int64, double, string, bool or list<string>."""


class StoreWriter:
    """Writes one candidate store; memory holds a batch, and 16 bytes a candidate while ids are compared.

    Used as a context: at its end the files beside the store are removed, and without `finish` no store is left.
    """

    def __init__(self, path: Path) -> None:
        """Begins a store that will be the Arrow IPC file at `path`."""
        self._path = path
        self._made = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = Path(tempfile.mkdtemp(prefix=".columns-", dir=path.parent))
        self._columns: dict[str, Spool] = {}
        self._features: dict[str, None] = {}
        self._attributes: dict[str, None] = {}
        self._casts = 0
        self.size = 0

    def append(self, ids: Any, features: Mapping[str, Column], attributes: Mapping[str, Any]) -> None:
        """Appends candidates. Every batch has the same features and attributes.

        Args:
          ids: [n] integers or strings without nulls: a numpy array or a `pyarrow.Array`.
          features: a column of n examples each, as a caller would send it.
          attributes: a `pyarrow.Array` of n values each: integers, floats (NaN becomes null), strings, bools or lists
            of strings; nulls allowed.
        Raises:
          FormatError: an id is null or is no id; a column has another length; an attribute's type is none of those, or
            another than in the batches before. Names the id or the attribute.
        """
        import pyarrow as pa

        keys = _checked_ids(ids, self.size)
        arrays = {"id": pa.array(keys, pa.int64() if keys.dtype == np.int64 else pa.large_string())}
        for name, column in features.items():
            arrays[f"feature:{name}"] = _feature_array(name, column, keys.size)
            if column.weights is not None:
                weights = Column(np.asarray(column.weights, np.float32), column.offsets)
                arrays[f"weights:{name}"] = _feature_array(name, weights, keys.size)
        for name, values in attributes.items():
            arrays[f"attribute:{name}"] = _attribute_array(name, values, keys.size)
        self._features |= dict.fromkeys(features)
        self._attributes |= dict.fromkeys(attributes)
        for name, array in arrays.items():
            if name not in self._columns:
                told = "candidate ids" if name == "id" else name.replace(":", " ")
                self._columns[name] = Spool(self._beside, told, len(self._columns), name.startswith("feature:"))
            self._columns[name].append(array)
        self.size += keys.size

    def cast(self, attribute: str, kind: Any) -> None:
        """Turns an attribute of strings into one of integers or floats, when all of it was seen.

        Raises:
          FormatError: a value is infinite.
        """
        name = f"attribute:{attribute}"
        self._casts += 1
        changed = Spool(self._beside, name.replace(":", " "), len(self._columns) + self._casts)
        for part in self._columns[name].slices():
            changed.append(_attribute_array(attribute, part.cast(kind), len(part)))
        self._columns[name] = changed

    def repeated(self) -> tuple[int, int] | None:
        """Returns the first candidate whose id was there before, after the one that has it: two positions."""
        return find_repeated(self._columns["id"].slices, self.size)

    def id(self, position: int) -> Any:
        """Returns one id; nothing may be appended any more."""
        return self._columns["id"].array()[position].as_py()

    def finish(self) -> WrittenStore:
        """Writes the store.

        Raises:
          FormatError: an id comes twice, or an attribute is null everywhere.
          OSError: the disk refuses.
        """
        import pyarrow as pa

        found = self.repeated()
        if found is not None:
            raise FormatError(f"id {self.id(found[0])!r} comes twice; ids must be distinct")
        arrays = {name: column.array() for name, column in self._columns.items()}
        kinds = {name: arrow.kind_of(arrays[f"attribute:{name}"].type) for name in self._attributes}
        for name, kind in kinds.items():
            if kind == "null":
                raise FormatError(f"attribute {name!r} has Arrow type null; {_CURE}")
        batch = pa.record_batch(list(arrays.values()), names=list(arrays))
        aside = self._beside / self._path.name
        arrow.write_mapped(aside, batch, self._release)
        aside.replace(self._path)
        self._made.clear()
        integral = arrays["id"].type == pa.int64()
        return WrittenStore(self.size, "int64" if integral else "string", tuple(self._features), kinds)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._beside, ignore_errors=True)
        for directory in self._made:
            with suppress(OSError):
                directory.rmdir()

    def _release(self) -> None:
        for column in self._columns.values():
            column.release()


def write_store(path: Path, ids: Any, features: Mapping[str, Column], attributes: Mapping[str, Any]) -> WrittenStore:
    """Writes a candidate store of one batch; see StoreWriter.

    Raises:
      FormatError: an id is null, comes twice or is no id; a column has another length; an attribute's type cannot be
        kept. Names the id or the attribute; nothing was written.
    """
    with StoreWriter(path) as writer:
        writer.append(ids, features, attributes)
        return writer.finish()


def find_repeated(slices: Callable[[], Iterator[Any]], size: int) -> tuple[int, int] | None:
    """Finds an id that comes twice, in 16 bytes of memory each.

    Args:
      slices: yields the ids, int64 or strings without nulls, from the first; called up to twice.
      size: how many they are.
    Returns:
      The positions of the id that was there before, and of the first that repeats one; None if all are distinct.
    """
    marks = np.empty(size, np.uint64)
    done = 0
    for part in slices():
        marks[done : done + len(part)] = _marks(part)
        done += len(part)
    ordered = np.sort(marks)
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    if not suspects.size:
        return None
    # Different strings may share a mark, so those that do are compared themselves.
    positions: dict[Any, int] = {}
    first = 0
    for part in slices():
        for place in np.flatnonzero(np.isin(marks[first : first + len(part)], suspects)).tolist():
            value = part[place].as_py()
            if value in positions:
                return positions[value], first + place
            positions[value] = first + place
        first += len(part)
    return None


def _marks(ids: Any) -> NDArray[np.uint64]:
    import pyarrow as pa

    if ids.type == pa.int64():
        result: NDArray[np.uint64] = ids.to_numpy(zero_copy_only=False).view(np.uint64)
        return result
    return np.array([farmhash.fingerprint64(text) for text in ids.to_pylist()], np.uint64)


def _checked_ids(ids: Any, first: int) -> NDArray[Any]:
    import pyarrow as pa

    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if isinstance(ids, pa.Array):
        if ids.null_count:
            row = first + ids.is_null().index(True).as_py()
            raise FormatError(f"id of candidate {row} is null; every candidate needs an id")
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        ids = arrow.texts(ids) if arrow.kind_of(ids.type) == "string" else ids.to_numpy(zero_copy_only=False)
    try:
        return known_kind("id", ids)
    except FeatureError as problem:
        raise FormatError(f"candidate ids: {problem}") from problem


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


def _attribute_array(name: str, values: Any, size: int) -> Any:
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
        elif arrow.kind_of(kind) == "list<string>":
            array = array.cast(pa.large_list(pa.large_string()))
        elif not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise FormatError(f"attribute {name!r} has Arrow type {kind}; {_CURE}")
    except pa.ArrowInvalid as problem:
        raise FormatError(f"attribute {name!r} of Arrow type {kind}: {problem}; {_CURE}") from problem
    return array
