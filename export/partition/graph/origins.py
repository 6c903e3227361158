"""The inputs of a traced call, as the sources of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.graphs.loading import tf


@dataclass(frozen=True)
class Source:
    """An input of a traced call, or one part of it.

    Attributes:
      name: The name of the input.
      part: Its part: dense, values, splits, indices or extent.
      position: The position among several values of a dense input; None: all of them.
    """

    name: str
    part: str
    position: int | None = None


Sources = Mapping[str, Source]
"""Sources by the names of the inputs' tensors, which are unique in their graph."""


def sources_of(inputs: Mapping[str, Any]) -> dict[str, Source]:
    """Returns the sources of the tensors of a traced call's inputs, by their names.

    A part that inputs share (weights have the splits of their ids) belongs to the first one.
    """
    sources: dict[str, Source] = {}
    for name, value in inputs.items():
        if isinstance(value, tf.RaggedTensor):
            parts = {"values": value.values, "splits": value.row_splits}
        elif isinstance(value, tf.SparseTensor):
            parts = {"indices": value.indices, "values": value.values, "extent": value.dense_shape}
        else:
            parts = {"dense": value}
        for part, tensor in parts.items():
            sources.setdefault(tensor.name, Source(name, part))
    return sources
