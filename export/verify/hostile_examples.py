"""Examples with hostile numbers, of every input of a tower by which callers send numbers.

Only numbers that the bundle's own reader of features accepts are sent: a service rejects the
others. Through one input at a time, through one element of a list at a time, and through all inputs
at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.format.manifest import DenseFeature
from export.front_end.specs import DenseSpec, TowerSpec
from export.towers.data_flow import ExampleCost
from export.verify.accepted_groups import accepted_groups
from export.verify.examples import chosen, chosen_columns, chosen_values
from export.verify.forms import Values
from export.verify.hostile_numbers import NumberType, hostile_numbers
from export.verify.reference_inputs import Reference

ROWS_MAX = 1 << 15
"""The number of examples that hold hostile numbers in one input, over all inputs of a tower."""
_ROWS_MIN = 1 << 8
"""The same for a tower whose examples are costly."""
_PRODUCTS_MAX = 1 << 35
"""The number of multiply-adds that these examples may cost."""
_ELEMENTS_MAX = 64
"""The longest list whose elements get hostile numbers one at a time."""
_JOINT_ROWS = 1 << 11
"""The number of examples with hostile numbers in all inputs."""
_BATCH_MAX = 1 << 12
"""The number of examples that are computed at once."""
_BATCH_BYTES_MAX = 4 << 20
"""The bytes of the values of their features."""
_TENSOR_BYTES_MAX = 64 << 20
"""The bytes of the largest tensor that is computed of them: that of a sequence may hold a number
for each two of its positions.
"""
_TRIALS_MAX = 128
"""The number of groups of examples of which it is tried whether they are accepted."""
_SHOWN_MAX = 3
"""The number of inputs that a message shows."""


@dataclass(frozen=True)
class HostileExamples:
    """Examples of one tower.

    Attributes:
      values: [n, ...] values of each feature of the tower.
      numbers: [n, size] the hostile numbers, by input; without any, these are the recipe's
        examples.
      columns: The inputs with hostile numbers, as clients send them. All others are those of the
        recipe's examples, in turn.
    """

    values: Values
    numbers: Mapping[str, NDArray[Any]]
    columns: Mapping[str, Column] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """The number of examples."""
        arrays = self.values or self.numbers
        return len(next(iter(arrays.values()), ()))

    @cached_property
    def magnitudes(self) -> NDArray[np.float64]:
        """[n] the largest absolute value of the hostile numbers of each example."""
        largest = np.zeros(self.n)
        for numbers in self.numbers.values():
            magnitudes = np.abs(numbers.astype(np.float64)).max(axis=1, initial=0.0)
            largest = np.maximum(largest, magnitudes)
        return largest

    def chosen(self, rows: NDArray[Any] | slice) -> HostileExamples:
        """Returns some of the examples."""
        return HostileExamples(
            chosen_values(self.values, rows),
            chosen_values(self.numbers, rows),
            chosen_columns(self.columns, np.arange(self.n)[rows], self.n),
        )

    def ordered(self) -> HostileExamples:
        """Returns the examples in the order of their magnitudes."""
        return self.chosen(np.argsort(self.magnitudes, kind="stable"))

    def text(self, row: int) -> str:
        """Returns the numbers of an example for a message: `1.7e+09 in input 'time'`."""
        if not self.numbers:
            return "an example"
        texts = []
        largest = []
        for name, numbers in self.numbers.items():
            magnitudes = np.abs(numbers[row].astype(np.float64))
            # Of several numbers, the largest.
            position = magnitudes.argmax()
            texts.append(f"{number_text(numbers[row, position])} in input {name!r}")
            largest.append(magnitudes[position])
        if len(texts) > _SHOWN_MAX:
            # Ids are in their tables: a large number is rather what matters.
            order = np.argsort(largest, kind="stable")[::-1]
            texts = [*(texts[position] for position in order[:_SHOWN_MAX]), "others"]
        return ", ".join(texts)

    def rank(self, row: int) -> tuple[bool, float]:
        """Returns a key that sorts the examples first whose numbers a reader knows: whole numbers
        before fractions, and small ones before large ones.
        """
        has_fractions = any(
            (numbers[row] != np.floor(numbers[row])).any() for numbers in self.numbers.values()
        )
        return has_fractions, float(self.magnitudes[row])


def number_text(number: Any) -> str:
    """Returns a number for a message, so that it can be sent again."""
    if np.issubdtype(np.asarray(number).dtype, np.integer):
        return str(number)
    return f"{number:.9g}"


@dataclass(frozen=True)
class NumberInput:
    """An input by which callers send numbers to one tower.

    Attributes:
      reference: The model, the examples and how a service reads them.
      name: The name of the input.
      dtype: The type of its numbers.
      size: The number of values of each example; None: examples differ.
      are_weights: Whether the numbers are weights of the input's ids.
      readers: The tower's features that read the input.
      inputs: The inputs that these features read.
    """

    reference: Reference
    name: str
    dtype: NumberType
    size: int | None
    are_weights: bool
    readers: tuple[str, ...]
    inputs: frozenset[str]

    @cached_property
    def numbers(self) -> NDArray[Any]:
        """[m] hostile numbers that the features accept, ascending."""
        return self.accepted(hostile_numbers(self.dtype))

    def accepted(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Returns those of [m] numbers that the features accept, ascending.

        Denormal numbers are left out: TensorFlow takes them for zeros, and no caller means one.
        """
        if self.dtype == "float32":
            is_denormal = (numbers != 0) & (np.abs(numbers) < np.finfo(np.float32).tiny)
            numbers = numbers[~is_denormal]
        # Rows of a table are the smallest numbers of one sign.
        by_magnitude = np.lexsort((np.abs(numbers.astype(np.float64)), numbers < 0))
        ordered = numbers[by_magnitude]

        def is_accepted(group: slice) -> bool:
            try:
                self.examples(ordered[group, np.newaxis])
            except FeatureError:
                return False
            return True

        return np.sort(ordered[find_accepted(numbers.size, is_accepted)])

    def examples(self, numbers: NDArray[Any], element: int | None = None) -> HostileExamples:
        """Returns what the features of this input make of examples of these numbers.

        Args:
          numbers: [n, k] the numbers of each example: one for all elements of its list, or as many
            as the list has.
          element: The element of the lists that gets the number; None: all of them.

        Raises:
          FeatureError: A feature rejects a number.
        """
        n = len(numbers)
        examples = self.reference.examples
        rows = np.arange(n) % examples.n
        columns = {
            name: chosen(column, rows, examples.n)
            for name, column in examples.columns.items()
            if name in self.inputs
        }
        column = self._column(numbers, columns.get(self.name), element)
        columns[self.name] = column
        activations = self.reference.features.activations(self.readers, columns, n)
        values = {name: activation.values for name, activation in activations.items()}
        return HostileExamples(values, {self.name: numbers}, {self.name: column})

    def _column(self, numbers: NDArray[Any], base: Column | None, element: int | None) -> Column:
        """Returns the column of examples that hold [n, k] numbers.

        Args:
          numbers: The numbers of each example.
          base: The column of the examples, in which numbers are replaced.
          element: The element of the lists that gets the number; None: all of them.
        """
        if self.size is None:
            # Lists keep their lengths, which may have a meaning.
            assert base is not None  # noqa: S101 - `number_inputs` has looked
            assert base.offsets is not None  # noqa: S101 - likewise
            spread = numbers[:, 0].repeat(np.diff(base.offsets))
            if self.are_weights:
                return base._replace(weights=spread)
            return base._replace(values=spread)
        if element is None or base is None:
            return Column(np.broadcast_to(numbers, (len(numbers), self.size)).reshape(-1))
        values = base.values.astype(self.dtype).reshape(len(numbers), self.size)
        values[:, element] = numbers[:, 0]
        return Column(values.reshape(-1))


