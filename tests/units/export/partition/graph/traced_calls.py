"""Traces functions of a few inputs, as the exporter traces the call of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format.manifest import TowerInput, TowerOutput
from export.front_end.calls import Call
from export.front_end.interface import TracedTower
from export.front_end.specs import TowerSpec
from export.graphs.loading import tf
from export.partition.graph.input_paths import CallGraph
from export.partition.graph.origins import sources_of


def ids(*shape: int) -> Any:
    """Returns the type of an input of int64, [batch, *shape]."""
    return tf.TensorSpec([None, *shape], tf.int64)


def numbers(*shape: int) -> Any:
    """Returns the type of an input of float32, [batch, *shape]."""
    return tf.TensorSpec([None, *shape], tf.float32)


def texts(*shape: int) -> Any:
    """Returns the type of an input of strings, [batch, *shape]."""
    return tf.TensorSpec([None, *shape], tf.string)


@dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes:
      function: The TensorFlow WrappedFunction.
      inputs: Its inputs by name, as tensors of the graph.
      results: What it returns, as tensors of the graph by name.
    """

    function: Any
    inputs: dict[str, Any]
    results: dict[str, Any]

    @property
    def calls(self) -> CallGraph:
        captured = {inner.name: outer for outer, inner in self.function.graph.captures}
        return CallGraph(sources_of(self.inputs), captured)


def trace(call: Callable[[Mapping[str, Any]], dict[str, Any]], **inputs: Any) -> Traced:
    """Traces a function of a dict of inputs that returns a dict of results."""
    tensors: dict[str, Any] = {}
    returned: dict[str, Any] = {}

    def noted(features: Mapping[str, Any]) -> dict[str, Any]:
        tensors.update(features)
        returned.update(call(features))
        return returned

    function = tf.compat.v1.wrap_function(noted, [inputs])
    return Traced(function, tensors, returned)


def tower_of(traced: Traced) -> TracedTower:
    """Returns the whole function as a tower, whose features are its inputs."""
    names = list(traced.inputs)
    pruned = traced.function.prune([traced.inputs[name] for name in names], traced.results)
    spec = TowerSpec(
        name="tower",
        role="ranking",
        call=Call("", tuple(names)),
        paths={name: (name,) for name in traced.results},
        inputs=tuple(
            TowerInput(name=name, feature=name, dtype=tensor.dtype.name, shape=tuple(tensor.shape))
            for name, tensor in traced.inputs.items()
        ),
        outputs=tuple(
            TowerOutput(name=name, dtype="float32", shape=tuple(tensor.shape))
            for name, tensor in traced.results.items()
        ),
        result=next(iter(traced.results)),
    )
    return TracedTower(spec, pruned, tuple(pruned.graph.variables))
