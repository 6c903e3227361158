"""Unrolls recurrent layers of Keras, whose loops LiteRT cannot run, over a known number of steps.

Source: tf-keras 2.20, src/backend.py (`rnn`); Keras 3.15, src/backend/tensorflow/rnn.py (`rnn`).
Both take the number of steps from the shape of what they iterate over, and compute the same in a
loop and unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import infers_shapes
from export.tensorflow_models.frameworks.hook_points import RECURRENCES

STEPS_MAX = 512
"""Maximum number of steps that are unrolled: each adds the operations of a cell to a tower."""


def unroll_recurrences(hooks: Hooks) -> None:
    """Makes recurrent layers add the operations of each step to a graph that is traced, where the
    number of steps is known and at most `STEPS_MAX`.
    """

    def iterate(original: Callable[..., Any], **arguments: Any) -> Any:
        steps = _steps_of(arguments)
        # Only the graph that is traced becomes a tower.
        is_traced = not tf.executing_eagerly() and not infers_shapes()
        if steps is None or steps > STEPS_MAX or not is_traced:
            return original(**arguments)
        arguments["unroll"] = True
        if arguments["go_backwards"]:
            # Unrolled, Keras applies the mask of its outputs in the order of the inputs.
            axis = _axis_of_steps(arguments)
            arguments["inputs"] = _reverse(arguments["inputs"], axis)
            arguments["mask"] = _reverse(arguments["mask"], axis)
            arguments["go_backwards"] = False
        return original(**arguments)

    for point in RECURRENCES:
        hooks.replace(point, iterate)


def _axis_of_steps(arguments: Mapping[str, Any]) -> int:
    return 0 if arguments["time_major"] else 1


def _steps_of(arguments: Mapping[str, Any]) -> int | None:
    """Returns over how many steps all examples are iterated; None: each has its own number."""
    if tf.is_tensor(arguments["input_length"]):
        return None
    first_input = tf.nest.flatten(arguments["inputs"])[0]
    steps: int | None = first_input.shape[_axis_of_steps(arguments)]
    return steps


def _reverse(structure: Any, axis: int) -> Any:
    """Returns tensors in the reversed order of steps; None stays."""

    def reverse(tensor: Any) -> Any:
        if tensor is None:
            return None
        return tf.reverse(tensor, [axis])

    return tf.nest.map_structure(reverse, structure)
