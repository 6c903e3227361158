"""Activations of features that are specified: the exporter makes the bag of each feature an input
of what the user brings, which looks nothing up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from export.errors import NotConvertible, UsageError
from export.front_end.specs import Combiner, TableFacts
from export.graphs.loading import tf
from export.recipe.schema import InputPart
from export.tensorflow_models.frameworks.named_graphs import without_memory
from export.tensorflow_models.lookups.records import Lookup, table_name
from export.tensorflow_models.lookups.specified import look_up


@dataclass(frozen=True)
class PooledTable:
    """A table as the specification of a feature describes it.

    Attributes:
      name: its own name, which layouts and checkpoints use.
      rows: the size of its vocabulary.
      dim: values in a row.
      combiner: how the rows of an example become one vector.
    """

    name: str
    rows: int
    dim: int
    combiner: Combiner


@dataclass(frozen=True)
class Bag:
    """One specified feature among the inputs of the recipe.

    Attributes:
      table: what it reads.
      weights: the input of its weights; None: it has none.
    """

    table: PooledTable
    weights: str | None = None


@dataclass(frozen=True)
class Activations:
    """What a tower takes in place of ids.

    Attributes:
      bags: the specified features that the recipe declares, by their names.
      variables: of each table, without memory, by the table's name.
    """

    bags: Mapping[str, Bag] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    def others(self, names: Iterable[str]) -> list[str]:
        """Returns the inputs that the tower takes as they are: no ids, and no weights of ids."""
        beside = {bag.weights for bag in self.bags.values()}
        return [name for name in names if name not in self.bags and name not in beside]

    def looked_up(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the tower takes: activations [b, dim] by feature, and other inputs.

        Args:
          inputs: tensors of one call, of TensorFlow.
        """
        found = {name: inputs[name] for name in self.others(inputs)}
        for name, bag in self.bags.items():
            if name in inputs:
                found[name] = look_up(self._lookup(name, bag, inputs))
        return found

    def _lookup(self, name: str, bag: Bag, inputs: Mapping[str, Any]) -> Lookup:
        table = bag.table
        facts = TableFacts(table_name(table.name, "table"), table.name, table.rows, table.dim)
        ids = inputs[name]
        if isinstance(ids, tf.Tensor):
            return Lookup(name, facts, self.variables[table.name], (ids,))
        if bag.weights is not None and bag.weights not in inputs:
            raise UsageError(
                f"a tower takes input {name!r} and not its weights, {bag.weights!r}: add them to "
                "its `inputs`"
            )
        return Lookup(
            name,
            facts,
            self.variables[table.name],
            (ids,),
            weights=None if bag.weights is None else inputs[bag.weights],
            kind="bag",
            # No id and no weight is dropped; the divisor of a mean is the sum of weights.
            encoding="ragged",
            combiner=table.combiner,
        )


def plan_activations(
    table_of: Mapping[str, PooledTable], inputs: Mapping[str, InputPart]
) -> Activations:
    """Matches specified features with the recipe's inputs.

    Args:
      table_of: the table that each feature reads, by the feature's name.
      inputs: of the recipe.

    Raises:
      NotConvertible: an input is not what its specification needs; names it, and what to write.
    """
    weights = {part.weights_for: name for name, part in inputs.items() if part.weights_for}
    bags: dict[str, Bag] = {}
    for name, table in table_of.items():
        if name in inputs:
            _check_ids(name, inputs[name])
            bags[name] = Bag(table, weights.get(name))
            _check_weights(name, inputs, bags[name])
    variables = {
        table.name: without_memory(
            table_name(table.name, "table"),
            tf.TensorShape([table.rows, table.dim]),
            tf.float32,
            True,
        )
        for table in {table.name: table for table in table_of.values()}.values()
    }
    return Activations(bags, variables)


def _check_ids(name: str, part: InputPart) -> None:
    if part.dtype == "float32":
        raise NotConvertible(
            f"input {name!r} is float32, and the feature specification of that name reads a table "
            f'by ids: write inputs.{name}.dtype = "int32", or rename one of them'
        )
    if part.kind == "dense" and part.shape:
        raise NotConvertible(
            f"input {name!r} has {list(part.shape)} ids in each example, which its feature "
            f'specification combines: write inputs.{name}.kind = "ragged", and leave its shape out'
        )
    if part.weights_for is not None:
        raise NotConvertible(
            f"input {name!r} has the name of a feature specification, and the recipe states that "
            f"it holds the weights of {part.weights_for!r}; rename the input"
        )


def _check_weights(name: str, inputs: Mapping[str, InputPart], bag: Bag) -> None:
    if bag.weights is None or inputs[bag.weights].kind == inputs[name].kind != "dense":
        return
    raise NotConvertible(
        f"input {bag.weights!r} is {inputs[bag.weights].kind} and holds the weights of {name!r}, "
        f'which is {inputs[name].kind}: write kind = "ragged" for both'
    )
