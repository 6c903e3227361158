"""Writes a candidate store in batches, through an Arrow IPC file for each set of column types that
came.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from bundle.tables.id_values import known_kind

BATCH_BYTES = 16 << 20
"""Of a record batch of a store, about: a writer holds two, a reader looks into each that a request
touches.
"""
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
    """Writes one candidate store; memory holds a batch, and 16 bytes a candidate while ids are
    compared.

    Batches are spooled as they come; a column's type may widen, and is known at the end. Used as a
    context: at its end the spooled files are removed, and without `finish` no store is left.
    """

    def __init__(self, path: Path) -> None:
        """Begins a store that will be the Arrow IPC file at `path`."""
        self._path = path
        self._made = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix=".columns-", dir=path.parent))
        self._spools: list[Path] = []
        self._spool: Any = None
        self._held: list[Any] = []
        self._schema: Any = None
        self._features: dict[str, None] = {}
        self._attributes: dict[str, None] = {}
        self._casts: dict[str, Any] = {}
        self.size = 0

    def append(
        self, ids: Any, features: Mapping[str, Column], attributes: Mapping[str, Any]
    ) -> None:
        """Appends candidates. Every batch has the same features and attributes.

        Args:
          ids: [n] integers or strings without nulls: a numpy array or a `pyarrow.Array`.
          features: a column of n examples each, as a caller would send it.
          attributes: a `pyarrow.Array` of n values each: integers, floats (NaN becomes null),
            strings, bools or lists of strings; nulls allowed.
        Raises:
          FormatError: an id is null or is no id; a column has another length; an attribute's type
            is none of those, or another than in the batches before. Names the id or the attribute.
        """
        import pyarrow as pa

        keys = _checked_ids(ids, self.size)
        arrays = {"id": pa.array(keys, pa.int64() if keys.dtype == np.int64 else pa.large_string())}
        for name, column in features.items():
            arrays[f"feature:{name}"] = feature_array(name, column, keys.size)
            if column.weights is not None:
                weights = Column(np.asarray(column.weights, np.float32), column.offsets)
                arrays[f"weights:{name}"] = feature_array(name, weights, keys.size)
        for name, values in attributes.items():
            arrays[f"attribute:{name}"] = _attribute_array(name, values, keys.size)
        self._features |= dict.fromkeys(features)
        self._attributes |= dict.fromkeys(attributes)
        held = (
            {}
            if self._schema is None
            else dict(zip(self._schema.names, self._schema.types, strict=True))
        )
        schema = pa.schema(
            [(name, _widened(name, held.get(name), array.type)) for name, array in arrays.items()]
        )
        if schema != self._schema:
            self._close_spool()
            self._spools.append(self._directory / f"{len(self._spools)}.arrow")
            self._spool = pa.ipc.new_file(str(self._spools[-1]), schema)
            self._schema = schema
        self._held.append(_as_schema(list(arrays.values()), schema))
        if sum(batch.nbytes for batch in self._held) >= BATCH_BYTES:
            self._spool_held()
        self.size += keys.size

    def cast(self, attribute: str, kind: Any) -> None:
        """Has `finish` turn an attribute of strings into one of integers or floats."""
        self._casts[f"attribute:{attribute}"] = kind

    def repeated(self) -> tuple[int, int] | None:
        """Returns the first candidate whose id was there before, after the one that has it: two
        positions.
        """
        return find_repeated(self._ids, self.size)

    def id(self, position: int) -> Any:
        """Returns one id; nothing may be appended any more."""
        for part in self._ids():
            if position < len(part):
                return part[position].as_py()
            position -= len(part)
        raise IndexError(position)

    def finish(self) -> WrittenStore:
        """Writes the store.

        Raises:
          FormatError: an id comes twice, an attribute is null everywhere, or a value to be cast is
            infinite.
          OSError: the disk rejects.
        """
        import pyarrow as pa

        found = self.repeated()
        if found is not None:
            raise FormatError(f"id {self.id(found[0])!r} comes twice; ids must be distinct")
        types = dict(zip(self._schema.names, self._schema.types, strict=True)) | self._casts
        kinds = {name: arrow.kind_of(types[f"attribute:{name}"]) for name in self._attributes}
        for name, kind in kinds.items():
            if kind == "null":
                raise FormatError(f"attribute {name!r} has Arrow type null; {_CURE}")
        if self._casts or len(self._spools) > 1:
            unfinished = self._directory / self._path.name
            schema = pa.schema(list(types.items()))
            with pa.ipc.new_file(str(unfinished), schema) as writer:
                for batch in self._batches():
                    columns = [
                        self._cast(*each) for each in zip(schema.names, batch.columns, strict=True)
                    ]
                    writer.write_batch(_as_schema(columns, schema))
            self._spools = [unfinished]
        self._spools[0].replace(self._path)
        self._made.clear()
        id_dtype: Literal["int64", "string"] = "int64" if types["id"] == pa.int64() else "string"
        return WrittenStore(self.size, id_dtype, tuple(self._features), kinds)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_spool()
        shutil.rmtree(self._directory, ignore_errors=True)
        for directory in self._made:
            with suppress(OSError):
                directory.rmdir()

    def _spool_held(self) -> None:
        import pyarrow as pa

        if self._held:
            self._spool.write_batch(pa.concat_batches(self._held))
            self._held = []

    def _close_spool(self) -> None:
        if self._spool is not None:
            self._spool_held()
            self._spool.close()
            self._spool = None

    def _batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yields what was spooled, or some columns of it."""
        import pyarrow as pa

        self._close_spool()
        for path in self._spools:
            with pa.OSFile(str(path)) as source:
                names = pa.ipc.open_file(source).schema.names
                wanted = None if columns is None else [names.index(name) for name in columns]
                reader = pa.ipc.open_file(
                    source, options=pa.ipc.IpcReadOptions(included_fields=wanted)
                )
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def _ids(self) -> Iterator[Any]:
        return (batch.column(0) for batch in self._batches(["id"]))

    def _cast(self, name: str, array: Any) -> Any:
        kind = self._casts.get(name)
        attribute = name.removeprefix("attribute:")
        return array if kind is None else _attribute_array(attribute, array.cast(kind), len(array))


