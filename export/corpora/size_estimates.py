"""What an index takes of disk and memory, estimated before a corpus is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from export.corpora.candidates import check_candidate_count
from export.corpora.indexes import choose
from export.recipe.schema import IndexSection
from rows.batches import count_rows
from rows.errors import FileRejected
from rows.files import SourceFile
from runtime.engines import open_engine
from runtime.index_files import sample_size
from runtime.partitions import partition_rows

MILLION = 1_000_000
_ENCODER_BYTES = 640 << 20
"""The memory in bytes of a process that encodes blocks of vectors: one block, and the memory of
ScaNN, which takes more than faiss.
"""
_TRAINING_COPIES = 8
"""The number of copies of the sample that the memory of training amounts to, beyond libraries
(measured: 0.65 GiB for 316 200 vectors of dim 64).
"""
_ID_BYTES = 16
"""The memory in bytes of a candidate while ids are compared."""


@dataclass(frozen=True)
class IndexForecast:
    """Upper bounds for one index, in bytes.

    Attributes:
      candidates: The number of candidates of the corpus; None if it is known only once its files
        are read, and the bounds are for a million.
      disk_bytes: Vectors and index, with what is written aside meanwhile.
      build_bytes: Memory of all processes together, beyond their libraries and pages of mapped
        files.
      load_bytes: Memory of each worker of a service while it loads the index, likewise.
      partitions: The number of partitions of the index.
    """

    candidates: int | None
    disk_bytes: int
    build_bytes: int
    load_bytes: int
    partitions: int = 1


def forecast_index(
    name: str, section: IndexSection, files: Sequence[SourceFile], dim: int, encoders: int
) -> IndexForecast:
    """Forecasts what an index takes that `encoders` processes build over vectors of `dim`.

    Parquet files say how many candidates they hold, others do not.

    Raises:
      UsageError: A parameter of the index is unknown or does not belong to its kind.
      NotConvertible: The corpus has more candidates than positions have bits for.
    """
    candidates = None
    # The step that reads the files reports what is wrong with them.
    with suppress(FileRejected):
        counts = [count_rows(file) for file in files]
        if None not in counts:
            candidates = sum(filter(None, counts))
    check_candidate_count(f"corpora.{section.corpus}", candidates or 0)
    # An empty corpus is reported where it is read.
    size = MILLION
    if candidates is not None:
        size = max(1, candidates)
    choice = choose(section, name, size)
    engine = open_engine(choice.engine)
    partitions = partition_rows(size, section.partitions)
    vectors = 4 * dim * size
    # Partitions are built one after another, and none is larger than the first.
    rows = partitions[0].rows
    index = engine.forecast_bytes(size, dim, choice.kind, choice.parameters)
    load = engine.load_factor * index
    if choice.kind == "brute_force":
        return IndexForecast(candidates, vectors + index, load, load, len(partitions))
    sample = min(rows, sample_size(choice.parameters["num_leaves"]))
    encoding = 0
    if rows > sample:
        # A sample trains the index, and processes encode the vectors by blocks.
        encoding = encoders * _ENCODER_BYTES
    build = max(_TRAINING_COPIES * 4 * dim * sample, encoding, load, _ID_BYTES * size)
    return IndexForecast(candidates, vectors + 2 * index, build, load, len(partitions))
