"""Rows by the model's own operations: the graph of a manifest, computed with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.rules.operations import OPERATIONS, Rejected, flushed
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode
from bundle.format.id_rules import GraphIds
from bundle.tables.id_values import Rows, Values, integers, numbers, strings
from bundle.tables.vocabularies import Vocabulary

Array = NDArray[Any]
_FIND = "LookupTableFindV2"
_INT32 = np.iinfo(np.int32)


class Graph:
    """Computes rows of ids by the nodes of a graph."""

    def __init__(self, entry: GraphIds, vocabularies: Sequence[Vocabulary]) -> None:
        """Begins a graph.

        Args:
          entry: of the manifest.
          vocabularies: those that it names, open.

        Raises:
          FormatError: a node names an unknown operation, lacks an attribute, or does not fit the
            results that it takes; names the node.
        """
        self._entry = entry
        self._vocabularies = vocabularies
        self._constants = {
            position: _constant(node)
            for position, node in enumerate(entry.nodes)
            if isinstance(node, ConstantNode)
        }
        for position, node in enumerate(entry.nodes):
            if isinstance(node, OperationNode):
                _check(position, node, entry, len(vocabularies))
        self._last_read_by = _last_reads(entry)
        self._check_types()

    def rows(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 rows of [m] ids.

        Raises:
          FeatureError: a value is none that the model takes; names `feature`.
        """
        results = self._results(feature, values)
        return results.astype(np.int64, copy=False)

    def _check_types(self) -> None:
        """Computes the row of one value of the input's type, and of none.

        Raises:
          FormatError: an operation does not take what it is given, or there are no rows.
        """
        values: Array = np.zeros(1, np.int64)
        if self._entry.dtype == "string":
            values = np.array(["0"], object)
        for sample in (values, values[:0]):
            try:
                results = self._results("", sample)
            except FeatureError:
                continue  # the model rejects this very value
            if results.dtype.kind not in "iu" or results.shape != sample.shape:
                raise FormatError(
                    f"a graph of ids computes {results.dtype} of shape {results.shape} for "
                    f"{sample.size} values; as many integers were expected"
                )

    def _results(self, feature: str, values: Values) -> Array:
        """Returns the result of the last node."""
        nodes = self._entry.nodes
        results: dict[int, Array] = {}
        with np.errstate(all="ignore"):
            for position, node in enumerate(nodes):
                if isinstance(node, ConstantNode):
                    results[position] = self._constants[position]
                elif isinstance(node, InputNode):
                    results[position] = _INPUTS[node.dtype](feature, values)
                else:
                    operands = [results[operand] for operand in node.inputs]
                    results[position] = self._computed(feature, position, node, operands)
                    for operand in self._last_read_by.get(position, ()):
                        del results[operand]
        return results[len(nodes) - 1]

    def _computed(
        self, feature: str, position: int, node: OperationNode, operands: Sequence[Array]
    ) -> Array:
        try:
            if node.op == _FIND:
                return self._found(feature, node.attributes["vocabulary"], *operands)
            return np.asarray(OPERATIONS[node.op].compute(node.attributes, *operands))
        except Rejected as problem:
            raise FeatureError(
                feature, f"the model's operation {node.op} {problem}, which it fails on"
            ) from problem
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as problem:
            raise FormatError(
                f"node {position} ({node.op}) of a graph of ids does not fit what it reads: "
                f"{problem}"
            ) from problem

    def _found(self, feature: str, which: int, keys: Array, default: Array) -> Array:
        """Returns the values of keys in a vocabulary.

        Source: TensorFlow 2.20, core/kernels/lookup_table_op.h (the rule).
        """
        first = self._entry.vocabularies[which].first_row
        flat: Array = keys.reshape(-1)
        if keys.dtype == object:
            flat = np.empty(keys.size, object)
            # Bytes that are no UTF-8 become surrogates, which no key has.
            flat[:] = [key.decode(errors="surrogateescape") for key in keys.reshape(-1).tolist()]
        positions = self._vocabularies[which].find(feature, flat).reshape(keys.shape)
        return np.where(positions < 0, default, positions + first).astype(default.dtype)


