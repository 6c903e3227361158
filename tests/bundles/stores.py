"""Stores of candidates and of contexts, and the attribute indexes of their filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import paths
from bundle.format.manifest import AttributeIndex, Corpus
from bundle.stores.attribute_index import write_attribute_index
from bundle.stores.writer import write_store


def write_corpus(
    directory: Path,
    name: str,
    ids: NDArray[Any],
    features: Mapping[str, Column],
    attributes: Mapping[str, pa.Array],
    filters: Sequence[str] = (),
) -> Corpus:
    """Writes candidates.

    Args:
      directory: The directory of the bundle.
      name: The name of the corpus.
      ids: [size] int64, or object holding str.
      features: The columns of the candidates by feature.
      attributes: The attributes of the candidates.
      filters: The attributes that requests can filter by.
    """
    file = paths.corpus_store(name)
    store = write_store(directory / file, ids, features, attributes)
    corpus = Corpus(file=file, **vars(store))
    return corpus.model_copy(update={"filters": _write_filters(directory, name, corpus, filters)})


def write_contexts(
    directory: Path, name: str, ids: NDArray[Any], features: Mapping[str, Column]
) -> Corpus:
    """Writes a store of contexts."""
    file = paths.context_store(name)
    store = write_store(directory / file, ids, features, {})
    return Corpus(file=file, **vars(store))


def _write_filters(
    directory: Path, name: str, corpus: Corpus, attributes: Sequence[str]
) -> dict[str, AttributeIndex]:
    filters = {}
    for number, attribute in enumerate(attributes):
        filters[attribute] = AttributeIndex(
            values=paths.attribute_values(name, number), rows=paths.attribute_rows(name, number)
        )
        write_attribute_index(directory / corpus.file, attribute, directory, filters[attribute])
    return filters
