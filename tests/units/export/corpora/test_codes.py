from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import paths
from bundle.format.indexes import Codes
from export.corpora.codes import write_codes
from runtime import vectors as vector_files
from runtime.codes import VectorCodes
from runtime.vectors import VectorFile

SIZE = 700
DIM = 16


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
def test_codes_of_any_number_of_blocks_are_those_of_all_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distance: Any
) -> None:
    vectors = np.random.default_rng(5).standard_normal((SIZE, DIM), np.float32)
    path = tmp_path / "vectors.bin"
    vectors.tofile(path)
    entry = Codes.of("movies")
    written = []
    for block_rows in (SIZE, 300, 64):
        monkeypatch.setattr(vector_files, "BLOCK_BYTES", 4 * DIM * block_rows)
        write_codes(tmp_path, "movies", VectorFile(path, DIM), distance)
        written.append((tmp_path / entry.file).read_bytes())
    assert written[0] == written[1] == written[2]
    assert (tmp_path / paths.index_codes("movies")).is_dir()
    loaded = VectorCodes.load(tmp_path / entry.file, tmp_path / entry.codebook, SIZE, DIM, distance)
    np.testing.assert_array_equal(loaded.codes, loaded.book.encode(vectors))
