"""What a corpus that was written holds, as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bundle.format.manifest import Feature
from bundle.stores.reader import CandidateStore
from export.corpora.candidates import write_candidates
from export.recipe.schema import CorpusPart


def held(directory: Path, part: CorpusPart, features: Mapping[str, Feature], name: str = "items") -> dict[str, Any]:
    """Writes a corpus; returns its ids, its attributes and, for each candidate, the values of its features."""
    corpus = write_candidates(directory / "bundle", name, part, features, directory)
    store = CandidateStore(directory / "bundle" / corpus.file, corpus)
    everyone = np.arange(store.size)
    found: dict[str, Any] = {"ids": store.ids(everyone).tolist()} | store.attributes(everyone, list(corpus.attributes))
    for feature, column in store.features(everyone, corpus.features).items():
        each = len(column.values) // store.size
        offsets = np.arange(store.size + 1) * each if column.offsets is None else column.offsets
        found[f"feature {feature}"] = [part.tolist() for part in np.split(column.values, offsets[1:-1])]
    return found
