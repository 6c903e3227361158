"""Runs model code that builds a Keras model with eager execution off, as TF1 programs do.

Such a model is a part of the graph that its code has built it in: layers may hold tensors of that
graph, so that none can be called in another one. The code therefore builds the model anew in each
graph that is traced, where the inputs of a call replace those that Keras made. Variables are
created outside of the graphs, once per name, so that all of these models share them.

Source: tf-keras 2.20, src/backend.py, src/engine/base_layer_v1.py, src/engine/training_v1.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from export.errors import UsageError
from export.graphs.hooks import Hooks
from export.graphs.internals import join
from export.graphs.loading import load_tensorflow, tf
from export.tensorflow_models.frameworks.hook_points import DISABLE_EAGER, EAGER_OUTSIDE
from export.tensorflow_models.frameworks.named_graphs import (
    restore_behavior,
    shared_variables,
    tf1_code,
)
from export.tensorflow_models.frameworks.own_placeholders import as_fed

_GRAPH_FACTORIES: set[str] = set()
"""Factories whose code has switched eager execution off; the import of a module does so once."""


class KerasGraph:
    """A factory that builds a Keras model in a graph.

    Attributes:
      model: The model that the factory built last.
    """

    def __init__(self, factory: Callable[[], Any], reference: str) -> None:
        """Builds the model once.

        Args:
          factory: Returns the model.
          reference: The recipe's `code.factory`.
        """
        self._factory = factory
        self._reference = reference
        self._variables: dict[str, Any] = {}
        self.model: Any = None

        def build() -> None:
            with self.rebuilt():
                pass

        tf.compat.v1.wrap_function(build, [])

    @contextlib.contextmanager
    def rebuilt(self) -> Iterator[Any]:
        """Builds the model in the graph that is being traced, and yields it; inside the `with`
        block, its code runs as with eager execution off.
        """
        with (
            shared_variables(self._variables, _create_outside),
            tf1_code(self._reference),
            Hooks() as hooks,
        ):
            hooks.replace(DISABLE_EAGER, lambda _: None)
            # The exporter itself runs eagerly, outside of the graph.
            hooks.replace(EAGER_OUTSIDE, lambda _: tf.executing_eagerly())
            self.model = self._factory()
            yield self.model


def built_model(root: Any) -> Any:
    """Returns the model of a KerasGraph; any other result of a factory is returned as it is."""
    if isinstance(root, KerasGraph):
        return root.model
    return root


def load_model(reference: str, load: Callable[[], Callable[[], Any]]) -> Any:
    """Returns what a factory returns; as a KerasGraph if its code switches eager execution off.

    Args:
      reference: The recipe's `code.factory`.
      load: Imports the code, and returns its factory.
    """
    # Hooks replace functions of libraries that are imported.
    load_tensorflow()
    is_called = False

    def switch_off(_: Any) -> None:
        _GRAPH_FACTORIES.add(reference)
        if is_called:
            raise _EagerExecutionOff

    with Hooks() as hooks:
        hooks.replace(DISABLE_EAGER, switch_off)
        factory = load()
        if reference not in _GRAPH_FACTORIES:
            is_called = True
            try:
                return factory()
            except _EagerExecutionOff:
                # What it has built eagerly is of no use: it starts again, in a graph.
                pass
    # A switch of the whole process, which some of this code sets beside the one of eager execution.
    tf.compat.v1.experimental.output_all_intermediates(None)
    restore_behavior(reference)
    return KerasGraph(factory, reference)


class _EagerExecutionOff(BaseException):
    """Ends a factory that was called eagerly. Not an Exception, which the user's code might
    handle.
    """


def is_of_graph(target: Any) -> bool:
    """Returns whether a call's target is a model that Keras built in the current graph out of its
    own inputs.
    """
    inputs = getattr(target, "inputs", None)
    if not isinstance(inputs, list) or not inputs:
        return False
    graph = tf.compat.v1.get_default_graph()
    tensors = tf.nest.flatten(inputs, expand_composites=True)
    return all(tf.is_symbolic_tensor(tensor) and tensor.graph is graph for tensor in tensors)


def connected(model: Any, positional: Sequence[Any], by_name: Mapping[str, Any]) -> Any:
    """Returns the outputs of a model that was built in the current graph, for these arguments in
    place of its own inputs.

    Args:
      model: A model that `is_of_graph`.
      positional: A dict of inputs by their names in the model, or inputs in the model's order.
      by_name: Inputs by their names in the model.

    Raises:
      UsageError: The arguments are not the inputs of the model.
    """
    names = list(model.input_names)
    values: list[Any]
    if len(positional) == 1 and isinstance(positional[0], Mapping):
        by_name = {**positional[0], **by_name}
        positional = ()
    if positional:
        values = tf.nest.flatten(list(positional))
    else:
        values = [by_name[name] for name in names if name in by_name]
    if len(values) != len(names):
        raise UsageError(
            f"the model takes {', '.join(names)}, and its call is given "
            f"{', '.join(by_name) or f'{len(values)} inputs'}: name the inputs as the model does, "
            "or write them in its order as the tower's 'arguments', as in arguments = "
            '[["user_id", "movie_id"]]'
        )
    for name, placeholder, value in zip(names, model.inputs, values, strict=True):
        fed = as_fed(name, placeholder, value)
        placeholder_parts = tf.nest.flatten(placeholder, expand_composites=True)
        fed_parts = tf.nest.flatten(fed, expand_composites=True)
        for placeholder_part, fed_part in zip(placeholder_parts, fed_parts, strict=True):
            join(placeholder_part, fed_part)
    return model.output


def _create_outside(make: Callable[..., Any], **options: Any) -> Any:
    """Creates a variable as Keras does without a graph."""
    with tf.init_scope(), tf.name_scope(""):
        return make(**{**options, "collections": None, "use_resource": True})
