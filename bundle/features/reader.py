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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.columns import Activation, Column, OutputBlock, column_of_position, spread
from bundle.features.dense import Dense
from bundle.features.input_lengths import InputLengths, with_fitted_defaults
from bundle.features.joint_lookup import JointLookup
from bundle.features.sources import (
    Fetched,
    Indicator,
    Ordinal,
    RemoteTable,
    small_tables,
)
from bundle.features.table_feature import TableFeature
from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    InputLength,
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

__all__ = ["Activation", "Column", "FeatureReader", "OutputBlock", "open_features"]

Key = TypeVar("Key")
Value = TypeVar("Value")

_COMBINERS = ("sum", "mean", "sqrtn")
"""The combiners, in the order in which compiled code numbers them."""
_JOINT_MAX = 256
"""The maximum number of sets of names whose joint lookups are cached; a model's towers and their
parts need few.
"""


class _Bound(NamedTuple):
    """The lookups of the same features, request after request.

    Attributes:
      joint: The features that have ids.
      dense: The other features, by name.
    """

    joint: JointLookup
    dense: list[tuple[str, Dense]]


class _Divided(NamedTuple):
    """The features of an array, of a call that left some inputs out.

    Attributes:
      defaults: First column, the column after the last, and the values there.
      looked_up: First column, the column after the last, and names and ends of the features there.
    """

    defaults: Sequence[tuple[int, int, NDArray[Any]]]
    looked_up: Sequence[tuple[int, int, tuple[str, ...], tuple[int, ...]]]


