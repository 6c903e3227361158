"""One equation of a JAX computation, in the form that its TensorFlow counterpart reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.jax_models.primitives import Parameters
from export.jax_models.values import Shape, Sizes, Value
from export.user_lines import at_line, last_of_user, last_user_frame, runner_at

Evaluate = Callable[[Any, Sequence[Any], Sequence[Value]], list[Value]]
"""(jaxpr, its constants, arguments) -> results."""
Handler = Callable[..., Any]
"""(equation, its arguments...) -> Value, tensor of the whole shape, or a list of them."""


@dataclass(frozen=True)
class Equation:
    """One application of a primitive.

    Attributes:
      primitive: The primitive's name.
      params: The primitive's parameters in JAX.
      shapes, dtypes: Shapes and dtypes of the results; dtypes are TensorFlow's.
      sizes: Sizes that depend on the batch.
      line: The user's line.
      evaluate: A function that evaluates a computation inside this one.
    """

    primitive: str
    params: Parameters
    shapes: tuple[Shape, ...]
    dtypes: tuple[Any, ...]
    sizes: Sizes
    line: str
    evaluate: Evaluate

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.shapes[0]

    @property
    def dtype(self) -> Any:
        """The dtype of the first result."""
        return self.dtypes[0]

    def rejected(self, reason: str) -> NotConvertible:
        """Returns the error that this equation has no counterpart: `reason` ends with a remedy."""
        return NotConvertible(f"JAX operation {self.primitive}{at_line(self.line)}: {reason}")


def line_of(source_info: Any, outer: str) -> str:
    """Returns the user's line of an equation; `outer`, the line of the equation around it, if JAX
    recorded none.
    """
    return last_of_user(_frames(source_info)) or outer


def run_at_line(source_info: Any, function: Callable[[], Any]) -> Any:
    """Returns the result of a function whose operations TensorFlow records with the user's line of
    an equation.
    """
    frame = last_user_frame(_frames(source_info))
    if frame is None:
        return function()
    filename, line = frame
    return runner_at(filename, line or 1)(function)


def _frames(source_info: Any) -> list[tuple[str, int]]:
    """Returns the frames that JAX recorded for an equation, file and line, the innermost last."""
    if source_info.traceback is None:
        return []
    # JAX lists the innermost frame first.
    return [(frame.file_name, frame.line_num) for frame in source_info.traceback.frames][::-1]


def dtype_of(array: Any) -> Any:
    """Returns TensorFlow's dtype of a JAX array; None if there is none, as for random keys."""
    try:
        return tf.as_dtype(array.dtype)
    except TypeError:
        return None
