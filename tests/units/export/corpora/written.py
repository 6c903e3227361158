"""What a corpus that was written holds, as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bundle.format import paths
from bundle.format.manifest import Corpus, Feature
from bundle.stores.reader import CandidateStore
from export.corpora.candidates import write_store
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.recipe.schema import CorpusSection


def write(
    base: Path,
    part: CorpusSection,
    features: Mapping[str, Feature],
    folder: Path,
    name: str = "movies",
) -> Corpus:
    """Writes the store of a corpus whose files lie in a folder."""
    reader = CorpusReader(locate_corpus(folder, name, part), f"corpora.{name}", part, features)
    return write_store(base, paths.corpus_store(name), reader)


def contents(
    directory: Path, part: CorpusSection, features: Mapping[str, Feature], name: str = "items"
) -> dict[str, Any]:
    """Writes a corpus; returns its ids, its attributes and, for each candidate, the values of its
    features.
    """
    corpus = write(directory / "bundle", part, features, directory, name)
    store = CandidateStore(directory / "bundle" / corpus.file, corpus)
    everyone = np.arange(store.size)
    actual: dict[str, Any] = {"ids": store.ids(everyone).tolist()} | store.attributes(
        everyone, list(corpus.attributes)
    )
    for feature, column in store.features(everyone, corpus.features).items():
        width = len(column.values) // store.size
        offsets = np.arange(store.size + 1) * width if column.offsets is None else column.offsets
        actual[f"feature {feature}"] = [
            part.tolist() for part in np.split(column.values, offsets[1:-1])
        ]
    return actual
