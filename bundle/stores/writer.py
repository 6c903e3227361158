"""Writes a candidate store in batches, through an Arrow IPC file for each set of column types that
came.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Column
from bundle.fingerprints import column_fingerprints
from bundle.storage import arrow
from bundle.stores.attributes import CAST_REMEDY, attribute_array
from bundle.tables.id_values import known_kind

BATCH_BYTES = 16 << 20
"""Approximate size of a record batch of a store in bytes: a writer holds two in memory, a reader
looks into each that a request touches.
"""


@dataclass(frozen=True)
class WrittenStore:
    """What the manifest says of a store that was written."""

    size: int
    """The number of candidates."""
    id_dtype: Literal["int64", "string"]
    """The type of the ids."""
    features: tuple[str, ...]
    """The names of the features."""
    attributes: dict[str, str]
    """The Arrow type by attribute: int64, double, string, bool or list<string>."""


class StoreWriter:
    """Writes one candidate store; memory holds a batch, and 16 bytes a candidate while ids are
    compared.

    Batches are spooled as they come; a column's type may widen, and is known at the end. Used as a
    context: at its end the spooled files are removed, and without `finish` no store is left.
    """

    def __init__(self, path: Path) -> None:
        """Begins a store that will be the Arrow IPC file at `path`."""
        self._path = path
        # Removed again if no store is left: a failed export leaves nothing behind.
        self._created_directories = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same file system as the store, so that a spool can be renamed to it.
        self._directory = Path(tempfile.mkdtemp(prefix=".columns-", dir=path.parent))
        self._spools: list[Path] = []
        self._spool: Any = None
        self._unspooled: list[Any] = []
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
          features: A column of n examples by feature, as a caller would send it.
          attributes: A `pyarrow.Array` of n values by attribute: integers, floats (NaN becomes
            null), strings, bools or lists of strings; nulls allowed.

        Raises:
          FormatError: An id is null or is no id; a column has another length; an attribute's type
            is none of those, or another than in the batches before. Names the id or the attribute.
        """
        import pyarrow as pa

        keys = _checked_ids(ids, self.size)
        id_type = pa.large_string()
        if keys.dtype == np.int64:
            id_type = pa.int64()
        arrays = {"id": pa.array(keys, id_type)}
        for name, column in features.items():
            arrays[f"feature:{name}"] = feature_array(name, column, keys.size)
            if column.weights is not None:
                weights = Column(np.asarray(column.weights, np.float32), column.offsets)
                arrays[f"weights:{name}"] = feature_array(name, weights, keys.size)
        for name, values in attributes.items():
            arrays[f"attribute:{name}"] = attribute_array(name, values, keys.size)
        self._features |= dict.fromkeys(features)
        self._attributes |= dict.fromkeys(attributes)

        # A column of the batches before may have had a narrower type, such as null or one number.
        types_before = {}
        if self._schema is not None:
            types_before = dict(zip(self._schema.names, self._schema.types, strict=True))
        types = []
        for name, array in arrays.items():
            types.append((name, _widened_type(name, types_before.get(name), array.type)))
        schema = pa.schema(types)
        # An Arrow file has one schema: batches of another one begin another file.
        if schema != self._schema:
            self._close_spool()
            self._spools.append(self._directory / f"{len(self._spools)}.arrow")
            self._spool = pa.ipc.new_file(str(self._spools[-1]), schema)
            self._schema = schema
        # Small batches are joined: a reader pays for each batch that it touches.
        self._unspooled.append(_record_batch(list(arrays.values()), schema))
        if sum(batch.nbytes for batch in self._unspooled) >= BATCH_BYTES:
            self._write_batches()
        self.size += keys.size

    def cast(self, attribute: str, kind: Any) -> None:
        """Makes `finish` turn an attribute of strings into one of integers or floats."""
        self._casts[f"attribute:{attribute}"] = kind

    def repeated(self) -> tuple[int, int] | None:
        """Returns the positions of two candidates with the same id, the earlier one first; None if
        all ids are distinct.
        """
        return find_repeated(self._ids, self.size)

    def id(self, position: int) -> Any:
        """Returns one id; nothing may be appended any more."""
        for ids in self._ids():
            if position < len(ids):
                return ids[position].as_py()
            position -= len(ids)
        raise IndexError(position)

    def finish(self) -> WrittenStore:
        """Writes the store.

        Raises:
          FormatError: An id comes twice, an attribute is null everywhere, or a value to be cast is
            infinite.
          OSError: The disk is full or broken.
        """
        import pyarrow as pa

        repeated = self.repeated()
        if repeated is not None:
            raise FormatError(f"id {self.id(repeated[0])!r} comes twice; ids must be distinct")

        # The last schema is the widest, since types only widen.
        types = dict(zip(self._schema.names, self._schema.types, strict=True)) | self._casts
        kinds = {name: arrow.kind_of(types[f"attribute:{name}"]) for name in self._attributes}
        for name, kind in kinds.items():
            if kind == "null":
                raise FormatError(f"attribute {name!r} has Arrow type null; {CAST_REMEDY}")

        # A single spool of the final types is the store already, and is not copied.
        if self._casts or len(self._spools) > 1:
            unfinished = self._directory / self._path.name
            schema = pa.schema(list(types.items()))
            with pa.ipc.new_file(str(unfinished), schema) as writer:
                for batch in self._batches():
                    columns = list(map(self._cast, schema.names, batch.columns))
                    writer.write_batch(_record_batch(columns, schema))
            self._spools = [unfinished]
        self._spools[0].replace(self._path)
        self._created_directories.clear()
        id_dtype: Literal["int64", "string"] = "string"
        if types["id"] == pa.int64():
            id_dtype = "int64"
        return WrittenStore(self.size, id_dtype, tuple(self._features), kinds)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_spool()
        shutil.rmtree(self._directory, ignore_errors=True)
        for directory in self._created_directories:
            # Another writer may have put something there meanwhile.
            with suppress(OSError):
                directory.rmdir()

    def _write_batches(self) -> None:
        """Writes the batches in memory to the spool, as one."""
        import pyarrow as pa

        if self._unspooled:
            self._spool.write_batch(pa.concat_batches(self._unspooled))
            self._unspooled = []

    def _close_spool(self) -> None:
        if self._spool is not None:
            self._write_batches()
            self._spool.close()
            self._spool = None

    def _batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yields what was spooled, or some columns of it."""
        import pyarrow as pa

        self._close_spool()
        for path in self._spools:
            with pa.OSFile(str(path)) as source:
                fields = None
                if columns is not None:
                    names = pa.ipc.open_file(source).schema.names
                    fields = [names.index(name) for name in columns]
                options = pa.ipc.IpcReadOptions(included_fields=fields)
                reader = pa.ipc.open_file(source, options=options)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def _ids(self) -> Iterator[Any]:
        return (batch.column(0) for batch in self._batches(["id"]))

    def _cast(self, name: str, array: Any) -> Any:
        kind = self._casts.get(name)
        if kind is None:
            return array
        attribute = name.removeprefix("attribute:")
        return attribute_array(attribute, array.cast(kind), len(array))


def write_store(
    path: Path, ids: Any, features: Mapping[str, Column], attributes: Mapping[str, Any]
) -> WrittenStore:
    """Writes a candidate store of one batch; see StoreWriter.

    Args:
      path: The Arrow IPC file to write.
      ids, features, attributes: As for `StoreWriter.append`.

    Raises:
      FormatError: An id is null, comes twice or is no id; a column has another length; a store
        cannot have an attribute's type. Names the id or the attribute; nothing was written.
    """
    with StoreWriter(path) as writer:
        writer.append(ids, features, attributes)
        return writer.finish()


def find_repeated(slices: Callable[[], Iterator[Any]], size: int) -> tuple[int, int] | None:
    """Finds an id that comes twice, in 16 bytes of memory each.

    Args:
      slices: Yields the ids, int64 or strings without nulls, in their order; called up to twice.
      size: The number of ids.

    Returns:
      The position of the first id that repeats one before it, preceded by the position of that one;
      None if all are distinct.
    """
    hashes = np.empty(size, np.uint64)
    first = 0
    for ids in slices():
        hashes[first : first + len(ids)] = _hashes(ids)
        first += len(ids)
    ordered = np.sort(hashes)
    repeated_hashes = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    # Freed before the second pass, which needs memory of its own.
    del ordered
    if not repeated_hashes.size:
        return None

    # Different strings may share a hash, so those that do are compared themselves.
    positions: dict[Any, int] = {}
    first = 0
    for ids in slices():
        is_suspect = np.isin(hashes[first : first + len(ids)], repeated_hashes)
        for index in np.flatnonzero(is_suspect).tolist():
            key = ids[index].as_py()
            if key in positions:
                return positions[key], first + index
            positions[key] = first + index
        first += len(ids)
    return None


def cast(array: Any, kind: Any) -> Any:
    """Returns a `pyarrow.Array` as another type; single values become lists where lists are stored.

    Raises:
      ArrowInvalid, ArrowNotImplementedError: A value does not fit the type.
    """
    import pyarrow as pa

    # Arrow does not cast values to lists of one.
    is_single = array.type == _leaf_type(array.type) and not pa.types.is_null(array.type)
    if is_single and pa.types.is_large_list(kind):
        array = pa.LargeListArray.from_arrays(pa.array(np.arange(len(array) + 1)), array)
    return array.cast(kind)


def is_list(kind: Any) -> bool:
    """Returns whether an Arrow type is one of lists, however they are stored."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _widened_type(name: str, before: Any, new: Any) -> Any:
    """Returns the type that a column of type `before` has after values of type `new`: text may
    follow numbers in features only.
    """
    import pyarrow as pa

    if before is None or before == new or pa.types.is_null(before):
        return new
    if pa.types.is_null(new):
        return before
    leaves = {_leaf_type(before), _leaf_type(new)}
    is_feature = name.startswith(("feature:", "weights:"))
    is_mixed = len(leaves) > 1
    # An id of a feature may be an integer or the text of one; the filters of an attribute know one
    # type.
    if not is_feature or (is_mixed and leaves != {pa.int64(), pa.large_string()}):
        column = name.replace(":", " ")
        if name == "id":
            column = "candidate ids"
        raise FormatError(f"{column} holds {new} after {before}; one type was expected")
    leaf = leaves.pop()
    if is_mixed:
        leaf = pa.large_string()

    # Lists keep a common length; all other lists, and lists mixed with single values, have offsets.
    if (
        pa.types.is_fixed_size_list(before)
        and pa.types.is_fixed_size_list(new)
        and before.list_size == new.list_size
    ):
        return pa.list_(leaf, before.list_size)
    if is_list(before) or is_list(new):
        return pa.large_list(leaf)
    return leaf


