"""Ids of one feature -> rows -> combined vector: used by both programs, never written twice.

Callers send inputs; features read them. Several features may read one input, so columns are told by input, and what is
looked up is told by feature.

What TensorFlow's CPU lookup does, told as rules:
- A single feature reads one row per example, bit for bit.
- A bag's rows are combined as `bundle/combiner.py` says; an empty bag gives zeros.
- A sparse bag drops weights <= 0 first, unless it sums; a ragged one drops nothing.
- A sequence is cut at its end to `length`, or filled with zeros.
- Unknown ids follow the feature's unknown rule in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle import files, ids
from bundle.columns import Activation, Column, Offsets, checked_offsets
from bundle.combiner import Combiner, combine
from bundle.dense import Dense
from bundle.errors import FeatureError, FormatError, UnknownRefused
from bundle.manifest import (
    BucketIds,
    DenseFeature,
    EmbeddedFeature,
    Feature,
    HashIds,
    Manifest,
    VocabularyIds,
    inputs_of,
    readers_of,
)
from bundle.tables import TableReader

__all__ = ["Activation", "Column", "FeatureReader", "open_features"]

Rows = NDArray[np.int64]
Weights = NDArray[np.float32]
Vectors = NDArray[np.float32]


class FeatureReader:
    """Turns columns into activations. Holds nothing of a call; safe for any number of threads."""

    def __init__(
        self,
        features: Mapping[str, Feature],
        tables: Mapping[str, TableReader],
        vocabularies: Mapping[str, ids.Vocabulary],
    ) -> None:
        """Joins the features of a manifest with its open tables and vocabularies.

        `inputs` tells of each input the features that read it.

        Raises:
          FormatError: a default does not fit its feature, or a table or vocabulary is not among those given.
        """
        self.tables = tables
        self._features: dict[str, Dense | _Embedded] = {}
        self._inputs = {name: inputs_of(name, feature) for name, feature in features.items()}
        self.inputs = readers_of(features)
        for name, feature in features.items():
            (read,) = self._inputs[name]
            try:
                if isinstance(feature, DenseFeature):
                    self._features[name] = Dense(read, feature)
                else:
                    self._features[name] = _Embedded(read, feature, tables[feature.table], vocabularies)
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
        feature, column = self._found(name, columns)
        return feature.activation(column, n)

    def activations(self, names: Iterable[str], columns: Mapping[str, Column], n: int) -> dict[str, Activation]:
        """Does the same as `activation` for several features, and checks the ids that are rows all at once."""
        wanted = {name: self._found(name, columns) for name in names}
        plain: dict[str, tuple[TableReader, Rows]] = {}
        for name, (feature, column) in wanted.items():
            if isinstance(feature, _Embedded) and column is not None and feature.takes_rows(column, n):
                plain[name] = feature.table, column.values
        if plain and not _within_tables(list(plain.values()), n):
            plain = {}  # one is unknown: to each feature its own rule
        found: dict[str, Activation] = {}
        for name, (feature, column) in wanted.items():
            if name in plain:
                table, values = plain[name]
                found[name] = Activation(table.take(values))
            else:
                found[name] = feature.activation(column, n)
        return found

    def rows(self, name: str, columns: Mapping[str, Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves the ids of one feature of n examples, without its unknown rule, cutting or combining.

        Returns:
          [m] int64 rows, -1 where the table does not know the id, and [n + 1] int64 offsets: the rows of each example.
        Raises:
          FeatureError: as `activation`; also for a dense feature, which has no ids.
        """
        feature, column = self._found(name, columns)
        if isinstance(feature, Dense):
            raise FeatureError(name, "it is dense: it reads no table, so it has no rows")
        return feature.rows(column, n)

    def close(self) -> None:
        """Closes the tables."""
        for table in self.tables.values():
            table.close()

    def _found(self, name: str, columns: Mapping[str, Column]) -> tuple[Dense | _Embedded, Column | None]:
        found = self._features.get(name)
        if found is None:
            raise FeatureError(name, f"the model has no such feature; it has {', '.join(self._features)}")
        return found, columns.get(self._inputs[name][0])


