"""Dumps of parameter servers that are broken, and other dumps of one table."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.cases.checkpoints.inspections import Case, Write
from tests.units.export.checkpoint.dump_files import (
    KEYS,
    VECTORS,
    collection_dump,
    file_head,
    head,
    hugectr_dump,
    saver_dump,
    sok_dump,
)

IDS = np.array([3, 2**40, 11, 7], np.int64)
ROWS = np.arange(20, dtype=np.float32).reshape(4, 5)
NO_SLOTS = np.zeros(4, np.uint64)
DUMPS: dict[str, Callable[[Path], Path]] = {
    "SOK": lambda directory: sok_dump(directory, "t", IDS, ROWS, m=ROWS + 1),
    "SOK 1": lambda directory: saver_dump(directory, "t", IDS, ROWS),
    "HugeCTR": lambda directory: hugectr_dump(directory / "t", IDS, ROWS, NO_SLOTS),
    "collection": lambda directory: collection_dump(directory, [(IDS, ROWS)]),
}
"""Dumps of one table by who writes them."""


def changed(writer: str, file: str, change: Callable[[bytes], bytes] | None) -> Write:
    """Returns what writes a dump one of whose files is changed, or gone."""

    def write(directory: Path) -> Path:
        path = DUMPS[writer](directory) / file
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
        return directory

    return write


def cut(writer: str, file: str, end: int) -> Write:
    return changed(writer, file, lambda content: content[:end])


def beginning(writer: str, file: str, start: bytes) -> Write:
    """Returns what writes a dump one of whose files has another beginning."""
    return changed(writer, file, lambda content: start + content[len(start) :])


def meta(
    tables: int, kind: int = 1, numbers: tuple[int, ...] = (0,), dim: int = 5, more: int = 0
) -> Write:
    """Returns what writes a collection whose metadata are others."""
    count = len(numbers)
    content = struct.pack(
        f"<5i{count}i{count}Q{count}i",
        *(tables, kind, 0, 0, more),
        *numbers,
        *(4,) * count,
        *(dim,) * count,
    )
    return changed("collection", "meta_data", lambda _: content)


def with_note(directory: Path, writer: str, file: str) -> Path:
    DUMPS[writer](directory)
    (directory / file).write_text('{"cores": 4}')
    return directory


def half(directory: Path, suffix: str) -> Path:
    """Writes one of the two files of a table, of a head alone."""
    (directory / f"t-{suffix}").write_bytes(head(KEYS if suffix == "key" else VECTORS, 1))
    return directory


def name_that_is_no_text(directory: Path) -> Path:
    return saver_dump(directory, os.fsdecode(b"t\xff"), IDS, ROWS)


UNEVEN = "cannot share evenly"
BROKEN_DUMPS: dict[str, Case] = {
    "SOK: end within a key": (cut("SOK", "t-key", -3), "t-key", "within a int64"),
    "SOK: a key less": (cut("SOK", "t-key", -8), UNEVEN),
    "SOK: no vectors": (cut("SOK", "t-weight", 296), "0 values", "4 keys"),
    "SOK: vectors that are gone": (changed("SOK", "t-weight", None), "t-weight is missing"),
    "SOK: keys of another kind": (beginning("SOK", "t-key", head(VECTORS, 1)), "kind 1"),
    "SOK: keys of floats": (beginning("SOK", "t-key", head(KEYS, 6)), "float64 keys"),
    "SOK: vectors of integers": (beginning("SOK", "t-weight", head(VECTORS, 0)), "int32 vectors"),
    "SOK: slots of another size": (cut("SOK", "t-Adam-m", -20), "15 values", "'Adam-m'"),
    "SOK: keys alone": (partial(half, suffix="key"), "t-weight is missing", "copy it anew"),
    "SOK: another file": (partial(with_note, writer="SOK", file="order.json"), "order.json"),
    "SOK 1: vectors that are gone": (changed("SOK 1", "t_values.file", None), "SOK 1"),
    "SOK 1: name that is no text": (name_that_is_no_text, "no UTF-8 text", "rename"),
    "HugeCTR: a key less": (cut("HugeCTR", "key", 24), "slot_id", "4 rows"),
    "HugeCTR: keys that are gone": (changed("HugeCTR", "key", None), "key is missing"),
    "HugeCTR: another file": (partial(with_note, writer="HugeCTR", file="t/order"), "order"),
    "collection: no metadata": (changed("collection", "meta_data", None), "meta_data is missing"),
    "collection: more tables": (meta(2), "2 tables", "52 b"),
    "collection: keys of another type": (meta(1, kind=2), "key type 2"),
    "collection: tables from 1": (meta(2, numbers=(1, 3)), "1, 3", "from 0"),
    "collection: another number": (meta(1, more=3), "0, 0 and 3", "not understood"),
    "collection: keys of another kind": (
        beginning("collection", "key0", file_head(2, 0)),
        "kind 2, table 0",
    ),
    "collection: vectors of another table": (
        beginning("collection", "weight0", file_head(2, 1)),
        "kind 2, table 1",
    ),
    "collection: vectors of several processes": (
        changed("collection", "weight0", lambda content: content + bytes(700)),
        "several processes",
    ),
}
