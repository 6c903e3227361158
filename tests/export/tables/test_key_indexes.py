from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from bundle.storage.staging import Staging
from bundle.tables.key_index import KeyIndex
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.tables.key_indexes import write_key_indexes
from tests.export.checkpoint.dump_files import sok_dump

LONG_AGO_NS = 10**9


def write(directory: Path, keys: list[int]) -> Path:
    """Writes the index of a dump's keys into a version that an earlier run may have begun."""
    rows = np.zeros((len(keys), 2), np.float32)
    sok_dump(directory / "dump", "t", np.array(keys, np.int64), rows)
    checkpoint = open_checkpoint(directory / "dump")
    with Staging(directory, "tables", 1) as stage:
        (entry,) = write_key_indexes(checkpoint, recognise(checkpoint).tables, stage).values()
        return stage.directory / entry.file


def test_write_key_indexes_writes_an_index_once_for_the_same_keys(tmp_path: Path) -> None:
    file = write(tmp_path, [7, 0, 5])
    os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))

    assert write(tmp_path, [7, 0, 5]) == file
    assert file.stat().st_mtime_ns == LONG_AGO_NS

    assert write(tmp_path, [7, 0, 6]) == file
    assert file.stat().st_mtime_ns != LONG_AGO_NS
    assert KeyIndex(file, 3).find(np.array([6, 0, 7, 5])).tolist() == [2, 1, 0, -1]
