"""Builds TF1 objects whose constructors make the placeholders of their inputs, and mostly a graph
and a session, too.

What such an object predicts is an attribute, a tensor that depends on placeholders. Its factory
runs anew in each graph that is traced, with the values of a call in the place of placeholders: so
a constant, such as a dropout rate, is one where layers are chosen by it.

Source: TensorFlow 2.20, python/framework/ops.py, python/ops/array_ops.py, python/client/session.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

from export.errors import NotConvertible, UsageError
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import (
    AS_DEFAULT,
    EAGER_OUTSIDE,
    INITIALIZE,
    PLACEHOLDER,
    PLACEHOLDER_WITH_DEFAULT,
    RESET_GRAPH,
    SAVER,
    SESSION_RUN,
)

_DEPTH = 2
"""How many attributes lead to a placeholder that a message names: `users`, `iterator.users`."""

Place = Callable[[int, Any], Any]
"""(number of a placeholder in the order of their creation, the placeholder, or its default value)
-> what the model code gets.
"""


class OwnPlaceholders:
    """What a factory returns, and the placeholders that its code made.

    Attributes:
      root: What the factory returned.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        """Runs the factory in the current graph."""
        self._factory = factory
        self._numbers: dict[int, int] = {}
        self._tensors: list[Any] = []

        def remember(number: int, placeholder: Any) -> Any:
            placeholder = tf.convert_to_tensor(placeholder)
            self._numbers[id(placeholder)] = number
            self._tensors.append(placeholder)
            return placeholder

        with _in_one_graph(remember):
            self.root = factory()

    def rebuilt(self, values: Mapping[str, Any]) -> Any:
        """Runs the factory in the graph that is being traced, and returns what it returns.

        Args:
          values: Tensors and constants, by the attribute that is their placeholder, as
            `iterator.users`, or by the placeholder's name in the graph.

        Raises:
          UsageError: There is no such placeholder, or it has another shape.
        """
        given: dict[int, Any] = {}
        for name, value in values.items():
            parts = tf.nest.flatten(self._placeholder(name), expand_composites=True)
            value_parts = [value]
            if tf.is_tensor(value):
                value_parts = tf.nest.flatten(value, expand_composites=True)
            for placeholder, part in zip(parts, value_parts, strict=False):
                # The shape of a sparse placeholder may be known.
                if id(placeholder) in self._numbers:
                    given[self._numbers[id(placeholder)]] = as_fed(name, placeholder, part)

        def place(number: int, placeholder: Any) -> Any:
            return given.get(number, placeholder)

        with _in_one_graph(place):
            return self._factory()

    def _placeholder(self, name: str) -> Any:
        with contextlib.suppress(AttributeError):
            attribute = reduce(getattr, name.split("."), self.root)
            if any(id(part) in self._numbers for part in _parts(attribute)):
                return attribute
        for placeholder in self._tensors:
            if placeholder.op.name == name:
                return placeholder
        names = ", ".join(self._names())
        raise UsageError(
            f"the model has no placeholder {name!r}; it has {names}. Write the values of "
            "placeholders as the tower's 'arguments', as in arguments = { users = "
            '"user_id", keep_prob = 1.0 }'
        )

    def _names(self) -> Iterator[str]:
        """Yields the name of each placeholder: its attribute, or else its name in the graph."""
        attributes: dict[int, str] = {}
        owners = [("", self.root)]
        for _ in range(_DEPTH):
            inner = []
            for prefix, owner in owners:
                for name, value in getattr(owner, "__dict__", {}).items():
                    inner.append((f"{prefix}{name}.", value))
                    for part in _parts(value):
                        attributes.setdefault(id(part), f"{prefix}{name}")
            owners = inner
        for placeholder in self._tensors:
            yield attributes.get(id(placeholder), placeholder.op.name)


def is_result(value: Any) -> bool:
    """Returns whether an attribute of an object is a tensor of its graph, or some of them."""
    parts = _parts(value)
    return bool(parts) and all(map(tf.is_symbolic_tensor, parts))


def as_fed(name: str, placeholder: Any, value: Any) -> Any:
    """Returns the value of an input as a session or Keras feeds it: one number per example as a
    column, in the dtype of the placeholder. A constant stays a number.
    """
    if not tf.is_tensor(value):
        return _constant(value)
    if value.shape.rank == 1 and placeholder.shape.rank == 2:
        value = tf.expand_dims(value, -1)
    if not placeholder.shape.is_compatible_with(value.shape):
        raise UsageError(
            f"the model takes {name!r} of shape {placeholder.shape}, and its call gives "
            f"{value.shape}: write the shape of an example as inputs.{name}.shape"
        )
    if value.dtype != placeholder.dtype:
        value = tf.cast(value, placeholder.dtype)
    return value


def _constant(value: Any) -> Any:
    """Returns a constant as code takes it in the place of a placeholder: `tf.cond` takes no bool of
    Python, and dropout draws no random numbers only for a number of Python.
    """
    return tf.constant(value) if isinstance(value, bool) else value


def _parts(value: Any) -> list[Any]:
    """Returns the tensors of an attribute; [] if it has none."""
    if not isinstance(value, tuple | list | dict) and not tf.is_tensor(value):
        return []
    return [part for part in tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(part)]


@contextlib.contextmanager
def _in_one_graph(place: Place) -> Iterator[None]:
    """Makes code inside the `with` block build in the current graph what it builds in graphs of its
    own, and run nothing.
    """
    count = 0

    def create(original: Callable[..., Any], **arguments: Any) -> Any:
        nonlocal count
        placeholder = original(**arguments)
        # Graphs of functions make some for the variables that they read.
        if placeholder.dtype in (tf.resource, tf.variant):
            return placeholder
        count += 1
        return place(count, placeholder)

    def create_with_default(_: Callable[..., Any], **arguments: Any) -> Any:
        nonlocal count
        count += 1
        return place(count, _constant(arguments["input"]))

    def enter(original: Callable[..., Any], graph: Any) -> Any:
        # Not the graph of a function or a branch, which TensorFlow enters itself.
        if type(graph) is tf.Graph:
            return contextlib.nullcontext(tf.compat.v1.get_default_graph())
        return original(graph)

    with Hooks() as hooks:
        hooks.replace(PLACEHOLDER, create)
        hooks.replace(PLACEHOLDER_WITH_DEFAULT, create_with_default)
        hooks.replace(AS_DEFAULT, enter)
        hooks.replace(RESET_GRAPH, lambda _: None)
        hooks.replace(SESSION_RUN, _run_nothing)
        hooks.replace(INITIALIZE, lambda _, **_arguments: tf.no_op())
        for point in SAVER:
            hooks.replace(point, lambda *_arguments: None)
        # As with eager execution off: the exporter itself runs eagerly, outside of the graph.
        hooks.replace(EAGER_OUTSIDE, lambda _: tf.executing_eagerly())
        yield


def _run_nothing(
    _run: Callable[..., Any], _session: Any, fetches: Any, *_arguments: Any, **_options: Any
) -> Any:
    """Skips what initializes and restores variables, whose values are those of the checkpoint."""
    if any(map(tf.is_tensor, tf.nest.flatten(fetches))):
        raise NotConvertible(
            "the factory runs a session to read tensors; let it build the graph alone"
        )
    return tf.nest.map_structure(lambda _: None, fetches)
