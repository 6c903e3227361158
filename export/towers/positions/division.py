"""Divides a tower by positions: its sequences end with a candidate behind the positions of a
context, whose keys and values do not depend on it where masks say so.

Every sequence that is joined of both sides becomes a grid of blocks, and so does what is computed
of it. A block that a constant mask sends to large negative numbers has no weight after a softmax.
So what the positions of the context would see of the candidate vanishes, and the context's blocks
become free of it by themselves. What has no rule is put together again, and belongs to the
candidate: never wrong, only dearer.

A position that sees nothing, such as padding before the first event, has equal shares of all
positions, those of the candidate included. Mostly nobody reads what it computes. The divided tower
is compared with the whole one on examples with padding, and given up if it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from numpy.typing import NDArray

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.towers.data_flow import CONTEXT, DataFlow, operation_text
from export.towers.positions.elementwise import MASKING
from export.towers.positions.grids import Block, Corner, Grid, Shape
from export.towers.positions.normalizations import without_fused_normalizations
from export.towers.positions.padding import difference_on_padding
from export.towers.positions.probing import Probe, probe
from export.towers.positions.rules import results_of
from export.towers.positions.steps import Step
from export.towers.rewriting import GraphRewriter

_POSITIONS_MIN = 2
"""The number of positions of a context from which on a sequence is divided."""


@dataclass(frozen=True)
class DividedTower:
    """A tower whose sequences are divided.

    Attributes:
      tower: The tower.
      is_divided: Whether it has any.
      joined: The operations that put blocks together again, a clause each.
      problem: Why its sequences are not divided, a clause; "": they are, or it has none.
    """

    tower: TracedTower
    is_divided: bool = False
    joined: tuple[str, ...] = ()
    problem: str = ""


def divide_positions(tower: TracedTower, per: Mapping[str, int]) -> DividedTower:
    """Returns a tower whose sequences of both sides are computed in blocks.

    Args:
      tower: The traced tower, with one input for each feature.
      per: CONTEXT, CANDIDATE or both for each input by name.
    """
    # A copy takes much longer than a look, and most towers have none.
    if not _sequences(DataFlow(tower, per)):
        return DividedTower(tower)
    rewriting = GraphRewriter(without_fused_normalizations(tower))
    flow = DataFlow(rewriting.tower, per)
    division = _Division(rewriting, flow, probe(flow))
    division.run()
    divided = rewriting.finished()
    problem = difference_on_padding(tower, divided, per)
    if problem:
        return DividedTower(tower, problem=problem)
    return DividedTower(divided, is_divided=True, joined=tuple(division.joined))


def _sequences(flow: DataFlow) -> list[Any]:
    """Returns the operations that join a sequence of both sides, beside its columns."""
    return [
        operation
        for operation in flow.graph.get_operations()
        if operation.type == "ConcatV2"
        and (operation.outputs[0].shape.rank or 0) >= 3
        and _cut_of(operation, flow) is not None
    ]


def _cut_of(operation: Any, flow: DataFlow) -> tuple[int, ...] | None:
    """Returns the sizes of what belongs together of positions of both sides that an operation joins
    along an axis; None: it joins something else.
    """
    *pieces, axis = operation.inputs
    number = tf.get_static_value(axis)
    rank = operation.outputs[0].shape.rank
    if number is None or rank is None or any(piece.shape.rank != rank for piece in pieces):
        return None
    place = int(number) % rank
    sizes = [piece.shape[place] for piece in pieces]
    if place in (0, rank - 1) or None in sizes:
        return None
    sides = [flow.per(piece) in (0, CONTEXT) for piece in pieces]
    groups = [
        sum(size for _, size in group)
        for _, group in groupby(zip(sides, sizes, strict=True), key=lambda pair: pair[0])
    ]
    of_context = sum(size for side, size in zip(sides, sizes, strict=True) if side)
    if len(groups) < 2 or of_context < _POSITIONS_MIN:
        return None
    return tuple(groups)


class _Division:
    """Divides the graph of one tower.

    Attributes:
      joined: The operations that put blocks together again.
    """

    def __init__(self, rewriting: GraphRewriter[TracedTower], flow: DataFlow, found: Probe) -> None:
        self.joined: list[str] = []
        self._rewriting = rewriting
        self._flow = flow
        self._found = found
        self._grids: dict[str, Grid] = {}
        self._cuts: dict[int, tuple[int, ...]] = {}
        """The sizes of the pieces of sequences, by the number of their positions."""
        for operation in _sequences(flow):
            sizes = _cut_of(operation, flow)
            if sizes is not None:
                self._cuts.setdefault(sum(sizes), sizes)

    def run(self) -> None:
        """Computes in blocks what depends on a sequence, and replaces what others read."""
        whole: dict[str, Any] = {}
        shapes = []
        for operation in list(self._flow.graph.get_operations()):
            read = [tensor for tensor in operation.inputs if tensor.name in self._grids]
            with self._rewriting.graph.as_default():
                results = self._results(operation, bool(read))
            if results is not None:
                for tensor, grid in zip(operation.outputs, results, strict=True):
                    self._grids[tensor.name] = grid
            elif read and operation.type == "Shape":
                shapes.append(operation)
            elif read:
                self.joined.append(operation_text(operation))
                whole |= {tensor.name: tensor for tensor in read}
        for tensor in self._rewriting.outputs.values():
            if tensor.name in self._grids:
                whole[tensor.name] = tensor
        for operation in shapes:
            self._replace_shape(operation)
        for name, tensor in whole.items():
            with self._rewriting.graph.as_default():
                joined = self._grids[name].whole()
                joined.set_shape(tensor.shape)
            self._rewriting.put(tensor, joined)

    def _replace_shape(self, operation: Any) -> None:
        """Takes the shape of a tensor from its first block, so that nobody needs the others."""
        grid = self._grids[operation.inputs[0].name]
        if grid.is_flat or any(size < -1 for size in grid.shape):
            return
        dtype = operation.outputs[0].dtype
        with self._rewriting.graph.as_default():
            sizes = tf.shape(next(iter(grid.blocks.values())).value, out_type=dtype)
            shape = tf.stack(
                [sizes[axis] if size < 0 else size for axis, size in enumerate(grid.shape)]
            )
        self._rewriting.put(operation.outputs[0], tf.cast(shape, dtype))

    def _results(self, operation: Any, is_read: bool) -> list[Grid] | None:
        """Returns the results of an operation in blocks; None: it has none."""
        if operation.type == "ConcatV2" and not is_read:
            return self._sequence(operation)
        is_mask = self._is_mask(operation)
        if not is_read and not is_mask:
            return None
        shapes = [self._found.shapes.get(tensor.name) for tensor in operation.outputs]
        if any(shape is None for shape in shapes):
            return None
        constants = [self._found.constant(tensor) for tensor in operation.inputs]
        arguments = [
            self._argument(tensor, constant)
            for tensor, constant in zip(operation.inputs, constants, strict=True)
        ]
        if any(grid is None for grid in arguments):
            return None
        if is_mask:
            arguments = [self._cut(grid) for grid in arguments if grid is not None]
        return results_of(Step(operation, arguments, shapes, constants))  # type: ignore[arg-type]

    def _sequence(self, operation: Any) -> list[Grid] | None:
        """Returns a sequence of both sides in blocks."""
        *pieces, axis = operation.inputs
        shape = self._found.shapes.get(operation.outputs[0].name)
        number = self._found.constant(axis)
        if shape is None or number is None:
            return None
        place = int(number) % len(shape)
        sizes = self._cuts.get(shape[place])
        if sizes is None or not place:
            return None
        # Masks of positions are joined alike, whichever side they depend on.
        blocks: dict[Corner, Block] = {}
        pending = list(pieces)
        for position, size in enumerate(sizes):
            tensors: list[Any] = []
            while pending and sum(tensor.shape[place] or 0 for tensor in tensors) < size:
                tensors.append(pending.pop(0))
            if sum(tensor.shape[place] or 0 for tensor in tensors) != size:
                return None
            if len(tensors) == 1:
                blocks[position,] = Block(tensors[0], self._found.constant(tensors[0]))
            else:
                blocks[position,] = Block(tf.concat(tensors, place))
        return [Grid(shape, {place: sizes}, blocks)]

    def _is_mask(self, operation: Any) -> bool:
        """Returns whether an operation combines a constant mask of positions with something else,
        such as which of them are padding.
        """
        if operation.type not in MASKING:
            return False
        constants = [self._found.constant(tensor) for tensor in operation.inputs]
        return any(
            constant is not None and bool(self._cuts_of(constant.shape)) for constant in constants
        )

    def _cut(self, grid: Grid) -> Grid:
        """Returns a constant mask in blocks."""
        if grid.cuts or grid.blocks[()].constant is None:
            return grid
        return grid.cut(self._cuts_of(grid.shape))

    def _cuts_of(self, shape: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Returns the axes that have as many positions as a sequence, with their pieces."""
        # What has one axis is no mask, but one number for each position.
        if len(shape) < 2:
            return {}
        return {axis: self._cuts[size] for axis, size in enumerate(shape) if size in self._cuts}

    def _argument(self, tensor: Any, constant: NDArray[Any] | None) -> Grid | None:
        """Returns an argument in blocks; None: its shape is not known."""
        grid = self._grids.get(tensor.name)
        if grid is not None:
            return grid
        shape = self._shape(tensor)
        if shape is None:
            return None
        if constant is not None:
            return Grid.of(Block(constant=constant), shape)
        return Grid.of(Block(tensor), shape)

    def _shape(self, tensor: Any) -> Shape | None:
        shape = self._found.shapes.get(tensor.name)
        if shape is None and tensor.shape.is_fully_defined():
            shape = tuple(tensor.shape.as_list())
        return shape
