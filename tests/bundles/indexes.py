"""Indexes of vectors in memory, written as the exporter writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.indexes import Engine
from bundle.format.manifest import Distance
from runtime.candidate_index import Kind
from runtime.engines import default_engine, open_engine
from runtime.vectors import VectorFile

ENGINES = [pytest.param(engine, marks=pytest.mark.needs(engine)) for engine in get_args(Engine)]
"""Every engine, as a parameter of tests; those without a release for this Python are skipped."""


def write_index(
    vectors: NDArray[np.float32],
    distance: Distance,
    kind: Kind,
    parameters: Mapping[str, Any],
    directory: Path,
    engine: Engine | None = None,
) -> None:
    """Builds an index of [size, dim] float32 vectors, and writes its files.

    Args:
      engine: The engine; None: the default one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "vectors.bin"
        vectors.astype("<f4").tofile(path)
        file = VectorFile(path, vectors.shape[1])
        opened = open_engine(engine or default_engine())
        opened.build_files(file, distance, kind, parameters, directory)