def open_features(root: Path, manifest: Manifest) -> FeatureReader:
    """Opens every table and vocabulary of a bundle.

    Raises:
      BundleError: a file is missing, cut short, outside the bundle, or not what the manifest says; nothing stays open.
    """
    tables: dict[str, TableReader] = {}
    with ExitStack() as opened:
        for name, table in manifest.tables.items():
            tables[name] = TableReader(root, table)
            opened.callback(tables[name].close)
        vocabularies = {}
        for name, page in manifest.vocabularies.items():
            vocabulary = ids.Vocabulary.open(files.locate(root, page.file))
            if (vocabulary.size, vocabulary.dtype) != (page.size, page.dtype):
                raise FormatError(
                    f"vocabulary {name!r} holds {vocabulary.size} keys of {vocabulary.dtype}, "
                    f"the manifest says {page.size} of {page.dtype}"
                )
            vocabularies[name] = vocabulary
        reader = FeatureReader(manifest.features, tables, vocabularies)
        opened.pop_all()
    return reader


class _Embedded:
    """A feature that reads a table."""

    def __init__(
        self, name: str, feature: EmbeddedFeature, table: TableReader, vocabularies: Mapping[str, ids.Vocabulary]
    ) -> None:
        self._name, self._spec, self.table = name, feature, table
        self._rule = _rule(name, feature, table.rows, vocabularies)
        self._default: tuple[Column, Activation] | None = None
        if feature.default is not None:
            column = _default_column(name, feature)
            self._default = column, Activation(self.activation(column, 1).values)

    def takes_rows(self, column: Column, n: int) -> bool:
        """Tells whether a column holds the n rows to be read, if only they lie in the table."""
        values = column.values
        plain = column.offsets is None and column.weights is None and values.dtype == np.int64 and values.shape == (n,)
        return plain and self._spec.kind == "single" and isinstance(self._rule, ids.Identity)

    def rows(self, column: Column | None, n: int) -> tuple[Rows, Offsets]:
        """See FeatureReader.rows."""
        if column is None:
            row, offsets = self.rows(self._needed_default()[0], 1)
            return np.tile(row, n), np.arange(n + 1, dtype=np.int64) * offsets[-1]
        if self._spec.kind == "single":
            return self._single_rows(column, n), np.arange(n + 1, dtype=np.int64)
        offsets = checked_offsets(self._name, column, n)
        return self._rule.resolve(column.values), offsets

    def activation(self, column: Column | None, n: int) -> Activation:
        """See FeatureReader.activation."""
        if column is None:
            return Activation(np.repeat(self._needed_default()[1].values, n, axis=0))
        weights = self._weights(column)
        if self._spec.kind == "single":
            rows, unknown = self._known(self._single_rows(column, n), column)
            return Activation(self._gathered(rows, unknown), unknown)
        if self._spec.kind == "sequence":
            return self._sequence(column, n)
        rows, offsets = self.rows(column, n)
        rows, unknown = self._known(rows, column)
        if unknown or weights is not None:
            return Activation(self._bag_of_kept(rows, offsets, weights), unknown)
        return Activation(combine(self.table.take(rows), offsets, self._combiner), unknown)

    @property
    def _combiner(self) -> Combiner:
        assert self._spec.combiner is not None  # noqa: S101 - the manifest's validator holds it
        return self._spec.combiner

    def _bag_of_kept(self, rows: Rows, offsets: Offsets, weights: Weights | None) -> Vectors:
        combiner = self._combiner
        kept = rows >= 0
        if weights is not None and self._spec.encoding == "sparse" and combiner != "sum":
            kept &= weights > 0
        if np.count_nonzero(kept) < kept.size:
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            rows = rows[kept]
            weights = weights[kept] if weights is not None else None
        return combine(self.table.take(rows), offsets, combiner, weights)

    def _sequence(self, column: Column, n: int) -> Activation:
        length = self._spec.length or 0
        offsets = checked_offsets(self._name, column, n)
        lengths = np.diff(offsets)
        example = np.repeat(np.arange(n), lengths)
        place = np.arange(column.values.size) - offsets[example]
        kept = place < length
        cut = column if kept.all() else Column(column.values[kept])
        rows, unknown = self._known(self._rule.resolve(cut.values), cut)
        vectors = np.zeros((n, length, self.table.dim), np.float32)
        vectors[example[kept], place[kept]] = self._gathered(rows, unknown)
        return Activation(vectors, unknown)

    def _single_rows(self, column: Column, n: int) -> Rows:
        if column.offsets is None and column.values.shape == (n,):
            return self._rule.resolve(column.values)
        lengths = np.diff(checked_offsets(self._name, column, n))
        if (lengths > 1).any():
            example = int(np.argmax(lengths))
            raise FeatureError(self._name, f"example {example} has {lengths[example]} values; one was expected")
        resolved = self._rule.resolve(column.values)
        if lengths.all():
            return resolved
        rows = np.repeat(self.rows(self._needed_default()[0], 1)[0], lengths.size)
        rows[lengths == 1] = resolved
        return rows

    def _known(self, rows: Rows, column: Column) -> tuple[Rows, int]:
        missing = rows < 0
        unknown = int(np.count_nonzero(missing))
        if not unknown or self._spec.unknown.rule == "zeros":
            return rows, unknown
        if self._spec.unknown.rule == "row":
            return np.where(missing, np.int64(self._spec.unknown.row or 0), rows), unknown
        value = column.values[missing][0] if rows.size == column.values.size else "its default"
        raise UnknownRefused(
            self._name, f"id {value!s:.80} is not in table {self._spec.table!r}, and the feature refuses unknown ids"
        )

    def _gathered(self, rows: Rows, unknown: int) -> Vectors:
        if not unknown or self._spec.unknown.rule != "zeros":
            return self.table.take(rows)
        missing = rows < 0
        vectors = self.table.take(np.where(missing, 0, rows))
        vectors[missing] = 0
        return vectors

    def _weights(self, column: Column) -> Weights | None:
        if column.weights is None:
            return None
        if not (self._spec.weighted and self._spec.kind == "bag"):
            raise FeatureError(self._name, "weights were sent; the feature takes none")
        if column.weights.shape != column.values.shape:
            raise FeatureError(
                self._name, f"{column.weights.size} weights for {column.values.size} values; one each was expected"
            )
        return ids.numbers(self._name, column.weights)

    def _needed_default(self) -> tuple[Column, Activation]:
        if self._default is None:
            raise FeatureError(self._name, "a value must be sent for each example: the feature has no default")
        return self._default