def number_inputs(reference: Reference, spec: TowerSpec) -> list[NumberInput]:
    """Returns the inputs by which callers send numbers to a tower."""
    of_tower = {source for tensor in spec.inputs for source in tensor.sources}
    inputs = []
    for name in reference.model.read_by(spec):
        specs = [reader for reader in reference.model.inputs[name] if reader.name in of_tower]
        readers = tuple(reader.name for reader in specs)
        read = frozenset(input_name for reader in specs for input_name in reader.reads)
        dense = [reader.entry for reader in specs if isinstance(reader, DenseSpec)]
        values = [entry for entry in dense if entry.take in ("values", "padded")]
        if any(entry.dtype == "string" for entry in values):
            continue
        fixed = [math.prod(entry.shape) for entry in values if entry.take == "values"]
        column = reference.examples.columns.get(name)
        has_lists = column is not None and column.offsets is not None
        if fixed or (values and has_lists):
            size = fixed[0] if fixed else None
            inputs.append(
                NumberInput(reference, name, _dtype_of(values), size, False, readers, read)
            )
        is_weighted = any(reader.weights is not None for reader in specs)
        if is_weighted and has_lists:
            inputs.append(NumberInput(reference, name, "float32", None, True, readers, read))
    return inputs


def _dtype_of(entries: Sequence[DenseFeature]) -> NumberType:
    """Returns the type of the numbers of an input: whole numbers where one of its readers takes
    these alone.
    """
    dtypes = {entry.dtype for entry in entries}
    if "int64" in dtypes:
        return "int64"
    if "int32" in dtypes:
        return "int32"
    return "float32"


