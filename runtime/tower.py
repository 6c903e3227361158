"""What every form of a tower has in common: its tensors, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from runtime.errors import InvalidInput

Array = NDArray[Any]
Device = Literal["cpu", "gpu"]
SIGNATURE = "serving_default"


@dataclass(frozen=True)
class Tensor:
    """An input or output of a tower as its file declares it; None in `shape` is any size, mostly
    the batch.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns whether an array of this shape can be the tensor."""
        if len(shape) != len(self.shape):
            return False
        sizes = zip(shape, self.shape, strict=True)
        return all(declared in (None, size) for size, declared in sizes)


class Tower(Protocol):
    """A dense network without tables: activations and dense features in, vectors or scores out.
    Safe for any thread.
    """

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs, ordered by name."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs, ordered by name."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the tower once.

        Args:
          inputs: An array for each input by name, with the declared dtype and shape; further names
            are ignored.

        Returns:
          An array for each output by name, owned by the caller.

        Raises:
          InvalidInput: An input is missing or has another dtype or shape.
          ComputationFailed: The tower cannot compute with the values of an input.
        """

    def buffers(self, n: int) -> Mapping[str, Array]:
        """Returns arrays in which to lay out the inputs of n examples; empty: the tower has none to
        lend.

        They are plain memory that is used again, which spares the caller fresh pages. They belong
        to the calling thread until it calls `buffers` again.

        Returns:
          For each input by name an array of the declared dtype and shape, whose first axis is n.
        """

    def prepare_thread(self) -> None:
        """Allocates what a further thread needs for its first call, with inputs of the shapes of
        the last run. Slow.
        """

    def release_thread(self) -> None:
        """Leaves what the calling thread has allocated to the next thread that has nothing yet."""


def missing_input(
    name: str, inputs: Mapping[str, Array], expected: Sequence[Tensor]
) -> InvalidInput:
    """Returns the error that names the inputs that a call lacks."""
    missing = [tensor.name for tensor in expected if tensor.name not in inputs]
    return InvalidInput(f"tower {name!r} lacks inputs {missing}; given: {sorted(inputs)}")


def shape_text(shape: Sequence[int | None]) -> str:
    """Returns a declared shape for messages: `[any, 32]`."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"[{', '.join(sizes)}]"
