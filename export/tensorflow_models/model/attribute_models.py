"""Records which attributes of a model its call runs, and on what: they are often the towers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import LAYER_CALLS, TFRS_TASKS


@contextlib.contextmanager
def attribute_calls_recorded(root: Any) -> Iterator[list[tuple[str, Any]]]:
    """Fills a list, inside the `with` block, with the name and the argument of each call of a model
    that is a public attribute of `root`.
    """
    names = {
        id(value): name
        for name, value in vars(root).items()
        if not name.startswith("_") and _is_keras_model(value)
    }
    calls: list[tuple[str, Any]] = []

    def record(call: Callable[..., Any], layer: Any, *arguments: Any, **options: Any) -> Any:
        if id(layer) in names and len(arguments) == 1:
            calls.append((names[id(layer)], arguments[0]))
        return call(layer, *arguments, **options)

    def leave_out_loss(*_arguments: Any, **_options: Any) -> Any:
        return tf.zeros([])

    with Hooks() as hooks:
        for point in TFRS_TASKS:
            # A loss is no output, and not every task can be traced.
            hooks.replace(point, leave_out_loss)
        for point in LAYER_CALLS:
            hooks.replace(point, record)
        yield calls


def _is_keras_model(value: Any) -> bool:
    return any(
        base.__name__ == "Model" and base.__module__.partition(".")[0] in {"keras", "tf_keras"}
        for base in type(value).__mro__
    )