def _within_tables(wanted: list[tuple[TableReader, Rows]], n: int) -> bool:
    # Whether the n rows of each table lie in it. Seen as unsigned, a negative row is a huge one.
    if len(wanted) == 1:
        table, rows = wanted[0]
        return not np.count_nonzero(rows.view(np.uint64) >= np.uint64(table.rows))
    rows = np.concatenate([rows for _, rows in wanted])
    sizes = np.array([table.rows for table, _ in wanted], np.uint64)
    return not np.count_nonzero(rows.view(np.uint64) >= sizes.repeat(n))


def _rule(name: str, feature: EmbeddedFeature, rows: int, vocabularies: Mapping[str, ids.Vocabulary]) -> ids.Rule:
    rule = feature.ids
    if isinstance(rule, HashIds):
        return ids.Hash(name, rows, rule.buckets)
    if isinstance(rule, VocabularyIds):
        return ids.Listed(name, rows, vocabularies[rule.vocabulary], rule.first_row)
    if isinstance(rule, BucketIds):
        return ids.Buckets(name, rows, rule.boundaries)
    return ids.Identity(name, rows)


def _default_column(name: str, feature: EmbeddedFeature) -> Column:
    # As a request's JSON writes it: a value of a single feature, a list of a bag or a sequence, {ids, weights} of a
    # weighted bag.
    default, weights = feature.default, None
    if isinstance(default, dict):
        if set(default) != {"ids", "weights"}:
            raise FeatureError(name, f"keys {sorted(default)} were given; 'ids' and 'weights' were expected")
        default, weights = default["ids"], np.asarray(default["weights"])
    if (feature.kind == "single") == isinstance(default, list):
        kind = "value" if feature.kind == "single" else "list"
        raise FeatureError(name, f"{default!r} was given; a {kind} was expected")
    values = default if isinstance(default, list) else [default]
    texts = any(isinstance(value, str) for value in values)
    return Column(np.array(values, object) if texts else np.asarray(values), None, weights)
