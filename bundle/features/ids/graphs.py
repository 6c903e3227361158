"""Rows of ids, computed by the model's own operations: the graph of a manifest, run with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from bundle.errors import FeatureError, FormatError, UnknownRejected
from bundle.features.ids.hashing import no_text
from bundle.features.ids.operations import OPERATIONS, Attributes, Rejected, flushed
from bundle.format.fields import Boundaries
from bundle.format.id_graphs import ConstantNode, GraphIds, InputNode, LookupTable, OperationNode
from bundle.tables.id_values import Rows, Values, integers, known_kind, numbers, strings
from bundle.tables.vocabularies import Vocabulary
from bundle.text_arrays import text_array

Array = NDArray[Any]
_FIND = "LookupTableFindV2"
_SIZE = "num_buckets"
"""The attribute of hashes by which graphs of one form may differ: their number of buckets."""
_QUIET = frozenset(
    {
        *("AsString", "Bucketize", "Equal", "GatherV2", "Less", "LookupTableFindV2", "NotEqual"),
        *("SelectV2", "StringJoin", "StringLower", "StringStrip", "StringToHashBucketFast"),
        *("StringToHashBucketStrong", "StringUpper"),
    }
)
"""The operations that cause no warnings of NumPy."""
_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_INT32 = np.iinfo(np.int32)
_BOUNDARIES: TypeAdapter[tuple[float, ...]] = TypeAdapter(Boundaries)


class Graph:
    """Computes the rows of ids by the nodes of a graph.

    Attributes:
      form: A key that is equal for graphs that differ by their parameters alone.
      parameters: The constants that are no lists and the numbers of buckets of hashes, as arrays
        without axes, in the order of the nodes.
    """

    def __init__(
        self, entry: GraphIds, vocabularies: Sequence[Vocabulary], gives_texts: bool = False
    ) -> None:
        """Creates a graph.

        Args:
          entry: The entry of the manifest.
          vocabularies: The vocabularies of its lookup tables, open.
          gives_texts: Whether its results may be texts instead of integers.

        Raises:
          FormatError: A node names an unknown operation, lacks an attribute, or does not fit the
            results that it takes; names the node.
        """
        self._entry = entry
        self._lists: dict[int, Array] = {}
        self._constants: list[tuple[int, int]] = []
        """The positions of nodes, with the positions of their parameters."""
        self._inputs: list[_Input] = []
        self._steps: list[_Step] = []
        parameters: list[Array] = []
        finished = _last_reads(entry)
        # Everything that depends on the nodes alone happens here, once: a request runs the steps.
        for position, node in enumerate(entry.nodes):
            if isinstance(node, InputNode):
                # Strings that are only looked up need not become bytes.
                read = _READ_BY[node.dtype]
                if node.dtype == "string" and _is_key(entry, position):
                    read = strings
                self._inputs.append(_Input(position, node.input, read))
            elif isinstance(node, OperationNode):
                _check_node(position, node, entry)
                size_parameter = -1
                if _SIZE in node.attributes:
                    size_parameter = len(parameters)
                    parameters.append(_size(position, node))
                if node.op == _FIND:
                    table = node.attributes["table"]
                    compute = _search(entry.tables[table], vocabularies[table])
                else:
                    compute = OPERATIONS[node.op].compute
                done = tuple(finished.get(position, ()))
                self._steps.append(_Step(position, node, compute, size_parameter, done))
            elif isinstance(node, ConstantNode) and node.is_list:
                self._lists[position] = _constant(node)
            elif isinstance(node, ConstantNode):
                self._constants.append((position, len(parameters)))
                parameters.append(_constant(node))
        self._last = len(entry.nodes) - 1
        # The context that silences NumPy takes longer than some operations on few ids.
        self._may_warn = any(step.node.op not in _QUIET for step in self._steps)
        self.parameters = tuple(parameters)
        self.form = _form(entry)
        kinds = "iu"
        if gives_texts:
            kinds += "O"
        self._check_types(kinds)

    def rows(self, feature: str, values: Values, parameters: Sequence[Array]) -> Rows:
        """Returns the rows of [m] ids: [m] int64.

        Args:
          feature: The name of the feature in errors.
          values: The ids.
          parameters: The values to use instead of `self.parameters`; each is one value, or [m].

        Raises:
          FeatureError: The model does not take a value; names `feature`.
        """
        rows = self._results([(feature, values)], parameters)
        return rows.astype(np.int64, copy=False)

    def results(self, inputs: Sequence[tuple[str, Values]]) -> Array:
        """Returns [m] integers, or texts as bytes, each from one value of each input.

        Args:
          inputs: The name and the [m] values of each input.

        Raises:
          FeatureError: The model does not take a value; names its input, or the first one.
        """
        return self._results(inputs, self.parameters)

    def _check_types(self, kinds: str) -> None:
        """Computes the row of one value of each input's type, and the rows of no values.

        Args:
          kinds: The kinds of results that are allowed: codes of NumPy's `dtype.kind`.

        Raises:
          FormatError: An operation does not take its operands, or the results are no rows.
        """
        # No values, too: some operations of NumPy return other types or shapes for them.
        for count in (1, 0):
            samples = [("", _sample(node.dtype, count)) for node in self._entry.inputs]
            try:
                results = self._results(samples, self.parameters)
            except FeatureError:
                continue  # the model rejects this very value
            if results.dtype.kind not in kinds or results.shape != (count,):
                raise FormatError(
                    f"a graph of ids computes {results.dtype} of shape {results.shape} for "
                    f"{count} values; as many integers were expected"
                )

    def _results(self, inputs: Sequence[tuple[str, Values]], parameters: Sequence[Array]) -> Array:
        """Returns the result of the last node."""
        results = dict(self._lists)
        for position, parameter in self._constants:
            results[position] = parameters[parameter]
        for node in self._inputs:
            results[node.position] = node.read(*inputs[node.number])
        if self._may_warn:
            with np.errstate(all="ignore"):
                return self._last_result(inputs[0][0], results, parameters)
        return self._last_result(inputs[0][0], results, parameters)

    def _last_result(
        self, feature: str, results: dict[int, Array], parameters: Sequence[Array]
    ) -> Array:
        """Returns the result of the last node.

        Args:
          feature: The name of the feature in errors.
          results: The results of the nodes that are no operations, by position.
          parameters: The same as for `rows`.
        """
        for step in self._steps:
            operands = map(results.__getitem__, step.node.inputs)
            attributes = step.node.attributes
            if step.size_parameter >= 0:
                attributes = {**attributes, _SIZE: parameters[step.size_parameter]}
            try:
                results[step.position] = step.compute(attributes, *operands)
            except UnknownKey as problem:
                predicate = (
                    f"is not in vocabulary {problem.vocabulary!r}, and the model fails on such ids"
                )
                raise UnknownRejected(
                    feature, problem.value, "an id in the vocabulary", predicate
                ) from problem
            except FeatureError as problem:  # raised by a vocabulary, which does not know the input
                raise FeatureError(
                    feature, problem.value, problem.expected, problem.predicate
                ) from problem
            except Rejected as problem:
                value = f"the model's operation {step.node.op} {problem}, which it fails on"
                raise FeatureError(feature, value, "a value that it computes with") from problem
            except _MISFITS as problem:
                raise FormatError(
                    f"node {step.position} ({step.node.op}) of a graph of ids does not fit what it "
                    f"reads: {problem}"
                ) from problem
            # Large requests would otherwise hold the results of all nodes in memory.
            for operand in step.finished:
                del results[operand]
        return results[self._last]


class _Input(NamedTuple):
    """An input of a graph.

    Attributes:
      position: The position of its node.
      number: The number of the input among several.
      read: A function that takes the name of the input and the values that callers sent, and
        returns what operations take.
    """

    position: int
    number: int
    read: Callable[[str, Values], Array]


class _Step(NamedTuple):
    """An operation of a graph.

    Attributes:
      position: The position of its node.
      node: The node, which names the operation.
      compute: A function that takes the attributes and the operands.
      size_parameter: The position of its number of buckets among the parameters; -1 if it has none.
      finished: The positions of the nodes whose results no later operation reads.
    """

    position: int
    node: OperationNode
    compute: Callable[..., Array]
    size_parameter: int
    finished: tuple[int, ...]


class UnknownKey(Exception):
    """A vocabulary lacks a key, and the model fails on such keys.

    Attributes:
      value: The key, as a short text.
      vocabulary: The name of the vocabulary.
    """

    def __init__(self, key: object, vocabulary: str) -> None:
        super().__init__(key, vocabulary)
        self.value = f"id {key!s:.80}"
        self.vocabulary = vocabulary


def _search(table: LookupTable, vocabulary: Vocabulary) -> Callable[..., Array]:
    """Returns a function that finds the values of keys in a lookup table.

    Source: TensorFlow 2.20, core/kernels/lookup_table_op.h (the rule).
    """

    def search(_attributes: Attributes, keys: Array, default: Array) -> Array:
        # Operations give bytes, as TensorFlow's; vocabularies hold strings.
        if keys.dtype == object and keys.size and type(keys.flat[0]) is bytes:
            keys = _strings(keys)
        positions = vocabulary.find("", keys)
        is_unknown = positions < 0
        if table.is_complete and is_unknown.any():
            key = keys[is_unknown.argmax()]
            raise UnknownKey(key, table.vocabulary)
        values = np.where(is_unknown, default, positions + table.first_value)
        return values.astype(default.dtype, copy=False)

    return search


def _strings(texts: Array) -> Array:
    """Returns the strings of [m] texts: [m] object."""
    # Bytes that are not UTF-8 become surrogates, which no key contains.
    decoded = map(bytes.decode, texts.tolist(), repeat("utf-8"), repeat("surrogateescape"))
    return text_array(list(decoded))


def _is_key(entry: GraphIds, position: int) -> bool:
    """Returns whether a node is read, and only by lookup tables."""
    return {node.op for node in entry.nodes if position in node.inputs} == {_FIND}


def _sample(dtype: str, count: int) -> Values:
    """Returns sample values of an input's type."""
    if dtype == "string":
        return np.full(count, "0", object)
    return np.zeros(count, np.int64)