def hostile_examples(
    cost: ExampleCost, inputs: Sequence[NumberInput], values: Values, rows_max: int = ROWS_MAX
) -> Iterator[HostileExamples]:
    """Yields examples with hostile numbers, some inputs at a time.

    Args:
      cost: What an example costs the tower.
      inputs: The inputs of the tower by which callers send numbers.
      values: [n, ...] values of each feature of the examples.
      rows_max: The number of examples that hold hostile numbers in one input, over all inputs.
    """
    if not inputs:
        return
    size = max(1, min(rows_max, affordable_rows(cost)) // len(inputs))
    for position, number_input in enumerate(inputs):
        # Each input and element gets other numbers where it gets only a few.
        drawn: list[tuple[int | None, NDArray[Any]]] = [
            (None, _some(number_input.numbers, size, position))
        ]
        elements = number_input.size or 1
        if 1 < elements <= _ELEMENTS_MAX:
            share = size // elements
            drawn += [
                (element, _some(number_input.numbers, share, element))
                for element in range(elements)
            ]
        for element, numbers in drawn:
            for rows in batches(len(numbers), values, cost):
                yield completed(number_input.examples(numbers[rows], element), values)

    random = np.random.default_rng(0)
    together = HostileExamples({}, {})
    for number_input in inputs:
        shape = (min(_JOINT_ROWS, size), number_input.size or 1)
        if number_input.numbers.size:
            examples = number_input.examples(random.choice(number_input.numbers, shape))
            together = HostileExamples(
                {**together.values, **examples.values},
                {**together.numbers, **examples.numbers},
                {**together.columns, **examples.columns},
            )
    for rows in batches(together.n, values, cost):
        yield completed(together.chosen(rows), values)


def affordable_rows(cost: ExampleCost) -> int:
    """Returns the number of examples that a tower may be compared on."""
    return max(_ROWS_MIN, _PRODUCTS_MAX // max(1, cost.products))


def find_accepted(n: int, is_accepted: Callable[[slice], bool]) -> NDArray[np.bool_]:
    """Returns [n] which of some examples are accepted.

    Only `_TRIALS_MAX` groups are tried, the first examples first; all that are left count as
    rejected.

    Args:
      n: The number of examples.
      is_accepted: Returns whether the examples of a slice are accepted together.
    """
    accepted = np.zeros(n, bool)
    groups = accepted_groups(n, lambda rows: is_accepted(rows) or None, _BATCH_MAX, _TRIALS_MAX)
    for group, _ in groups:
        accepted[group] = True
    return accepted


def batches(n: int, values: Values, cost: ExampleCost, copies: int = 1) -> list[slice]:
    """Returns slices of n examples with which a tower takes little memory.

    Args:
      n: The number of examples.
      values: Values of each feature, as those of the examples.
      cost: What an example costs the tower.
      copies: The number of copies of each example.
    """
    bytes_of_one = copies * sum(array[0].nbytes for array in values.values())
    widest_bytes = copies * cost.widest_bytes
    step = min(
        _BATCH_MAX // copies,
        _BATCH_BYTES_MAX // max(1, bytes_of_one),
        _TENSOR_BYTES_MAX // max(1, widest_bytes),
    )
    step = max(1, step)
    return [slice(start, start + step) for start in range(0, n, step)]


def completed(examples: HostileExamples, values: Values) -> HostileExamples:
    """Returns examples with the values of all features: those of the recipe's examples, in turn,
    where a feature reads no hostile number.

    Args:
      examples: The examples with the features that read hostile numbers.
      values: [n, ...] values of each feature of the recipe's examples.
    """
    if not examples.values:
        return HostileExamples(values, {})
    base = {
        name: array[np.arange(examples.n) % len(array)]
        for name, array in values.items()
        if name not in examples.values
    }
    return replace(examples, values={**base, **examples.values})


def _some(numbers: NDArray[Any], count: int, offset: int) -> NDArray[Any]:
    """Returns [n, 1] numbers, at most about `count`, spread over all, from another first one for
    each offset.
    """
    step = max(1, math.ceil(numbers.size / max(1, count)))
    return numbers[offset % step :: step, np.newaxis]
