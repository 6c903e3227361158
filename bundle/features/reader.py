"""The features of a bundle, which turn the inputs of callers into the activations that towers take.
Export and service share them.

Several features may read one input, so columns are keyed by input, and activations by feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.bounded_cache import BoundedCache
from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Activation, Column, OutputBlock, column_of_position, spread
from bundle.features.dense import Dense
from bundle.features.input_lengths import InputLengths
from bundle.features.lookup import Divided, Lookup
from bundle.features.opening import FeatureSources, join_features, open_sources
from bundle.features.sources import Fetched, RemoteTable, small_tables
from bundle.features.table_feature import TableFeature
from bundle.format.manifest import (
    EmbeddedFeature,
    Feature,
    InputLength,
    Manifest,
    inputs_of,
    readers_of,
)
from bundle.tables.id_values import Rows
from bundle.tables.key_index import KeyIndex
from bundle.tables.offsets import Offsets
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary

_KEPT_MAX = 256
"""The maximum number of prepared lookups; a model's towers and their parts need few."""

__all__ = ["Activation", "Column", "FeatureReader", "OutputBlock", "open_features"]


class FeatureReader:
    """Turns columns into activations. Holds nothing of a call; safe for any number of threads.

    Attributes:
      tables: The tables that are not remote, by name.
      inputs: The features that read each input.
      lengths: The inputs that take a fixed number of values.
    """

    def __init__(
        self,
        features: Mapping[str, Feature],
        tables: Mapping[str, TableReader | RemoteTable],
        vocabularies: Mapping[str, Vocabulary],
        keys: Mapping[str, KeyIndex] | None = None,
    ) -> None:
        """Joins the features of a manifest with the tables, vocabularies and key indexes that they
        read.

        Args:
          features: The features by name, as in the manifest.
          tables: The tables by name, on this machine or in other processes.
          vocabularies: The open vocabularies by name.
          keys: The key indexes by name; None: there are none.

        Raises:
          FormatError: A default does not fit its feature, or a table, vocabulary or key index is
            missing.
        """
        self.tables = {
            name: table for name, table in tables.items() if isinstance(table, TableReader)
        }
        self.inputs = readers_of(features)
        self._position_counts = {
            inputs_of(name, feature)[0]: feature.places
            for name, feature in features.items()
            if isinstance(feature, EmbeddedFeature) and feature.places is not None
        }
        """The number of values of each input whose single values are features, by input."""
        try:
            self.lengths = InputLengths(features)
        except FeatureError as problem:
            raise FormatError(
                f"features.{problem.feature}.default does not fit: {problem}"
            ) from problem
        sources = FeatureSources(tables, vocabularies, keys or {})
        self._features, self._defaults = join_features(features, sources)
        self._small = small_tables(self.tables.values())
        # A cache of a bound method would refer back to this reader, and the memory of a retired
        # version would wait for the garbage collector.
        self._lookups: BoundedCache[tuple[str, ...], Lookup] = BoundedCache(_KEPT_MAX)
        self._divided: BoundedCache[tuple[tuple[str, ...], frozenset[str]], Divided]
        self._divided = BoundedCache(_KEPT_MAX)
        """The features of arrays, by their names and by the inputs that were not sent."""
        self._check_pads()

    def _check_pads(self) -> None:
        """Checks that the features of an input take the value that pads it.

        Raises:
          FormatError: A feature does not take it; names the input and the value.
        """
        for name, entry in self.lengths.entries.items():
            if entry.pad is None:
                continue
            # One example without values, which is padded as a whole.
            empty = {name: Column(np.empty(0, np.int64), np.zeros(2, np.int64))}
            for reader in self.inputs[name]:
                feature = self._features[reader]
                is_remote = isinstance(feature, TableFeature) and feature.is_remote
                if is_remote or len(feature.inputs) > 1:
                    continue
                try:
                    self.activations([reader], empty, 1)
                except FeatureError as problem:
                    raise FormatError(
                        f"features.{reader}.input_length.pad {entry.pad!r} does not fit: {problem}"
                    ) from problem

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def length_of(self, name: str) -> InputLength | None:
        """Returns how many values each example has in an input; None: any number of them."""
        return self.lengths.entries.get(name)

    def feature(self, name: str) -> Dense | TableFeature:
        """Returns a feature by its name; raises FeatureError if there is none."""
        feature = self._features.get(name)
        if feature is None:
            expected = f"one of {', '.join(self._features)}"
            raise FeatureError(name, "no such feature", expected, "is in the model")
        return feature

    def fitted(self, columns: Mapping[str, Column], n: int) -> Mapping[str, Column]:
        """Returns columns of the right lengths, and the columns of single positions of inputs. The
        other methods fit the columns that they take; those that are fitted stay as they are.
        """
        if self.lengths.entries:
            columns = self.lengths.fit(columns, n).columns
        if self._position_counts:
            columns = self._spread(columns, n)
        return columns

    def _spread(self, columns: Mapping[str, Column], n: int) -> Mapping[str, Column]:
        """Returns columns, and columns of the single positions of inputs whose values are
        features.
        """
        all_columns = dict(columns)
        for name, count in self._position_counts.items():
            # One method calls another with columns that have been spread already.
            if name in columns and column_of_position(name, 0) not in columns:
                all_columns |= spread(name, columns[name], count, n)
        return all_columns

    def _lookup(self, names: tuple[str, ...]) -> Lookup:
        """Returns the lookup of some features, which the first call for these features prepares."""
        # Tried rather than looked for first: another thread may empty the cache in between.
        try:
            return self._lookups[names]
        except KeyError:
            features = [(name, self.feature(name)) for name in names]
            return self._lookups.keep(names, Lookup(features, self._small))

    def activation(self, name: str, columns: Mapping[str, Column], n: int) -> Activation:
        """Looks up and combines one feature of n examples; see `activations`."""
        return self.activations([name], columns, n)[name]

    def activations(
        self,
        names: Iterable[str],
        columns: Mapping[str, Column],
        n: int,
        fetched: Fetched | None = None,
    ) -> dict[str, Activation]:
        """Looks up and combines features of n examples.

        Args:
          names: The names of the features.
          columns: What the caller sent, by input; an input that is missing has its default.
          n: The number of examples.
          fetched: The rows that `remote_rows` returned, fetched; None: it returned none.

        Raises:
          FeatureError: There is no such feature, or an input must be sent, or its values do not
            fit; names the input.
          UnknownRejected: An id is unknown, and the feature rejects unknown ids.
          RowUnavailable: A fetched row is lost, and the feature rejects unknown ids.
        """
        columns = self.fitted(columns, n)
        lookup = self._lookup(tuple(names))
        activations = lookup.joint.activations(columns, n, fetched)
        for name, dense in lookup.dense:
            activations[name] = dense.activation(columns, n)
        return activations

    def write(
        self,
        blocks: Sequence[OutputBlock],
        columns: Mapping[str, Column],
        n: int,
        fetched: Fetched | None = None,
    ) -> dict[str, int]:
        """Looks features up into arrays that exist already, such as those that a tower takes.

        Args:
          blocks: The arrays and their features, whose values are those of `activation`, flat for
            each example.
          columns: What the caller sent, see `activations`.
          n: The number of examples.
          fetched: The rows that `remote_rows` returned, see `activations`.

        Returns:
          The number of unknown ids of each feature that has some.

        Raises:
          FeatureError, UnknownRejected: See `activations`; something may have been written.
        """
        columns = self.fitted(columns, n)
        if not isinstance(columns, dict):
            columns = dict(columns)
        unwritten: list[OutputBlock] = []
        for block in blocks:
            lookup = self._lookup(block.names)
            # The usual request sends all inputs.
            if lookup.inputs.issubset(columns):
                unwritten += lookup.write_native(block, columns)
                continue
            missing = lookup.inputs.difference(columns)
            key = (block.names, missing)
            try:
                divided = self._divided[key]
            except KeyError:
                divided = lookup.divided(block.ends, missing, self._defaults)
                self._divided.keep(key, divided)
            for start, stop, default in divided.defaults:
                block.array[:, start:stop] = default
            for start, stop, names, ends in divided.looked_up:
                sent = OutputBlock(block.array[:, start:stop], names, ends)
                unwritten += self._lookup(names).write_native(sent, columns)
        if not unwritten:
            return {}
        # One lookup for the features of all arrays, which then share the reads of tables.
        unwritten_names = [name for block in unwritten for name in block.names]
        activations = self.activations(unwritten_names, columns, n, fetched)
        for array, names, _ in unwritten:
            flat = [_flat(activations[name].values) for name in names]
            np.concatenate(flat, axis=1, out=array, casting="unsafe")
        return {
            name: activation.unknown
            for name, activation in activations.items()
            if activation.unknown
        }

    def remote_rows(
        self, names: Iterable[str], columns: Mapping[str, Column], n: int
    ) -> dict[str, Rows]:
        """Returns the distinct remote rows that features read, ascending, by layout. The arguments
        are those of `activations`.
        """
        return self._lookup(tuple(names)).remote.remote_rows(self.fitted(columns, n), n)

    def rows(self, name: str, columns: Mapping[str, Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves the ids of one feature of n examples. It applies no unknown rule, and neither
        cuts nor combines.

        Returns:
          [m] int64 rows, -1 for an id that the table does not know, and [n + 1] int64 offsets of
          the rows of each example.

        Raises:
          FeatureError: See `activations`, but an example may have any number of ids; or the feature
            is dense, and has no ids.
        """
        if isinstance(self.feature(name), Dense):
            raise FeatureError(name, "a dense feature", "one that reads a table", "has no rows")
        rows, offsets = self._lookup((name,)).joint.rows(self._spread(columns, n), n)
        if offsets:
            return rows, offsets[0]
        return rows, np.arange(n + 1, dtype=np.int64)

    def close(self) -> None:
        """Closes the tables."""
        # Compiled readers keep the maps of the tables open.
        self._lookups.clear()
        self._divided.clear()
        for table in self.tables.values():
            table.close()


def open_features(
    root: Path,
    manifest: Manifest,
    pause: Callable[[], object] = lambda: None,
    remote: Mapping[str, RemoteTable | TableReader] = MappingProxyType({}),
) -> FeatureReader:
    """Opens every table, vocabulary and key index of a bundle.

    Args:
      root: The directory of the bundle.
      manifest: The manifest of the bundle.
      pause: A function that is called after each table and vocabulary.
      remote: Tables, by name, that are used instead of those of the bundle.

    Raises:
      BundleError: A file is missing, truncated, outside the bundle, or not what the manifest says;
        nothing stays open.
    """
    with ExitStack() as opened:
        sources = open_sources(root, manifest, pause, remote, opened)
        features = FeatureReader(manifest.features, *sources)
        # The reader closes the tables from now on.
        opened.pop_all()
    return features


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the values of each example, [n, width]."""
    if values.ndim == 2:
        return values
    # NumPy could not compute the width of no examples.
    return values.reshape(len(values), math.prod(values.shape[1:]))
