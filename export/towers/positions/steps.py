"""Operations on tensors in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graphs.internals import copy_operation
from export.towers.positions.grids import Block, Grid, Shape


@dataclass(frozen=True, eq=False)
class Step:
    """An operation, and its arguments in blocks.

    Attributes:
      operation: The operation.
      arguments: Its tensors.
      shapes: The shape of each result.
      constants: The values of each argument; None: they are not constant.
    """

    operation: Any
    arguments: Sequence[Grid]
    shapes: Sequence[Shape]
    constants: Sequence[NDArray[Any] | None]

    @property
    def kind(self) -> str:
        """The type of the operation."""
        kind: str = self.operation.type
        return kind

    @property
    def shape(self) -> Shape:
        """The shape of the only result."""
        (shape,) = self.shapes
        return shape

    def integers(self, number: int) -> list[int] | None:
        """Returns the values of an argument that names axes or sizes; None: they are not
        constant.
        """
        constant = self.constants[number]
        if constant is None:
            return None
        return [int(value) for value in np.reshape(constant, -1)]

    def run(self, *blocks: Block) -> Any:
        """Returns the only result of the operation on other arguments."""
        (result,) = copy_operation(self.operation, [block.value for block in blocks])
        return result


Rule = Callable[[Step], list[Grid] | None]
"""Returns the results of an operation in blocks; None: it has no rule for these arguments."""
