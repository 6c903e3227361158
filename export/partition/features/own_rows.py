"""The model's own operations between inputs and rows, run by TensorFlow.

A bundle computes them with functions of its own. Here they are run as they are, so that the rows of
a bundle can be compared with the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.interface import OwnRows
from export.graphs.functions import narrowed
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.partition.graph.pruning import TracedCall
from export.partition.lookups.records import TracedLookup


@dataclass(frozen=True, eq=False)
class _LookedUpRows:
    """Computes the rows of a lookup from the values of inputs. A `ComputeRows`.

    Attributes:
      call: The traced call.
      lookup: The lookup as the model made it.
      position: The position of the id that is looked up among those of an example; None: all are.
    """

    call: TracedCall
    lookup: TracedLookup
    position: int | None

    def __call__(self, columns: Mapping[str, NDArray[Any]], n: int) -> NDArray[np.int64]:
        """See ComputeRows."""
        values = []
        for name, tensor in (self._sources or {}).items():
            # The batch is the only open axis.
            shape = [n if size is None else size for size in tensor.shape.as_list()]
            values.append(tf.constant(columns[name].reshape(shape), tensor.dtype))
        tensors = run_flat(self._function, values, is_rewritten=True)
        ids = tensors["ids"].numpy().astype(np.int64)
        ids_max = self.lookup.ids_max
        if ids_max is not None and "splits" in tensors:
            ids = _cut(ids, tensors["splits"].numpy(), ids_max)
        if self.position is not None:
            # The lookup as the model made it reads all ids of an example.
            ids = ids.reshape(n, -1)[:, self.position]
        return self._rows(ids.reshape(-1))

    @property
    def inputs(self) -> tuple[str, ...] | None:
        """See OwnRows."""
        sources = self._sources
        if sources is None or self._function is None:
            return None
        return tuple(sources)

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows that the lookup itself finds for its ids."""
        row_count = self.lookup.table.rows
        unknown = self.lookup.unknown
        unknown_row = -1
        if unknown is not None and unknown.row is not None:
            unknown_row = unknown.row

        outside = self.lookup.outside
        # Ids below 0 are counted from the end first: those beyond an end read the nearest row.
        if outside.from_end:
            is_counted = (ids < 0) & (ids >= -row_count)
            ids = np.where(is_counted, ids + row_count, ids)
        if outside.outcome == "nearest":
            ids = np.clip(ids, 0, row_count - 1)
        is_row = (ids >= 0) & (ids < row_count)
        return np.where(is_row, ids, unknown_row)

    @cached_property
    def _sources(self) -> dict[str, Any] | None:
        """The inputs' tensors by name; None: the ids depend on more than values of inputs, such as
        how many an example has.
        """
        by_name = {}
        for name, tensor in self.call.inputs.items():
            by_name[_values(tensor).name] = name
        captured = {inner.name for _, inner in self.call.function.graph.captures}
        sources = {}
        for placeholder in needed(self._fetches.values(), []).placeholders:
            # A captured tensor has its value already: it is no input.
            if placeholder.name in captured:
                continue
            # Such as the placeholder of lengths.
            if placeholder.name not in by_name:
                return None
            sources[by_name[placeholder.name]] = placeholder
        return sources

    @property
    def _fetches(self) -> dict[str, Any]:
        """The tensor of the ids and, if the lookup reads only the first ids of each example, the
        one that says where those of each example begin.
        """
        ids = self.lookup.ids[0]
        fetches = {"ids": _values(ids)}
        if self.lookup.ids_max is not None and isinstance(ids, tf.RaggedTensor):
            fetches["splits"] = ids.row_splits
        return fetches

    @cached_property
    def _function(self) -> Any:
        """The function from the values of the sources to the ids; None: weights are read on the
        way, which have no value yet.
        """
        feeds = list((self._sources or {}).values())
        function, variables = narrowed("ids", self.call.function, feeds, self._fetches)
        if variables:
            return None
        return function


def _cut(ids: NDArray[np.int64], splits: NDArray[Any], count_max: int) -> NDArray[np.int64]:
    """Returns the first ids of each example, `count_max` at most."""
    lengths = np.diff(splits)
    positions = np.arange(ids.size) - np.repeat(splits[:-1], lengths)
    first_ids: NDArray[np.int64] = ids[positions < count_max]
    return first_ids


def own_rows(call: TracedCall, lookup: TracedLookup) -> OwnRows | None:
    """Returns what computes the rows of a resolved lookup; None if it was a column that has a rule
    of its own, or if its ids are an input's values as they are.
    """
    original = lookup.unresolved
    if original is None or original.rule is not None or len(original.ids) != 1:
        return None
    ids = _values(original.ids[0])
    if any(ids is _values(tensor) for tensor in call.inputs.values()):
        return None
    rows = _LookedUpRows(call, original, lookup.position)
    return OwnRows(rows.inputs, rows, lookup.line)


def _values(tensor: Any) -> Any:
    """Returns the values of a dense, ragged or sparse tensor."""
    if isinstance(tensor, tf.RaggedTensor | tf.SparseTensor):
        return tensor.values
    return tensor
