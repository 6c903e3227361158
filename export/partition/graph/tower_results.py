"""Which tensors of what a call returned are the outputs of a tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.errors import NotConvertible, UsageError
from export.graphs.elementwise import function_of
from export.graphs.functions import variables_of
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.partition.graph.input_paths import per_example
from export.recipe.schema import TowerSection, name_of_call

_ELEMENTWISE = {
    "Exp": function_of("math.exp"),
    "Neg": function_of("math.negative"),
    "Relu": function_of("nn.relu"),
    "Sigmoid": function_of("math.sigmoid"),
    "Tanh": function_of("math.tanh"),
}
"""Operations, by type, of which a position of the result needs that of the argument alone."""


@dataclass(frozen=True)
class Returned:
    """What a traced call returned.

    Attributes:
      value: A tensor, or a dict, list or tuple of tensors.
      names: The names of the positions of a list or tuple: the `output_names` of a functional model
        of Keras.
      queries: The vectors that retrieval layers in the call compared with their candidates.
    """

    value: Any
    names: Sequence[str] = ()
    queries: Sequence[Any] = ()

    @property
    def is_sequence(self) -> bool:
        """Whether its results have positions."""
        return isinstance(self.value, Sequence) and not isinstance(self.value, str)

    def __str__(self) -> str:
        """Returns its results, in words."""
        if isinstance(self.value, Mapping):
            return f"returns {', '.join(map(str, self.value))}"
        if isinstance(self.value, tf.Tensor):
            return f"returns one tensor of shape {self.value.shape}"
        if not self.is_sequence:
            return f"returns a {type(self.value).__name__}"
        text = f"returns a list of {len(self.value)} results"
        if self.names:
            text += f", which are called {', '.join(self.names)}"
        return text


@dataclass(frozen=True)
class TowerResults:
    """The outputs of a tower.

    Attributes:
      tensors: The outputs by their names.
      paths: The path of each output in what the call returns, as `at_path` takes it.
      is_query: Whether the only output is what a retrieval layer in the call compares.
    """

    tensors: dict[str, Any]
    paths: Mapping[str, tuple[str | int, ...]]
    is_query: bool = False


def tower_results(name: str, section: TowerSection, returned: Returned) -> TowerResults:
    """Returns the outputs of a tower.

    Without `outputs` in the recipe, the vector of a query tower is what the retrieval layer of its
    call compares with candidates.

    Raises:
      UsageError: The call does not return what the recipe's outputs name.
      NotConvertible: A result is not a dense tensor of floats with a shape that is fixed but for
        the batch.
    """
    label = f"towers.{name}: {name_of_call(section.call)}"
    results = _chosen(label, name, section, returned)
    for output, tensor in results.tensors.items():
        if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
            raise NotConvertible(
                f"{label}: output {output!r} is {tensor}; a dense tensor of floats was expected"
            )
        if per_example(tensor) is None:
            # TensorFlow knows no shape of what a mutable hash table returns: that is the cause.
            variables_of(f"{label}: output {output!r}", tensor.graph, needed([tensor], []))
            remedy = ""
            if tensor.shape.rank and tensor.shape[0] is not None:
                remedy = (
                    f". The call computes {tensor.shape[0]} examples at a time: write a function "
                    "in the factory's file that computes any number, and name it as "
                    f"towers.{name}.call"
                )
            raise NotConvertible(
                f"{label}: output {output!r} has shape {tensor.shape}; [batch, ...] with only the "
                f"batch open is needed{remedy}"
            )
    return results


def _chosen(label: str, name: str, section: TowerSection, returned: Returned) -> TowerResults:
    """Returns the results that the recipe names, or the only one.

    Args:
      label: The tower and its call, for messages.
      name, section: The name of the tower, and its section of the recipe.
      returned: What the call returned.

    Raises:
      UsageError: The recipe names no results, and there are several.
    """
    if section.outputs:
        tensors: dict[str, Any] = {}
        paths: dict[str, tuple[str | int, ...]] = {}
        for output, steps in section.outputs.items():
            results = returned
            for step in steps if isinstance(steps, tuple) else (steps,):
                key = _key(label, name, step, results)
                paths[output] = (*paths.get(output, ()), key)
                results = Returned(_result(results.value, key))
            tensors[output] = results.value
        return TowerResults(tensors, paths)
    # Before the result of the call, which is what the layer found, not the query.
    if section.role == "query" and returned.queries:
        return _query(label, name, returned)
    value = returned.value
    path: list[str | int] = []
    # A dict or list of one result is that result.
    while isinstance(value, Mapping | list | tuple) and len(value) == 1:
        (key,) = value if isinstance(value, Mapping) else (0,)
        path.append(key)
        value = value[key]
    if isinstance(value, tf.Tensor):
        return TowerResults({"result": value}, {"result": tuple(path)})
    if isinstance(returned.value, Mapping):
        raise UsageError(
            f"{label} returns several results ({', '.join(map(str, returned.value))}); name those "
            f"wanted in towers.{name}.outputs"
        )
    if returned.is_sequence:
        raise UsageError(
            f"{label} {returned}; name those wanted by their positions, as in "
            f"towers.{name}.outputs = {{ score = 0 }}"
        )
    raise UsageError(
        f"{label} {returned}; let it return a dict of tensors or one tensor, or name a method of "
        "the model that does in the recipe"
    )


def _key(label: str, name: str, step: str | int, returned: Returned) -> str | int:
    """Returns the key or the position of the results that a step of the recipe leads to."""
    value = returned.value
    remedy = ""
    if isinstance(value, Mapping):
        if step in value:
            return step
    elif returned.is_sequence:
        # In a functional model of Keras, positions have names, too.
        if step in returned.names:
            return list(returned.names).index(str(step))
        if isinstance(step, int) and step < len(value):
            return step
    elif isinstance(value, tf.Tensor):
        remedy = f"; leave towers.{name}.outputs out"
        # The first axis is the batch, which no output selects from.
        if (value.shape.rank or 0) > 1 and value.shape[-1] is not None:
            width = value.shape[-1]
            if isinstance(step, int) and step < width:
                return step
            remedy += f", or name a position on its last axis, from 0 to {width - 1}"
    raise UsageError(f"{label} {returned}; towers.{name}.outputs names {step!r}{remedy}")


def _result(value: Any, key: str | int) -> Any:
    """Returns the result of a key or position."""
    if not isinstance(value, tf.Tensor):
        return value[key]
    with value.graph.as_default():
        return _column(value, int(key))


def _column(tensor: Any, position: int) -> Any:
    """Returns one position of a tensor's last axis.

    Of tensors that are joined on this axis it is a position of one of them, so that the tower reads
    no inputs of the others, such as the item that a training samples as a negative.
    """
    operation = tensor.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    last_axis = tensor.shape.rank - 1
    if operation.type in _ELEMENTWISE:
        (argument,) = operation.inputs
        return _ELEMENTWISE[operation.type](_column(argument, position))
    if operation.type == "Pack" and operation.get_attr("axis") in (-1, last_axis):
        return operation.inputs[position]
    if operation.type == "ConcatV2":
        *parts, axis = operation.inputs
        widths = [part.shape[-1] for part in parts]
        if tf.get_static_value(axis) in (-1, last_axis) and None not in widths:
            for part, width in zip(parts, widths, strict=True):
                if position < width:
                    return _column(part, position)
                position -= width
    return tensor[..., position]


def _query(label: str, name: str, returned: Returned) -> TowerResults:
    if len(returned.queries) > 1:
        raise UsageError(
            f"{label} has {len(returned.queries)} retrieval layers; name the result that is the "
            f"vector of the query in towers.{name}.outputs"
        )
    return TowerResults({"result": returned.queries[0]}, {"result": ()}, is_query=True)
