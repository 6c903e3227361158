"""The features of a bundle: what callers send -> what towers take. Used by both programs, never
written twice.

Callers send inputs; features read them. Several features may read one input, so columns are keyed
by input, and what is looked up by feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.batch import Batch
from bundle.features.columns import Activation, Column, Place, place_of, spread
from bundle.features.dense import Dense
from bundle.features.embedded import Embedded
from bundle.features.sources import Fetched, Indicator, Ordinal, RemoteTable, small_tables
from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    Manifest,
    inputs_of,
    readers_of,
)
from bundle.native import read_tables
from bundle.storage import files
from bundle.tables.id_values import Rows
from bundle.tables.key_index import KeyIndex
from bundle.tables.offsets import Offsets
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary

if TYPE_CHECKING:
    from bundle.native import _rows

    _Reader = _rows.Rows | tuple[_rows.Rows, int] | int | None
    _NativeReaders = tuple[tuple[_Reader, ...], tuple[str, ...]]

__all__ = ["Activation", "Column", "FeatureReader", "Place", "open_features"]

Key = TypeVar("Key")
Value = TypeVar("Value")

_COMBINERS = ("sum", "mean", "sqrtn")
"""As compiled code numbers them."""
_BATCHES_MAX = 256
"""Sets of names that are kept; those of a model's towers and their parts are few."""


class _Bound(NamedTuple):
    """What looks the same features up, request after request.

    Attributes:
      batch: Of those that have ids.
      dense: The others, by name.
    """

    batch: Batch
    dense: list[tuple[str, Dense]]


class _Divided(NamedTuple):
    """The features of a place, where some inputs were not sent.

    Attributes:
      defaults: First column, the column after the last, and what stands there.
      sent: First column, the column after the last, names and ends of what is looked up.
    """

    defaults: Sequence[tuple[int, int, NDArray[Any]]]
    sent: Sequence[tuple[int, int, tuple[str, ...], tuple[int, ...]]]


