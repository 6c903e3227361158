"""Readers of features over one small table, and what is sent to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format import manifest as entries
from bundle.format.graph_builder import GraphBuilder
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import StringKeys, Vocabulary
from tests.bundles.tables import write_table

STORED = np.random.default_rng(0).standard_normal((64, 3)).astype("<f4")


def objects(*values: Any) -> NDArray[Any]:
    """Returns an array of objects, whatever they are."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def column(
    *values: Any, offsets: list[int] | None = None, weights: list[float] | None = None
) -> Column:
    """Returns strings, or numbers, as they are sent."""
    return Column(
        objects(*values) if any(isinstance(value, str) for value in values) else np.array(values),
        None if offsets is None else np.array(offsets),
        None if weights is None else np.array(weights, np.float32),
    )


def open_reader(root: Path, *words: str, **features: entries.Feature) -> FeatureReader:
    """Opens features over the table `t`, which is STORED, and the vocabulary `words`."""
    table = TableReader(root, write_table(root, "t", STORED, "float32", []))
    return FeatureReader(features, {"t": table}, {"words": Vocabulary(StringKeys(list(words)))})


def lowered() -> entries.GraphIds:
    """Returns a graph of the lower case of texts."""
    builder = GraphBuilder("string")
    builder.compute("StringLower", builder.last)
    return builder.graph()
