"""Ids of one feature -> rows -> combined vector, one feature at a time.

What TensorFlow's CPU lookup does, told as rules:
- A single feature reads one row per example, bit for bit.
- A bag's rows are combined as `bundle/tables/combiner.py` says; an empty bag gives zeros.
- A sparse bag drops weights <= 0 first, unless it sums; a ragged one drops nothing.
- A sequence is cut at its end to `length`, or filled with zeros.
- Unknown ids follow the feature's unknown rule in all of them; padding is left out in all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, RowOutOfRange, UnknownRefused
from bundle.features.columns import Activation, Column, Offsets, checked_offsets, place_of
from bundle.features.indicators import Indicator, Ordinal
from bundle.features.rules import ids
from bundle.features.rules.casts import CastFirst
from bundle.features.rules.crosses import Crossed
from bundle.features.rules.joins import Joined
from bundle.features.rules.opened import rule_of
from bundle.features.rules.texts import Changed, Text
from bundle.format.manifest import (
    ArithmeticIds,
    CrossedIds,
    EmbeddedFeature,
    IdentityIds,
    JoinedIds,
    SeveralIds,
    TextIds,
    inputs_of,
)
from bundle.tables.combiner import Combiner, combine_clipped, with_empty_row
from bundle.tables.id_values import Rows, Values, is_padding, numbers
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary

Weights = NDArray[np.float32]
Vectors = NDArray[np.float32]

SEVERAL = (Crossed, Joined)
"""Rules of several inputs."""
UNKNOWN = -1
PADDING = -2
"""In place of a row: an id that the table does not know; an id that is none."""


@dataclass(frozen=True)
class Opened:
    """What features read.

    Attributes:
      tables, vocabularies, keys: open, by name.
      indicators: one of each width, and whether it is an ordinal.
    """

    tables: Mapping[str, TableReader]
    vocabularies: Mapping[str, Vocabulary]
    keys: Mapping[str, KeyIndex]
    indicators: dict[tuple[int, bool], Indicator] = field(default_factory=dict)

    def table(self, page: EmbeddedFeature) -> TableReader | Indicator:
        """Returns what a feature reads; raises KeyError for a table that is not open."""
        if page.indicator is None:
            return self.tables[page.table]
        made = Ordinal(page.indicator) if page.ordinal else Indicator(page.indicator)
        return self.indicators.setdefault((page.indicator, page.ordinal), made)


class Embedded:
    """A feature that reads a table.

    Attributes:
      page: what the manifest says of it.
      table: that it reads; of an indicator, what reads as one.
      rule: of its ids; of crossed and joined ones, what makes rows of several inputs.
      text: what makes ids of the one text that an example has; None: they are sent.
      inputs: whose columns it takes.
      read: what its column is called, of one place of an input by `place_of`; of several, the first input.
      reads_rows: whether its ids are rows, one of each example.
      reads_bags: whether they are rows, any number of each example, all of which are combined as they are.
      alike: equal for features whose vectors may be combined together.
    """

    def __init__(self, name: str, page: EmbeddedFeature, opened: Opened, drop_weights: bool = False) -> None:
        """Begins a feature.

        Args:
          name: of the feature.
          page: what the manifest says of it.
          opened: what it reads.
          drop_weights: its input is sent with weights, which another feature takes.
        """
        self.page, self.inputs = page, inputs_of(name, page)
        self.table = opened.table(page)
        self.rule = _rule(self.inputs, page, self.table.rows, opened)
        self.text = Text(self.inputs[0], page.ids) if isinstance(page.ids, TextIds) and page.split else None
        self._name, self._drop_weights = self.inputs[0], drop_weights
        self.read = self._name if page.place is None else place_of(self._name, page.place)
        one_each = page.kind == "single" and page.padding is None
        are_rows = isinstance(page.ids, IdentityIds) and page.cast is None
        self.reads_rows = one_each and are_rows
        changed = page.padding is not None or page.max_norm is not None or page.empty_row is not None
        self.reads_bags = page.kind == "bag" and are_rows and not changed
        filled = page.empty_row is not None
        filled |= page.filler_row is not None
        self.alike = (self.table.dim, page.kind, page.combiner, page.length, page.max_norm, filled)
        self._default: tuple[Column, Activation] | None = None
        self._key_defaults: dict[str, Column] = {}
        if isinstance(page.ids, SeveralIds):
            for read, key in zip(self.inputs, page.ids.keys, strict=True):
                if key.default is not None:
                    if page.kind == "single" and isinstance(key.default, list):
                        raise FeatureError(read, f"{key.default!r} was given; a value was expected")
                    self._key_defaults[read] = _column_of(key.default)
            if len(self._key_defaults) == len(set(self.inputs)):
                self.activation({}, 1)
        elif page.default is not None:
            column = _default_column(self._name, page)
            self._default = column, Activation(self.activation({self.read: column}, 1).values)

    def takes_rows(self, column: Column, n: int) -> bool:
        """Tells whether a column holds the n rows to be read, if only they lie in the table."""
        values = column.values
        plain = column.offsets is None and column.weights is None and values.dtype == np.int64 and values.shape == (n,)
        return plain and self.reads_rows

    def rows(self, columns: Mapping[str, Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves the ids of n examples; see FeatureReader.rows. Of padding the row is `PADDING`."""
        if isinstance(self.rule, SEVERAL):
            return self.rule.resolve(self.crossed(columns, n), n)
        column = columns.get(self.read)
        if column is None:
            row, offsets = self.rows({self.read: self.needed_default()[0]}, 1)
            return np.tile(row, n), np.arange(n + 1, dtype=np.int64) * offsets[-1]
        if self.page.kind == "single":
            return self._single_rows(column, n), np.arange(n + 1, dtype=np.int64)
        column = self.words(column, n)
        offsets = checked_offsets(self._name, column, n)
        return self._resolved(column.values), offsets

    def activation(self, columns: Mapping[str, Column], n: int) -> Activation:
        """See FeatureReader.activation."""
        if isinstance(self.rule, SEVERAL):
            rows, offsets = self.rule.resolve(self.crossed(columns, n), n)
            rows, unknown = self.known(rows, None)
            one = self.page.kind == "single"
            return Activation(self.table.take(rows) if one else self._bag(rows, offsets, None), unknown)
        column = columns.get(self.read)
        if column is None:
            return Activation(np.repeat(self.needed_default()[1].values, n, axis=0))
        weights = self.weights(column)
        if self.page.kind == "single":
            rows, unknown = self.known(self._single_rows(column, n), column.values)
            return Activation(self.table.take(rows), unknown)
        column = self.words(column, n)
        if self.page.kind == "sequence":
            return self._sequence(column, n)
        offsets = checked_offsets(self._name, column, n)
        rows, unknown = self.known(self._resolved(column.values), column.values)
        return Activation(self._bag(rows, offsets, weights), unknown)

    def write(self, columns: Mapping[str, Column], n: int, out: NDArray[Any]) -> int:
        """Writes what `activation` returns into `out`, [n, size], rows straight from the table where that can be.

        Returns:
          How many ids are unknown.
        """
        column = columns.get(self.read)
        straight = column is not None and self.page.kind != "sequence" and out.dtype == np.float32
        if column is None or not straight or isinstance(self.rule, SEVERAL):
            values, unknown = self.activation(columns, n)
            out[...] = values.reshape(out.shape)
            return unknown
        if self.takes_rows(column, n):
            with contextlib.suppress(RowOutOfRange):
                self.table.gather(column.values, out)
                return 0
        weights = self.weights(column)
        if self.page.kind == "single":
            rows, unknown = self.known(self._single_rows(column, n), column.values)
            self.table.take(rows, out)
            return unknown
        column = self.words(column, n)
        offsets = checked_offsets(self._name, column, n)
        rows, unknown = self.known(self._resolved(column.values), column.values)
        self._bag(rows, offsets, weights, out)
        return unknown

    def words(self, column: Column, n: int) -> Column:
        """Returns the words of the texts of n examples; a column of ids as it is.

        Raises:
          FeatureError: an example has several texts, or none where the feature has no default, or a text is none, or
            there are weights.
        """
        if self.text is None:
            return column
        self.weights(column)
        default = None if self._default is None else self._default[0]
        return Column(*self.text.words(_one_each(self._name, column, default, n).values))

    @property
    def combiner(self) -> Combiner:
        """Of a bag."""
        assert self.page.combiner is not None  # noqa: S101 - the manifest's validator holds it
        return self.page.combiner

    def padded(self, rows: Rows, values: Values) -> Rows:
        """Returns rows with `PADDING` for ids that are none."""
        if self.page.padding is None:
            return rows
        none = is_padding(self.page.padding, values)
        return rows if none is None else np.where(none, np.int64(PADDING), rows)

    def known(self, rows: Rows, values: Values | None) -> tuple[Rows, int]:
        """Applies the unknown rule: returns rows, negative for what contributes nothing, and how many were unknown.

        Raises:
          UnknownRefused: an id is unknown and the feature refuses those; names the id.
        """
        missing = rows == UNKNOWN
        unknown = int(np.count_nonzero(missing))
        if not unknown or self.page.unknown.rule == "zeros":
            return rows, unknown
        if self.page.unknown.rule == "row":
            return np.where(missing, np.int64(self.page.unknown.row or 0), rows), unknown
        value = values[missing][0] if values is not None and rows.size == values.size else "its default"
        raise UnknownRefused(
            self._name, f"id {value!s:.80} is not in table {self.page.table!r}, and the feature refuses unknown ids"
        )

    def crossed(self, columns: Mapping[str, Column], n: int) -> list[Column]:
        """Returns what was sent for each of several inputs, or its default; of a single, one value of each example.

        Raises:
          FeatureError: an input was not sent and has none, or a single has several values of it.
        """
        found, one = [], self.page.kind == "single"
        for name in self.inputs:
            column = columns.get(name)
            if column is None:
                if name not in self._key_defaults:
                    raise FeatureError(name, _NO_DEFAULT)
                values = self._key_defaults[name].values
                column = Column(np.tile(values, n), np.arange(n + 1, dtype=np.int64) * values.size)
            found.append(_one_each(name, column, self._key_defaults.get(name), n) if one else column)
        return found

    def kept(self, rows: Rows, weights: Weights | None) -> NDArray[np.bool_]:
        """Tells which ids of bags contribute."""
        kept = rows >= 0
        if weights is not None and self.page.encoding == "sparse" and self.page.combiner != "sum":
            kept &= weights > 0
        return kept

    def weights(self, column: Column) -> Weights | None:
        """Returns the weights of a column; None: all 1.

        Raises:
          FeatureError: the feature takes none, or they do not fit the ids.
        """
        if column.weights is None or self._drop_weights:
            return None
        if not (self.page.weighted and self.page.kind == "bag"):
            raise FeatureError(self._name, "weights were sent; the feature takes none")
        if column.weights.shape != column.values.shape:
            raise FeatureError(
                self._name, f"{column.weights.size} weights for {column.values.size} values; one each was expected"
            )
        return numbers(self._name, column.weights)

    def needed_default(self) -> tuple[Column, Activation]:
        """Returns the default and its activation.

        Raises:
          FeatureError: there is none.
        """
        if self._default is None:
            raise FeatureError(self._name, _NO_DEFAULT)
        return self._default

    def _resolved(self, values: Values) -> Rows:
        assert not isinstance(self.rule, SEVERAL)  # noqa: S101 - asked before
        return self.padded(self.rule.resolve(values), values)

    def _bag(self, rows: Rows, offsets: Offsets, weights: Weights | None, out: Vectors | None = None) -> Vectors:
        if weights is not None:
            rows = np.where(self.kept(rows, weights), rows, np.int64(UNKNOWN))
        if self.page.empty_row is not None:
            empty_rows = np.full(offsets.size - 1, self.page.empty_row)
            rows, offsets, weights = with_empty_row(rows, offsets, weights, empty_rows)
        if self.page.max_norm is None:
            return self.table.bags(rows, offsets, self.combiner, weights, out)
        found = combine_clipped(self.table.take, self.page.max_norm, rows, offsets, self.combiner, weights)
        if out is None:
            return found
        out[...] = found
        return out

    def _sequence(self, column: Column, n: int) -> Activation:
        length = self.page.length or 0
        offsets = checked_offsets(self._name, column, n)
        lengths = np.diff(offsets)
        example = np.repeat(np.arange(n), lengths)
        place = np.arange(column.values.size) - offsets[example]
        kept = place < length
        values = column.values if kept.all() else column.values[kept]
        rows, unknown = self.known(self._resolved(values), values)
        vectors = np.zeros((n, length, self.table.dim), np.float32)
        if self.page.filler_row is not None:
            vectors[...] = self.table.take(np.array([self.page.filler_row]))
        vectors[example[kept], place[kept]] = self.table.take(rows)
        return Activation(vectors, unknown)

    def _single_rows(self, column: Column, n: int) -> Rows:
        if column.offsets is None and column.values.shape == (n,):
            return self._resolved(column.values)
        lengths = _at_most_one(self._name, column, n)
        resolved = self._resolved(column.values)
        if lengths.all():
            return resolved
        default = {self.read: self.needed_default()[0]}
        rows = np.repeat(self.rows(default, 1)[0], lengths.size)
        rows[lengths == 1] = resolved
        return rows


