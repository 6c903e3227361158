"""Lists what a parameter server dumped: for each table a file of keys and a file of vectors, in the same order.

SOK's `sok.dump` writes `<table>-key`, `<table>-weight` and, for each slot variable, `<table>-<optimizer>-<slot>` into
one directory; the Saver of SOK 1 writes `<table>_keys.file` and `<table>_values.file`. HugeCTR, and what its parameter
server (HPS) loads, has a directory for each table with `key`, `emb_vector` and perhaps `slot_id`; its embedding
collections: collection_dumps. None keeps checksums.

Source: NVIDIA-Merlin/HugeCTR at 2f2016f: sparse_operation_kit/dump_load.py, write_file_head (296 bytes: name, kind of
file, name of the slot variable, dtype; numbers big-endian, values as the machine has them); docs/source/api/
python_interface.md, save_params_to_files (keys are always int64, vectors float32). At 2794cd2: sparse_operation_kit/
kit_cc/kit_cc_infra/src/parameters/raw_param.cc, dump_to_file (the same, without heads).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from export.checkpoint.formats.collection_dumps import dumped_collections, list_collection
from export.checkpoint.formats.dump_files import ValueFile, head_of, sized, table_of
from export.checkpoint.variables import DumpedTable, Listing, Storage, StorageKind
from export.errors import CheckpointError

KEYS, WEIGHTS = "-key", "-weight"
SAVED_KEYS, SAVED_VALUES = "_keys.file", "_values.file"
KEY_FILE, VECTOR_FILE, SLOT_FILE = "key", "emb_vector", "slot_id"
_NAME_BYTES, _SLOT_BYTES, _NUMBER_BYTES = 256, 32, 4
HEAD_BYTES = _NAME_BYTES + _NUMBER_BYTES + _SLOT_BYTES + _NUMBER_BYTES
_DTYPES = ("int32", "int64", "uint32", "uint64", "float16", "float32", "float64")
"""In the order of their numbers in SOK's heads."""
_KINDS = ("keys", "vectors", "a slot variable")
"""Of SOK's files, in the order of their numbers."""


def is_dump(directory: Path) -> bool:
    """Tells whether a directory holds tables with their keys, as SOK or HugeCTR write them."""
    ways = (_sok_tables, _saved_tables, _hugectr_tables, dumped_collections)
    return any(next(find(directory), None) is not None for find in ways)


def list_dump(directory: Path) -> Listing:
    """Lists a dump's tables; reads no more than the heads of files.

    Raises:
      CheckpointError: a file is missing, cut short, or not of the size that its sibling asks for; names it.
      OSError: it cannot be read.
    """
    listed = [_sok_table(directory, name) for name in sorted(_sok_tables(directory))]
    listed += [_saved_table(directory, name) for name in sorted({*_saved_tables(directory)})]
    kind: StorageKind = "SOK" if listed else "HugeCTR"
    listed = listed or [_hugectr_table(directory, path) for path in sorted(_hugectr_tables(directory))]
    for path in [] if listed else sorted(dumped_collections(directory)):
        listed += list_collection(directory, path)
    tables = {table.name: table for table in listed}
    if not tables:
        raise CheckpointError(
            f"{directory} holds no dumped table: neither `<table>-key` and `<table>-weight`, as sok.dump writes them, "
            "nor `<table>_keys.file` and `<table>_values.file`, as SOK 1 does, nor `key` and `emb_vector`, "
            "nor `embedding_collection_0`, as HugeCTR does"
        )
    digest = hashlib.sha256()
    entries = {entry.key: entry for table in tables.values() for entry in table.entries}
    for entry in entries.values():
        digest.update(f"{entry.key}\0{entry.dtype}\0{entry.shape}\0{entry.slices[0].stamp}\n".encode())
    storage = Storage(kind, None, dumped={table.vectors.key: table for table in tables.values()})
    return Listing(f"sha256:{digest.hexdigest()}", entries, storage)


