"""Lists what a parameter server dumped: for each table a file of keys and a file of vectors, in the same order.

SOK's `sok.dump` writes `<table>-key`, `<table>-weight` and, for each slot variable, `<table>-<optimizer>-<slot>` into
one directory. HugeCTR, and what its parameter server (HPS) loads, has a directory for each table with `key`,
`emb_vector` and perhaps `slot_id`. Neither keeps checksums.

Source: NVIDIA-Merlin/HugeCTR at 2f2016f: sparse_operation_kit/dump_load.py, write_file_head (296 bytes: name, kind of
file, name of the slot variable, dtype; numbers big-endian, values as the machine has them); docs/source/api/
python_interface.md, save_params_to_files (keys are always int64, vectors float32).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from export.checkpoint.variables import NUMPY_DTYPES, DumpedTable, Entry, Slice, StorageKind, can_be
from export.errors import CheckpointError
from runtime.remote import local_stamp

KEYS, WEIGHTS = "-key", "-weight"
KEY_FILE, VECTOR_FILE, SLOT_FILE = "key", "emb_vector", "slot_id"
_NAME_BYTES, _SLOT_BYTES, _NUMBER_BYTES = 256, 32, 4
HEAD_BYTES = _NAME_BYTES + _NUMBER_BYTES + _SLOT_BYTES + _NUMBER_BYTES
_DTYPES = ("int32", "int64", "uint32", "uint64", "float16", "float32", "float64")
"""In the order of their numbers in SOK's heads."""
_KINDS = ("keys", "vectors", "a slot variable")
"""Of SOK's files, in the order of their numbers."""
KEY_DTYPES = _DTYPES[:4]


@dataclass(frozen=True)
class Dump:
    """A directory of dumped tables.

    Attributes:
      kind: who wrote it.
      fingerprint: of its files' names, sizes and times.
      tables: by name.
    """

    kind: StorageKind
    fingerprint: str
    tables: Mapping[str, DumpedTable]


def is_dump(directory: Path) -> bool:
    """Tells whether a directory holds tables with their keys, as SOK or HugeCTR write them."""
    return next(_sok_tables(directory), None) is not None or next(_hugectr_tables(directory), None) is not None


def list_dump(directory: Path) -> Dump:
    """Lists a dump's tables; reads no more than the heads of files.

    Raises:
      CheckpointError: a file is missing, cut short, or not of the size that its sibling asks for; names it.
      OSError: it cannot be read.
    """
    listed = [_sok_table(directory, name) for name in sorted(_sok_tables(directory))]
    kind: StorageKind = "SOK" if listed else "HugeCTR"
    listed = listed or [_hugectr_table(directory, path) for path in sorted(_hugectr_tables(directory))]
    tables = {table.name: table for table in listed}
    if not tables:
        raise CheckpointError(
            f"{directory} holds no dumped table: neither `<table>-key` and `<table>-weight`, as sok.dump writes them, "
            "nor `key` and `emb_vector`, as HugeCTR does"
        )
    digest = hashlib.sha256()
    for table in tables.values():
        for entry in table.entries:
            stamp = entry.slices[0].stamp
            digest.update(f"{entry.key}\0{entry.dtype}\0{entry.shape}\0{stamp}\n".encode())
    return Dump(kind, f"sha256:{digest.hexdigest()}", tables)


def _sok_tables(directory: Path) -> Iterator[str]:
    """Yields the names of which there is a file of keys or of vectors with SOK's head."""
    for suffix, other in ((KEYS, WEIGHTS), (WEIGHTS, KEYS)):
        for path in directory.glob(f"*{suffix}"):
            name = path.name.removesuffix(suffix)
            beside = (directory / f"{name}{other}").is_file()
            if path.is_file() and (beside or path.stat().st_size >= HEAD_BYTES) and (suffix == KEYS or not beside):
                yield name


def _hugectr_tables(directory: Path) -> Iterator[Path]:
    for path in (directory, *(each for each in directory.iterdir() if each.is_dir())):
        if (path / VECTOR_FILE).is_file() or ((path / KEY_FILE).is_file() and (path / SLOT_FILE).is_file()):
            yield path


class _File(NamedTuple):
    """Values in one file: where they begin, and how many."""

    path: Path
    offset: int
    dtype: str
    size: int


