"""The interface between the partition and a model, which its front end has built."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from export.front_end.calls import Call
from export.graphs.hooks import Hooks
from export.partition.lookups.activations import intercept_specified
from export.partition.lookups.gathers import intercept_gathers
from export.partition.lookups.records import ActivationOf
from export.partition.table_names import TableNames, names_of_variable


class Replacements(NamedTuple):
    """What replaces lookups in the graph of a call.

    Attributes:
      activation_of: Returns the activation of a lookup.
      activation_of_gather: Returns the activation of a plain gather of one row per id; None leaves
        the gather in the graph.
      lengths_of: Returns the number of positions of a dense input that each example uses.
    """

    activation_of: ActivationOf
    activation_of_gather: ActivationOf
    lengths_of: Callable[[Any], Any]


class TraceableModel(ABC):
    """A model whose calls can be traced as graphs of TensorFlow.

    It reads its tables, which are placeholder variables, by `tf.gather` or by
    `partition.lookups.activations.look_up`; a front end whose models have other lookups intercepts
    these, too.

    Attributes:
      has_own_inputs: Whether the model reads inputs that it has made itself, in whose place those
        of a call are joined.
      has_initial_values: Whether its variables have values before they are restored.
      layer_tables: The names of the tables that no tower may read but by lookups, by resource.
    """

    has_own_inputs = False
    has_initial_values = True
    layer_tables: Mapping[str, str] = {}

    @property
    def root(self) -> Any:
        """What the front end knows the model by."""
        return self

    @abstractmethod
    def function(self, call: Call) -> Callable[[Mapping[str, Any]], Any]:
        """Returns a function that runs a call on tensors of the graph that is being traced, by the
        names of its inputs.

        Raises:
          UsageError: The model has no such function, or it takes other arguments.
        """

    def output_names(self, call: Call) -> tuple[str, ...]:  # noqa: ARG002 - of a front end
        """Returns the names that the model has for the list of a call's results."""
        return ()

    @contextlib.contextmanager
    def intercepting(self, replacements: Replacements) -> Iterator[list[Any]]:
        """Replaces lookups inside the `with` block; yields a list that receives the queries of
        layers that compare them with candidates.
        """
        with Hooks() as hooks:
            intercept_gathers(hooks, replacements.activation_of_gather)
            intercept_specified(hooks, replacements.activation_of)
            yield []

    def table_names(self, variables: Mapping[str, Any]) -> dict[str, TableNames]:
        """Returns the names that the model gives tables that no layer names, by resource."""
        return {resource: names_of_variable(variable) for resource, variable in variables.items()}
