"""Finds buckets: integers that are a step function of one number, however it is computed before.

Each operation is monotonic in one operand (`log1p`, a division by a positive constant, `floor`,
`2024 - x`), or selects between results by comparisons of them. So the integers rise or fall between
the numbers at which a comparison changes, and bisection with TensorFlow's own operations finds each
step of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.id_graphs import InputDtype
from export.graphs.loading import tf
from export.graphs.number_keys import Numbers
from export.graphs.walks import ID_DTYPES, needed
from export.id_graphs.step_functions import PACKET, StepFunction, ends_of, monotonic_steps
from export.partition.graph.input_paths import CallGraph, Values, ValuesKey, applied
from export.partition.graph.origins import Source

OPERATIONS_MAX = 128
"""Maximum number of operations that a step function is computed by."""
_UNKNOWN = "no step function"
"""The kind of `CallGraph.rules` by which values are remembered that no step function computes."""
SEARCHES = frozenset({"UpperBound", "LowerBound"})
SERIES = frozenset({"Log", "Log1p", "Exp", "Expm1", "Tanh", "Sigmoid", "Softplus", "Erf"})
"""Operations that are computed by series: their last bit differs between libraries."""
_UNARY = SERIES | {"Bucketize", "Cast", "Floor", "Ceil", "Round", "Rint", "Sqrt", "Relu", "Neg"}
"""Monotonic operations of one operand."""
_BINARY = frozenset({"AddV2", "Add", "Sub", "Maximum", "Minimum"})
"""Operations that are monotonic with a constant on either side."""
_SCALING = frozenset({"Mul", "RealDiv", "DivNoNan", "FloorDiv"})
"""Operations that are monotonic with a constant other than zero."""
_COMPARISONS = frozenset({"Less", "LessEqual", "Greater", "GreaterEqual", "IsNan"})
"""Operations whose results change at most once while their operand rises."""
_FOLDS = frozenset({"Abs", "Square"})
"""Operations that fall where their operand is negative, and rise where it is not."""
_SELECTIONS = frozenset({"Select", "SelectV2", "LogicalAnd", "LogicalOr", "LogicalNot"})
"""Operations whose results change only where those of a comparison do, or as an operand does."""


@dataclass(frozen=True)
class Steps:
    """A step function of an input.

    Attributes:
      values: The values of the input, or floats that they are cast to.
      function: The function of these values.
    """

    values: Values
    function: StepFunction


def find(values: Values, call: CallGraph, rows: int | None = None) -> Steps | None:
    """Returns the step function of an input by which integers are computed.

    Args:
      values: Integers.
      call: The traced call.
      rows: The number of rows of the table that they are rows of, outside of which all integers are
        alike; None: they are rows of no table.

    Returns:
      The function; None if they are no step function, or have more steps than a graph may have.
    """
    if not values.tensor.dtype.is_integer:
        return None
    computation = _computation(values, call)
    if computation is None:
        return None
    dtype = computation.number.tensor.dtype.name
    if dtype not in ("float32", "int32", "int64") or not computation.has_floats:
        return None

    # Rows below 0 may count from the table's end.
    rows_below = 0
    if rows is not None and call.from_end:
        rows_below = rows

    # What only passes integers on, such as a reshape, is none of the operations.
    last = computation.operations[-1]

    integers_of = computation.function(last)

    def row(numbers: Numbers) -> NDArray[np.int64]:
        integers: NDArray[np.int64] = integers_of(numbers).astype(np.int64)
        if rows is None:
            return integers
        # One step leads to all rows outside of the table on each side.
        return np.clip(integers, -1 - rows_below, rows)

    turns = computation.turns(dtype)
    if turns is None:
        return None
    function = monotonic_steps(row, dtype, turns)
    if function is None or function.graph() is None:
        return None
    return Steps(computation.number, function)


@dataclass(frozen=True)
class _Computation:
    """Operations on the numbers of one input.

    Attributes:
      call: The traced call.
      number: The values of the input, or floats that they are cast to.
      operations: The operations, in an order in which they can be computed.
    """

    call: CallGraph
    number: Values
    operations: tuple[Values, ...]

    @property
    def has_floats(self) -> bool:
        """Whether floats are computed; arithmetic of integers has operations of its own."""
        return any(
            operand.tensor.dtype.is_floating or operation.type in {"Bucketize", *SEARCHES}
            for operation in self.operations
            for operand in _operands(operation)
        )

    def turns(self, dtype: InputDtype) -> Numbers | None:
        """Returns numbers between which results rise or fall; None if there are too many."""
        turns = ends_of(dtype)
        for operation in self.operations:
            if operation.type in _COMPARISONS | _FOLDS:
                changes = monotonic_steps(self._outcomes(operation), dtype, turns)
                if changes is None:
                    return None
                turns = np.union1d(turns, changes.beside_steps())
        return turns

    def function(self, last: Values) -> Callable[[Numbers], NDArray[Any]]:
        """Returns what computes the results of one of the operations for [m] numbers, in a graph:
        TensorFlow rewrites graphs before it runs them, in training as in a SavedModel, and a
        quotient `x / c` becomes the product `x * (1 / c)`.
        """
        dtype = self.number.tensor.dtype

        def compute(numbers: Any) -> Any:
            results = {self.number.key: numbers}
            for operation in self.operations:
                results[operation.key] = self._result(operation, results)
                if operation is last:
                    break
            return results[last.key]

        # Outside of the graph that is being traced.
        with tf.init_scope():
            signature = tf.TensorSpec([None], dtype)
            function = tf.function(compute, autograph=False).get_concrete_function(signature)

        def results_of(numbers: Numbers) -> NDArray[Any]:
            padding = -numbers.size % PACKET
            padded = np.concatenate([numbers, np.ones(padding, numbers.dtype)])
            with tf.init_scope():
                results: NDArray[Any] = function(tf.constant(padded, dtype)).numpy()
            return results[: numbers.size]

        return results_of

    def _outcomes(self, operation: Values) -> Callable[[Numbers], NDArray[Any]]:
        """Returns what computes the results of a comparison, or whether what an operation folds is
        negative.
        """
        if operation.type in _COMPARISONS:
            return self.function(operation)
        folded = self.function(self.call.followed(operation.inputs[0]))
        return lambda numbers: folded(numbers) < 0

    def _result(self, values: Values, results: Mapping[ValuesKey, Any]) -> Any:
        """Returns the result of an operation, a tensor of the graph that is being traced."""
        operation = values.tensor.op
        operands = []
        for operand in _operands(values):
            argument = results.get(self.call.followed(operand).key)
            if argument is None:
                argument = self._constant(operand)
            operands.append(argument)
        if values.type in SEARCHES:
            # Both operands have an axis of examples, which is one here.
            sorted_numbers = self.call.constant(operation.inputs[0])
            (searched,) = operands
            (positions,) = applied(operation, [sorted_numbers, searched[tf.newaxis]])
            return tf.reshape(positions, [-1])
        (result,) = applied(operation, operands)
        return result

    def _constant(self, values: Values) -> Any:
        """Returns a number as a constant, or captured as the model's graph captures it: TensorFlow
        rewrites operations on the former alone.
        """
        dtype = values.tensor.dtype
        number = np.asarray(self.call.number(values), dtype.as_numpy_dtype)
        if not needed([values.tensor], []).placeholders:
            return tf.constant(number)
        with tf.init_scope():
            return tf.constant(number)


def _computation(values: Values, call: CallGraph) -> _Computation | None:
    """Returns the operations that compute values from one input; None if some of them are not
    known to be monotonic, or there are several inputs.
    """
    operations: dict[ValuesKey, Values] = {}
    numbers: dict[ValuesKey, Values] = {}
    # Operands first, without recursion: a graph may be deeper than Python's stack.
    first = call.followed(values)
    path = [first]
    while path:
        current = path[-1]
        # What reads values that are not known is not known either.
        if (_UNKNOWN, *current.key) in call.rules:
            call.rules[_UNKNOWN, *first.key] = True
            return None
        is_input = isinstance(call.origin(current), Source)
        if is_input or _is_cast_to_floats(current):
            numbers[current.key] = current
            path.pop()
            continue
        operands = None
        if len(path) + len(operations) <= OPERATIONS_MAX:
            operands = _variable_operands(current, call)
        if operands is None:
            call.rules[_UNKNOWN, *first.key] = True
            return None
        visited = operations.keys() | numbers.keys()
        pending = [operand for operand in operands if operand.key not in visited]
        if pending:
            path += pending
        else:
            operations.setdefault(current.key, current)
            path.pop()
    # An input and what it is cast to are different numbers.
    if len(numbers) != 1 or not operations:
        return None
    (number,) = numbers.values()
    return _Computation(call, number, tuple(operations.values()))


def _operands(values: Values) -> tuple[Values, ...]:
    """Returns the operands of an operation that may depend on an input."""
    if values.type in SEARCHES:
        return (values.of_tensor(values.tensor.op.inputs[1]),)
    return values.inputs


def _variable_operands(values: Values, call: CallGraph) -> list[Values] | None:
    """Returns the operands that are no constants; None if results are not known to rise or fall
    with them, or to be selected by comparisons of them.
    """
    kind = values.type
    if kind in SEARCHES:
        sorted_numbers = call.constant(values.tensor.op.inputs[0])
        # One list for all examples.
        if sorted_numbers is None or sorted_numbers.shape[0] != 1:
            return None

    operands = _operands(values)
    variable = [call.followed(operand) for operand in operands if call.number(operand) is None]
    if kind in _SELECTIONS:
        return variable
    if len(variable) != 1 or (kind == "Cast" and not _is_cast_to_numbers(values)):
        return None
    position = next(index for index, operand in enumerate(operands) if call.number(operand) is None)
    is_monotonic = kind in _UNARY | _BINARY | _COMPARISONS | _FOLDS | SEARCHES
    is_monotonic |= kind == "ClipByValue" and position == 0
    is_scaling = kind == "Mul" or (kind in _SCALING and position == 0)
    # A product with zero, or a quotient by it, is the same for all numbers.
    if is_scaling and len(operands) == 2:
        is_monotonic = call.number(operands[1 - position]) != 0
    if not is_monotonic:
        return None
    return variable


def _is_cast_to_floats(values: Values) -> bool:
    """Returns whether integers become floats, before which they have operations of their own."""
    if values.type != "Cast":
        return False
    (before,) = values.tensor.op.inputs
    return bool(before.dtype.is_integer and values.tensor.dtype.name == "float32")


def _is_cast_to_numbers(values: Values) -> bool:
    """Returns whether a cast keeps the order of numbers: bools and narrow integers do not."""
    dtype = values.tensor.dtype
    return bool(dtype.is_floating or dtype.name in ID_DTYPES)