def _form(entry: GraphIds) -> Hashable:
    """Returns a key of a graph that does not depend on its parameters."""
    nodes = []
    for node in entry.nodes:
        fields = node.model_dump(mode="json")
        if isinstance(node, ConstantNode) and not node.is_list:
            del fields["values"]
        elif isinstance(node, OperationNode):
            fields["attributes"].pop(_SIZE, None)
        nodes.append(fields)
    return orjson.dumps(nodes), entry.tables


def _size(position: int, node: OperationNode) -> Array:
    """Returns the number of buckets of a hash, uint64.

    Raises:
      FormatError: The attribute is no positive int64; names the node.
    """
    size = node.attributes[_SIZE]
    if type(size) is not int or not 1 <= size < 1 << 63:
        raise FormatError(
            f"node {position} ({node.op}) of a graph of ids: '{_SIZE}' is {size!r:.80}; a positive "
            "int64 was expected"
        )
    return np.array(size, np.uint64)


def _last_reads(entry: GraphIds) -> dict[int, list[int]]:
    """Returns, by the position of an operation, the nodes whose results it is the last to read."""
    # A later reader replaces an earlier one.
    last_reader: dict[int, int] = {}
    for position, node in enumerate(entry.nodes):
        for operand in node.inputs:
            last_reader[operand] = position
    finished: dict[int, list[int]] = {}
    for operand, position in last_reader.items():
        finished.setdefault(position, []).append(operand)
    return finished


