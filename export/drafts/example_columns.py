"""The inputs that columns of examples show: their types, and the lengths of lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from export.recipe.schema import InputSection

# The narrowest first: Python's bools are integers, and integers may stand among floats.
_KINDS: dict[Any, Any] = {"bool": bool, "string": str, "int64": int, "float32": (int, float)}
"""Python's types of the values of a dtype."""
_FILLERS: Mapping[str, int | float | str] = {"int64": 0, "float32": 0.0, "string": ""}
"""The values that usually fill up lists, by dtype."""
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class ColumnInput:
    """The input that a column of examples shows.

    Attributes:
      dtype: The type of its values.
      lengths: The lengths of its lists; empty: its values are no lists.
      is_wide: Whether a value is beyond int32.
    """

    dtype: Any
    lengths: frozenset[int]
    is_wide: bool

    @property
    def shown(self) -> InputSection:
        """The input with the fewest assumptions: lists of one length have that shape, others are
        ragged.
        """
        if len(self.lengths) > 1:
            return self._listed("ragged")
        return InputSection(dtype=self.dtype, shape=tuple(self.lengths))

    @property
    def padded(self) -> InputSection:
        """The input as an array, in which shorter lists are filled up."""
        if len(self.lengths) < 2:
            return self.shown
        return InputSection(
            dtype=self.dtype, shape=(max(self.lengths),), pad=_FILLERS.get(self.dtype)
        )

    @property
    def array_of_jax(self) -> InputSection:
        """The input as JAX takes it, which has integers of 32 bits."""
        if self.is_wide:
            return self.padded
        return _narrowed(self.padded)

    def alternatives(self, section: InputSection) -> Iterator[InputSection]:
        """Yields sections that the column fits, too, instead of `section`."""
        sections = [self.shown, self.padded]
        if self.lengths:
            sections += [self._listed("ragged"), self._listed("sparse")]
        else:
            sections.append(InputSection(dtype=self.dtype, shape=(1,)))
        if self.dtype == "int64":
            sections += [part.model_copy(update={"dtype": "float32"}) for part in tuple(sections)]
        if self.dtype == "int64" and not self.is_wide:
            sections += [_narrowed(part) for part in tuple(sections)]
        for alternative in dict.fromkeys(sections):
            if alternative != section:
                yield alternative

    def _listed(self, kind: Literal["ragged", "sparse"]) -> InputSection:
        """Returns the input as lists of any length, which have no booleans."""
        return InputSection(dtype="int32" if self.dtype == "bool" else self.dtype, kind=kind)


def _narrowed(section: InputSection) -> InputSection:
    if section.dtype != "int64":
        return section
    return section.model_copy(update={"dtype": "int32"})


def columns_of(examples: Mapping[str, Sequence[object]]) -> dict[str, ColumnInput]:
    """Returns the inputs that columns of examples show."""
    inputs = {}
    for name, values in examples.items():
        lists = [value for value in values if isinstance(value, list)]
        items: list[Any] = list(values)
        if lists:
            items = [item for value in lists for item in value]
        dtype = _dtype(items)
        if dtype is None:
            continue
        is_wide = dtype == "int64" and any(abs(item) > _INT32_MAX for item in items)
        inputs[name] = ColumnInput(dtype, frozenset(map(len, lists)), is_wide)
    return inputs


def _dtype(items: Sequence[Any]) -> Any:
    """Returns the dtype of some values; None: they are of several types."""
    for dtype, kinds in _KINDS.items():
        if items and all(isinstance(item, kinds) for item in items):
            return dtype
    return None
