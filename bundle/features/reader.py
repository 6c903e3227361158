"""The features of a bundle: what callers send -> what towers take. Used by both programs, never written twice.

Callers send inputs; features read them. Several features may read one input, so columns are told by input, and what is
looked up is told by feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bundle.errors import FeatureError, FormatError
from bundle.features import batches, dense
from bundle.features.columns import Activation, Column, Offsets, Place, place_of, spread
from bundle.features.dense import Dense
from bundle.features.embedded import UNKNOWN, Embedded, Opened
from bundle.features.indicators import Indicator
from bundle.features.small_tables import Home, small_tables
from bundle.format.manifest import DenseFeature, EmbeddedFeature, Feature, Manifest, SeveralIds, inputs_of, readers_of
from bundle.native import beside
from bundle.storage import files
from bundle.tables.id_values import Rows
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary

if TYPE_CHECKING:
    from bundle.native import _rows

    _Reader = _rows.Rows | tuple[_rows.Rows, int] | int | None

__all__ = ["Activation", "Column", "FeatureReader", "Place", "open_features"]

_FEW = 16
"""Features up to which each is looked up by itself: laying a few side by side costs more than it saves (measured)."""
_CROSS, _CHANGED = 9, 4
"""As how many features a cross counts, and one whose bags are clipped or filled: alone they take as much longer."""
_COMBINERS = ("sum", "mean", "sqrtn")
"""As compiled code numbers them."""
_BATCHES_MAX = 256
"""Sets of names that are kept; those of a model's towers and their parts are few."""