def _at_most_one(name: str, column: Column, n: int) -> NDArray[np.int64]:
    """Returns how many values each example has; raises FeatureError where one has several."""
    lengths = np.diff(checked_offsets(name, column, n))
    if (lengths > 1).any():
        example = int(np.argmax(lengths))
        raise FeatureError(name, f"example {example} has {lengths[example]} values; one was expected")
    return lengths


def _one_each(name: str, column: Column, default: Column | None, n: int) -> Column:
    """Returns a column of one value of each example, its default where there is none."""
    if column.offsets is None and column.values.shape == (n,):
        return column
    lengths = _at_most_one(name, column, n)
    if lengths.all():
        return Column(column.values)
    if default is None:
        raise FeatureError(name, _NO_DEFAULT)
    texts = column.values.dtype == object and default.values.dtype != object
    values = np.repeat(default.values.astype(str).astype(object) if texts else default.values, n)
    values[lengths == 1] = column.values
    return Column(values)


_NO_DEFAULT = "a value must be sent for each example: the feature has no default"


def _rule(names: tuple[str, ...], page: EmbeddedFeature, rows: int, opened: Opened) -> ids.Rule | Crossed | Joined:
    if isinstance(page.ids, CrossedIds):
        return Crossed(names, rows, page.ids, opened.vocabularies)
    if isinstance(page.ids, JoinedIds):
        return Joined(names, rows, page.ids, opened.vocabularies)
    if isinstance(page.ids, TextIds):
        rule = rule_of(names[0], rows, page.ids.ids, opened.vocabularies)
        return rule if page.split else Changed(Text(names[0], page.ids), rule)
    made = rule_of(names[0], rows, page.ids, opened.vocabularies, opened.keys)
    if page.from_end:
        counted = ArithmeticIds() if isinstance(page.ids, IdentityIds) else page.ids
        made = ids.FromEnd(rule_of(names[0], None, counted, opened.vocabularies), rows)
    return made if page.cast is None else CastFirst(names[0], page.cast, made)


def _default_column(name: str, page: EmbeddedFeature) -> Column:
    # As a request's JSON writes it: a value of a single feature, a list of a bag or a sequence, {ids, weights} of a
    # weighted bag.
    default, weights = page.default, None
    if isinstance(default, dict):
        if set(default) != {"ids", "weights"}:
            raise FeatureError(name, f"keys {sorted(default)} were given; 'ids' and 'weights' were expected")
        default, weights = default["ids"], np.asarray(default["weights"])
    one = page.one_each and page.places is None
    if one == isinstance(default, list) or len(default if page.places else ()) != (page.places or 0):
        kind = "value" if one else "list" if page.places is None else f"list of {page.places}"
        raise FeatureError(name, f"{default!r} was given; a {kind} was expected")
    if page.place is not None:
        default = default[page.place]
    return Column(_column_of(default).values, None, weights)


def _column_of(default: Any) -> Column:
    values = default if isinstance(default, list) else [default]
    texts = any(isinstance(value, str) for value in values)
    return Column(np.array(values, object) if texts else np.asarray(values))
