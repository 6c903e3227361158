"""Lists the tables that a parameter server dumped: each has a file of keys and a file of vectors,
in the same order.

SOK's `sok.dump` writes `<table>-key`, `<table>-weight` and, for each slot variable,
`<table>-<optimizer>-<slot>` into one directory; the Saver of SOK 1 writes `<table>_keys.file` and
`<table>_values.file`. HugeCTR, and what its parameter server (HPS) loads, has a directory for each
table with `key`, `emb_vector` and perhaps `slot_id`. Each of its embedding collections has a
directory `embedding_collection_<c>` with `meta_data` and, for each table, `key<t>` (uint32 or
int64) and `weight<t>` (float32, also for mixed precision); these tables have numbers instead of
names. None of these formats has checksums.

Source: NVIDIA-Merlin/HugeCTR at 2f2016f: sparse_operation_kit/dump_load.py, write_file_head (296
bytes: name, kind of file, name of the slot variable, dtype; numbers big-endian, values as the
machine has them); docs/source/api/ python_interface.md, save_params_to_files (keys are always
int64, vectors float32); HugeCTR/embedding_storage/weight_io/
parameter_IO.cpp: dump_metadata, dump_embedding_weight, write_file_head. At 2794cd2:
sparse_operation_kit/kit_cc/ kit_cc_infra/src/parameters/raw_param.cc, dump_to_file (the same,
without heads).
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bundle.shown_values import shown
from bundle.storage.regular_files import check_regular, open_regular
from export.checkpoint.variables import (
    NUMPY_DTYPES,
    DumpedTable,
    Entry,
    Listing,
    Slice,
    Storage,
    StorageKind,
    can_be,
)
from export.errors import CheckpointError
from object_store.stamps import local_stamp

KEY_DTYPES = ("int32", "int64", "uint32", "uint64")
_SOK_HEAD = struct.Struct(">256xI32xI")
_SOK_DTYPES = ("int32", "int64", "uint32", "uint64", "float16", "float32", "float64")
"""The dtypes, in the order of their numbers in SOK's file headers."""
_SOK_KINDS = ("keys", "vectors", "a slot variable")
"""The kinds of SOK's files, in the order of their numbers."""
_SOK_1 = "the Saver of SOK 1"
_COLLECTION = re.compile(r"embedding_collection_(\d{1,9})", re.ASCII)
_COLLECTION_WRITER = "HugeCTR's embedding_dump"
_COLLECTION_KEY_DTYPES = ("uint32", "int64")
_META_HEAD = struct.Struct("<5i")
_META_TABLE_BYTES = 16
"""Bytes of `meta_data` for each table: its number, its keys and its dim (`_collection_tables`)."""
_FILE_HEAD = struct.Struct("<32i")
_COLLECTION_TABLES_MAX = 1 << 16
"""The maximum number of tables of a collection; a damaged file may state any number."""


def is_dump(directory: Path) -> bool:
    """Returns whether a directory holds tables with their keys, as SOK or HugeCTR write them."""
    listings = (_sok_tables, _saved_tables, _hugectr_tables, _collections)
    return any(next(listing(directory), None) is not None for listing in listings)


def list_dump(directory: Path) -> Listing:
    """Lists the tables of a dump. Reads only the headers of files.

    Raises:
      CheckpointError: A file is missing, cut short, or of another size than its sibling requires;
        the error names it.
      OSError: A file cannot be read.
    """
    names = sorted({*_sok_tables(directory)})
    tables = [_sok_table(directory, name, names) for name in names]
    tables += [_saved_table(directory, name) for name in sorted({*_saved_tables(directory)})]
    kind: StorageKind = "SOK"
    if not tables:
        kind = "HugeCTR"
        tables += [_hugectr_table(directory, path) for path in sorted(_hugectr_tables(directory))]
    if not tables:
        for path in sorted(_collections(directory)):
            tables += _collection_tables(directory, path)
    if not tables:
        raise CheckpointError(
            f"{directory} holds no dumped table: neither `<table>-key` and `<table>-weight`, as "
            "sok.dump writes them, nor `<table>_keys.file` and `<table>_values.file`, as SOK 1 "
            "does, nor `key` and `emb_vector`, nor `embedding_collection_0`, as HugeCTR does"
        )
    _check_files(directory, tables, kind)

    # Dumps have no checksums, so that sizes and times of files distinguish one from another.
    digest = hashlib.sha256()
    entries = {entry.key: entry for table in tables for entry in table.entries}
    for entry in entries.values():
        stamp = entry.slices[0].stamp
        digest.update(f"{entry.key}\0{entry.dtype}\0{entry.shape}\0{stamp}\n".encode())
    storage = Storage(kind, None, dumped={table.vectors.key: table for table in tables})
    return Listing(f"sha256:{digest.hexdigest()}", entries, storage)


