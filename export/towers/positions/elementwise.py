"""Operations that compute element by element, and what masks decide in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.towers.positions.grids import Block, Grid, aligned_cuts, constant_of, corners
from export.towers.positions.steps import Rule, Step

_FOLDED: Mapping[str, Callable[..., NDArray[Any]]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "LogicalAnd": np.logical_and,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NotEqual": np.not_equal,
    "RealDiv": np.divide,
    "Select": np.where,
    "SelectV2": np.where,
    "Sub": np.subtract,
}
"""Operations that are computed at once on constants: what masks are made of."""
_PASSING = ("CheckNumerics", "EnsureShape", "Identity", "PreventGradient", "StopGradient")
"""Operations that return what they take."""
_UNARY = (
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor", "Inv", "IsFinite",
    "IsInf", "IsNan", "LeakyRelu", "Log", "Log1p", "LogicalNot", "Neg", "OnesLike", "Reciprocal",
    "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
    "Softsign", "Sqrt", "Square", "Tan", "Tanh", "ZerosLike",
)  # fmt: skip
_BINARY = (
    "Add", "AddV2", "BiasAdd", "Div", "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater",
    "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mod",
    "Mul", "MulNoNan", "NotEqual", "Pow", "RealDiv", "Select", "SelectV2", "SquaredDifference",
    "Sub", "Xdivy", "Xlogy",
)  # fmt: skip
_SUMS = ("Add", "AddV2", "Sub")
_QUOTIENTS = ("Div", "DivNoNan", "RealDiv")
_CHOICES = ("Select", "SelectV2")
MASKING = frozenset({"LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mul", *_SUMS, *_CHOICES})
"""The types of operations by which a mask of positions is joined with something else."""


def _elementwise(step: Step) -> list[Grid] | None:
    is_flat = any(grid.is_flat for grid in step.arguments)
    rank = len(step.shape)
    if is_flat:
        # Beside a flat tensor, others belong to the columns of all of its rows.
        if any(len(grid.shape) > 1 and not grid.is_flat for grid in step.arguments):
            return None
        rank += 1
    shifts = [rank - len(grid.shape) for grid in step.arguments]
    cuts = aligned_cuts(
        [
            {axis + shift: sizes for axis, sizes in grid.cuts.items()}
            for grid, shift in zip(step.arguments, shifts, strict=True)
        ]
    )
    if cuts is None or (is_flat and len(cuts) > 1):
        return None
    grids = []
    for grid, shift in zip(step.arguments, shifts, strict=True):
        own_cuts = {axis - shift: sizes for axis, sizes in cuts.items() if axis >= shift}
        grids.append(grid.cut(own_cuts))
    blocks = {}
    for corner in corners(cuts):
        arguments = [
            grid.at({axis: corner[axis + shift] for axis in grid.cuts})
            for grid, shift in zip(grids, shifts, strict=True)
        ]
        blocks[tuple(corner.values())] = _block(step, arguments)
    shape = step.shape
    if is_flat:
        rows = next(grid.shape[:2] for grid in step.arguments if grid.is_flat)
        shape = (*rows, *step.shape[1:])
    return [Grid(shape, cuts, blocks, is_flat)]


def _block(step: Step, blocks: Sequence[Block]) -> Block:
    """Returns a block of the result."""
    kind = step.kind
    if kind in _PASSING:
        return blocks[0]
    constants = [block.constant for block in blocks]
    if kind == "Cast" and constants[0] is not None:
        return constant_of(constants[0].astype(step.operation.outputs[0].dtype.as_numpy_dtype))
    if kind in _FOLDED and all(constant is not None for constant in constants):
        with np.errstate(all="ignore"):
            return constant_of(_FOLDED[kind](*constants))
    decided = _decided(kind, blocks)
    if decided is not None:
        return decided
    tensor = step.run(*blocks)
    if kind == "Exp" and blocks[0].is_ignored:
        sizes = [size or 1 for size in tensor.shape.as_list()]
        return Block(tensor, np.zeros(sizes, tensor.dtype.as_numpy_dtype))
    is_ignored = kind in _SUMS and (
        any(block.is_ignored for block in blocks)
        or blocks[0].is_mask
        or (kind != "Sub" and blocks[1].is_mask)
    )
    return Block(tensor, None, is_ignored)


def _decided(kind: str, blocks: Sequence[Block]) -> Block | None:
    """Returns the block that one of the arguments decides alone, such as a mask that is constant;
    None: none does.
    """
    if kind in _CHOICES:
        return _chosen_mask(*blocks)
    if kind in _QUOTIENTS and blocks[0].is_zero:
        return blocks[0]
    for block in blocks:
        constant = block.constant
        if constant is None or not constant.size:
            continue
        is_decisive = {
            "LogicalAnd": not constant.any(),
            "LogicalOr": constant.all(),
            "Mul": block.is_zero and constant.dtype.kind == "f",
        }
        if is_decisive.get(kind, False):
            return block
    return None


def _chosen_mask(condition: Block, first: Block, second: Block) -> Block | None:
    """Returns the numbers of a mask that a constant condition chooses everywhere; None: it does
    not.
    """
    where = condition.constant
    if where is None or not where.size or where.any() != where.all():
        return None
    chosen = first if where.all() else second
    if not chosen.is_mask:
        return None
    return Block(chosen.tensor, chosen.constant, is_ignored=True)


RULES: Mapping[str, Rule] = dict.fromkeys((*_UNARY, *_BINARY, *_PASSING), _elementwise)
