"""Tensors in blocks: some of their axes are cut, where the positions of a context end and those of
a candidate begin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graphs.loading import tf

Corner = tuple[int, ...]
"""The place of a block: the number of its piece along each axis that is cut, in their order."""
Cuts = Mapping[int, tuple[int, ...]]
"""The sizes of the pieces of each axis that is cut."""
Shape = tuple[int, ...]
"""Sizes of axes; -m stands for m times the number of examples."""

_IGNORED = -1e4
"""Numbers up to this one have no weight after a softmax: masks add -1e9 or less, the smallest
number of float32, or -1e4 in half precision.
"""


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a tensor.

    Attributes:
      tensor: The tensor; None: it is made of `constant` when it is needed.
      constant: Its values, which may have one row for all examples; None: they are not constant.
      is_ignored: Whether its numbers have no weight after a softmax.
    """

    tensor: Any = None
    constant: NDArray[Any] | None = None
    is_ignored: bool = False

    @property
    def value(self) -> Any:
        """The tensor."""
        if self.tensor is None:
            return tf.constant(self.constant)
        return self.tensor

    @property
    def is_zero(self) -> bool:
        """Whether it is known to hold zeros alone."""
        return self.constant is not None and not self.constant.any()

    @property
    def is_mask(self) -> bool:
        """Whether whatever it is added to, or stands for, has no weight after a softmax."""
        constant = self.constant
        return (
            constant is not None
            and constant.dtype.kind == "f"
            and constant.size > 0
            and bool(constant.max() <= _IGNORED)
        )

    def part(self, axis: int, begin: int, size: int) -> Block:
        """Returns a range of the block along an axis."""
        index = (slice(None),) * axis + (slice(begin, begin + size),)
        constant = self.constant
        if constant is not None:
            return replace(self, tensor=None, constant=constant[index])
        return replace(self, tensor=self.tensor[index])


@dataclass(frozen=True, eq=False)
class Grid:
    """A tensor in blocks.

    Attributes:
      shape: The shape of the whole tensor.
      cuts: The axes that are cut.
      blocks: The blocks by their places.
      is_flat: Whether the tensor has its first two axes in one, positions and examples, and nothing
        but the positions is cut. The shape, the cuts and the blocks have them as two.
    """

    shape: Shape
    cuts: Cuts
    blocks: Mapping[Corner, Block]
    is_flat: bool = False

    @classmethod
    def of(cls, block: Block, shape: Shape) -> Grid:
        """Returns a tensor that is not cut."""
        return cls(shape, {}, {(): block})

    def cut(self, cuts: Cuts) -> Grid:
        """Returns the same tensor with further axes cut; axes of size 1 stay as they are."""
        grid = self
        for axis, sizes in cuts.items():
            if axis in grid.cuts or grid.shape[axis] == 1:
                continue
            begins = [0, *itertools.accumulate(sizes)]
            all_cuts = dict(sorted({**grid.cuts, axis: sizes}.items()))
            place = [*all_cuts].index(axis)
            blocks = {
                (*corner[:place], number, *corner[place:]): block.part(axis, begins[number], size)
                for corner, block in grid.blocks.items()
                for number, size in enumerate(sizes)
            }
            grid = replace(grid, cuts=all_cuts, blocks=blocks)
        return grid

    def at(self, corner: Mapping[int, int]) -> Block:
        """Returns the block at a place; `corner`: the number of the piece along each axis."""
        return self.blocks[tuple([corner[axis] for axis in self.cuts])]

    def map(self, change: Callable[[Block], Block]) -> Grid:
        """Returns a tensor of the same shape, of which each block is computed of one."""
        return replace(
            self, blocks={corner: change(block) for corner, block in self.blocks.items()}
        )

    def block_shape(self, corner: Corner) -> Shape:
        """Returns the shape of a block."""
        shape = list(self.shape)
        for (axis, sizes), number in zip(self.cuts.items(), corner, strict=True):
            shape[axis] = sizes[number]
        return tuple(shape)

    def whole(self) -> Any:
        """Returns the tensor in one piece."""
        blocks = {corner: block.value for corner, block in self.blocks.items()}
        for axis in reversed([*self.cuts]):
            joined: dict[Corner, list[Any]] = {}
            for corner in sorted(blocks):
                joined.setdefault(corner[:-1], []).append(blocks[corner])
            blocks = {
                corner: concatenated(parts, axis, self.shape) for corner, parts in joined.items()
            }
        whole = blocks[()]
        if self.is_flat:
            whole = tf.reshape(whole, [-1, *self.shape[2:]])
        return whole


def concatenated(tensors: Sequence[Any], axis: int, shape: Shape) -> Any:
    """Returns tensors in one, along an axis.

    Args:
      tensors: The tensors. What is the same for all examples may have one row, as constants have.
      axis: The axis.
      shape: The sizes of the result, of which those along `axis` may be others.
    """
    of_examples = next((place for place, size in enumerate(shape) if size < 0), None)
    if of_examples is None:
        return tf.concat(tensors, axis)
    of_all = [tensor for tensor in tensors if tensor.shape[of_examples] != 1]
    if of_all:
        count = tf.shape(of_all[0])[of_examples]
        tensors = [
            tf.repeat(tensor, count, of_examples) if tensor.shape[of_examples] == 1 else tensor
            for tensor in tensors
        ]
    return tf.concat(tensors, axis)


def corners(cuts: Cuts) -> Iterator[dict[int, int]]:
    """Yields the number of the piece along each axis of every block."""
    for numbers in itertools.product(*[range(len(sizes)) for sizes in cuts.values()]):
        yield dict(zip(cuts, numbers, strict=True))


def cuts_in_shape(
    old: Shape, new: Shape, cuts: Cuts
) -> dict[int, tuple[int, tuple[int, ...]]] | None:
    """Returns where the axes that are cut are in another shape of the same values, with the sizes
    of their pieces there, which may have taken in the axes behind them; None: one of the axes is
    joined with those before it, or divided.
    """
    kept = {}
    for axis, sizes in cuts.items():
        before = math.prod(old[:axis])
        joined = {math.prod(old[axis:end]) for end in range(axis + 1, len(old) + 1)}
        places = [
            place
            for place, size in enumerate(new)
            if size in joined and math.prod(new[:place]) == before
        ]
        if not places:
            return None
        factor = new[places[-1]] // old[axis]
        kept[axis] = places[-1], tuple([factor * size for size in sizes])
    return kept


def aligned_cuts(all_cuts: Sequence[Cuts]) -> dict[int, tuple[int, ...]] | None:
    """Returns the cuts of several tensors together, in the order of their axes; None: two of them
    cut an axis in different places.
    """
    joined: dict[int, tuple[int, ...]] = {}
    for cuts in all_cuts:
        for axis, sizes in cuts.items():
            if joined.setdefault(axis, sizes) != sizes:
                return None
    return dict(sorted(joined.items()))


def constant_of(values: NDArray[Any]) -> Block:
    """Returns a block of constant values."""
    return Block(constant=np.asarray(values))
