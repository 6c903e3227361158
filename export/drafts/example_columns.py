"""The inputs that columns of examples show: their types, and the shapes of lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bundle.format.input_lengths import PadSide
from export.recipe.schema import InputSection
from rows.cells import INTEGER, LIST_SEPARATOR, NUMBER

# The narrowest first: Python's bools are integers, and integers may stand among floats.
_KINDS: dict[Any, Any] = {"bool": bool, "string": str, "int64": int, "float32": (int, float)}
"""Python's types of the values of a dtype."""
_FILLERS: Mapping[str, int | float | str] = {"int64": 0, "float32": 0.0, "string": ""}
"""The values that usually fill up lists, by dtype."""
_ID_FILLERS: Mapping[str, Sequence[int | str]] = {"int64": (0, -1), "string": ("",)}
"""The values that fill up lists of ids: zeros of numbers are more often numbers."""
_INT32_MAX = 2**31 - 1

Shape = tuple[int, ...]


class Filling(NamedTuple):
    """How the lists of a column were filled up to one length."""

    value: int | str
    side: PadSide


@dataclass(frozen=True)
class ColumnInput:
    """The input that a column of examples shows.

    Attributes:
      dtype: The type of its values.
      shapes: The shapes of its values; {()}: they are no lists.
      is_wide: Whether a value is beyond int32.
      values: Its values, each once, without what fills lists up.
      filling: How its lists were filled up; None: that does not show.
    """

    dtype: Any
    shapes: frozenset[Shape]
    is_wide: bool
    values: frozenset[Any] = field(default=frozenset(), repr=False)
    filling: Filling | None = None

    @property
    def are_lists(self) -> bool:
        """Whether its values are lists."""
        return self.shapes != {()}

    @property
    def lengths(self) -> frozenset[int]:
        """The lengths of lists of single values."""
        if any(len(shape) > 1 for shape in self.shapes):
            return frozenset()
        return frozenset(length for (length,) in self.shapes - {()})

    @property
    def section(self) -> InputSection:
        """The input with the fewest assumptions: lists of one shape have that shape, others are
        ragged.
        """
        if len(self.shapes) == 1 and (0,) not in self.shapes:
            (shape,) = self.shapes
            section = InputSection(dtype=self.dtype, shape=shape)
            if self.filling is None:
                return section
            return section.model_copy(
                update={"pad": self.filling.value, "pad_side": self.filling.side}
            )
        if not self.lengths:
            # The recipe has no ragged lists of lists.
            return self.padded
        return self._listed("ragged")

    @property
    def padded(self) -> InputSection:
        """The input as an array, in which shorter lists are filled up."""
        if len(self.shapes) == 1 and (0,) not in self.shapes:
            return self.section
        shape: Shape
        if not self.lengths:
            # Lists of lists cannot be filled up: those of another size are rejected.
            shape = max(self.shapes, key=lambda shape: (len(shape), shape))
            return InputSection(dtype=self.dtype, shape=tuple(size or 1 for size in shape))
        shape = (max(1, *self.lengths),)
        return InputSection(dtype=self.dtype, shape=shape, pad=self.filler)

    @property
    def filler(self) -> int | float | str | None:
        """The value that usually fills up such lists; None: there is none."""
        return _FILLERS.get(self.dtype)

    @property
    def array_of_jax(self) -> InputSection:
        """The input as JAX takes it, which has integers of 32 bits and no texts: those are keys, of
        which training made rows.
        """
        if self.is_wide:
            return self.padded
        return _narrowed(self.padded)

    @property
    def bag_of_jax(self) -> InputSection:
        """The input as ids that are looked up before a call of JAX."""
        if not self.are_lists:
            return self.array_of_jax
        return _narrowed(self._listed("ragged"))

    def alternatives(self, section: InputSection) -> Iterator[InputSection]:
        """Yields sections that the column fits, too, instead of `section`."""
        sections = [self.section, self.padded]
        if self.lengths:
            sections += [self._listed("ragged"), self._listed("sparse")]
        elif not self.are_lists:
            sections.append(InputSection(dtype=self.dtype, shape=(1,)))
        if self.dtype == "int64":
            sections += [part.model_copy(update={"dtype": "float32"}) for part in tuple(sections)]
        if self.dtype == "string":
            # Texts may be keys, of which training made rows.
            sections += [part.model_copy(update={"dtype": "int64"}) for part in tuple(sections)]
        if self.dtype == "int64" and not self.is_wide:
            sections += [_narrowed(part) for part in tuple(sections)]
        for alternative in dict.fromkeys(sections):
            if alternative != section:
                yield alternative

    def _listed(self, kind: Literal["ragged", "sparse"]) -> InputSection:
        """Returns the input as lists of any length, which have no booleans."""
        return InputSection(dtype="int32" if self.dtype == "bool" else self.dtype, kind=kind)