def _check_files(directory: Path, tables: Sequence[DumpedTable], kind: StorageKind) -> None:
    """Checks that no file beside the files of tables may say more about their rows.

    A folder of HugeCTR's tables may lie beside other files, such as its dense model. Empty and
    hidden files are ignored.

    Raises:
      CheckpointError: There is a file of unknown meaning.
    """
    entries = [entry for table in tables for entry in table.entries]
    files = {Path(part.file) for entry in entries for part in entry.slices}
    sibling_names = set()
    if kind == "HugeCTR":
        sibling_names = {"key", "emb_vector", "slot_id", "meta_data"}
    for folder in sorted({file.parent for file in files}):
        for path in sorted(folder.iterdir()):
            is_ignored = path in files or path.name in sibling_names or path.name.startswith(".")
            if not is_ignored and path.is_file() and path.stat().st_size:
                raise CheckpointError(
                    f"dump file {shown(str(path))} is not understood, and may say in "
                    f"which order rows lie or what they mean; {kind} writes none of that name: "
                    f"move it out of {directory}"
                )


def _sok_tables(directory: Path) -> Iterator[str]:
    """Yields the names of tables that have a file of keys or of vectors with SOK's header; a name
    that has both is yielded twice.
    """
    for suffix, partner in (("-key", "-weight"), ("-weight", "-key")):
        for path in directory.glob(f"*{suffix}"):
            name = path.name.removesuffix(suffix)
            has_partner = (directory / f"{name}{partner}").is_file()
            if path.is_file() and (has_partner or path.stat().st_size >= _SOK_HEAD.size):
                yield name


def _saved_tables(directory: Path) -> Iterator[str]:
    """Yields the names of tables that have a file written by the Saver of SOK 1; a name that has a
    file of keys and one of values is yielded twice.
    """
    for suffix in ("_keys.file", "_values.file"):
        yield from (
            path.name.removesuffix(suffix)
            for path in directory.glob(f"?*{suffix}")
            if path.is_file()
        )


def _hugectr_tables(directory: Path) -> Iterator[Path]:
    for path in _folders(directory):
        # `key` alone is a usual name of files of other programs.
        has_keys = (path / "key").is_file() and (path / "slot_id").is_file()
        if has_keys or (path / "emb_vector").is_file():
            yield path


def _collections(directory: Path) -> Iterator[Path]:
    for path in _folders(directory):
        if _COLLECTION.fullmatch(path.name) is None:
            continue
        if (path / "meta_data").is_file() or (path / "key0").is_file():
            yield path


def _folders(directory: Path) -> list[Path]:
    return [directory, *(child for child in directory.iterdir() if child.is_dir())]


class _Values(NamedTuple):
    """The values in one file: where they begin, their dtype and their number."""

    path: Path
    offset: int
    dtype: str
    size: int


def _sok_table(directory: Path, name: str, names: Sequence[str]) -> DumpedTable:
    keys = _sok_values(directory / f"{name}-key", 0)
    vectors = _sok_values(directory / f"{name}-weight", 1)
    # The files of a table `t-2` are not slot variables of `t`.
    longer_prefixes = tuple(f"{table}-" for table in names if table.startswith(f"{name}-"))
    slots = {}
    for path in sorted(directory.iterdir()):
        is_of_table = path.name.startswith(f"{name}-") and not path.name.startswith(longer_prefixes)
        if is_of_table and path not in (keys.path, vectors.path) and path.is_file():
            slots[path.name.removeprefix(f"{name}-")] = _sok_values(path, 2)
    return _table(directory, name, keys, vectors, slots)


