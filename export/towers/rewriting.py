"""Rewrites a copy of the graph of a traced tower, or of a part of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from export.front_end.interface import TracedTower
from export.graphs.functions import narrowed
from export.graphs.internals import join
from export.towers.parts import TracedPart

Traced = TypeVar("Traced", TracedTower, TracedPart)


class GraphRewriter(Generic[Traced]):
    """A copy of a tower whose graph is changed in place.

    Attributes:
      tower: The copy of the tower.
      graph: The graph of the copy.
      inputs: The input tensors, in the order of `tower.spec.inputs`.
      outputs: The output tensors by name.
    """

    def __init__(self, tower: Traced) -> None:
        # Extracting all outputs copies the graph. Further inputs of a graph are captured variables.
        count = len(tower.spec.inputs)
        outputs = tower.function.structured_outputs
        function, variables = narrowed(
            tower.spec.name, tower.function, tower.function.graph.inputs[:count], outputs
        )
        self.tower: Traced = replace(tower, function=function, variables=variables)
        self.graph: Any = function.graph
        self.inputs: list[Any] = list(function.graph.inputs[:count])
        self.outputs: dict[str, Any] = dict(function.structured_outputs)

    def put(self, old: Any, new: Any) -> None:
        """Replaces one tensor by another."""
        join(old, new)
        # No operation reads an output, so `join` does not reach it.
        for name, output in self.outputs.items():
            if output.name == old.name:
                self.outputs[name] = new

    def finished(self, inputs: Sequence[Any] | None = None) -> Traced:
        """Returns the rewritten tower; `inputs` replaces its input tensors."""
        feeds = self.inputs
        if inputs is not None:
            feeds = list(inputs)
        function, variables = narrowed(
            self.tower.spec.name, self.tower.function, feeds, self.outputs
        )
        return replace(self.tower, function=function, variables=variables)
