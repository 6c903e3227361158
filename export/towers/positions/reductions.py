"""Softmax and reductions, in which blocks that a mask rules out do not count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from export.graphs.loading import tf
from export.towers.positions.grids import Block, Corner, Grid, constant_of
from export.towers.positions.steps import Rule, Step

_JOINED: Mapping[str, str] = {
    "All": "logical_and",
    "Any": "logical_or",
    "Max": "maximum",
    "Mean": "add",
    "Min": "minimum",
    "Prod": "multiply",
    "Sum": "add",
}
"""The function of `tf` that joins what two blocks are reduced to."""


def _softmax(step: Step) -> list[Grid] | None:
    (grid,) = step.arguments
    if len(grid.shape) - 1 not in grid.cuts:
        return [grid.map(lambda block: Block(step.run(block)))]
    pieces_by_row: dict[Corner, dict[int, Block]] = {}
    for corner, block in grid.blocks.items():
        pieces_by_row.setdefault(corner[:-1], {})[corner[-1]] = block
    blocks = {}
    for row, pieces in pieces_by_row.items():
        counting = {
            number: block for number, block in pieces.items() if not block.is_ignored
        } or pieces
        shares = _shares([block.value for block in counting.values()])
        for number, share in zip(counting, shares, strict=True):
            blocks[(*row, number)] = Block(share)
        for number in pieces.keys() - counting.keys():
            corner = (*row, number)
            sizes = [max(1, size) for size in grid.block_shape(corner)]
            blocks[corner] = Block(tf.zeros_like(pieces[number].value), np.zeros(sizes, np.float32))
    return [Grid(grid.shape, grid.cuts, blocks)]


def _shares(pieces: Sequence[Any]) -> list[Any]:
    """Returns the softmax of scores in pieces, over the last axis of all of them."""
    if len(pieces) == 1:
        return [tf.nn.softmax(pieces[0])]
    largest = reduce(tf.maximum, [tf.reduce_max(piece, -1, keepdims=True) for piece in pieces])
    powers = [tf.exp(piece - largest) for piece in pieces]
    total = reduce(add, [tf.reduce_sum(power, -1, keepdims=True) for power in powers])
    return [power / total for power in powers]


def _reduction(step: Step) -> list[Grid] | None:
    grid = step.arguments[0]
    axes = step.integers(1)
    if axes is None:
        return None
    kind = step.kind
    gone = sorted({axis % len(grid.shape) for axis in axes})
    keeps_axes = step.operation.get_attr("keep_dims")
    kept = [axis for axis in grid.cuts if axis not in gone]
    cuts = {}
    for axis in kept:
        place = axis
        if not keeps_axes:
            place -= sum(other < axis for other in gone)
        cuts[place] = grid.cuts[axis]
    # A mean over several blocks is their sum, divided by the number of all of their elements.
    is_mean_of_several = kind == "Mean" and len(kept) < len(grid.cuts)
    axis_block = constant_of(np.asarray(step.constants[1]))
    pieces_by_corner: dict[Corner, list[Block]] = {}
    for corner, block in grid.blocks.items():
        numbers = dict(zip(grid.cuts, corner, strict=True))
        pieces_by_corner.setdefault(tuple([numbers[axis] for axis in kept]), []).append(block)
    blocks = {}
    for corner, pieces in pieces_by_corner.items():
        counting = pieces
        if kind == "Max":
            counting = [block for block in pieces if not block.is_ignored] or pieces
        if kind == "Sum":
            counting = [block for block in pieces if not block.is_zero] or pieces[:1]
        if is_mean_of_several:
            sums = [tf.reduce_sum(block.value, gone, keepdims=keeps_axes) for block in pieces]
            count = math.prod(grid.shape[axis] for axis in gone)
            blocks[corner] = Block(reduce(add, sums) / float(count))
        else:
            reduced = [step.run(block, axis_block) for block in counting]
            blocks[corner] = Block(reduce(getattr(tf, _JOINED[kind]), reduced))
    return [Grid(step.shape, cuts, blocks)]


RULES: Mapping[str, Rule] = {"Softmax": _softmax, **dict.fromkeys(_JOINED, _reduction)}
