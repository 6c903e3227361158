"""Operations that move values: transposed, in another shape, beside others, repeated, divided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from export.graphs.internals import copy_operation
from export.graphs.loading import tf
from export.towers.positions.grids import (
    Block,
    Corner,
    Grid,
    Shape,
    aligned_cuts,
    concatenated,
    constant_of,
    corners,
    cuts_in_shape,
)
from export.towers.positions.steps import Rule, Step


def _transposed(step: Step) -> list[Grid] | None:
    grid = step.arguments[0]
    axes = step.integers(1)
    if axes is None:
        return None
    cuts = {place: grid.cuts[axis] for place, axis in enumerate(axes) if axis in grid.cuts}
    blocks = {}
    for corner in corners(cuts):
        block = grid.at({axes[place]: number for place, number in corner.items()})
        constant = block.constant
        if constant is not None:
            constant = constant.transpose(axes)
        tensor = step.run(block, constant_of(np.asarray(step.constants[1])))
        blocks[tuple(corner.values())] = Block(tensor, constant, block.is_ignored)
    return [Grid(step.shape, cuts, blocks)]


def _reshaped(step: Step) -> list[Grid] | None:
    """Reshape, ExpandDims and Squeeze."""
    grid = step.arguments[0]
    shape = step.shape
    if grid.is_flat:
        if shape[:2] == grid.shape[:2]:
            return _in_shape(replace(grid, is_flat=False), shape)
        if shape == (math.prod(grid.shape[:2]), *grid.shape[2:]):
            return [grid]
        return None
    rows = _rows_of(grid, shape[0])
    if rows:
        unflattened = _in_shape(grid, (*rows, *shape[1:]))
        return unflattened and [replace(unflattened[0], is_flat=True)]
    return _in_shape(grid, shape)


def _rows_of(grid: Grid, count: int) -> Shape:
    """Returns the sizes of positions and examples, in their order, that a number of rows may stand
    for; (): it does not.
    """
    for axis, sizes in grid.cuts.items():
        positions = sum(sizes)
        # PyTorch's attention has positions before examples.
        if len(grid.cuts) == 1 and axis <= 1 and count == -positions:
            return (positions, -1) if axis == 0 else (-1, positions)
    return ()


def _in_shape(grid: Grid, shape: Shape) -> list[Grid] | None:
    kept = cuts_in_shape(grid.shape, shape, grid.cuts)
    if kept is None or sum(size < 0 for size in shape) > 1:
        return None
    cuts = dict(kept.values())
    if len(cuts) < len(kept):
        return None
    blocks = {}
    for corner, block in grid.blocks.items():
        sizes = list(shape)
        for (place, pieces), number in zip(kept.values(), corner, strict=True):
            sizes[place] = pieces[number]
        constant = block.constant
        if constant is None:
            tensor = tf.reshape(block.value, [max(size, -1) for size in sizes])
            blocks[corner] = Block(tensor, None, block.is_ignored)
            continue
        # A constant may have one row for all examples, which stands for those of all heads.
        rows = np.broadcast_to(constant, [abs(size) for size in grid.block_shape(corner)])
        constant = rows.reshape([abs(size) for size in sizes])
        for place, size in enumerate(sizes):
            if size < 0:
                row = constant.take([0], place)
                if (constant != row).any():
                    return None
                constant = row
        blocks[corner] = Block(None, constant, block.is_ignored)
    return [Grid(shape, cuts, blocks)]


def _concatenated(step: Step) -> list[Grid] | None:
    """ConcatV2 beside the axes that are cut."""
    grids = step.arguments[:-1]
    axes = step.integers(-1)
    cuts = aligned_cuts([grid.cuts for grid in grids])
    if axes is None or cuts is None:
        return None
    place = axes[0] % len(step.shape)
    grids = [grid.cut(cuts) for grid in grids]
    if place in cuts or any(grid.cuts.keys() != cuts.keys() for grid in grids):
        return None
    blocks = {}
    for corner in corners(cuts):
        pieces = [grid.at(corner).value for grid in grids]
        blocks[tuple(corner.values())] = Block(concatenated(pieces, place, step.shape))
    return [Grid(step.shape, cuts, blocks)]


def _broadcast(step: Step) -> list[Grid] | None:
    grid = step.arguments[0]
    shape = step.shape
    shift = len(shape) - len(grid.shape)
    unknown = [place for place, size in enumerate(shape) if size < 0]
    # The number of examples is that of the tensor itself.
    if any(place < shift or grid.shape[place - shift] != shape[place] for place in unknown):
        return None
    cuts = {axis + shift: sizes for axis, sizes in grid.cuts.items()}
    blocks = {}
    for corner, block in grid.blocks.items():
        tensor = block.value
        sizes = list(shape)
        for place, number in zip(cuts, corner, strict=True):
            sizes[place] = cuts[place][number]
        counts = [
            tf.shape(tensor)[place - shift] if place in unknown else size
            for place, size in enumerate(sizes)
        ]
        blocks[corner] = Block(tf.broadcast_to(tensor, tf.stack(counts)), None, block.is_ignored)
    return [Grid(shape, cuts, blocks)]


def _repeated(step: Step) -> list[Grid] | None:
    """Tile along axes that are not cut."""
    grid = step.arguments[0]
    counts = step.integers(1)
    if counts is None or any(counts[axis] > 1 for axis in grid.cuts):
        return None
    blocks = {}
    for corner, block in grid.blocks.items():
        if block.constant is None:
            tensor = step.run(block, constant_of(np.array(counts, np.int32)))
            blocks[corner] = Block(tensor, None, block.is_ignored)
        else:
            # One row is that of all examples, however many there are.
            own_counts = [
                1 if size < 0 else count for size, count in zip(step.shape, counts, strict=True)
            ]
            blocks[corner] = Block(None, np.tile(block.constant, own_counts), block.is_ignored)
    return [Grid(step.shape, grid.cuts, blocks)]


def _divided(step: Step) -> list[Grid] | None:
    """Split, SplitV and Unpack along an axis that is not cut."""
    kind = step.kind
    place = 1 if kind == "Split" else 0
    grid = step.arguments[place]
    if kind == "Unpack":
        axes = [step.operation.get_attr("axis")]
    else:
        axes = step.integers(0 if kind == "Split" else 2) or []
    if not axes or axes[0] % len(grid.shape) in grid.cuts:
        return None
    axis = axes[0] % len(grid.shape)
    cuts = grid.cuts
    if kind == "Unpack":
        cuts = {other - (other > axis): sizes for other, sizes in grid.cuts.items()}
    blocks_by_result: list[dict[Corner, Block]] = [{} for _ in step.shapes]
    others = [argument.blocks.get(()) for argument in step.arguments]
    for corner, block in grid.blocks.items():
        arguments = [block if other is None else other for other in others]
        results = copy_operation(step.operation, [argument.value for argument in arguments])
        for blocks, tensor in zip(blocks_by_result, results, strict=True):
            blocks[corner] = Block(tensor)
    return [
        Grid(shape, cuts, blocks)
        for shape, blocks in zip(step.shapes, blocks_by_result, strict=True)
    ]


def _passed(step: Step) -> list[Grid] | None:
    """IdentityN, by which TensorFlow gives functions such as silu a gradient of their own."""
    return list(step.arguments)


RULES: Mapping[str, Rule] = {
    "BroadcastTo": _broadcast,
    "ConcatV2": _concatenated,
    "ExpandDims": _reshaped,
    "IdentityN": _passed,
    "Reshape": _reshaped,
    "Split": _divided,
    "SplitV": _divided,
    "Squeeze": _reshaped,
    "Tile": _repeated,
    "Transpose": _transposed,
    "Unpack": _divided,
}