def _last_reads(entry: GraphIds) -> dict[int, list[int]]:
    """Returns the nodes whose results no node behind a position reads, by that position."""
    last_reader = {
        operand: position
        for position, node in enumerate(entry.nodes)
        if isinstance(node, OperationNode)
        for operand in node.inputs
    }
    done: dict[int, list[int]] = {}
    for operand, position in last_reader.items():
        done.setdefault(position, []).append(operand)
    return done


def _check(position: int, node: OperationNode, entry: GraphIds, vocabulary_count: int) -> None:
    """Checks a node by the table of operations.

    Raises:
      FormatError: the table has no such operation, or it takes other operands or attributes.
    """
    what = f"node {position} ({node.op}) of a graph of ids"
    if node.op == _FIND:
        operand_count: int | None = 2
        attributes: tuple[str, ...] = ("vocabulary",)
        lists: tuple[int, ...] = ()
        which = node.attributes.get("vocabulary")
        if type(which) is not int or not 0 <= which < vocabulary_count:
            raise FormatError(
                f"{what}: 'vocabulary' is {which!r}; the graph has {vocabulary_count} vocabularies"
            )
    elif node.op in OPERATIONS:
        operation = OPERATIONS[node.op]
        operand_count = operation.operands
        attributes = operation.attributes
        lists = operation.lists
    else:
        raise FormatError(f"{what} is no operation that ids are computed by")
    if operand_count not in (None, len(node.inputs)):
        raise FormatError(f"{what} takes {operand_count} operands, not {len(node.inputs)}")
    if set(node.attributes) != set(attributes):
        raise FormatError(
            f"{what} has the attributes {sorted(node.attributes)}; {sorted(attributes)} were "
            "expected"
        )
    for place, operand in enumerate(node.inputs):
        source = entry.nodes[operand]
        is_list = isinstance(source, ConstantNode) and source.is_list
        if is_list != (place in lists):
            raise FormatError(
                f"{what}: operand {place} is {'a' if is_list else 'no'} list of constants"
            )


def _constant(node: ConstantNode) -> Array:
    """Returns the values of a constant: [k] of a list, else one without axes.

    Raises:
      FormatError: a value does not fit the dtype.
    """
    values: Array
    try:
        if node.dtype == "string":
            values = np.empty(len(node.values), object)
            values[:] = [value.encode() for value in node.values]  # type: ignore[union-attr]
        else:
            values = np.array([_number(value) for value in node.values])
            if node.dtype.startswith(("int", "uint")) and values.dtype.kind not in "iu":
                raise TypeError("they are no integers")
            with np.errstate(over="raise"):
                narrowed = values.astype(node.dtype)
            if values.dtype.kind in "iu" and (narrowed != values).any():
                raise OverflowError("they are beyond it")
            values = narrowed
    except (AttributeError, TypeError, ValueError, OverflowError, FloatingPointError) as problem:
        raise FormatError(
            f"values {node.values!r:.80} of a constant of a graph of ids are no {node.dtype}: "
            f"{problem}"
        ) from problem
    return values if node.is_list else values[0:1].reshape(())


def _number(value: int | float | str) -> int | float:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value  # type: ignore[return-value]


def _int32s(feature: str, values: Values) -> Array:
    ids = integers(feature, values)
    outside = (ids < _INT32.min) | (ids > _INT32.max)
    if outside.any():
        raise FeatureError(
            feature,
            f"id {ids[outside.argmax()]} is beyond int32, in which the model computes rows; an id "
            "in [-2^31, 2^31) was expected",
        )
    return ids.astype(np.int32)


def _texts(feature: str, values: Values) -> Array:
    texts = np.empty(values.size, object)
    try:
        texts[:] = [text.encode() for text in strings(feature, values).tolist()]
    except UnicodeEncodeError as problem:
        raise FeatureError(
            feature, f"a string is no Unicode text: {problem}; UTF-8 was expected"
        ) from problem
    return texts


_INPUTS: dict[str, Callable[[str, Values], Array]] = {
    "int32": _int32s,
    "int64": integers,
    "float32": lambda feature, values: flushed(numbers(feature, values)),
    "string": _texts,
}