def _check_node(position: int, node: OperationNode, entry: GraphIds) -> None:
    """Checks a node by the table of operations.

    Raises:
      FormatError: The table has no such operation, or it takes other operands or attributes.
    """
    node_label = f"node {position} ({node.op}) of a graph of ids"
    if node.op == _FIND:
        operand_count: int | None = 2
        attributes: tuple[str, ...] = ("table",)
        lists: tuple[int, ...] = ()
        table = node.attributes.get("table")
        if type(table) is not int or not 0 <= table < len(entry.tables):
            raise FormatError(
                f"{node_label}: 'table' is {table!r}; the graph has {len(entry.tables)} lookup "
                "tables"
            )
    elif node.op in OPERATIONS:
        operation = OPERATIONS[node.op]
        operand_count = operation.operands
        attributes = operation.attributes
        lists = operation.lists
    else:
        raise FormatError(f"{node_label} is no operation that ids are computed by")
    if operand_count not in (None, len(node.inputs)):
        raise FormatError(f"{node_label} takes {operand_count} operands, not {len(node.inputs)}")
    if set(node.attributes) != set(attributes):
        raise FormatError(
            f"{node_label} has the attributes {sorted(node.attributes)}; {sorted(attributes)} were "
            "expected"
        )
    if node.op == "Bucketize":
        try:
            _BOUNDARIES.validate_python(node.attributes["boundaries"])
        except ValidationError as problem:
            raise FormatError(f"{node_label}: {problem.errors()[0]['msg']}") from problem
    _check_lists(node_label, node, entry, lists)


