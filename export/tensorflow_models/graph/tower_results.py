"""Which tensors of what a call returned are the outputs of a tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.errors import NotConvertible, UsageError
from export.graphs.loading import tf
from export.recipe.schema import TowerSection, name_of_call
from export.tensorflow_models.graph.input_paths import per_example


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
      keys: The key of each output in what the call returns: that of a dict, or the position in a
        list or tuple; None: the call returns one tensor.
      is_query: Whether the only output is what a retrieval layer in the call compares.
    """

    tensors: dict[str, Any]
    keys: Mapping[str, str | int | None]
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
            raise NotConvertible(
                f"{label}: output {output!r} has shape {tensor.shape}; [batch, ...] with only the "
                "batch open is needed"
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
        keys = {output: _key(label, name, key, returned) for output, key in section.outputs.items()}
        return TowerResults({output: returned.value[key] for output, key in keys.items()}, keys)
    # Before the result of the call, which is what the layer found, not the query.
    if section.role == "query" and returned.queries:
        return _query(label, name, returned)
    if isinstance(returned.value, tf.Tensor):
        return TowerResults({"result": returned.value}, {"result": None})
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


def _key(label: str, name: str, key: str | int, returned: Returned) -> str | int:
    """Returns the key or the position of a result that the recipe names."""
    if isinstance(returned.value, Mapping):
        if key in returned.value:
            return key
    elif returned.is_sequence:
        # In a functional model of Keras, positions have names, too.
        if key in returned.names:
            return list(returned.names).index(str(key))
        if isinstance(key, int) and key < len(returned.value):
            return key
    elif isinstance(returned.value, tf.Tensor):
        raise UsageError(
            f"{label} returns one tensor, and neither a dict nor a list; leave "
            f"towers.{name}.outputs out"
        )
    raise UsageError(f"{label} {returned}; towers.{name}.outputs names {key!r}")


def _query(label: str, name: str, returned: Returned) -> TowerResults:
    if len(returned.queries) > 1:
        raise UsageError(
            f"{label} has {len(returned.queries)} retrieval layers; name the result that is the "
            f"vector of the query in towers.{name}.outputs"
        )
    return TowerResults({"result": returned.queries[0]}, {"result": None}, is_query=True)
