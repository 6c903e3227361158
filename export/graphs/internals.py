"""The private APIs of TensorFlow that the exporter calls, all in one place and tested.

Source: TensorFlow 2.20.
"""

from __future__ import annotations

import importlib
from typing import Any

from export.graphs.loading import load_tensorflow, moved, tf
from export.user_lines import last_of_user


def _internal(module: str, name: str) -> Any:
    load_tensorflow()
    try:
        return getattr(importlib.import_module(f"tensorflow.python.{module}"), name)
    except (ImportError, AttributeError) as problem:
        raise moved(f"tensorflow.python.{module}.{name}", "tensorflow") from problem


def _private(owner: Any, name: str) -> Any:
    """Returns a private method of an object of TensorFlow."""
    try:
        return getattr(owner, name)
    except AttributeError as problem:
        raise moved(f"{type(owner).__name__}.{name}", "tensorflow") from problem


def variable_class() -> Any:
    """Returns the class of variables that allocate nothing until a value is assigned."""
    return _internal("ops.resource_variable_ops", "UninitializedVariable")


def untracked(value: Any) -> Any:
    """Wraps an attribute's value so that it is not part of the object graph."""
    return _internal("trackable.data_structures", "NoDependency")(value)


def with_paths(structure: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a nested structure with their paths, in the order of
    `tf.nest.flatten`.
    """
    return list(_internal("util.nest", "flatten_with_joined_string_paths")(structure))


def current_line() -> str:
    """Returns the user's line that is running, also in code that AutoGraph rewrote; "" if there is
    none.
    """
    stack = _internal("util.tf_stack", "extract_stack")()
    return last_of_user((frame.filename, frame.lineno) for frame in stack)


def deprecations_silenced() -> Any:
    """Silences TensorFlow's deprecation warnings inside a `with` block."""
    return _internal("util.deprecation", "silence")()


def set_input(operation: Any, position: int, tensor: Any) -> None:
    """Replaces an input of a graph's operation."""
    _private(operation, "_update_input")(position, tensor)


def join(second: Any, first: Any) -> None:
    """Makes all readers of tensor `second` read `first` instead."""
    for operation in second.consumers():
        for position, tensor in enumerate(operation.inputs):
            if tensor is second:
                set_input(operation, position, first)


def without_gradient(operation: Any) -> None:
    """Removes the custom gradient of an operation."""
    if "_gradient_op_type" in operation.node_def.attr:
        _private(operation, "_clear_attr")("_gradient_op_type")


def run_flat(function: Any, arguments: list[Any], is_rewritten: bool = False) -> Any:
    """Runs a traced function on the tensors of its arguments.

    The public call formats all arguments into an error text that it then discards.

    Args:
      function: The function.
      arguments: The tensors.
      is_rewritten: Whether TensorFlow rewrites the graph before, as it does in training. That takes
        longer than a few calls save, and changes the last bit of results.
    """
    if is_rewritten:
        return _private(function, "_call_flat")(arguments, function.captured_inputs)
    optimizer = tf.config.optimizer
    before = optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        return _private(function, "_call_flat")(arguments, function.captured_inputs)
    finally:
        optimizer.set_experimental_options({"disable_meta_optimizer": before})


def functions_of(operation: Any) -> dict[str, list[Any]]:
    """Returns the graphs of the functions that an operation calls, such as the branches of a
    condition, by its attributes.
    """
    function_of = _private(operation.graph, "_get_function")
    graphs = {}
    for attribute, value in operation.node_def.attr.items():
        names = [function.name for function in (value.func, *value.list.func)]
        functions = [function_of(name) for name in names if name]
        graphs[attribute] = [function.graph for function in functions if function is not None]
    return graphs


def set_captures(graph: Any, pairs: list[tuple[Any, Any]]) -> None:
    """Sets the captures of a traced graph: pairs of the outer tensor and its inner placeholder."""
    reset = _private(graph.function_captures, "reset_captures")
    reset([outer for outer, _ in pairs], [inner for _, inner in pairs])


def table_of(handle: Any) -> Any:
    """Returns the `tf.lookup` table of a resource; None for a resource of another kind."""
    parent = getattr(handle, "_parent_trackable", lambda: None)()
    if isinstance(parent, tf.lookup.StaticHashTable):
        return parent
    return None


def save_without_variables(module: Any, directory: str, signatures: dict[str, Any]) -> None:
    """Writes a SavedModel's graph and assets, and no variable."""
    save = _internal("saved_model.save", "save_and_return_nodes")
    save(module, directory, signatures=signatures, experimental_skip_checkpoint=True)


def frozen_graph(function: Any) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Returns a concrete function as one graph without calls and variables.

    Returns:
      The GraphDef, the names of the input tensors by input, and those of the output tensors by
      output.
    """
    freeze = _internal("framework.convert_to_constants", "convert_variables_to_constants_v2")
    frozen = freeze(function)
    inputs = {tensor.op.name: tensor.name for tensor in frozen.inputs}
    # TensorFlow flattens a dictionary of outputs in the order of its sorted keys.
    outputs = zip(sorted(function.structured_outputs), frozen.outputs, strict=True)
    output_tensors = {name: tensor.name for name, tensor in outputs}
    return frozen.graph.as_graph_def(), inputs, output_tensors


def is_keras_3_layer(layer: Any) -> bool:
    """Returns whether an object is a layer or model of Keras 3, or derives from one."""
    return any(kind.__module__.startswith("keras.src.layers") for kind in type(layer).__mro__)


def copy_operation(operation: Any, inputs: list[Any]) -> list[Any]:
    """Returns the results of a copy of an operation that reads other tensors of its graph."""
    create = _private(operation.graph, "_create_op_internal")
    attributes = {
        name: value for name, value in operation.node_def.attr.items() if name != "_output_shapes"
    }
    types = [tensor.dtype for tensor in operation.outputs]
    return list(create(operation.type, inputs, types, attrs=attributes).outputs)
