"""Lists what HugeCTR's `Model.embedding_dump` wrote of embedding collections.

`embedding_collection_<c>` holds `meta_data`, and for each table `key<t>` and `weight<t>`: keys are uint32 or int64,
vectors always float32, of mixed precision too. Tables have numbers, no names. No checksums.

Source: NVIDIA-Merlin/HugeCTR at 2f2016f, HugeCTR/embedding_storage/weight_io/parameter_IO.cpp: dump_metadata,
dump_embedding_weight, write_file_head; data_info.hpp (FileHeadNbytes). All integers as the machine has them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from export.checkpoint.formats.dump_files import ValueFile, head_of, sized, table_of
from export.checkpoint.variables import DumpedTable
from export.errors import CheckpointError

META_FILE = "meta_data"
_COLLECTION = re.compile(r"embedding_collection_(\d{1,9})", re.ASCII)
_KEY_DTYPES = ("uint32", "int64")
_META_BYTES, _TABLE_BYTES, _HEAD_BYTES = 20, 16, 128
_TABLES_MAX = 1 << 16
_KEYS, _VECTORS = 1, 2
_WRITER = "HugeCTR's embedding_dump"


def dumped_collections(directory: Path) -> Iterator[Path]:
    """Yields the directories of embedding collections: those within a directory, or itself."""
    for path in (directory, *(each for each in directory.iterdir() if each.is_dir())):
        if _COLLECTION.fullmatch(path.name) and ((path / META_FILE).is_file() or (path / "key0").is_file()):
            yield path


def list_collection(directory: Path, path: Path) -> Iterator[DumpedTable]:
    """Yields the tables of one collection, called by its number and theirs; reads no more than heads.

    Args:
      directory: of the dump.
      path: of the collection within it.
    Raises:
      CheckpointError: a file is missing, cut short, or does not agree with the collection's metadata.
    """
    name = path.name.removeprefix("embedding_")
    for number, (key_dtype, keys, dim) in enumerate(_metadata(path / META_FILE)):
        key_file = _file(path / f"key{number}", _KEYS, number, key_dtype)
        vector_file = _file(path / f"weight{number}", _VECTORS, number, "float32")
        for file, expected in ((key_file, keys), (vector_file, keys * dim)):
            if file.size != expected:
                raise CheckpointError(
                    f"dump file {file.path} holds {file.size} values, {path / META_FILE} tells {keys} keys of dim {dim}"
                    ": it was cut short or is of another dump; or several processes dumped a table that lay on their "
                    "GPUs together, whose vectors HugeCTR writes at offsets that it cannot read back itself: dump from "
                    "one process"
                )
        yield table_of(directory, f"{name}_table_{number}", key_file, vector_file, {})


class _Told(NamedTuple):
    """What metadata tell of a table."""

    key_dtype: str
    keys: int
    dim: int


def _metadata(path: Path) -> Iterator[_Told]:
    """Yields what is told of table 0, 1, ...

    The file: int32 number of tables, kind of keys, kind of vectors, 0, 0; then of every table its int32 number; of
    every table its uint64 keys; of every table its int32 dim.
    """
    head, total = head_of(path, _META_BYTES, _WRITER)
    tables, kind = struct.unpack_from("<ii", head)
    expected = _META_BYTES + _TABLE_BYTES * tables
    if not 1 <= tables <= _TABLES_MAX or not 0 <= kind < len(_KEY_DTYPES) or total != expected:
        raise CheckpointError(
            f"dump file {path} of {total} bytes does not tell embedding tables as HugeCTR does ({tables} tables, key "
            f"type {kind}, which is {expected} bytes); it is damaged, or another program's"
        )
    data = head_of(path, total, _WRITER)[0][_META_BYTES:]
    numbers = struct.unpack_from(f"<{tables}i", data)
    if numbers != tuple(range(tables)):
        # It writes the first tables under these numbers, whichever were asked for: table_id counts from 0 there.
        raise CheckpointError(
            f"dump file {path} lists tables {', '.join(map(str, numbers[:8]))}, not all from 0 on; HugeCTR then writes "
            "other tables than it lists: call embedding_dump without table names"
        )
    counts = struct.unpack_from(f"<{tables}Q", data, 4 * tables)
    for keys, dim in zip(counts, struct.unpack_from(f"<{tables}i", data, 12 * tables), strict=True):
        yield _Told(_KEY_DTYPES[kind], keys, dim)


def _file(path: Path, kind: int, number: int, dtype: str) -> ValueFile:
    head, total = head_of(path, _HEAD_BYTES, _WRITER)
    told = struct.unpack("<32i", head)
    if told != (kind, number, *(0,) * 30):
        raise CheckpointError(
            f"dump file {path} does not begin as HugeCTR begins {('keys', 'vectors')[kind - 1]} of table {number} "
            f"(kind {told[0]}, table {told[1]}); it is damaged, or another program's"
        )
    return sized(path, _HEAD_BYTES, dtype, total)