def _record_batch(arrays: Sequence[Any], schema: Any) -> Any:
    """Returns a record batch of arrays, each as its column's type."""
    import pyarrow as pa

    columns = [cast(array, kind) for array, kind in zip(arrays, schema.types, strict=True)]
    return pa.record_batch(columns, schema=schema)


def _leaf_type(kind: Any) -> Any:
    """Returns the type of a list's values; of another type, the type itself."""
    if is_list(kind):
        return kind.value_type
    return kind


def _hashes(ids: Any) -> NDArray[np.uint64]:
    """Returns 64 bits of each id; integers are their own hashes."""
    import pyarrow as pa

    if ids.type == pa.int64():
        result: NDArray[np.uint64] = ids.to_numpy(zero_copy_only=False).view(np.uint64)
        return result
    return column_fingerprints(ids.cast(pa.large_string()))


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
        if arrow.kind_of(ids.type) == "string":
            ids = arrow.values(ids)
        else:
            ids = ids.to_numpy(zero_copy_only=False)
    try:
        return known_kind("id", ids)
    except FeatureError as problem:
        raise FormatError(f"candidate ids: {problem}") from problem


def feature_array(name: str, column: Column, size: int) -> Any:
    """Returns a feature of candidates, as callers send it, as a `pyarrow.Array`.

    Args:
      name: The name of the feature.
      column: The values of `size` examples.
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
        has_ends = offsets.size == size + 1 and offsets[0] == 0 and offsets[-1] == values.size
        decreases = bool((offsets[1:] < offsets[:-1]).any())
        if not has_ends or decreases:
            raise FormatError(
                f"feature {name!r}: offsets do not cut {values.size} values into lists of {size} "
                "candidates"
            )
        return pa.LargeListArray.from_arrays(pa.array(offsets), flat)
    width = 1
    if size:
        width = values.size // size
    if values.size != width * size or (size and not width):
        raise FormatError(
            f"feature {name!r} has {values.size} values for {size} candidates; equally many were "
            "expected"
        )
    if width == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, width)
