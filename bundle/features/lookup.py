"""Features that requests look up together, prepared once.

There are three ways, the cheapest first: the default of what was not sent is known, compiled code
reads rows, bags of rows and numbers, and a joint lookup reads all features. Each leaves what it
cannot do to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column, OutputBlock
from bundle.features.dense import Dense
from bundle.features.joint_lookup import JointLookup
from bundle.features.sources import RowSource
from bundle.features.table_feature import TableFeature
from bundle.native import read_tables


class Divided(NamedTuple):
    """The features of an array, of a call that left some inputs out.

    Attributes:
      defaults: First column, the column after the last, and the values there.
      looked_up: First column, the column after the last, and names and ends of the features there;
        neighbors lie in one block.
    """

    defaults: Sequence[tuple[int, int, NDArray[Any]]]
    looked_up: Sequence[tuple[int, int, tuple[str, ...], tuple[int, ...]]]


class Lookup:
    """The lookup of some features, request after request.

    Attributes:
      inputs: The inputs that the features read.
      dense: The features without ids, by name.
    """

    def __init__(
        self,
        features: Sequence[tuple[str, Dense | TableFeature]],
        small: Mapping[object, RowSource],
    ) -> None:
        """Prepares a lookup.

        Args:
          features: The features and their names.
          small: The sources of small tables, by table.
        """
        self.inputs = frozenset([name for _, feature in features for name in feature.inputs])
        self.dense = [(name, feature) for name, feature in features if isinstance(feature, Dense)]
        self._features = features
        self._small = small

    @cached_property
    def joint(self) -> JointLookup:
        """The lookup of the features that have ids."""
        features = {
            name: feature for name, feature in self._features if isinstance(feature, TableFeature)
        }
        return JointLookup(features, self._small)

    @cached_property
    def remote(self) -> JointLookup:
        """The lookup of the features whose rows are remote."""
        features = {
            name: feature
            for name, feature in self._features
            if isinstance(feature, TableFeature) and feature.is_remote
        }
        return JointLookup(features, self._small)

    @cached_property
    def _native(self) -> tuple[tuple[Any, ...], tuple[str, ...], int] | None:
        """The compiled reader of each feature, None for a feature without one, the columns that
        they read, and the number of features; None: compiled code reads none of the features.
        """
        readers = tuple([feature.native for _, feature in self._features])
        if read_tables is None or all(reader is None for reader in readers):
            return None
        columns = tuple([feature.column_name for _, feature in self._features])
        return readers, columns, len(columns)

    def divided(
        self, ends: Sequence[int], missing: frozenset[str], known: Mapping[str, NDArray[Any]]
    ) -> Divided:
        """Divides features into those whose default is written and those that are looked up.

        Args:
          ends: The column after the last one of each feature.
          missing: The inputs that were not sent.
          known: The values of features of which nothing was sent, flat, where they are known.
        """
        defaults: list[tuple[int, int, NDArray[Any]]] = []
        looked_up: list[tuple[int, int, tuple[str, ...], tuple[int, ...]]] = []
        start = 0
        for (name, feature), stop in zip(self._features, ends, strict=True):
            if name in known and missing.issuperset(feature.inputs):
                defaults.append((start, stop, known[name]))
            elif looked_up and looked_up[-1][1] == start:
                # A neighbor of the feature before.
                first, _, names, block_ends = looked_up[-1]
                looked_up[-1] = (first, stop, (*names, name), (*block_ends, stop - first))
            else:
                looked_up.append((start, stop, (name,), (stop - start,)))
            start = stop
        return Divided(defaults, looked_up)

    def write_native(self, block: OutputBlock, columns: dict[str, Column]) -> list[OutputBlock]:
        """Writes the features whose columns are rows, bags of rows or numbers, with compiled code;
        returns blocks of the other features, with neighbors in one block.
        """
        array, names, ends = block
        native = self._native
        if read_tables is None or native is None or array.dtype != np.float32:
            return [block]
        readers, reads, count = native
        unwritten = []
        # Compiled code returns the position of the first feature that it cannot read.
        position = read_tables(readers, reads, columns, 0, array, 0)
        while position < count:
            first = position
            start = 0
            if first:
                start = ends[first - 1]
            position += 1
            # Neighbors that have no compiled reader go along, as one block.
            while position < count and readers[position] is None:
                position += 1
            stop = ends[position - 1]
            unwritten_ends = tuple([end - start for end in ends[first:position]])
            unwritten.append(
                OutputBlock(array[:, start:stop], names[first:position], unwritten_ends)
            )
            position = read_tables(readers, reads, columns, position, array, stop)
        return unwritten