def _sok_values(path: Path, kind: int) -> _Values:
    header, dtype = _SOK_HEAD.unpack(_head(path, _SOK_HEAD.size, "SOK"))
    if header != kind or dtype >= len(_SOK_DTYPES):
        raise CheckpointError(
            f"dump file {path} does not begin as SOK begins {_SOK_KINDS[kind]} (kind {header}, "
            f"dtype {dtype}); it is damaged, or another program's"
        )
    return _values(path, _SOK_DTYPES[dtype], "SOK", _SOK_HEAD.size)


def _saved_table(directory: Path, name: str) -> DumpedTable:
    # These files have no header, so that their dtypes are known from the source of SOK 1 alone.
    keys = _values(directory / f"{name}_keys.file", "int64", _SOK_1)
    vectors = _values(directory / f"{name}_values.file", "float32", _SOK_1)
    return _table(directory, name, keys, vectors, {})


def _hugectr_table(directory: Path, path: Path) -> DumpedTable:
    keys = _values(path / "key", "int64", "HugeCTR")
    vectors = _values(path / "emb_vector", "float32", "HugeCTR")
    if (path / "slot_id").is_file():
        slot = _values(path / "slot_id", "uint64", "HugeCTR")
        if slot.size != keys.size:
            raise CheckpointError(
                f"dump file {slot.path} is of {slot.size} rows, {keys.path} of {keys.size}; copy "
                "it anew"
            )
    return _table(directory, path.name, keys, vectors, {})


def _collection_tables(directory: Path, path: Path) -> Iterator[DumpedTable]:
    """Yields the tables of one embedding collection, named by the numbers of the collection and of
    the table.

    `meta_data`: int32 number of tables, kind of keys, kind of vectors, 0, 0; then of every table
    its int32 number; of every table its uint64 keys; of every table its int32 dim.
    """
    meta = path / "meta_data"
    table_count, key_kind, vector_kind, *reserved = _META_HEAD.unpack(
        _head(meta, _META_HEAD.size, _COLLECTION_WRITER)
    )
    file_bytes = meta.stat().st_size
    expected_bytes = _META_HEAD.size + _META_TABLE_BYTES * table_count
    kinds = _COLLECTION_KEY_DTYPES
    if (
        not 1 <= table_count <= _COLLECTION_TABLES_MAX
        or not 0 <= key_kind < len(kinds)
        or file_bytes != expected_bytes
    ):
        raise CheckpointError(
            f"dump file {meta} of {file_bytes} bytes does not list embedding tables as HugeCTR "
            f"does ({table_count} tables, key type {key_kind}, which is {expected_bytes} bytes); "
            "it is damaged, or another program's"
        )
    if vector_kind not in (0, 1) or any(reserved):
        raise CheckpointError(
            f"dump file {meta} begins with the numbers {vector_kind}, {reserved[0]} and "
            f"{reserved[1]} behind the types of keys, which is not understood; 0 or 1 (the type of "
            "vectors), 0 and 0 were expected: it is of another version of HugeCTR"
        )
    data = _head(meta, file_bytes, _COLLECTION_WRITER)[_META_HEAD.size :]
    numbers = struct.unpack_from(f"<{table_count}i", data)
    if numbers != tuple(range(table_count)):
        # HugeCTR writes the first tables under these numbers, whichever tables were requested: its
        # table_id counts from 0.
        raise CheckpointError(
            f"dump file {meta} lists tables {', '.join(map(str, numbers[:8]))}, not all from 0 on; "
            "HugeCTR then writes other tables than it lists: call embedding_dump without table "
            "names"
        )

    key_counts = struct.unpack_from(f"<{table_count}Q", data, 4 * table_count)
    dims = struct.unpack_from(f"<{table_count}i", data, 12 * table_count)
    for number, (key_count, dim) in enumerate(zip(key_counts, dims, strict=True)):
        key_file = _collection_values(path / f"key{number}", 1, number, kinds[key_kind])
        vector_file = _collection_values(path / f"weight{number}", 2, number, "float32")
        for file, size in ((key_file, key_count), (vector_file, key_count * dim)):
            if file.size != size:
                raise CheckpointError(
                    f"dump file {file.path} holds {file.size} values, {meta} states {key_count} "
                    f"keys of dim {dim}: it was cut short or is of another dump; or several "
                    "processes dumped a table that lay on their GPUs together, whose vectors "
                    "HugeCTR cannot read back itself: dump from one process"
                )
        name = f"{path.name.removeprefix('embedding_')}_table_{number}"
        yield _table(directory, name, key_file, vector_file, {})


