"""One feature that reads a table: from the values of callers to the ids that its rule takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, NotSent, UnknownRejected, rejection_of_unknown
from bundle.features.columns import (
    Column,
    checked_weights,
    column_of_position,
    one_each,
    weights_rejected,
)
from bundle.features.ids.crosses import Crossed, Joined
from bundle.features.ids.rules import rule_of
from bundle.features.ids.texts import Text
from bundle.features.sources import Indicator, RemoteTable
from bundle.format.manifest import (
    IDENTITY,
    EmbeddedFeature,
    GraphIds,
    inputs_of,
    lookup_tables_of,
)
from bundle.tables.combiner import Combiner
from bundle.tables.id_values import numbers
from bundle.tables.key_index import KeyIndex
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary

if TYPE_CHECKING:
    from bundle.native import _rows

Weights = NDArray[np.float32]
_COMBINERS = ("sum", "mean", "sqrtn")
"""The combiners, in the order in which compiled code numbers them."""


class TableFeature:
    """A feature that reads a table.

    Attributes:
      inputs: The names of the inputs whose values make its ids.
      input_name: The name of its input; the first one if there are several.
      entry: The entry of the manifest.
      table: The table that it reads. An indicator has an object that reads as a table does.
      rule: The rule of its ids. With several inputs, it is the rule of the ids that they make
        together.
      column_name: The name of its column; for one position of an input, the name that
        `column_of_position` returns.
      alike: A key that is equal for features whose vectors may be combined together.
    """

    def __init__(
        self,
        name: str,
        entry: EmbeddedFeature,
        table: TableReader | RemoteTable | Indicator,
        vocabularies: Mapping[str, Vocabulary],
        keys: Mapping[str, KeyIndex],
        drop_weights: bool = False,
    ) -> None:
        """Creates a feature.

        Args:
          name: The name of the feature.
          entry: The entry of the manifest.
          table, vocabularies, keys: The table, vocabularies and key indexes that it reads, open.
          drop_weights: Whether its input is sent with weights, which another feature takes.
        """
        self.entry = entry
        self.table = table
        self.inputs = inputs_of(name, entry)
        self._drop_weights = drop_weights
        self.input_name = self.inputs[0]
        self.column_name = self.input_name
        if entry.place is not None:
            self.column_name = column_of_position(self.input_name, entry.place)
        # What `JointLookup` reads and combines in one step must be equal in all of these.
        is_filled = entry.empty_row is not None or entry.filler_row is not None
        self.alike = (
            table.dim,
            entry.kind,
            entry.combiner,
            entry.length,
            entry.max_norm,
            is_filled,
        )
        # What is sent for several inputs, and texts, become ids before `rule` turns these into
        # rows; other values are ids as they are.
        self._compute: Callable[[Sequence[Column], int], Column] | None = None
        rule = entry.ids
        opened = [vocabularies[table.vocabulary] for table in lookup_tables_of(rule)]
        if isinstance(rule, GraphIds) and rule.split is not None:
            self._compute = Text(self.input_name, rule, rule.split, opened).words
            rule = rule.of_word
        elif isinstance(rule, GraphIds) and entry.joint is not None:
            if rule.cross is None:
                self._compute = Joined(self.inputs, rule, opened).ids
            else:
                self._compute = Crossed(self.inputs, rule, entry.joint, opened).ids
            rule = IDENTITY
        self.rule = rule_of(rule, vocabularies, keys)
        self._has_one_id = entry.one_each
        self._defaults = _defaults(self.inputs, self.column_name, entry)

    @property
    def is_remote(self) -> bool:
        """Whether its rows are fetched before they are read."""
        return isinstance(self.table, RemoteTable)

    @property
    def native(self) -> _rows.Rows | tuple[_rows.Rows, int] | None:
        """What compiled code reads it with: rows, and the number of the combiner of a bag. None:
        compiled code cannot read it, since its ids are no rows that are all read as they are.
        """
        entry = self.entry
        if entry.ids != IDENTITY or entry.kind == "sequence":
            return None
        if entry.padding is not None or entry.max_norm is not None or entry.empty_row is not None:
            return None
        rows = self.table.native
        if rows is not None and entry.kind == "bag":
            return rows, _COMBINERS.index(self.combiner)
        return rows

    @property
    def has_default(self) -> bool:
        """Whether its inputs may be left out."""
        return len(self._defaults) == len(set(self.inputs))

    @property
    def combiner(self) -> Combiner:
        """The combiner of the vectors of a bag; `sum` for other kinds."""
        return self.entry.combiner or "sum"

    def is_sent(self, columns: Mapping[str, Column]) -> bool:
        """Whether anything was sent for it."""
        return self.column_name in columns or any(name in columns for name in self.inputs)

    def ids(self, columns: Mapping[str, Column], n: int) -> Column:
        """Returns the ids of n examples as its rule takes them; defaults where none were sent.

        Raises:
          FeatureError: A required input is missing, or its values do not fit; names the input.
        """
        if self.entry.joint is not None and self._compute is not None:
            return self._compute([self._sent(name, columns, n) for name in self.inputs], n)
        column = self._sent(self.column_name, columns, n)
        if column.weights is not None:
            column = column._replace(weights=self._weights(column))
        if self._compute is not None:
            return self._compute([column], n)
        return column

    def reject(self, value: Any) -> UnknownRejected:
        """Returns the error for an id that its table does not know."""
        rejection = rejection_of_unknown(self.input_name)
        predicate = f"is not in table {self.entry.table!r}, {rejection}"
        return UnknownRejected(
            self.input_name, f"id {value!s:.80}", "an id in the table", predicate
        )

    def _sent(self, column_name: str, columns: Mapping[str, Column], n: int) -> Column:
        """Returns the column that was sent, or the default of each example.

        Args:
          column_name: The name of the column.
          columns: What was sent, by name.
          n: The number of examples.
        """
        name = column_name
        if column_name == self.column_name:
            name = self.input_name  # errors name the input, and not a position of it
        column = columns.get(column_name)
        default = self._defaults.get(column_name)
        if column is not None:
            if self._has_one_id:
                return one_each(name, column, default, n)
            return column
        if default is None:
            raise NotSent(name)

        values = default.values
        weights = default.weights
        offsets = None
        if not self._has_one_id:
            offsets = np.arange(n + 1, dtype=np.int64) * values.size
        # Most requests have one context, for which np.tile would only take time.
        if n != 1:
            values = np.tile(values, n)
            if weights is not None:
                weights = np.tile(weights, n)
        return Column(values, offsets, weights)

    def _weights(self, column: Column) -> Weights | None:
        """Returns the weights of a column; None: it has none, or another feature takes them."""
        if self._drop_weights:
            return None
        if not (self.entry.weighted and self.entry.kind == "bag"):
            raise weights_rejected(self.input_name)
        return numbers(self.input_name, checked_weights(self.input_name, column))


def _defaults(inputs: Sequence[str], column_name: str, entry: EmbeddedFeature) -> dict[str, Column]:
    """Returns the default columns of inputs that are not sent, by input.

    Raises:
      FeatureError: A default is not written as a request would write it.
    """
    if entry.joint is not None:
        columns = {}
        for name, joint_input in zip(inputs, entry.joint, strict=True):
            if joint_input.default is None:
                continue
            if entry.kind == "single" and isinstance(joint_input.default, list):
                raise FeatureError(name, repr(joint_input.default), "a value", "was given")
            columns[name] = _column_of(joint_input.default)
        return columns
    if entry.default is None:
        return {}
    default = entry.default
    weights = None
    if isinstance(default, dict):
        if set(default) != {"ids", "weights"}:
            value = f"an object of {sorted(default)}"
            raise FeatureError(inputs[0], value, "an object of 'ids' and 'weights'", "was given")
        weights = np.asarray(default["weights"])
        default = default["ids"]
    _check_default(inputs[0], default, entry)
    # The manifest has the default of the whole input, of which this feature reads one value.
    if entry.place is not None:
        default = default[entry.place]
    return {column_name: Column(_column_of(default).values, None, weights)}


def _check_default(name: str, default: Any, entry: EmbeddedFeature) -> None:
    """Raises FeatureError if the default of an input is no value, or no list of the right
    length.
    """
    is_list = isinstance(default, list)
    if entry.places is not None:
        expected = f"a list of {entry.places}"
        fits = is_list and len(default) == entry.places
    elif entry.one_each:
        expected = "a value"
        fits = not is_list
    else:
        expected = "a list"
        fits = is_list
    if not fits:
        raise FeatureError(name, repr(default), expected, "was given")


def _column_of(default: Any) -> Column:
    """Returns the column of one example with the value, or the values, of a default."""
    values = default
    if not isinstance(default, list):
        values = [default]
    if any(isinstance(value, str) for value in values):
        return Column(np.array(values, object))
    return Column(np.asarray(values))
