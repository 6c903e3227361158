"""Ranges of positions: StridedSlice and Slice, where their ends are constant."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from export.graphs.loading import tf
from export.towers.positions.grids import Block, Grid, Shape, corners
from export.towers.positions.steps import Rule, Step


class _Range(NamedTuple):
    """What is taken of an axis.

    Attributes:
      begin: The first position.
      end: The position behind the last one.
      is_point: Whether it is a single position, whose axis goes.
      is_whole: Whether it is all of them, such as all examples.
    """

    begin: int
    end: int
    is_point: bool = False
    is_whole: bool = False

    @classmethod
    def of_all(cls, size: int) -> _Range:
        """Returns all positions of an axis."""
        return cls(0, size, is_whole=True)

    def within(self, first: int, size: int) -> _Range | None:
        """Returns what of it is in a piece of the axis, counted from there; None: nothing."""
        begin = max(self.begin - first, 0)
        end = min(self.end - first, size)
        if begin >= end:
            return None
        return _Range(begin, end, self.is_point, (begin, end) == (0, size) and not self.is_point)

    @property
    def index(self) -> Any:
        """The range as an index of Python."""
        if self.is_point:
            return self.begin
        if self.is_whole:
            return slice(None)
        return slice(self.begin, self.end)


_NEW = None
"""In the place of a range: a new axis of size 1."""
_Entries = list[_Range | None]


def _sliced(step: Step) -> list[Grid] | None:
    grid = step.arguments[0]
    entries = _entries(step, grid.shape)
    if entries is None:
        return None
    ranges = [entry for entry in entries if entry is not _NEW]
    pieces_by_axis = {}
    for axis, sizes in grid.cuts.items():
        firsts = itertools.accumulate(sizes, initial=0)
        pieces = [
            ranges[axis].within(first, size) for first, size in zip(firsts, sizes, strict=False)
        ]
        pieces_by_axis[axis] = {
            number: piece for number, piece in enumerate(pieces) if piece is not None
        }
    places = _places(entries)
    axes = {places[axis]: axis for axis, pieces in pieces_by_axis.items() if len(pieces) > 1}
    numbers = {place: [*pieces_by_axis[axis]] for place, axis in axes.items()}
    cuts = {
        place: tuple([piece.end - piece.begin for piece in pieces_by_axis[axis].values()])
        for place, axis in sorted(axes.items())
    }
    blocks = {}
    for corner in corners(cuts):
        chosen = {axis: next(iter(pieces)) for axis, pieces in pieces_by_axis.items()}
        chosen |= {axes[place]: numbers[place][number] for place, number in corner.items()}
        taken = {axis: pieces_by_axis[axis][number] for axis, number in chosen.items()}
        block = grid.at(chosen)
        index = _index(entries, taken)
        constant = block.constant
        if constant is not None:
            constant = constant[index]
        blocks[tuple(corner.values())] = Block(block.value[index], constant, block.is_ignored)
    return [Grid(step.shape, cuts, blocks)]


def _places(entries: Sequence[_Range | None]) -> dict[int, int]:
    """Returns which axis of the result each axis is; those of single positions are none."""
    places = {}
    axis = 0
    place = 0
    for entry in entries:
        if entry is _NEW:
            place += 1
            continue
        if not entry.is_point:
            places[axis] = place
            place += 1
        axis += 1
    return places


def _index(entries: Sequence[_Range | None], taken: Mapping[int, _Range]) -> tuple[Any, ...]:
    """Returns an index of Python; `taken`: what is taken of a block along the axes that are cut."""
    index = []
    axis = 0
    for entry in entries:
        if entry is _NEW:
            index.append(tf.newaxis)
            continue
        index.append(taken.get(axis, entry).index)
        axis += 1
    return tuple(index)


def _entries(step: Step, shape: Shape) -> _Entries | None:
    """Returns what is taken of each axis, with new axes between; None: that is not constant, or
    some positions are left out between others.
    """
    if step.kind == "Slice":
        begins, sizes = step.integers(1), step.integers(2)
        if begins is None or sizes is None:
            return None
        return _of_slice(shape, begins, sizes)
    begins, ends, strides = step.integers(1), step.integers(2), step.integers(3)
    if begins is None or ends is None or strides is None or set(strides) - {1}:
        return None
    masks = {
        name: step.operation.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    entries: _Entries = []
    axis = 0
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        is_set = {name: bool(mask >> number & 1) for name, mask in masks.items()}
        if is_set["new_axis"]:
            entries.append(_NEW)
            continue
        if is_set["ellipsis"]:
            later = range(number + 1, len(begins))
            behind = sum(not masks["new_axis"] >> other & 1 for other in later)
            entries += [_Range.of_all(size) for size in shape[axis : len(shape) - behind]]
            axis = len(shape) - behind
            continue
        entry = _of_strided_slice(shape[axis], begin, end, is_set)
        if entry is None:
            return None
        entries.append(entry)
        axis += 1
    return entries + [_Range.of_all(size) for size in shape[axis:]]


def _of_slice(shape: Shape, begins: Sequence[int], sizes: Sequence[int]) -> _Entries | None:
    entries: _Entries = []
    for whole, begin, size in zip(shape, begins, sizes, strict=True):
        if size == -1 and not begin:
            entries.append(_Range.of_all(whole))
        elif whole < 0:
            return None
        else:
            end = whole if size == -1 else begin + size
            entries.append(_Range(begin, end, is_whole=(begin, end) == (0, whole)))
    return entries


def _of_strided_slice(size: int, begin: int, end: int, is_set: Mapping[str, bool]) -> _Range | None:
    """Returns what is taken of an axis; None: some of the examples."""
    is_from_start = is_set["begin"] or (begin == 0 and not is_set["shrink_axis"])
    if is_from_start and is_set["end"] and not is_set["shrink_axis"]:
        return _Range.of_all(size)
    if size < 0:
        return None
    if is_set["shrink_axis"]:
        position = begin % size
        return _Range(position, position + 1, is_point=True)
    if begin < 0:
        begin = max(begin + size, 0)
    if is_from_start:
        begin = 0
    if end < 0:
        end += size
    if is_set["end"] or end > size:
        end = size
    return _Range(begin, end, is_whole=(begin, end) == (0, size))


RULES: Mapping[str, Rule] = {"Slice": _sliced, "StridedSlice": _sliced}
