"""Features that requests look up together, prepared once.

There are three ways, the cheapest first: what was not sent has a default that is known, compiled
code reads rows, bags of rows and numbers, and a joint lookup reads all features. Each leaves what
it cannot do to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column, OutputBlock
from bundle.features.dense import Dense
from bundle.features.joint_lookup import JointLookup
from bundle.features.sources import RowSource
from bundle.features.table_feature import TableFeature
from bundle.native import read_tables

Key = TypeVar("Key")
Value = TypeVar("Value")

_KEPT_MAX = 256
"""The maximum number of prepared lookups; a model's towers and their parts need few."""


class _Divided(NamedTuple):
    """The features of an array, of a call that left some inputs out.

    Attributes:
      defaults: First column, the column after the last, and the values there.
      looked_up: First column, the column after the last, and names and ends of the features there.
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
        defaults: Mapping[str, NDArray[Any]],
    ) -> None:
        """Prepares a lookup.

        Args:
          features: The features and their names.
          small: The sources of small tables, by table.
          defaults: The values of features of which nothing was sent, flat, where they are known.
        """
        self.inputs = frozenset([name for _, feature in features for name in feature.inputs])
        self.dense = [(name, feature) for name, feature in features if isinstance(feature, Dense)]
        self._features = features
        self._small = small
        self._defaults = defaults
        self._divided: dict[frozenset[str], _Divided] = {}
        """The features by the inputs that were not sent."""

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
    def _native(self) -> tuple[tuple[Any, ...], tuple[str, ...]] | None:
        """The compiled reader of each feature, None for a feature without one, and the columns that
        they read; None: compiled code reads none of the features.
        """
        readers = tuple([feature.native for _, feature in self._features])
        if read_tables is None or all(reader is None for reader in readers):
            return None
        return readers, tuple([feature.column_name for _, feature in self._features])

    def write_defaults(
        self, block: OutputBlock, columns: Mapping[str, Column]
    ) -> Sequence[OutputBlock]:
        """Writes the features of which nothing was sent, if their default is known; returns blocks
        of the other features, with neighbors in one block.
        """
        # The usual request sends all inputs.
        if self.inputs.issubset(columns):
            return (block,)
        missing = self.inputs.difference(columns)
        divided = self._divided.get(missing)
        if divided is None:
            divided = self._divide(block, missing)
            keep(self._divided, missing, divided)
        for start, stop, default in divided.defaults:
            block.array[:, start:stop] = default
        return [
            OutputBlock(block.array[:, start:stop], neighbors, ends)
            for start, stop, neighbors, ends in divided.looked_up
        ]

    def _divide(self, block: OutputBlock, missing: frozenset[str]) -> _Divided:
        """Divides features into those whose default is written and those that are looked up.

        Args:
          block: The array and its features.
          missing: The inputs that were not sent.
        """
        defaults: list[tuple[int, int, NDArray[Any]]] = []
        looked_up: list[tuple[int, int, tuple[str, ...], tuple[int, ...]]] = []
        start = 0
        for (name, feature), stop in zip(self._features, block.ends, strict=True):
            if name in self._defaults and missing.issuperset(feature.inputs):
                defaults.append((start, stop, self._defaults[name]))
            elif looked_up and looked_up[-1][1] == start:
                # A neighbor of the feature before.
                first, _, names, ends = looked_up[-1]
                looked_up[-1] = (first, stop, (*names, name), (*ends, stop - first))
            else:
                looked_up.append((start, stop, (name,), (stop - start,)))
            start = stop
        return _Divided(defaults, looked_up)

    def write_native(self, block: OutputBlock, columns: dict[str, Column]) -> list[OutputBlock]:
        """Writes the features whose columns are rows, bags of rows or numbers, with compiled code;
        returns blocks of the other features, with neighbors in one block.
        """
        array, names, ends = block
        native = self._native
        if read_tables is None or native is None or array.dtype != np.float32:
            return [block]
        readers, reads = native
        count = len(names)
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


def keep(cache: dict[Key, Value], key: Key, value: Value) -> None:
    """Adds a value to a cache; a full cache is emptied first."""
    if len(cache) >= _KEPT_MAX:
        cache.clear()
    cache[key] = value