class NonFiniteRow(NamedTuple):
    """A row with NaN or an infinity that an example reads.

    Attributes:
      feature: The name of the feature that reads the row.
      table: The name of the table that holds the row.
      id: The id whose row it is, before the rule of the feature is applied.
      example: The position of the example.
    """

    feature: str
    table: str
    id: Any
    example: int


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

        `inputs` lists the features that read each input, `tables` the tables that are not remote,
        and `lengths` the inputs that take a fixed number of values.

        Raises:
          FormatError: A default does not fit its feature, or a table, vocabulary or key index is
            missing.
        """
        self.tables = {
            name: table for name, table in tables.items() if isinstance(table, TableReader)
        }
        self.inputs = readers_of(features)
        self._weighted: set[str] = set()
        """Inputs that are sent with weights."""
        self._position_counts: dict[str, int] = {}
        """The number of values of each input whose single values are features, by input."""
        for name, feature in features.items():
            if feature.weighted:
                self._weighted.update(inputs_of(name, feature))
            if isinstance(feature, EmbeddedFeature) and feature.places is not None:
                self._position_counts[inputs_of(name, feature)[0]] = feature.places
        try:
            self.lengths = InputLengths(features)
        except FeatureError as problem:
            raise FormatError(
                f"features.{problem.feature}.default does not fit: {problem}"
            ) from problem
        self._features: dict[str, Dense | TableFeature] = {}
        # Plain dictionaries: a cache of a bound method would refer back to this reader, and the
        # memory of a retired version would wait for the garbage collector.
        self._inputs_by_names: dict[tuple[str, ...], frozenset[str]] = {}
        self._native_by_names: dict[tuple[str, ...], _NativeReaders | None] = {}
        """The compiled readers of features, by the names of the features."""
        self._divided: dict[tuple[tuple[str, ...], frozenset[str]], _Divided] = {}
        """The features of arrays, by their names and by the inputs that were not sent."""
        self._joint_by_names: dict[tuple[str, ...], JointLookup] = {}
        """Joint lookups of features that have ids, by their names."""
        self._bound: dict[tuple[str, ...], _Bound] = {}
        """The lookups of features, by the names of the features."""
        self._defaults: dict[str, NDArray[Any] | None] = {}
        self._indicators: dict[tuple[int, bool], Indicator] = {}
        for name, feature in features.items():
            inputs = inputs_of(name, feature)
            try:
                feature = with_fitted_defaults(feature, inputs)  # noqa: PLW2901 - the same feature
                if isinstance(feature, DenseFeature):
                    (input_name,) = inputs
                    self._features[name] = Dense(input_name, feature, input_name in self._weighted)
                else:
                    self._features[name] = self._open_embedded(
                        name, feature, tables, vocabularies, keys or {}
                    )
            except KeyError as problem:
                raise FormatError(
                    f"features.{name} needs {problem}, which is not open"
                ) from problem
            # The last two are numpy's, of a strange default. Recipes name inputs, not features.
            except (FeatureError, ValueError, OverflowError) as problem:
                key = f"features.{' or '.join(inputs)}.default"
                raise FormatError(f"{key} does not fit: {problem}") from problem
        self._small = small_tables(self.tables.values())
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
                if self._is_remote(reader) or len(self._inputs_of(reader)) > 1:
                    continue
                try:
                    self.activations([reader], empty, 1)
                except FeatureError as problem:
                    raise FormatError(
                        f"features.{reader}.input_length.pad {entry.pad!r} does not fit: {problem}"
                    ) from problem

    def _open_embedded(
        self,
        name: str,
        feature: EmbeddedFeature,
        tables: Mapping[str, TableReader | RemoteTable],
        vocabularies: Mapping[str, Vocabulary],
        keys: Mapping[str, KeyIndex],
    ) -> TableFeature:
        """Joins a feature with what it reads, and checks its default."""
        table: TableReader | RemoteTable | Indicator
        if feature.indicator:
            table = self._indicator(feature)
        else:
            table = tables[feature.table]
        input_is_weighted = inputs_of(name, feature)[0] in self._weighted
        drops_weights = input_is_weighted and not feature.weighted
        embedded = TableFeature(name, feature, table, vocabularies, keys, drops_weights)
        # Looked up once now: a default that does not fit is an error of the bundle, not of the
        # first request that leaves the input out.
        if embedded.has_default and not isinstance(table, RemoteTable):
            JointLookup({name: embedded}, {}).activations({}, 1)
        return embedded

    def _indicator(self, feature: EmbeddedFeature) -> Indicator:
        """Returns the table of an indicator; equal indicators share one."""
        width = feature.indicator or 0
        kind = (width, feature.ordinal)
        if kind in self._indicators:
            return self._indicators[kind]
        table = Indicator(width)
        if feature.ordinal:
            table = Ordinal(width)
        self._indicators[kind] = table
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def length_of(self, name: str) -> InputLength | None:
        """Returns how many values each example has in an input; None: any number of them."""
        return self.lengths.entries.get(name)

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
        columns = self._fitted(columns, n)
        names = tuple(names)
        bound = self._bound.get(names)
        if bound is None:
            bound = self._bind(names)
            _keep(self._bound, names, bound)
        activations = bound.joint.activations(columns, n, fetched)
        for name, dense in bound.dense:
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
        columns = self._fitted(columns, n)
        # Three ways, the cheapest first: each leaves what it cannot do to the next.
        unwritten: list[OutputBlock] = []
        for block in blocks:
            for without_defaults in self._write_defaults(block, columns):
                unwritten += self._write_native(without_defaults, columns)
        if not unwritten:
            return {}
        # One lookup for the features of all arrays, which then share the reads of tables.
        unwritten_names = [name for block in unwritten for name in block.names]
        activations = self.activations(unwritten_names, columns, n, fetched)
        for array, names, _ in unwritten:
            flat = []
            for name in names:
                values = activations[name].values
                if values.ndim != 2:
                    values = values.reshape(n, math.prod(values.shape[1:]))
                flat.append(values)
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
        remote = tuple([name for name in names if self._is_remote(name)])
        return self._joint_lookup(remote).remote_rows(self._fitted(columns, n), n)

    def _write_defaults(
        self, block: OutputBlock, columns: Mapping[str, Column]
    ) -> Sequence[OutputBlock]:
        """Writes the features of which nothing was sent, if their default is known; returns blocks
        of the other features, with neighbors in one block.
        """
        names = block.names
        if names in self._inputs_by_names:
            inputs = self._inputs_by_names[names]
        else:
            inputs = frozenset(
                [input_name for name in names for input_name in self._inputs_of(name)]
            )
            _keep(self._inputs_by_names, names, inputs)
        # The usual request sends all inputs.
        if inputs.issubset(columns):
            return (block,)
        missing = inputs.difference(columns)
        key = (names, missing)
        cache = self._divided
        if key in cache:
            divided = cache[key]
        else:
            divided = self._divide(block, missing)
            _keep(cache, key, divided)
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
        for name, stop in zip(block.names, block.ends, strict=True):
            default = None
            if missing.issuperset(self._inputs_of(name)):
                default = self._default_of(name)
            if default is not None:
                defaults.append((start, stop, default))
            elif looked_up and looked_up[-1][1] == start:
                # A neighbor of the feature before.
                first, _, names, ends = looked_up[-1]
                looked_up[-1] = (first, stop, (*names, name), (*ends, stop - first))
            else:
                looked_up.append((start, stop, (name,), (stop - start,)))
            start = stop
        return _Divided(defaults, looked_up)

    def _inputs_of(self, name: str) -> Sequence[str]:
        """Returns the inputs that a feature reads."""
        feature = self._feature(name)
        if isinstance(feature, Dense):
            return (feature.column_name,)
        return feature.inputs

    def _default_of(self, name: str) -> NDArray[Any] | None:
        """Returns the values of a feature of which nothing was sent, flat; None: it has no default,
        or its row is remote.
        """
        if name not in self._defaults:
            self._defaults[name] = None
            if self._feature(name).has_default and not self._is_remote(name):
                values = self.activations([name], {}, 1)[name].values
                self._defaults[name] = values.reshape(-1)
        return self._defaults[name]

    def _is_remote(self, name: str) -> bool:
        """Returns whether the rows of a feature are remote."""
        feature = self._feature(name)
        return isinstance(feature, TableFeature) and isinstance(feature.table, RemoteTable)

    def _write_native(self, block: OutputBlock, columns: Mapping[str, Column]) -> list[OutputBlock]:
        """Writes the features whose columns are rows, bags of rows or numbers, with compiled code;
        returns blocks of the other features, with neighbors in one block.
        """
        array, names, ends = block
        cache = self._native_by_names
        # Tried rather than looked for first: another thread may empty the cache in between.
        try:
            native = cache[names]
        except KeyError:
            native = self._native_readers(names)
            _keep(cache, names, native)
        if read_tables is None or native is None or array.dtype != np.float32:
            return [block]
        readers, reads = native
        if not isinstance(columns, dict):
            columns = dict(columns)
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

    def _bind(self, names: tuple[str, ...]) -> _Bound:
        """Returns the lookups of some features."""
        embedded = []
        dense = []
        for name in names:
            feature = self._feature(name)
            if isinstance(feature, Dense):
                dense.append((name, feature))
            else:
                embedded.append(name)
        return _Bound(self._joint_lookup(tuple(embedded)), dense)

    def _joint_lookup(self, names: tuple[str, ...]) -> JointLookup:
        """Returns the joint lookup of some features."""
        joint = self._joint_by_names.get(names)
        if joint is None:
            features = {}
            for name in names:
                feature = self._features[name]
                if isinstance(feature, TableFeature):
                    features[name] = feature
            joint = JointLookup(features, self._small)
            _keep(self._joint_by_names, names, joint)
        return joint

    def _native_readers(self, names: tuple[str, ...]) -> _NativeReaders | None:
        """Returns the compiled reader of each feature, None for a feature without one, and the
        columns that they read; None: compiled code reads none of the features.
        """
        readers = [self._native_reader(name) for name in names]
        if all(reader is None for reader in readers):
            return None
        return tuple(readers), tuple(self._feature(name).column_name for name in names)

    def _native_reader(self, name: str) -> _Reader:
        """Returns the compiled reader of a feature; None: it has none."""
        feature = self._feature(name)
        if isinstance(feature, Dense):
            return feature.floats
        native = feature.table.native
        if native is None or not feature.reads_rows:
            return None
        if feature.entry.kind == "bag":
            return native, _COMBINERS.index(feature.combiner)
        return native

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
        if isinstance(self._feature(name), Dense):
            raise FeatureError(name, "a dense feature", "one that reads a table", "has no rows")
        rows, offsets = self._joint_lookup((name,)).rows(self._spread(columns, n), n)
        if offsets:
            return rows, offsets[0]
        return rows, np.arange(n + 1, dtype=np.int64)

    def rows_not_finite(
        self,
        names: Iterable[str],
        columns: Mapping[str, Column],
        n: int,
        fetched: Fetched | None = None,
    ) -> list[NonFiniteRow]:
        """Finds the rows that make vectors of features NaN or infinite: for each example and
        feature, the first row that is not finite, if there is one.

        Arguments and errors are those of `activations`.
        """
        columns = self._fitted(columns, n)
        nonfinite_rows = []
        for name in names:
            feature = self._feature(name)
            if isinstance(feature, Dense) or isinstance(feature.table, Indicator):
                continue
            vectors = self.activations([name], columns, n, fetched)[name].values
            is_nonfinite = ~np.isfinite(vectors.reshape(n, -1)).all(axis=1)
            for example in np.flatnonzero(is_nonfinite).tolist():
                nonfinite_id = self._first_not_finite(name, feature, columns, n, example, fetched)
                if nonfinite_id is not None:
                    nonfinite_rows.append(
                        NonFiniteRow(name, feature.entry.table, nonfinite_id, example)
                    )
        return nonfinite_rows

    def _first_not_finite(
        self,
        name: str,
        feature: TableFeature,
        columns: Mapping[str, Column],
        n: int,
        example: int,
        fetched: Fetched | None,
    ) -> Any:
        """Returns the first id of an example whose row is not finite; None: there is none."""
        rows, offsets = self._joint_lookup((name,)).rows(columns, n)
        ids = feature.ids(columns, n).values
        # Features without offsets have one id per example.
        example_slice = slice(example, example + 1)
        if offsets:
            example_slice = slice(*offsets[0][example : example + 2].tolist())
        rows = rows[example_slice]

        # The rows are read anew, since the combined vectors hide the row at fault.
        if feature.entry.unknown.row is not None:
            rows = np.where(rows < 0, feature.entry.unknown.row, rows)
        table = feature.table
        if isinstance(table, RemoteTable):
            shifted = np.where(rows < 0, rows, rows + table.first)
            vectors = (fetched or {})[table.among.name].take(shifted)
        else:
            vectors = table.take(rows)
        is_nonfinite = ~np.isfinite(vectors).all(axis=1)
        if not is_nonfinite.any():
            return None
        return ids[example_slice][is_nonfinite][0]

    def _fitted(self, columns: Mapping[str, Column], n: int) -> Mapping[str, Column]:
        """Returns columns of the right lengths, and the columns of single positions of inputs."""
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

    def close(self) -> None:
        """Closes the tables."""
        # Compiled readers keep the maps of the tables open.
        self._native_by_names.clear()
        self._divided.clear()
        self._joint_by_names.clear()
        self._bound.clear()
        self._inputs_by_names.clear()
        self._defaults.clear()
        for table in self.tables.values():
            table.close()

    def _feature(self, name: str) -> Dense | TableFeature:
        """Returns a feature by its name; raises FeatureError if there is none."""
        feature = self._features.get(name)
        if feature is None:
            expected = f"one of {', '.join(self._features)}"
            raise FeatureError(name, "no such feature", expected, "is in the model")
        return feature


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
        # The reader closes the tables from now on.
        opened.pop_all()
    return features


def _keep(cache: dict[Key, Value], key: Key, value: Value) -> None:
    """Adds a value to a cache; a full cache is emptied first."""
    if len(cache) >= _JOINT_MAX:
        cache.clear()
    cache[key] = value
