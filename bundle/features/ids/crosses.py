"""From several inputs to rows: their values are hashed together, or a graph computes the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bundle.errors import FeatureError
from bundle.features.columns import Column, checked_offsets
from bundle.features.ids.graphs import Graph
from bundle.features.ids.hashing import concatenated, hashes
from bundle.format.features import JointInput
from bundle.format.id_graphs import GraphIds
from bundle.tables.id_values import Rows, Values, integers, strings, without
from bundle.tables.offsets import Offsets, offsets_of
from bundle.tables.vocabularies import Vocabulary

COMBINATIONS_MAX = 1 << 20
"""The maximum number of combinations of the values of one feature's inputs in a call: a few long
bags have a great many.
"""


class _Key:
    """One of the inputs of a cross; computes the number of each of its values."""

    def __init__(
        self,
        name: str,
        graph: GraphIds,
        joint_input: JointInput,
        vocabularies: Sequence[Vocabulary],
    ) -> None:
        """Creates the key of input `name`; `graph` computes what is crossed of its values."""
        self.name = name
        self._padding = joint_input.padding
        self._dtype = graph.dtype
        self._graph: Graph | None = None
        # Integers and texts are crossed as they are sent, without bytes in between.
        if len(graph.nodes) > 1 or graph.dtype not in ("int64", "string"):
            self._graph = Graph(graph, vocabularies, gives_texts=True)

    def packed(self, column: Column, n: int) -> tuple[Values, Offsets]:
        """Returns the values and offsets of n examples, without padding."""
        offsets = checked_offsets(self.name, column, n)
        if self._padding is None:
            return column.values, offsets
        return without(self._padding, column.values, offsets)

    def numbers(self, values: Values) -> Rows:
        """Returns [m] int64: the integer of each value, or the hash of a string."""
        if self._graph is not None:
            computed = self._graph.results([(self.name, values)])
        elif self._dtype == "string":
            computed = strings(self.name, values)
        else:
            computed = integers(self.name, values)
        if computed.dtype == object:
            return hashes(self.name, computed).view(np.int64)
        return computed.astype(np.int64, copy=False)


class Crossed:
    """Rows that are the hash of one value of each input together, modulo the number of buckets. The
    values of the last input vary fastest.
    """

    def __init__(
        self,
        names: Sequence[str],
        graph: GraphIds,
        joint: Sequence[JointInput],
        vocabularies: Sequence[Vocabulary],
    ) -> None:
        """Creates the cross of some inputs.

        Args:
          names: The names of the inputs.
          graph: The graph, whose last node is the cross.
          joint: What is sent for the inputs.
          vocabularies: The vocabularies of the graph's lookup tables, open.
        """
        assert graph.cross is not None  # noqa: S101 - a graph of a cross
        self._cross = graph.cross
        self._keys = [
            _Key(name, graph.part(operand), joint_input, vocabularies)
            for name, operand, joint_input in zip(names, graph.cross.inputs, joint, strict=True)
        ]

    def ids(self, columns: Sequence[Column], n: int) -> Column:
        """Returns the rows of n examples. An example without a value for some input has none.

        Args:
          columns: The column of each input.
          n: The number of examples in each column.

        Raises:
          FeatureError: A column does not fit its input, or there are more than `COMBINATIONS_MAX`
            combinations.

        Source: TensorFlow 2.20, core/kernels/sparse_cross_op.cc, HashCrosser and ProductIterator
        (the rule).
        """
        packed = [key.packed(column, n) for key, column in zip(self._keys, columns, strict=True)]
        lengths = np.array([np.diff(offsets) for _, offsets in packed])
        # Computed in floats: the product of a few long bags' lengths may not fit an int64.
        if np.prod(lengths.astype(np.float64), axis=0).sum() > COMBINATIONS_MAX:
            first, *further = (key.name for key in self._keys)
            raise FeatureError(
                first,
                f"more than {COMBINATIONS_MAX} combinations with {', '.join(further)}",
                "a request with fewer values",
            )
        counts = np.prod(lengths, axis=0, dtype=np.int64)
        offsets = offsets_of(counts)
        hashed = np.full(offsets[-1], self._cross.hash_key, np.uint64)
        examples = np.repeat(np.arange(n), counts)

        # The number of a combination in its example has a digit for each input, the last of which
        # varies fastest. Input by input, the digit is split off.
        remainders = np.arange(offsets[-1]) - offsets[examples]
        digit_values = counts
        for key, (values, starts), input_lengths in zip(self._keys, packed, lengths, strict=True):
            numbers = key.numbers(values).view(np.uint64)
            # With one value of each input, value i is that of example i.
            if (lengths != 1).any():
                digit_values = digit_values // np.maximum(input_lengths, 1)
                digits = remainders // digit_values[examples]
                remainders = remainders - digits * digit_values[examples]
                numbers = numbers[starts[examples] + digits]
            hashed = concatenated(hashed, numbers)
        return Column((hashed % np.uint64(self._cross.num_buckets)).astype(np.int64), offsets)


class Joined:
    """Rows that a graph computes from one value of each input."""

    def __init__(
        self, names: Sequence[str], graph: GraphIds, vocabularies: Sequence[Vocabulary]
    ) -> None:
        """Takes the names of the inputs, the graph, and its open vocabularies."""
        self._names = names
        self._graph = Graph(graph, vocabularies)

    def ids(self, columns: Sequence[Column], _n: int) -> Column:
        """Returns the row of each example; each column holds one value per example."""
        inputs = [(name, column.values) for name, column in zip(self._names, columns, strict=True)]
        return Column(self._graph.results(inputs).astype(np.int64, copy=False))