class FeatureReader:
    """Turns columns into activations. Holds nothing of a call; safe for any number of threads."""

    def __init__(
        self,
        features: Mapping[str, Feature],
        tables: Mapping[str, TableReader | RemoteTable],
        vocabularies: Mapping[str, Vocabulary],
        keys: Mapping[str, KeyIndex] | None = None,
    ) -> None:
        """Joins the features of a manifest with the tables, vocabularies and key indexes that they
        read.

        `inputs` lists of each input the features that read it, `tables` are those given that are
        here.

        Raises:
          FormatError: a default does not fit its feature, or a table, vocabulary or key index is
            not among those given.
        """
        self.tables = {
            name: table for name, table in tables.items() if isinstance(table, TableReader)
        }
        self.inputs = readers_of(features)
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
        # Plain dictionaries: a cache of a bound method would refer back to this reader, and the
        # memory of a retired version would wait for the garbage collector.
        self._native_by_names: dict[tuple[str, ...], _NativeReaders | None] = {}
        self._batches: dict[tuple[str, ...], Batch] = {}
        self._bound: dict[tuple[str, ...], _Bound] = {}
        self._inputs_by_names: dict[tuple[str, ...], frozenset[str]] = {}
        self._divided: dict[tuple[tuple[str, ...], frozenset[str]], _Divided] = {}
        self._defaults: dict[str, NDArray[Any] | None] = {}
        indicators: dict[tuple[int, bool], Indicator] = {}
        for name, feature in features.items():
            read = inputs_of(name, feature)[0]
            try:
                if isinstance(feature, DenseFeature):
                    self._features[name] = Dense(read, feature, read in weighted)
                    continue
                table: TableReader | RemoteTable | Indicator | Ordinal
                if feature.indicator:
                    kind = (feature.indicator, feature.ordinal)
                    if kind not in indicators:
                        indicators[kind] = Ordinal(kind[0]) if kind[1] else Indicator(kind[0])
                    table = indicators[kind]
                else:
                    table = tables[feature.table]
                drop = read in weighted and not feature.weighted
                embedded = Embedded(name, feature, table, vocabularies, keys or {}, drop)
                self._features[name] = embedded
                if embedded.has_default and not isinstance(table, RemoteTable):
                    Batch({name: embedded}, {}).activations({}, 1)
            except KeyError as problem:
                raise FormatError(
                    f"features.{name} needs {problem}, which is not open"
                ) from problem
            except (
                FeatureError,
                ValueError,
                OverflowError,
            ) as problem:  # numpy's, of a strange default
                raise FormatError(f"features.{name}.default does not fit: {problem}") from problem
        self._small = small_tables(self.tables.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

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
          names: of the features.
          columns: what the caller sent, by input; one that is not there takes its default.
          n: examples in the call.
          fetched: what `wanted` returned, if anything, fetched.
        Raises:
          FeatureError: there is no such feature, or an input must be sent, or its values do not
            fit; names the input.
          UnknownRefused: an id is unknown and the feature refuses those.
          RowUnavailable: a fetched row is lost and the feature refuses unknown ids.
        """
        if self._places:
            columns = self._spread(columns, n)
        names = tuple(names)
        bound = self._bound.get(names)
        if bound is None:
            bound = self._bind(names)
            _keep(self._bound, names, bound)
        found = bound.batch.activations(columns, n, fetched)
        for name, dense in bound.dense:
            found[name] = dense.activation(columns, n)
        return found

    def write(
        self,
        places: Sequence[Place],
        columns: Mapping[str, Column],
        n: int,
        fetched: Fetched | None = None,
    ) -> dict[str, int]:
        """Looks features up into arrays that are there already, as those that a tower takes.

        Args:
          places: where they go; their values lie there as `activation` gives them, flat for each
            example.
          columns, n, fetched: as of `activations`.
        Returns:
          How many ids are unknown, by feature, where there are any.
        Raises:
          FeatureError, UnknownRefused: as `activations`; something may have been written.
        """
        if self._places:
            columns = self._spread(columns, n)
        left: list[Place] = []
        for place in places:
            for part in self._after_defaults(place, columns):
                left += self._after_native(part, columns)
        if not left:
            return {}
        wanted = [name for place in left for name in place.names]
        found = self.activations(wanted, columns, n, fetched)
        for array, names, _ in left:
            values = [found[name].values for name in names]
            flat = [
                each if each.ndim == 2 else each.reshape(n, math.prod(each.shape[1:]))
                for each in values
            ]
            np.concatenate(flat, axis=1, out=array, casting="unsafe")
        return {name: each.unknown for name, each in found.items() if each.unknown}

    def wanted(
        self, names: Iterable[str], columns: Mapping[str, Column], n: int
    ) -> dict[str, Rows]:
        """Returns the distinct remote rows, ascending, that features read, by layout; arguments as
        of `activations`.
        """
        remote = [
            name
            for name in names
            if isinstance(getattr(self._found(name), "table", None), RemoteTable)
        ]
        return self._batch(tuple(remote)).wanted(self._spread(columns, n), n)

    def _after_defaults(self, place: Place, columns: Mapping[str, Column]) -> Sequence[Place]:
        """Writes the features of which nothing was sent, where their default is known; returns all
        others, those that are neighbors together.
        """
        names = place.names
        if names in self._inputs_by_names:
            inputs = self._inputs_by_names[names]
        else:
            inputs = frozenset([one for name in names for one in self._inputs_of(name)])
            _keep(self._inputs_by_names, names, inputs)
        if inputs.issubset(columns):
            return (place,)
        missing = inputs.difference(columns)
        key = (names, missing)
        if key in self._divided:
            divided = self._divided[key]
        else:
            divided = self._divide(place, missing)
            _keep(self._divided, key, divided)
        for start, stop, default in divided.defaults:
            place.array[:, start:stop] = default
        return [
            Place(place.array[:, start:stop], part, ends)
            for start, stop, part, ends in divided.sent
        ]

    def _divide(self, place: Place, missing: frozenset[str]) -> _Divided:
        """Divides features into those whose default is written and those that are looked up.

        Args:
          place: Where the features go.
          missing: The inputs that were not sent.
        """
        defaults: list[tuple[int, int, NDArray[Any]]] = []
        sent: list[tuple[int, int, tuple[str, ...], tuple[int, ...]]] = []
        start = 0
        for name, stop in zip(place.names, place.ends, strict=True):
            default = None
            if missing.issuperset(self._inputs_of(name)):
                default = self._default_of(name)
            if default is not None:
                defaults.append((start, stop, default))
            elif sent and sent[-1][1] == start:
                first, _, names, ends = sent[-1]
                sent[-1] = (first, stop, (*names, name), (*ends, stop - first))
            else:
                sent.append((start, stop, (name,), (stop - start,)))
            start = stop
        return _Divided(defaults, sent)

    def _inputs_of(self, name: str) -> Sequence[str]:
        found = self._found(name)
        return (found.read,) if isinstance(found, Dense) else found.inputs

    def _default_of(self, name: str) -> NDArray[Any] | None:
        """Returns what a feature gives of which nothing was sent, flat; None: it has no default, or
        its row is elsewhere.
        """
        if name not in self._defaults:
            found = self._found(name)
            is_here = not isinstance(getattr(found, "table", None), RemoteTable)
            self._defaults[name] = None
            if found.has_default and is_here:
                values = self.activations([name], {}, 1)[name].values
                self._defaults[name] = values.reshape(-1)
        return self._defaults[name]

    def _after_native(self, place: Place, columns: Mapping[str, Column]) -> list[Place]:
        """Writes the features whose columns are rows, bags of rows or numbers, as they are; returns
        all others.

        Compiled code does, those that are neighbors in one go.
        """
        array, names, ends = place
        if names in self._native_by_names:
            native = self._native_by_names[names]
        else:
            native = self._native_readers(names)
            _keep(self._native_by_names, names, native)
        if read_tables is None or native is None or array.dtype != np.float32:
            return [place]
        readers, reads = native
        sent = columns if isinstance(columns, dict) else dict(columns)
        left = []
        at = read_tables(readers, reads, sent, 0, array, 0)
        while at < len(names):
            first = at
            start = ends[at - 1] if at else 0
            at += 1
            while at < len(names) and readers[at] is None:
                at += 1
            stop = ends[at - 1]
            left.append(
                Place(
                    array[:, start:stop],
                    names[first:at],
                    tuple([end - start for end in ends[first:at]]),
                )
            )
            at = read_tables(readers, reads, sent, at, array, stop)
        return left

    def _bind(self, names: tuple[str, ...]) -> _Bound:
        """Returns what looks some features up."""
        wanted = {name: self._found(name) for name in names}
        embedded = [name for name, each in wanted.items() if isinstance(each, Embedded)]
        dense = [(name, each) for name, each in wanted.items() if isinstance(each, Dense)]
        return _Bound(self._batch(tuple(embedded)), dense)

    def _batch(self, names: tuple[str, ...]) -> Batch:
        """Returns the batch of some features."""
        found = self._batches.get(names)
        if found is None:
            found = self._batch_of(names)
            _keep(self._batches, names, found)
        return found

    def _native_readers(self, names: tuple[str, ...]) -> _NativeReaders | None:
        """Returns what reads each feature by compiled code, None if nothing does, and the inputs
        that it reads; None: compiled code reads none of them.
        """
        readers: list[_Reader] = []
        for name in names:
            feature = self._found(name)
            if isinstance(feature, Dense):
                readers.append(feature.floats)
            elif feature.table.native is None or not feature.reads_rows:
                readers.append(None)
            elif feature.entry.kind == "bag":
                readers.append((feature.table.native, _COMBINERS.index(feature.combiner)))
            else:
                readers.append(feature.table.native)
        if all(each is None for each in readers):
            return None
        return tuple(readers), tuple(self._found(name).read for name in names)

    def _batch_of(self, names: tuple[str, ...]) -> Batch:
        return Batch(
            {name: each for name in names if isinstance(each := self._features[name], Embedded)},
            self._small,
        )

    def rows(self, name: str, columns: Mapping[str, Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves the ids of one feature of n examples, without its unknown rule, cutting or
        combining.

        Returns:
          [m] int64 rows, -1 where the table does not know the id, and [n + 1] int64 offsets: the
          rows of each example.
        Raises:
          FeatureError: as `activations`; also for a dense feature, which has no ids.
        """
        if isinstance(self._found(name), Dense):
            raise FeatureError(name, "it is dense: it reads no table, so it has no rows")
        rows, offsets = self._batch((name,)).rows(self._spread(columns, n), n)
        return rows, offsets[0] if offsets else np.arange(n + 1, dtype=np.int64)

    def _spread(self, columns: Mapping[str, Column], n: int) -> Mapping[str, Column]:
        """Returns columns with those of each place of inputs whose places are features."""
        found = dict(columns)
        for name, places in self._places.items():
            if name in columns and place_of(name, 0) not in columns:  # else they were before
                found |= spread(name, columns[name], places, n)
        return found

    def close(self) -> None:
        """Closes the tables."""
        self._native_by_names.clear()
        self._batches.clear()
        self._bound.clear()
        self._inputs_by_names.clear()
        self._divided.clear()
        self._defaults.clear()
        for table in self.tables.values():
            table.close()

    def _found(self, name: str) -> Dense | Embedded:
        found = self._features.get(name)
        if found is None:
            raise FeatureError(
                name, f"the model has no such feature; it has {', '.join(self._features)}"
            )
        return found


def open_features(
    root: Path,
    manifest: Manifest,
    pause: Callable[[], object] = lambda: None,
    remote: Mapping[str, RemoteTable | TableReader] = MappingProxyType({}),
) -> FeatureReader:
    """Opens every table, vocabulary and key index of a bundle.

    Args:
      pause: called after each.
      remote: instead of these tables.
    Raises:
      BundleError: a file is missing, cut short, outside the bundle, or not what the manifest says;
        nothing stays open.
    """
    tables: dict[str, TableReader | RemoteTable] = {}
    with ExitStack() as opened:
        for name, table in manifest.tables.items():
            if name in remote:
                tables[name] = remote[name]
                continue
            tables[name] = reader = TableReader(root, table)
            opened.callback(reader.close)
            pause()
        vocabularies = {}
        for name, entry in manifest.vocabularies.items():
            vocabulary = Vocabulary.open(files.locate(root, entry.file))
            if (vocabulary.size, vocabulary.dtype) != (entry.size, entry.dtype):
                raise FormatError(
                    f"vocabulary {name!r} holds {vocabulary.size} keys of {vocabulary.dtype}, "
                    f"the manifest says {entry.size} of {entry.dtype}"
                )
            vocabularies[name] = vocabulary
            pause()
        keys = {
            name: KeyIndex(files.locate(root, entry.file), entry.size)
            for name, entry in manifest.keys.items()
        }
        features = FeatureReader(manifest.features, tables, vocabularies, keys)
        opened.pop_all()
    return features


def _keep(cache: dict[Key, Value], key: Key, value: Value) -> None:
    """Keeps a value; a full cache begins anew."""
    if len(cache) >= _BATCHES_MAX:
        cache.clear()
    cache[key] = value