class FeatureReader:
    """Turns columns into activations. Holds nothing of a call; safe for any number of threads."""

    def __init__(
        self,
        features: Mapping[str, Feature],
        tables: Mapping[str, TableReader],
        vocabularies: Mapping[str, Vocabulary],
        keys: Mapping[str, KeyIndex] | None = None,
    ) -> None:
        """Joins the features of a manifest with the tables, vocabularies and key indexes that they read.

        `inputs` tells of each input the features that read it, `tables` are those given.

        Raises:
          FormatError: a default does not fit its feature, or a table, vocabulary or key index is not among those given.
        """
        self.tables, self.inputs = tables, readers_of(features)
        opened = Opened(tables, vocabularies, keys or {})
        weighted = {
            name
            for name, readers in self.inputs.items()
            if any(getattr(features[reader], "weighted", False) for reader in readers)
        }
        self._places = {
            inputs_of(name, each)[0]: each.places
            for name, each in features.items()
            if isinstance(each, EmbeddedFeature) and each.places is not None
        }
        self._features: dict[str, Dense | Embedded] = {}
        self._counts = {name: _count(feature) for name, feature in features.items()}
        self._batches: dict[tuple[str, ...], batches.Features] = {}
        self._plain: dict[tuple[str, ...], tuple[tuple[_Reader, ...], tuple[str, ...]]] = {}
        self._small: Mapping[int, Home] | None = None
        for name, feature in features.items():
            read = inputs_of(name, feature)[0]
            try:
                if isinstance(feature, DenseFeature):
                    self._features[name] = Dense(read, feature, read in weighted)
                else:
                    drop = read in weighted and not feature.weighted
                    self._features[name] = Embedded(name, feature, opened, drop)
            except KeyError as problem:
                raise FormatError(f"features.{name} needs {problem}, which is not open") from problem
            except (
                FeatureError,
                ValueError,
                OverflowError,
            ) as problem:  # the latter two: numpy's, of a strange default
                raise FormatError(f"features.{name}.default does not fit: {problem}") from problem

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def activation(self, name: str, columns: Mapping[str, Column], n: int) -> Activation:
        """Looks up and combines one feature of n examples.

        Args:
          name: of the feature.
          columns: what the caller sent, by input; one that is not there takes its default.
          n: examples in the call.
        Raises:
          FeatureError: there is no such feature, or an input must be sent, or its values do not fit; names the input.
          UnknownRefused: an id is unknown and the feature refuses those.
        """
        return self._found(name).activation(self._spread(columns, n), n)

    def activations(self, names: Iterable[str], columns: Mapping[str, Column], n: int) -> dict[str, Activation]:
        """Does the same as `activation` for several features, each step for all of them together where that pays."""
        columns = self._spread(columns, n)
        wanted = {name: self._found(name) for name in names}
        found: dict[str, Activation] = {}
        if self._many(wanted):
            found = self._together(tuple(wanted)).activations(columns, n)
            numbers = {name: feature for name, feature in wanted.items() if isinstance(feature, Dense)}
            found |= dense.activations(numbers, columns, n)
        plain: dict[str, tuple[TableReader | Indicator, Rows]] = {}
        for name, feature in wanted.items() if len(found) < len(wanted) else ():
            if name in found:
                continue
            if isinstance(feature, Embedded):
                column = columns.get(feature.read)
                if column is not None and feature.takes_rows(column, n):
                    plain[name] = feature.table, column.values
        if plain and not _within_tables(list(plain.values()), n):
            plain = {}  # one is unknown: to each feature its own rule
        for name, (table, rows) in plain.items():
            found[name] = Activation(table.take(rows))
        return {
            name: found[name] if name in found else feature.activation(columns, n) for name, feature in wanted.items()
        }

    def write(self, places: Sequence[Place], columns: Mapping[str, Column], n: int) -> dict[str, int]:
        """Looks features up into arrays that are there already, as those that a tower takes.

        Args:
          places: where they go; their values lie there as `activation` gives them, flat for each example.
          columns, n: as of `activation`.
        Returns:
          How many ids are unknown, by feature, where there are any.
        Raises:
          FeatureError, UnknownRefused: as `activation`; something may have been written.
        """
        columns = self._spread(columns, n)
        left = [odd for place in places for odd in self._after_plain(place, columns)]
        names_left = [name for place in left for name in place.names]
        if self._many(names_left):
            found = self.activations(names_left, columns, n)
            for array, names, _ in left:
                values = [found[name].values for name in names]
                flat = [each if each.ndim == 2 else each.reshape(n, math.prod(each.shape[1:])) for each in values]
                np.concatenate(flat, axis=1, out=array, casting="unsafe")
            return {name: each.unknown for name, each in found.items() if each.unknown}
        unknown: dict[str, int] = {}
        for array, names, ends in left:
            for name, start, end in zip(names, (0, *ends), ends, strict=False):
                count = self._found(name).write(columns, n, array[:, start:end])
                if count:
                    unknown[name] = count
        return unknown

    def _after_plain(self, place: Place, columns: Mapping[str, Column]) -> list[Place]:
        """Writes the features whose columns are rows, bags of rows or numbers, as they are; returns all others.

        Compiled code does, those that are neighbors in one go.
        """
        array, names, ends = place
        plain = self._plain.get(names)
        if plain is None:
            plain = self._plain[names] = self._readers_of(names)
        readers, reads = plain
        if beside is None or not readers or array.dtype != np.float32:
            return [place]
        sent = columns if isinstance(columns, dict) else dict(columns)
        left = []
        at = beside(readers, reads, sent, 0, array, 0)
        while at < len(names):
            first, start = at, ends[at - 1] if at else 0
            at += 1
            while at < len(names) and readers[at] is None:
                at += 1
            stop = ends[at - 1]
            left.append(Place(array[:, start:stop], names[first:at], tuple([end - start for end in ends[first:at]])))
            at = beside(readers, reads, sent, at, array, stop)
        return left

    def _readers_of(self, names: Sequence[str]) -> tuple[tuple[_Reader, ...], tuple[str, ...]]:
        """Returns what reads each feature by compiled code, None if nothing does, and the inputs that it reads.

        () if nothing reads any.
        """
        readers: list[_Reader] = []
        reads = []
        for name in names:
            feature = self._found(name)
            if isinstance(feature, Dense):
                readers.append(feature.floats)
                reads.append(feature.name)
            else:
                native = feature.table.native if feature.reads_rows or feature.reads_bags else None
                if native is not None and feature.reads_bags:
                    readers.append((native, _COMBINERS.index(feature.combiner)))
                else:
                    readers.append(native)
                reads.append(feature.read)
        return (tuple(readers), tuple(reads)) if any(each is not None for each in readers) else ((), ())

    def rows(self, name: str, columns: Mapping[str, Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves the ids of one feature of n examples, without its unknown rule, cutting or combining.

        Returns:
          [m] int64 rows, -1 where the table does not know the id, and [n + 1] int64 offsets: the rows of each example.
        Raises:
          FeatureError: as `activation`; also for a dense feature, which has no ids.
        """
        feature = self._found(name)
        if isinstance(feature, Dense):
            raise FeatureError(name, "it is dense: it reads no table, so it has no rows")
        rows, offsets = feature.rows(self._spread(columns, n), n)
        return np.maximum(rows, UNKNOWN), offsets

    def _spread(self, columns: Mapping[str, Column], n: int) -> Mapping[str, Column]:
        """Returns columns with those of each place of inputs whose places are features."""
        if not self._places:
            return columns
        found = dict(columns)
        for name, places in self._places.items():
            if name in columns and place_of(name, 0) not in columns:  # else they were before
                found |= spread(name, columns[name], places, n)
        return found

    def close(self) -> None:
        """Closes the tables."""
        self._plain.clear()
        for table in self.tables.values():
            table.close()

    def _together(self, names: tuple[str, ...]) -> batches.Features:
        found = self._batches.get(names)
        if found is None:
            if self._small is None:
                self._small = small_tables(self.tables.values())
            looked_up = {name: feature for name in names if isinstance(feature := self._features[name], Embedded)}
            alone = batches.unshared(looked_up, self._small)
            shared = {name: feature for name, feature in looked_up.items() if name not in alone}
            found = batches.Features(shared, self._small)
            if len(self._batches) < _BATCHES_MAX:
                self._batches[names] = found
        return found

    def _many(self, names: Collection[str]) -> bool:
        """Tells whether features are looked up together."""
        return len(names) > _FEW or sum([self._counts[name] for name in names]) > _FEW

    def _found(self, name: str) -> Dense | Embedded:
        found = self._features.get(name)
        if found is None:
            raise FeatureError(name, f"the model has no such feature; it has {', '.join(self._features)}")
        return found


def open_features(root: Path, manifest: Manifest, pause: Callable[[], object] = lambda: None) -> FeatureReader:
    """Opens every table, vocabulary and key index of a bundle.

    Args:
      pause: called after each.
    Raises:
      BundleError: a file is missing, cut short, outside the bundle, or not what the manifest says; nothing stays open.
    """
    tables: dict[str, TableReader] = {}
    with ExitStack() as opened:
        for name, table in manifest.tables.items():
            tables[name] = TableReader(root, table)
            opened.callback(tables[name].close)
            pause()
        vocabularies = {}
        for name, page in manifest.vocabularies.items():
            vocabulary = Vocabulary.open(files.locate(root, page.file))
            if (vocabulary.size, vocabulary.dtype) != (page.size, page.dtype):
                raise FormatError(
                    f"vocabulary {name!r} holds {vocabulary.size} keys of {vocabulary.dtype}, "
                    f"the manifest says {page.size} of {page.dtype}"
                )
            vocabularies[name] = vocabulary
            pause()
        keys = {name: KeyIndex(files.locate(root, page.file), page.size) for name, page in manifest.keys.items()}
        reader = FeatureReader(manifest.features, tables, vocabularies, keys)
        opened.pop_all()
    return reader


def _count(feature: Feature) -> int:
    if isinstance(feature, DenseFeature):
        return 1
    if isinstance(feature.ids, SeveralIds):
        return _CROSS
    return _CHANGED if feature.max_norm is not None or feature.empty_row is not None else 1


def _within_tables(wanted: list[tuple[TableReader | Indicator, Rows]], n: int) -> bool:
    # Whether the n rows of each table lie in it. Seen as unsigned, a negative row is a huge one.
    if len(wanted) == 1:
        table, rows = wanted[0]
        return not np.count_nonzero(rows.view(np.uint64) >= np.uint64(table.rows))
    rows = np.concatenate([rows for _, rows in wanted])
    sizes = np.array([table.rows for table, _ in wanted], np.uint64)
    return not np.count_nonzero(rows.view(np.uint64) >= sizes.repeat(n))
