"""What the exporter takes of TensorFlow that is not public, without replacing it: all of it is here, and tested.

Source: TensorFlow 2.20.
"""

from __future__ import annotations

import importlib
from typing import Any

from export.frameworks.loading import load_tensorflow, tf
from export.user_lines import last_of_user


def _internal(module: str, name: str) -> Any:
    load_tensorflow()
    return getattr(importlib.import_module(f"tensorflow.python.{module}"), name)


def variable_class() -> Any:
    """Returns the class of variables that hold nothing until a value is assigned to them."""
    return _internal("ops.resource_variable_ops", "UninitializedVariable")


def untracked(value: Any) -> Any:
    """Returns a value that is no part of the object graph of what it becomes an attribute of."""
    return _internal("trackable.data_structures", "NoDependency")(value)


def with_paths(structure: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a nested structure with their paths, in the order of `tf.nest.flatten`."""
    return list(_internal("util.nest", "flatten_with_joined_string_paths")(structure))


def current_line() -> str:
    """Returns the line of the user's code that is running, also where AutoGraph has rewritten it; "" where none is."""
    stack = _internal("util.tf_stack", "extract_stack")()
    return last_of_user((frame.filename, frame.lineno) for frame in stack)


def deprecations_silenced() -> Any:
    """Keeps TensorFlow from saying what is deprecated, within a `with`."""
    return _internal("util.deprecation", "silence")()


def read_instead(operation: Any, position: int, tensor: Any) -> None:
    """Lets an operation of a graph read another tensor as its input at a position."""
    operation._update_input(position, tensor)


def join(second: Any, first: Any) -> None:
    """Lets all that reads one tensor of a graph read another."""
    for operation in second.consumers():
        for position, tensor in enumerate(operation.inputs):
            if tensor is second:
                read_instead(operation, position, first)


def without_gradient(operation: Any) -> None:
    """Takes from an operation the gradient that its function has of its own."""
    if "_gradient_op_type" in operation.node_def.attr:
        operation._clear_attr("_gradient_op_type")


def run_flat(function: Any, arguments: list[Any]) -> Any:
    """Runs a traced function.

    The public way in puts all arguments into the text of an error, which it then drops.
    """
    return function._call_flat(arguments, function.captured_inputs)


def set_captures(graph: Any, pairs: list[tuple[Any, Any]]) -> None:
    """Says what a traced graph takes from outside: pairs of what is there, and its placeholder within."""
    graph.function_captures.reset_captures([outer for outer, _ in pairs], [inner for _, inner in pairs])


def table_of(handle: Any) -> Any:
    """Returns the lookup table of `tf.lookup` whose resource this is; None of others."""
    parent = getattr(handle, "_parent_trackable", lambda: None)()
    return parent if isinstance(parent, tf.lookup.StaticHashTable) else None


def save_without_variables(module: Any, directory: str, signatures: dict[str, Any]) -> None:
    """Writes a SavedModel's graph and assets, and no variable."""
    save = _internal("saved_model.save", "save_and_return_nodes")
    save(module, directory, signatures=signatures, experimental_skip_checkpoint=True)


def is_keras_3_layer(layer: Any) -> bool:
    """Returns whether a layer is one that Keras 3 itself has, or derives from one."""
    return any(kind.__module__.startswith("keras.src.layers") for kind in type(layer).__mro__)
