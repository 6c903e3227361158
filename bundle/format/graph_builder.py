"""Writes graphs of ids: the rules that recipes and feature columns state, as TensorFlow's
operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bundle.format.id_graphs import (
    ConstantDtype,
    ConstantNode,
    CrossNode,
    GraphIds,
    InputDtype,
    InputNode,
    LookupTable,
    Node,
    OperationNode,
    SplitNode,
    reading,
)

OovHash = Literal["fingerprint", "modulo"]
_DECIMAL = {"width": -1, "fill": "", "precision": -1, "scientific": False, "shortest": False}
"""Attributes of `AsString` that print an integer as Python does."""


class GraphBuilder:
    """Adds nodes to a graph. A method takes and returns positions of nodes."""

    def __init__(self, dtype: InputDtype | None = None, graph: GraphIds | None = None) -> None:
        """Begins with an input, behind the last node of a graph, or without any.

        Args:
          dtype: The type of the input; None: there is none yet.
          graph: The graph that is continued; None: a new one.
        """
        self._nodes: list[Any] = []
        self._tables: list[LookupTable] = []
        if dtype is not None:
            self._nodes.append(InputNode(dtype=dtype))
        if graph is not None:
            self._nodes = list(graph.nodes)
            self._tables = list(graph.tables)

    @property
    def last(self) -> int:
        """The position of the last node: at first of the input, or of what the graph computes."""
        return len(self._nodes) - 1

    def input(self, dtype: InputDtype, number: int) -> int:
        """Adds a further input, the one at a position."""
        return self._add(InputNode(dtype=dtype, input=number))

    def graph(self) -> GraphIds:
        """Returns the graph whose result is that of the last node."""
        return GraphIds(nodes=tuple(self._nodes), tables=tuple(self._tables))

    def constant(self, value: int | float | str, dtype: ConstantDtype = "int64") -> int:
        """Adds one value."""
        return self._add(ConstantNode(dtype=dtype, values=(value,)))

    def constants(self, values: Sequence[int]) -> int:
        """Adds a list of int64, from which other operations gather."""
        return self._add(ConstantNode(dtype="int64", values=tuple(values), is_list=True))

    def compute(self, op: str, *operands: int, **attributes: Any) -> int:
        """Adds an operation."""
        return self._add(OperationNode(op=op, inputs=operands, attributes=attributes))

    def texts(self, integers: int) -> int:
        """Adds the decimal texts of integers."""
        return self.compute("AsString", integers, **_DECIMAL)

    def moved(self, rows: int, first_row: int) -> int:
        """Adds rows, int64, that begin at `first_row` instead of at 0."""
        if not first_row:
            return rows
        return self.compute("AddV2", rows, self.constant(first_row))

    def hashed(self, texts: int, buckets: int, key: Sequence[int] | None = None) -> int:
        """Adds int64 hashes of texts: FarmHash Fingerprint64, or with a key SipHash-2-4."""
        if key is None:
            return self.compute("StringToHashBucketFast", texts, num_buckets=buckets)
        attributes = {"num_buckets": buckets, "key": list(key)}
        return self.compute("StringToHashBucketStrong", texts, **attributes)

    def positions(self, keys: int, table: LookupTable, default: int = -1) -> int:
        """Adds int64 values of keys in a lookup table, `default` of others."""
        self._tables.append(table)
        number = len(self._tables) - 1
        return self.compute("LookupTableFindV2", keys, self.constant(default), table=number)

    def vocabulary(
        self,
        keys: int,
        key_dtype: Literal["int64", "string"],
        table: LookupTable,
        oov_buckets: int = 0,
        oov_first_row: int = 0,
        oov_hash: OovHash = "fingerprint",
        mask: int | str | None = None,
    ) -> int:
        """Adds the rows of keys, as `rowcast-export`'s rule `vocabulary` has them.

        Args:
          keys: The node of the keys.
          key_dtype: The dtype of the keys.
          table: The lookup table from keys to rows.
          oov_buckets: The number of rows that other keys share; 0: other keys have row -1.
          oov_first_row: The first of these rows.
          oov_hash: How another key chooses its row; `modulo` is for int64 keys alone.
          mask: The key that has row 0, whatever the table says; None: there is none.

        Returns:
          The node of the rows, int64.
        """
        rows = self.positions(keys, table)
        if oov_buckets:
            if key_dtype == "int64" and oov_hash == "modulo":
                buckets = self.compute("FloorMod", keys, self.constant(oov_buckets))
            elif key_dtype == "string":
                buckets = self.hashed(keys, oov_buckets)
            else:
                # TensorFlow hashes the decimal texts of integers.
                buckets = self.hashed(self.texts(keys), oov_buckets)
            is_unknown = self.compute("Less", rows, self.constant(0))
            oov_rows = self.moved(buckets, oov_first_row)
            rows = self.compute("SelectV2", is_unknown, oov_rows, rows)
        if mask is None:
            return rows
        is_masked = self.compute("Equal", keys, self.constant(mask, key_dtype))
        return self.compute("SelectV2", is_masked, self.constant(0), rows)

    def buckets(self, numbers: int, boundaries: Sequence[float], first_row: int = 0) -> int:
        """Adds rows of numbers: `first_row` + how many boundaries are at most as large."""
        counts = self.compute("Bucketize", numbers, boundaries=list(boundaries))
        return self.moved(self.compute("Cast", counts, DstT="int64"), first_row)

    def limited(self, rows: int, low: int, high: int) -> int:
        """Adds rows, int64, those outside of [low, high] at its nearer end."""
        return self.compute("ClipByValue", rows, self.constant(low), self.constant(high))

    def replaced(self, rows: int, count: int, row: int) -> int:
        """Adds rows, int64, with `row` in place of those outside of [0, count)."""
        is_low = self.compute("Less", rows, self.constant(0))
        is_high = self.compute("GreaterEqual", rows, self.constant(count))
        is_outside = self.compute("LogicalOr", is_low, is_high)
        return self.compute("SelectV2", is_outside, self.constant(row), rows)

    def crossed(self, operands: Sequence[int], buckets: int, hash_key: int) -> int:
        """Adds a cross of results, one of each input in their order."""
        node = CrossNode(inputs=tuple(operands), num_buckets=buckets, hash_key=hash_key)
        return self._add(node)

    def split(self, text: int, rule: SplitNode) -> int:
        """Adds the words of a text, by the fields of a split."""
        return self._add(rule.model_copy(update={"inputs": (text,)}))

    def beside(self, graph: GraphIds) -> int:
        """Adds what a graph computes of inputs of its own, behind those that are there."""
        count = sum(isinstance(node, InputNode) for node in self._nodes)
        inputs = [self.input(node.dtype, count + node.input) for node in graph.inputs]
        return self._copied(graph, inputs)

    def then(self, graph: GraphIds, values: Sequence[int] | None = None) -> int:
        """Adds what a graph computes of nodes, which take the place of its inputs.

        Args:
          graph: The graph.
          values: The positions of the nodes; None: the last one alone.
        """
        operands = []
        for node, operand in zip(graph.inputs, values or [self.last], strict=True):
            if node.dtype in ("int32", "int64", "float32"):
                operands.append(self.compute("Cast", operand, DstT=node.dtype))
            else:
                operands.append(operand)
        return self._copied(graph, operands)

    def _copied(self, graph: GraphIds, inputs: Sequence[int]) -> int:
        """Adds the operations and constants of a graph, whose inputs are nodes of this one."""
        first_table = len(self._tables)
        self._tables += graph.tables
        # The position here of each node of the graph, whose operands are positions there.
        positions: dict[int, int] = {}
        for position, node in enumerate(graph.nodes):
            if isinstance(node, InputNode):
                positions[position] = inputs[node.input]
                continue
            copy = reading(node, positions)
            if isinstance(copy, OperationNode) and "table" in copy.attributes:
                table = copy.attributes["table"] + first_table
                copy = copy.model_copy(update={"attributes": copy.attributes | {"table": table}})
            positions[position] = self._add(copy)
        return positions[len(graph.nodes) - 1]

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        return self.last
