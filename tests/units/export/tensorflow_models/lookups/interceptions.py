"""Traces functions whose lookups are intercepted, as the exporter traces a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import tables_unallocated
from export.tensorflow_models.lookups.interception import lookups_intercepted
from export.tensorflow_models.lookups.records import TracedLookup

ROWS = 9
DIM = 4
RAGGED = tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1)
SPARSE = tf.SparseTensorSpec([None, None], tf.int64)

Call = Callable[[Any, Mapping[str, Any]], Any]
"""(table [ROWS, DIM], inputs by name) -> result."""


@dataclass
class Intercepted:
    """What was intercepted in a function.

    Attributes:
      combined: The bags, sequences and indicators that a service computes.
      gathered: The gathers of one row per id that a service computes.
      placeholders: The results of both, in the order in which the function reads them.
      result: What the function returns, as tensors of its graph.
      table: The table that the function was given.
    """

    combined: list[TracedLookup] = field(default_factory=list)
    gathered: list[TracedLookup] = field(default_factory=list)
    placeholders: list[Any] = field(default_factory=list)
    result: Any = None
    table: Any = None
    function: Any = None

    @property
    def operations(self) -> set[str]:
        """The types of operations in the graph."""
        return {operation.type for operation in self.function.graph.get_operations()}

    def run(self, *values: Any) -> NDArray[Any]:
        """Computes the result from the values of the placeholders."""
        pruned = self.function.prune(self.placeholders, self.result)
        return np.asarray(
            pruned(*(tf.constant(values_of_input, tf.float32) for values_of_input in values))
        )


def table_of(dtype: Any = tf.float32) -> Any:
    """Returns a table without memory, [ROWS, DIM]."""
    with tables_unallocated():
        return tf.Variable(lambda: tf.zeros([ROWS, DIM], dtype), name="items")


def intercept(
    call: Call, *, dtype: Any = tf.float32, gathers: bool = True, **inputs: Any
) -> Intercepted:
    """Traces a function with every lookup intercepted.

    Args:
      call: The function.
      dtype: The table's.
      gathers: Whether a service computes gathers of one row per id, too.
      inputs: The types of the inputs.
    """
    intercepted = Intercepted(table=table_of(dtype))

    def placeholder(lookup: TracedLookup, among: list[TracedLookup]) -> Any:
        among.append(lookup)
        placeholder = tf.compat.v1.placeholder(tf.float32, lookup.shape)
        intercepted.placeholders.append(placeholder)
        return placeholder

    def combine(lookup: TracedLookup) -> Any:
        return placeholder(lookup, intercepted.combined)

    def gather(lookup: TracedLookup) -> Any:
        return placeholder(lookup, intercepted.gathered) if gathers else None

    def traced(features: Mapping[str, Any]) -> Any:
        intercepted.result = call(intercepted.table, features)
        return intercepted.result

    with lookups_intercepted(lambda _: intercepted.table, combine, gather):
        intercepted.function = tf.compat.v1.wrap_function(traced, [inputs])
    return intercepted