def _check_lists(
    node_label: str, node: OperationNode, entry: GraphIds, lists: Sequence[int]
) -> None:
    """Raises FormatError unless the operands at these positions, and no others, are lists."""
    for position, operand in enumerate(node.inputs):
        source = entry.nodes[operand]
        is_list = isinstance(source, ConstantNode) and source.is_list
        if is_list and position not in lists:
            raise FormatError(f"{node_label}: operand {position} is a list of constants")
        if not is_list and position in lists:
            raise FormatError(f"{node_label}: operand {position} is no list of constants")


def _constant(node: ConstantNode) -> Array:
    """Returns the values of a constant: [k] for a list, otherwise an array without axes.

    Raises:
      FormatError: A value does not fit the dtype.
    """
    values: Array
    try:
        if node.dtype == "string":
            values = text_array([value.encode() for value in node.values])  # type: ignore[union-attr]
        else:
            values = np.array([_number(value) for value in node.values])
            if node.dtype.startswith(("int", "uint")) and values.dtype.kind not in "iu":
                raise TypeError("they are no integers")
            # NumPy reports floats that become infinite, but wraps integers around.
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
    if node.is_list:
        return values
    return values[0:1].reshape(())


def _number(value: int | float | str) -> int | float:
    """Returns a number of the manifest, which writes those that JSON does not have as strings."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return value  # type: ignore[return-value]  # NumPy rejects other strings


def _int32s(feature: str, values: Values) -> Array:
    ids = integers(feature, values)
    outside = (ids < _INT32.min) | (ids > _INT32.max)
    if outside.any():
        raise FeatureError(
            feature,
            f"id {ids[outside.argmax()]}",
            "an id in [-2^31, 2^31)",
            "is beyond int32, in which the model computes rows",
        )
    return ids.astype(np.int32)


def _texts(feature: str, values: Values) -> Array:
    return _encoded(feature, strings(feature, values).tolist())


def _texts_of_ids(feature: str, values: Values) -> Array:
    return _encoded(feature, list(map(str, known_kind(feature, values).tolist())))


def _encoded(feature: str, strings: Sequence[str]) -> Array:
    """Returns the bytes of strings: [m] object."""
    try:
        return text_array(list(map(str.encode, strings)))
    except UnicodeEncodeError as problem:
        raise no_text(feature, problem) from problem


_READ_BY: dict[str, Callable[[str, Values], Array]] = {
    "int32": _int32s,
    "int64": integers,
    "float32": lambda feature, values: flushed(numbers(feature, values)),
    "string": _texts,
    "int64_or_string": _texts_of_ids,
}
