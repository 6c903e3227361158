"""Activations of features that are specified: the exporter makes the bag of each feature an input
of what the user brings, which looks nothing up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from export.errors import NotConvertible, UsageError
from export.front_end.specs import Combiner, TableFacts
from export.graphs.loading import tf
from export.recipe.schema import InputSection
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
class StatedSizes:
    """The sizes that the specification of a feature states.

    Attributes:
      rows: activations in a batch of training; None: not stated.
      ids: ids that become one activation; None: not stated, or any number.
    """

    rows: int | None = None
    ids: int | None = None


@dataclass(frozen=True)
class Bag:
    """One specified feature among the inputs of the recipe.

    Attributes:
      table: what it reads.
      weights: the input of its weights; None: it has none.
      positions: activations of one example: one, which combines its ids; or one for each of its
        ids, where the specification states that an activation has one id.
      batch: examples in a batch of training, by the specification; None: not stated.
    """

    table: PooledTable
    weights: str | None = None
    positions: int = 1
    batch: int | None = None


@dataclass(frozen=True)
class Activations:
    """What a tower takes in place of ids.

    Attributes:
      bags: the specified features that the recipe declares, by their names.
      variables: of each table, without memory, by the table's name.
    """

    bags: Mapping[str, Bag] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int | None:
        """The number of examples in a batch of training; None: no specification states it."""
        stated = {bag.batch for bag in self.bags.values()} - {None}
        return stated.pop() if stated else None  # all state the same

    def positions(self, name: str) -> int:
        """Returns how many rows of an input belong to one example."""
        return self.bags[name].positions if name in self.bags else 1

    def others(self, names: Iterable[str]) -> list[str]:
        """Returns the inputs that the tower takes as they are: no ids, and no weights of ids."""
        beside = {bag.weights for bag in self.bags.values()}
        return [name for name in names if name not in self.bags and name not in beside]

    def looked_up(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the tower takes: activations by feature, [b, dim] or [b, positions, dim],
        and other inputs.

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
            return Lookup(
                name,
                facts,
                self.variables[table.name],
                (ids,),
                kind="single" if bag.positions == 1 else "sequence",
                length=None if ids.shape.rank == 1 else bag.positions,
            )
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
    table_of: Mapping[str, PooledTable],
    inputs: Mapping[str, InputSection],
    sizes_of: Mapping[str, StatedSizes] = MappingProxyType({}),
) -> Activations:
    """Matches specified features with the recipe's inputs.

    Args:
      table_of: the table that each feature reads, by the feature's name.
      inputs: of the recipe.
      sizes_of: the sizes that specifications state, by the feature's name; a feature that is not
        there combines its ids.

    Raises:
      NotConvertible: an input is not what its specification needs; names it, and what to write.
    """
    weights = {part.weights_for: name for name, part in inputs.items() if part.weights_for}
    bags: dict[str, Bag] = {}
    for name, table in table_of.items():
        if name in inputs:
            _check_ids(name, inputs[name])
            positions = _positions(name, inputs[name], table, sizes_of.get(name))
            batch = _batch(positions, sizes_of.get(name))
            bags[name] = Bag(table, weights.get(name), positions, batch)
            _check_weights(name, inputs, bags[name])
    _check_batches(bags, inputs, sizes_of)
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


def _check_ids(name: str, part: InputSection) -> None:
    if part.dtype == "float32":
        raise NotConvertible(
            f"input {name!r} is float32, and the feature specification of that name reads a table "
            f'by ids: write inputs.{name}.dtype = "int32", or rename one of them'
        )
    if part.weights_for is not None:
        raise NotConvertible(
            f"input {name!r} has the name of a feature specification, and the recipe states that "
            f"it holds the weights of {part.weights_for!r}; rename the input"
        )


def _positions(name: str, part: InputSection, table: PooledTable, sizes: StatedSizes | None) -> int:
    """Returns how many activations one example has.

    Raises:
      NotConvertible: the recipe gives an example several ids, and the specification combines them,
        or states no sizes.
    """
    if part.kind != "dense" or not part.shape:
        return 1
    count = math.prod(part.shape)
    given = f"input {name!r} has {list(part.shape)} ids in each example"
    bag = f'write inputs.{name}.kind = "ragged", and leave its shape out'
    if sizes is None or (sizes.ids is not None and sizes.ids > 1):
        raise NotConvertible(f"{given}, which its feature specification combines: {bag}")
    if sizes.ids is None or sizes.rows is None:
        raise NotConvertible(
            f"{given}, and its feature specification does not state whether it combines them: "
            f"where it does, {bag}; where the model takes an activation for each id, give the "
            f"specification the shapes of training, input_shape=(batch * {count}, 1) and "
            f"output_shape=(batch * {count}, {table.dim})"
        )
    if sizes.rows % count:
        raise NotConvertible(
            f"{given}, and its feature specification states {sizes.rows} activations in a batch, "
            f"which is no multiple of {count}: write how many ids an example of training has as "
            f"inputs.{name}.shape"
        )
    return count


def _batch(positions: int, sizes: StatedSizes | None) -> int | None:
    """Returns how many examples a specification states for a batch of training."""
    return None if sizes is None or sizes.rows is None else sizes.rows // positions


def _check_batches(
    bags: Mapping[str, Bag], inputs: Mapping[str, InputSection], sizes_of: Mapping[str, StatedSizes]
) -> None:
    """Checks that all features have the same number of examples in a batch."""
    stated = {name: bag.batch for name, bag in bags.items() if bag.batch is not None}
    if len(set(stated.values())) < 2:
        return
    largest = max(stated, key=lambda name: stated[name])
    smallest = min(stated, key=lambda name: stated[name])
    count, rest = divmod(stated[largest], stated[smallest])
    remedy = "write how many ids an example of training has as the `shape` of each input"
    if not rest and not inputs[largest].shape and sizes_of[largest].ids == 1:
        remedy = (
            f"where an example has {count} ids in {largest!r}, and an activation for each, write "
            f'inputs.{largest}.kind = "dense" and inputs.{largest}.shape = [{count}]'
        )
    raise NotConvertible(
        f"feature_specs state a batch of {stated[smallest]} examples by {smallest!r}, and of "
        f"{stated[largest]} by {largest!r}: {remedy}"
    )


def _check_weights(name: str, inputs: Mapping[str, InputSection], bag: Bag) -> None:
    if bag.weights is None or inputs[bag.weights].kind == inputs[name].kind != "dense":
        return
    if inputs[name].shape:
        raise NotConvertible(
            f"input {bag.weights!r} holds the weights of {name!r}, which has an activation for "
            "each id, and only ids that are combined have weights: leave the weights out, if all "
            "are 1"
        )
    raise NotConvertible(
        f"input {bag.weights!r} is {inputs[bag.weights].kind} and holds the weights of {name!r}, "
        f'which is {inputs[name].kind}: write kind = "ragged" for both'
    )