def write_store(
    path: Path, ids: Any, features: Mapping[str, Column], attributes: Mapping[str, Any]
) -> WrittenStore:
    """Writes a candidate store of one batch; see StoreWriter.

    Raises:
      FormatError: an id is null, comes twice or is no id; a column has another length; an
        attribute's type cannot be kept. Names the id or the attribute; nothing was written.
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
      The positions of the id that was there before, and of the first that repeats one; None if all
      are distinct.
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


def cast(array: Any, kind: Any) -> Any:
    """Returns a `pyarrow.Array` as another type; single values become lists where lists are stored.

    Raises:
      ArrowInvalid, ArrowNotImplementedError: A value does not fit the type.
    """
    import pyarrow as pa

    single = array.type == _leaf(array.type) and not pa.types.is_null(array.type)
    if single and pa.types.is_large_list(kind):
        array = pa.LargeListArray.from_arrays(pa.array(np.arange(len(array) + 1)), array)
    return array.cast(kind)


def is_list(kind: Any) -> bool:
    """Returns whether an Arrow type is one of lists, however they are stored."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def without_nan(name: str, array: Any) -> Any:
    """Returns the float64 values of an attribute with null in the place of NaN.

    Raises:
      FormatError: A value is infinite.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
    if pc.any(pc.is_inf(array)).as_py():
        raise FormatError(
            f"attribute {name!r} holds {math.inf}, which JSON cannot carry; write null instead"
        )
    return array


def _widened(name: str, held: Any, new: Any) -> Any:
    """Returns the type that a column has after values of type `new`: text may follow numbers in
    features only.
    """
    import pyarrow as pa

    if held is None or held == new or pa.types.is_null(held):
        return new
    if pa.types.is_null(new):
        return held
    leaves = {_leaf(held), _leaf(new)}
    feature = name.startswith(("feature:", "weights:"))
    if not feature or (len(leaves) > 1 and leaves != {pa.int64(), pa.large_string()}):
        where = "candidate ids" if name == "id" else name.replace(":", " ")
        raise FormatError(f"{where} holds {new} after {held}; one type was expected")
    leaf = pa.large_string() if len(leaves) > 1 else leaves.pop()
    if (
        pa.types.is_fixed_size_list(held)
        and pa.types.is_fixed_size_list(new)
        and held.list_size == new.list_size
    ):
        return pa.list_(leaf, held.list_size)
    return leaf if _leaf(held) == held and _leaf(new) == new else pa.large_list(leaf)


def _as_schema(arrays: Sequence[Any], schema: Any) -> Any:
    """Returns a record batch of arrays, each as its column's type."""
    import pyarrow as pa

    columns = [cast(array, kind) for array, kind in zip(arrays, schema.types, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _leaf(kind: Any) -> Any:
    return kind.value_type if is_list(kind) else kind


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
        ids = (
            arrow.values(ids)
            if arrow.kind_of(ids.type) == "string"
            else ids.to_numpy(zero_copy_only=False)
        )
    try:
        return known_kind("id", ids)
    except FeatureError as problem:
        raise FormatError(f"candidate ids: {problem}") from problem


def feature_array(name: str, column: Column, size: int) -> Any:
    """Returns a feature of candidates, as callers send it, as a `pyarrow.Array`.

    Args:
      name: Of the feature.
      column: Of `size` examples.
      size: The number of candidates.

    Raises:
      FormatError: The column holds another number of examples, or values that are no ids.
    """
    import pyarrow as pa

    values = column.values
    kind = column.values.dtype.kind
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
                f"feature {name!r}: offsets do not cut {values.size} values into lists of {size} "
                "candidates"
            )
        return pa.LargeListArray.from_arrays(pa.array(offsets), flat)
    width = values.size // size if size else 1
    if values.size != width * size or (size and not width):
        raise FormatError(
            f"feature {name!r} has {values.size} values for {size} candidates; equally many were "
            "expected"
        )
    return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _attribute_array(name: str, values: Any, size: int) -> Any:
    import pyarrow as pa

    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if len(array) != size:
        raise FormatError(
            f"attribute {name!r} has {len(array)} values for {size} candidates; one each was "
            "expected"
        )
    kind = array.type
    try:
        if pa.types.is_integer(kind):
            array = array.cast(pa.int64())
        elif pa.types.is_floating(kind):
            array = without_nan(name, array.cast(pa.float64()))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            array = array.cast(pa.large_string())
        elif arrow.kind_of(kind) == "list<string>":
            array = array.cast(pa.large_list(pa.large_string()))
        elif not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise FormatError(f"attribute {name!r} has Arrow type {kind}; {_CURE}")
    except pa.ArrowInvalid as problem:
        raise FormatError(
            f"attribute {name!r} of Arrow type {kind}: {problem}; {_CURE}"
        ) from problem
    return array