def _sok_tables(directory: Path) -> Iterator[str]:
    """Yields the names of which there is a file of keys or of vectors with SOK's head."""
    for suffix, other in ((KEYS, WEIGHTS), (WEIGHTS, KEYS)):
        for path in directory.glob(f"*{suffix}"):
            name = path.name.removesuffix(suffix)
            beside = (directory / f"{name}{other}").is_file()
            if path.is_file() and (beside or path.stat().st_size >= HEAD_BYTES) and (suffix == KEYS or not beside):
                yield name


def _saved_tables(directory: Path) -> Iterator[str]:
    """Yields the names of which there is a file of the Saver of SOK 1, those with both twice."""
    for suffix in (SAVED_KEYS, SAVED_VALUES):
        yield from (path.name.removesuffix(suffix) for path in directory.glob(f"?*{suffix}") if path.is_file())


def _hugectr_tables(directory: Path) -> Iterator[Path]:
    for path in (directory, *(each for each in directory.iterdir() if each.is_dir())):
        if (path / VECTOR_FILE).is_file() or ((path / KEY_FILE).is_file() and (path / SLOT_FILE).is_file()):
            yield path


def _sok_table(directory: Path, name: str) -> DumpedTable:
    keys = _headed(directory / f"{name}{KEYS}", "keys")
    vectors = _headed(directory / f"{name}{WEIGHTS}", "vectors")
    beside = sorted(path for path in directory.iterdir() if path.name.startswith(f"{name}-"))
    slots = [path for path in beside if path.is_file() and path not in (keys.path, vectors.path)]
    held = {path.name.removeprefix(f"{name}-"): _headed(path, "a slot variable") for path in slots}
    return table_of(directory, name, keys, vectors, held)


def _saved_table(directory: Path, name: str) -> DumpedTable:
    keys, values = directory / f"{name}{SAVED_KEYS}", directory / f"{name}{SAVED_VALUES}"
    for path in (keys, values):
        if not path.is_file():
            raise CheckpointError(f"dump file {path} is missing, which the Saver of SOK 1 writes; copy it anew")
    key_file = sized(keys, 0, "int64", keys.stat().st_size)
    return table_of(directory, name, key_file, sized(values, 0, "float32", values.stat().st_size), {})


def _headed(path: Path, kind: str) -> ValueFile:
    """Reads the head of a file of SOK."""
    head, total = head_of(path, HEAD_BYTES, "SOK")
    told = int.from_bytes(head[_NAME_BYTES : _NAME_BYTES + _NUMBER_BYTES], "big")
    dtype = int.from_bytes(head[-_NUMBER_BYTES:], "big")
    if told >= len(_KINDS) or _KINDS[told] != kind or dtype >= len(_DTYPES):
        raise CheckpointError(
            f"dump file {path} does not begin as SOK begins {kind} (kind {told}, dtype {dtype}); it is damaged, or "
            "another program's"
        )
    return sized(path, HEAD_BYTES, _DTYPES[dtype], total)


def _hugectr_table(directory: Path, path: Path) -> DumpedTable:
    files = {}
    for name, dtype in ((KEY_FILE, "int64"), (VECTOR_FILE, "float32"), (SLOT_FILE, "uint64")):
        file = path / name
        if file.is_file():
            files[name] = sized(file, 0, dtype, file.stat().st_size)
        elif name != SLOT_FILE:
            raise CheckpointError(f"dump file {file} is missing; HugeCTR writes `key` and `emb_vector`; copy it anew")
    keys, slot = files[KEY_FILE], files.get(SLOT_FILE)
    if slot is not None and slot.size != keys.size:
        raise CheckpointError(f"dump file {slot.path} is of {slot.size} rows, {keys.path} of {keys.size}; copy it anew")
    return table_of(directory, path.name, keys, files[VECTOR_FILE], {})
