"""Files of dumped tables, byte by byte as SOK and HugeCTR write them.

Source: NVIDIA-Merlin/HugeCTR at 2f2016f, sparse_operation_kit/dump_load.py: write_file_head, then
`numpy.tofile` of keys and of vectors;
HugeCTR/src/embeddings/localized_slot_sparse_embedding_hash.cu, dump_parameters: `key` as long long,
`slot_id` as size_t, `emb_vector` as float; HugeCTR/embedding_storage/weight_io/parameter_IO.cpp:
dump_metadata, dump_embedding_weight, write_file_head. At 2794cd2, raw_param.cc of
sparse_operation_kit/kit_cc: dump_to_file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = {
    "int32": 0,
    "int64": 1,
    "uint32": 2,
    "uint64": 3,
    "float16": 4,
    "float32": 5,
    "float64": 6,
}
KEYS = 0
VECTORS = 1
SLOT = 2


def head(kind: int, dtype: int, slot: str = "", name: str = "") -> bytes:
    return (
        name.rjust(256, " ").encode()
        + kind.to_bytes(4, "big", signed=False)
        + slot.rjust(32, " ").encode()
        + dtype.to_bytes(4, "big", signed=False)
    )


def sok_file(path: Path, kind: int, values: NDArray[Any], slot: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head(kind, DTYPES[values.dtype.name], slot) + values.tobytes())


def sok_dump(
    directory: Path, name: str, keys: NDArray[Any], vectors: NDArray[Any], **slots: NDArray[Any]
) -> Path:
    """Writes what `sok.dump` writes of one variable; slots are of the Adam that trained it."""
    sok_file(directory / f"{name}-key", KEYS, keys)
    sok_file(directory / f"{name}-weight", VECTORS, vectors)
    for slot, values in slots.items():
        sok_file(directory / f"{name}-Adam-{slot}", SLOT, values, slot)
    return directory


def saver_dump(
    directory: Path, name: str, keys: NDArray[np.int64], vectors: NDArray[np.float32]
) -> Path:
    """Writes what the Saver of SOK 1 writes of one variable."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}_keys.file").write_bytes(keys.astype("<i8").tobytes())
    (directory / f"{name}_values.file").write_bytes(vectors.astype("<f4").tobytes())
    return directory


def hugectr_dump(
    directory: Path,
    keys: NDArray[np.int64],
    vectors: NDArray[np.float32],
    slot_ids: NDArray[np.uint64] | None = None,
) -> Path:
    """Writes what HugeCTR's `save_params_to_files` writes of one embedding."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "key").write_bytes(keys.astype("<i8").tobytes())
    (directory / "emb_vector").write_bytes(vectors.astype("<f4").tobytes())
    if slot_ids is not None:
        (directory / "slot_id").write_bytes(slot_ids.astype("<u8").tobytes())
    return directory


def collection_dump(
    root: Path,
    tables: Sequence[tuple[NDArray[Any], NDArray[np.float32]]],
    collection: int = 0,
    mixed: bool = False,
) -> Path:
    """Writes what HugeCTR's `embedding_dump` writes of one embedding collection; returns the
    collection's directory.
    """
    directory = root / f"embedding_collection_{collection}"
    directory.mkdir(parents=True, exist_ok=True)
    count = len(tables)
    int64_keys = tables[0][0].dtype.name == "int64"
    meta = struct.pack("<5i", count, int64_keys, mixed, 0, 0) + struct.pack(
        f"<{count}i", *range(count)
    )
    meta += struct.pack(f"<{count}Q", *(len(keys) for keys, _ in tables))
    meta += struct.pack(f"<{count}i", *(vectors.shape[1] for _, vectors in tables))
    (directory / "meta_data").write_bytes(meta)
    for number, (keys, vectors) in enumerate(tables):
        (directory / f"key{number}").write_bytes(file_head(1, number) + keys.tobytes())
        (directory / f"weight{number}").write_bytes(
            file_head(2, number) + vectors.astype("<f4").tobytes()
        )
    return directory


def file_head(kind: int, table: int) -> bytes:
    return struct.pack("<32i", kind, table, *(0,) * 30)