def _collection_values(path: Path, kind: int, number: int, dtype: str) -> _Values:
    header = _FILE_HEAD.unpack(_head(path, _FILE_HEAD.size, _COLLECTION_WRITER))
    if header != (kind, number, *(0,) * 30):
        raise CheckpointError(
            f"dump file {path} does not begin as HugeCTR begins {_SOK_KINDS[kind - 1]} of table "
            f"{number} (kind {header[0]}, table {header[1]}); it is damaged, or another program's"
        )
    return _values(path, dtype, _COLLECTION_WRITER, _FILE_HEAD.size)


def _head(path: Path, count: int, writer: str) -> bytes:
    """Returns the first bytes of a file that `writer` writes."""
    try:
        with open_regular(path) as file:
            head = file.read(count)
    except FileNotFoundError as problem:
        raise _missing_file_error(path, writer) from problem
    if len(head) < count:
        raise CheckpointError(
            f"dump file {path} has {len(head)} bytes, {writer}'s head alone {count}; copy it anew"
        )
    return head


def _missing_file_error(path: Path, writer: str) -> CheckpointError:
    return CheckpointError(f"dump file {path} is missing, which {writer} writes; copy it anew")


def _values(path: Path, dtype: str, writer: str, offset: int = 0) -> _Values:
    """Returns the extent of the values in a file whose values have one dtype."""
    try:
        # Entries, the plan and the manifest name files in JSON, which is UTF-8.
        str(path).encode()
        check_regular(path)
        file_bytes = path.stat().st_size
    except UnicodeEncodeError as problem:
        raise CheckpointError(
            f"dump file {str(path)!r} has a name that is no UTF-8 text; rename it"
        ) from problem
    except FileNotFoundError as problem:
        raise _missing_file_error(path, writer) from problem
    size, remainder = divmod(file_bytes - offset, NUMPY_DTYPES[dtype].itemsize)
    if remainder:
        raise CheckpointError(
            f"dump file {path} ends within a {dtype}: it was cut short; copy it anew"
        )
    return _Values(path, offset, dtype, size)


def _table(
    directory: Path, name: str, keys: _Values, vectors: _Values, slots: dict[str, _Values]
) -> DumpedTable:
    """Combines the files of a table, whose sizes must agree. The keys of its entries are paths
    within the directory.
    """
    # HugeCTR's and SOK's files state no shape, so the number of keys divides the vectors.
    rows = keys.size
    if keys.dtype not in KEY_DTYPES or vectors.dtype in KEY_DTYPES:
        raise CheckpointError(
            f"dump file {keys.path} holds {keys.dtype} keys, {vectors.path} {vectors.dtype} vectors"
        )
    if not rows:
        raise CheckpointError(
            f"dump file {keys.path} holds no key: table {name!r} is empty; dump it after training"
        )
    dim, remainder = divmod(vectors.size, rows)
    if remainder or not dim or not can_be((rows, dim)):
        raise CheckpointError(
            f"dump file {vectors.path} holds {vectors.size} values, which {rows} keys cannot share "
            "evenly: one of the two was cut short, or they are not of one dump; copy both anew"
        )
    for slot, file in slots.items():
        if file.size != vectors.size:
            raise CheckpointError(
                f"dump file {file.path} holds {file.size} values of {slot!r}, the table "
                f"{vectors.size}; copy it anew"
            )

    def entry(file: _Values, *shape: int) -> Entry:
        size_bytes = file.size * NUMPY_DTYPES[file.dtype].itemsize
        stamp = local_stamp(file.path.stat())
        whole = Slice(
            str(file.path), file.offset, size_bytes, None, (0,) * len(shape), shape, stamp
        )
        return Entry(file.path.relative_to(directory).as_posix(), file.dtype, shape, (whole,))

    slot_entries = {slot: entry(file, rows, dim) for slot, file in slots.items()}
    return DumpedTable(name, entry(vectors, rows, dim), entry(keys, rows), slot_entries)