def _sok_table(directory: Path, name: str) -> DumpedTable:
    keys = _headed(directory / f"{name}{KEYS}", "keys")
    vectors = _headed(directory / f"{name}{WEIGHTS}", "vectors")
    beside = sorted(path for path in directory.iterdir() if path.name.startswith(f"{name}-"))
    slots = [path for path in beside if path.is_file() and path not in (keys.path, vectors.path)]
    held = {path.name.removeprefix(f"{name}-"): _headed(path, "a slot variable") for path in slots}
    return _table(directory, name, keys, vectors, held)


def _headed(path: Path, kind: str) -> _File:
    """Reads the head of a file of SOK."""
    try:
        with path.open("rb") as file:
            head, total = file.read(HEAD_BYTES), path.stat().st_size
    except FileNotFoundError as problem:
        raise CheckpointError(f"dump file {path} is missing, which sok.dump writes; copy it anew") from problem
    if len(head) < HEAD_BYTES:
        raise CheckpointError(f"dump file {path} has {len(head)} bytes, SOK's head alone {HEAD_BYTES}; copy it anew")
    told = int.from_bytes(head[_NAME_BYTES : _NAME_BYTES + _NUMBER_BYTES], "big")
    dtype = int.from_bytes(head[-_NUMBER_BYTES:], "big")
    if told >= len(_KINDS) or _KINDS[told] != kind or dtype >= len(_DTYPES):
        raise CheckpointError(
            f"dump file {path} does not begin as SOK begins {kind} (kind {told}, dtype {dtype}); it is damaged, or "
            "another program's"
        )
    return _sized(path, HEAD_BYTES, _DTYPES[dtype], total)


def _hugectr_table(directory: Path, path: Path) -> DumpedTable:
    files = {}
    for name, dtype in ((KEY_FILE, "int64"), (VECTOR_FILE, "float32"), (SLOT_FILE, "uint64")):
        file = path / name
        if file.is_file():
            files[name] = _sized(file, 0, dtype, file.stat().st_size)
        elif name != SLOT_FILE:
            raise CheckpointError(f"dump file {file} is missing; HugeCTR writes `key` and `emb_vector`; copy it anew")
    keys, slot = files[KEY_FILE], files.get(SLOT_FILE)
    if slot is not None and slot.size != keys.size:
        raise CheckpointError(f"dump file {slot.path} is of {slot.size} rows, {keys.path} of {keys.size}; copy it anew")
    return _table(directory, path.name, keys, files[VECTOR_FILE], {})


def _check_text(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError as problem:
        raise CheckpointError(f"dump file {str(path)!r} has a name that is no UTF-8 text; rename it") from problem


def _sized(path: Path, offset: int, dtype: str, total: int) -> _File:
    _check_text(path)
    size, rest = divmod(total - offset, NUMPY_DTYPES[dtype].itemsize)
    if rest:
        raise CheckpointError(f"dump file {path} ends within a {dtype}: it was cut short; copy it anew")
    return _File(path, offset, dtype, size)


def _table(directory: Path, name: str, keys: _File, vectors: _File, slots: Mapping[str, _File]) -> DumpedTable:
    """Puts the files of a table together, whose sizes must agree."""
    rows = keys.size
    if keys.dtype not in KEY_DTYPES or vectors.dtype in KEY_DTYPES:
        raise CheckpointError(f"dump file {keys.path} holds {keys.dtype} keys, {vectors.path} {vectors.dtype} vectors")
    if not rows:
        raise CheckpointError(f"dump file {keys.path} holds no key: table {name!r} is empty; dump it after training")
    dim, rest = divmod(vectors.size, rows)
    if rest or not dim or not can_be((rows, dim)):
        raise CheckpointError(
            f"dump file {vectors.path} holds {vectors.size} values, which {rows} keys cannot share evenly: one of the "
            "two was cut short, or they are not of one dump; copy both anew"
        )
    for slot, file in slots.items():
        if file.size != vectors.size:
            raise CheckpointError(
                f"dump file {file.path} holds {file.size} values of {slot!r}, the table {vectors.size}; copy it anew"
            )
    held = {slot: _entry(directory, file, (rows, dim)) for slot, file in slots.items()}
    return DumpedTable(name, _entry(directory, vectors, (rows, dim)), _entry(directory, keys, (rows,)), held)


def _entry(directory: Path, file: _File, shape: tuple[int, ...]) -> Entry:
    status = file.path.stat()
    count = file.size * NUMPY_DTYPES[file.dtype].itemsize
    where = Slice(str(file.path), file.offset, count, None, (0,) * len(shape), shape, local_stamp(status))
    return Entry(file.path.relative_to(directory).as_posix(), file.dtype, shape, (where,))
