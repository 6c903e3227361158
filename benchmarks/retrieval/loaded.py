"""An index of the retrieval benchmarks as a service loads it, without a bundle around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.format import manifest, paths
from bundle.format.indexes import Codes
from bundle.stores.attribute_index import AttributeIndex, write_attribute_index
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import write_store
from runtime.candidate_index import CandidateIndex
from runtime.codes import VectorCodes
from runtime.exact import ExactIndex
from service.versions.filter_cache import FilterCache
from service.versions.version import LoadedIndex, LoadedStore, ServedIndex

NAME = "items"
_STORE = paths.corpus_store(NAME)


def write_attributes(base: Path, attributes: dict[str, NDArray[np.int64]]) -> None:
    """Writes a store of candidates, whose ids are their positions, and their attribute indexes."""
    size = len(next(iter(attributes.values())))
    columns = {name: pa.array(values) for name, values in attributes.items()}
    write_store(base / _STORE, np.arange(size), {}, columns)
    for name in attributes:
        write_attribute_index(base / _STORE, name, base, _attribute_files(name))


def load_index(
    base: Path,
    entry: Any,
    approximate: CandidateIndex,
    vectors: NDArray[np.float32],
    attributes: list[str],
    cache_bytes: int,
) -> ServedIndex:
    """Loads an index with its codes and attributes.

    Args:
      base: The directory that `write_attributes` and the exporter wrote to.
      entry: The manifest entry of the index.
      approximate: Its tree.
      vectors: [size, dim], mapped.
      attributes: The names of those to filter by.
      cache_bytes: Memory for compiled filters.
    """
    size, dim = vectors.shape
    corpus = manifest.Corpus(
        file=_STORE,
        size=size,
        id_dtype="int64",
        features=(),
        attributes=dict.fromkeys(attributes, "int64"),
    )
    filters = {
        name: AttributeIndex(base, _attribute_files(name), "int64", size) for name in attributes
    }
    store = LoadedStore(NAME, corpus, filters, CandidateStore(base / _STORE, corpus))
    files = Codes.of(NAME)
    codes = VectorCodes.load(
        base / files.file, base / files.codebook, size, dim, approximate.distance
    )
    exact = ExactIndex(vectors, approximate.distance)
    cache = FilterCache(cache_bytes)
    index = LoadedIndex(entry, approximate, exact, vectors, store, cache, codes=codes)
    return ServedIndex(NAME, entry, store, index, None, cache)


def _attribute_files(name: str) -> manifest.AttributeIndex:
    column_path = f"corpora/{NAME}/{name}"
    return manifest.AttributeIndex(values=f"{column_path}.values", rows=f"{column_path}.rows")