def _narrowed(section: InputSection) -> InputSection:
    if section.dtype not in {"int64", "string"}:
        return section
    return section.model_copy(update={"dtype": "int32"})


def columns_of(examples: Mapping[str, Sequence[object]]) -> dict[str, ColumnInput]:
    """Returns the inputs that columns of examples show."""
    inputs = {}
    for name, values in examples.items():
        lists = [value for value in values if isinstance(value, list)]
        flattened = [_flattened(value) for value in lists or values]
        items = [item for _, values_of_list in flattened for item in values_of_list]
        dtype = _dtype(items)
        if dtype is None:
            continue
        is_wide = dtype == "int64" and any(abs(item) > _INT32_MAX for item in items)
        shapes = frozenset(shape for shape, _ in flattened)
        if len({len(shape) for shape in shapes - {(0,)}}) > 1:
            # Lists that are nested in several ways are read as lists of all their values.
            shapes = frozenset((len(values_of_list),) for _, values_of_list in flattened)
        filling = None
        if len(shapes) == 1 and len(next(iter(shapes))) == 1:
            filling = _filling(dtype, lists)
        distinct = frozenset(items)
        if filling is not None:
            distinct -= {filling.value}
        inputs[name] = ColumnInput(dtype, shapes, is_wide, distinct, filling)
    return inputs


def csv_lists(cells: Sequence[object]) -> Sequence[object]:
    """Returns the values of a column of CSV: lists, if a cell has a separator of lists."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not any(LIST_SEPARATOR in text for text in texts):
        return cells
    lists = [[part for part in str(cell or "").split(LIST_SEPARATOR) if part] for cell in cells]
    parts = [part for values in lists for part in values]
    for pattern, convert in ((INTEGER, int), (NUMBER, float)):
        if all(re.match(pattern, part) for part in parts):
            return [[convert(part) for part in values] for values in lists]
    return lists


def _flattened(value: object) -> tuple[Shape, list[Any]]:
    """Returns the shape of a list and its values; a list of lists of several shapes counts as one
    list of all their values, as requests have it.
    """
    if not isinstance(value, list):
        return (), [value]
    parts = [_flattened(part) for part in value]
    items = [item for _, part_items in parts for item in part_items]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        return (len(items),), items
    inner: Shape = ()
    if shapes:
        (inner,) = shapes
    return (len(value), *inner), items


def _filling(dtype: str, lists: Sequence[Sequence[Any]]) -> Filling | None:
    """Returns what fills up lists of one length: a value that stands on one side of some lists, and
    nowhere else.
    """
    for value in _ID_FILLERS.get(dtype, ()):
        counts = [values.count(value) for values in lists]
        # A value that every list has as often may be a value like any other.
        if len(set(counts)) == 1:
            continue
        if counts == [_leading(value, values[::-1]) for values in lists]:
            return Filling(value, "end")
        if counts == [_leading(value, values) for values in lists]:
            return Filling(value, "start")
    return None


def _leading(value: object, values: Sequence[object]) -> int:
    """Returns how many of the first values equal a value."""
    for position, leading in enumerate(values):
        if leading != value:
            return position
    return len(values)


def _dtype(items: Sequence[Any]) -> Any:
    """Returns the dtype of some values; None: they are of several types."""
    for dtype, kinds in _KINDS.items():
        if items and all(isinstance(item, kinds) for item in items):
            return dtype
    return None
