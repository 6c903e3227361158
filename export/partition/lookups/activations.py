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
from export.front_end.specs import Combiner, Kind, TableFacts
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import without_memory
from export.partition.lookups.records import ActivationOf, TracedLookup, table_name
from export.recipe.schema import InputSection


@dataclass(frozen=True)
class PooledTable:
    """A table as the specification of a feature describes it.

    Attributes:
      name: The name of the table, which layouts and checkpoints use.
      rows: The size of its vocabulary.
      dim: The number of values in a row.
      combiner: The way in which the rows of an example become one vector.
    """

    name: str
    rows: int
    dim: int
    combiner: Combiner


@dataclass(frozen=True)
class StatedSizes:
    """The sizes that the specification of a feature states.

    Attributes:
      rows: The number of activations in a batch of training; None: not stated.
      ids: The number of ids that become one activation; None: not stated, or any number.
    """

    rows: int | None = None
    ids: int | None = None


@dataclass(frozen=True)
class Bag:
    """One specified feature among the inputs of the recipe.

    Attributes:
      table: The table that it reads.
      weights: The input of its weights; None: it has none.
      positions: The number of activations of one example: one, which combines its ids; or one for
        each of its ids, where the specification states that an activation has one id.
      batch: The number of examples in a batch of training, by the specification; None: not stated.
    """

    table: PooledTable
    weights: str | None = None
    positions: int = 1
    batch: int | None = None


@dataclass(frozen=True)
class Activations:
    """The activations that a tower takes in place of ids.

    Attributes:
      bags: The specified features that the recipe declares, by their names.
      variables: The variable of each table, without memory, by the table's name.
    """

    bags: Mapping[str, Bag] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int | None:
        """The number of examples in a batch of training; None: no specification states it."""
        for bag in self.bags.values():
            # All bags that state a batch state the same one: see `_check_batches`.
            if bag.batch is not None:
                return bag.batch
        return None

    def positions(self, name: str) -> int:
        """Returns how many rows of an input belong to one example."""
        if name not in self.bags:
            return 1
        return self.bags[name].positions

    def plain_inputs(self, names: Iterable[str]) -> list[str]:
        """Returns the inputs that the tower takes as they are: no ids, and no weights of ids."""
        weight_inputs = {bag.weights for bag in self.bags.values()}
        return [name for name in names if name not in self.bags and name not in weight_inputs]

    def looked_up(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the tower takes: activations by feature, [b, dim] or [b, positions, dim],
        and other inputs.

        Args:
          inputs: The tensors of one call, of TensorFlow.
        """
        arguments = {name: inputs[name] for name in self.plain_inputs(inputs)}
        for name, bag in self.bags.items():
            if name in inputs:
                arguments[name] = look_up(self._lookup(name, bag, inputs))
        return arguments

    def _lookup(self, name: str, bag: Bag, inputs: Mapping[str, Any]) -> TracedLookup:
        table = bag.table
        bundle_name = table_name(table.name, "table")
        facts = TableFacts(bundle_name, table.name, table.rows, table.dim)
        variable = self.variables[table.name]
        ids = inputs[name]
        if isinstance(ids, tf.Tensor):
            kind: Kind = "single" if bag.positions == 1 else "sequence"
            # A single id may have a dimension of its own, of length 1.
            length = None if ids.shape.rank == 1 else bag.positions
            return TracedLookup(name, facts, variable, (ids,), kind=kind, length=length)
        # The towers of a recipe may take different inputs, so each call is checked.
        if bag.weights is not None and bag.weights not in inputs:
            raise UsageError(
                f"a tower takes input {name!r} and not its weights, {bag.weights!r}: add them to "
                "its `inputs`"
            )
        weights = None if bag.weights is None else inputs[bag.weights]
        return TracedLookup(
            name,
            facts,
            variable,
            (ids,),
            weights=weights,
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
      table_of: The table that each feature reads, by the feature's name.
      inputs: The inputs of the recipe.
      sizes_of: The sizes that specifications state, by the feature's name; a feature that is not
        there combines its ids.

    Raises:
      NotConvertible: An input is not what its specification needs; names it, and what to write.
    """
    weights_of = {
        section.weights_for: name for name, section in inputs.items() if section.weights_for
    }
    bags: dict[str, Bag] = {}
    for name, table in table_of.items():
        if name not in inputs:
            continue
        sizes = sizes_of.get(name)
        _check_ids(name, inputs[name])
        positions = _positions(name, inputs[name], table, sizes)
        bags[name] = Bag(table, weights_of.get(name), positions, _batch(positions, sizes))
        _check_weights(name, inputs, bags[name])
    _check_batches(bags, inputs, sizes_of)

    # Features may share a table.
    tables = {table.name: table for table in table_of.values()}
    variables = {}
    for name, table in tables.items():
        shape = tf.TensorShape([table.rows, table.dim])
        variables[name] = without_memory(table_name(name, "table"), shape, tf.float32, True)
    return Activations(bags, variables)


class _Specified:
    """Holds what replaces such lookups inside a `lookups_intercepted` block."""

    # In a class, since `Hooks` replaces attributes, and restores them.
    activation_of: ActivationOf | None = None


def intercept_specified(hooks: Hooks, activation_of: ActivationOf) -> None:
    """Lets `look_up` return what `activation_of` does."""
    watched = staticmethod(hooks.watched(activation_of))
    hooks.set_attribute(_Specified, "activation_of", watched)


def look_up(lookup: TracedLookup) -> Any:
    """Returns the activation of a lookup, whose table is a placeholder variable."""
    if _Specified.activation_of is None:
        raise RuntimeError("specified lookups exist only while a model is traced")
    return _Specified.activation_of(lookup)


def _check_ids(name: str, section: InputSection) -> None:
    if section.dtype == "float32":
        raise NotConvertible(
            f"input {name!r} is float32, and the feature specification of that name reads a table "
            f'by ids: write inputs.{name}.dtype = "int32", or rename one of them'
        )
    if section.weights_for is not None:
        raise NotConvertible(
            f"input {name!r} has the name of a feature specification, and the recipe states that "
            f"it holds the weights of {section.weights_for!r}; rename the input"
        )


def _positions(
    name: str, section: InputSection, table: PooledTable, sizes: StatedSizes | None
) -> int:
    """Returns how many activations one example has.

    Raises:
      NotConvertible: The recipe gives an example several ids, and the specification combines them,
        or states no sizes.
    """
    if section.kind != "dense" or not section.shape:
        return 1
    count = math.prod(section.shape)
    subject = f"input {name!r} has {list(section.shape)} ids in each example"
    ragged_remedy = f'write inputs.{name}.kind = "ragged", and leave its shape out'
    if sizes is None or (sizes.ids is not None and sizes.ids > 1):
        raise NotConvertible(
            f"{subject}, which its feature specification combines: {ragged_remedy}"
        )
    if sizes.ids is None or sizes.rows is None:
        raise NotConvertible(
            f"{subject}, and its feature specification does not state whether it combines them: "
            f"where it does, {ragged_remedy}; where the model takes an activation for each id, "
            f"give the specification the shapes of training, input_shape=(batch * {count}, 1) and "
            f"output_shape=(batch * {count}, {table.dim})"
        )
    if sizes.rows % count:
        raise NotConvertible(
            f"{subject}, and its feature specification states {sizes.rows} activations in a batch, "
            f"which is no multiple of {count}: write how many ids an example of training has as "
            f"inputs.{name}.shape"
        )
    return count


def _batch(positions: int, sizes: StatedSizes | None) -> int | None:
    """Returns how many examples a specification states for a batch of training."""
    if sizes is None or sizes.rows is None:
        return None
    return sizes.rows // positions


def _check_batches(
    bags: Mapping[str, Bag], inputs: Mapping[str, InputSection], sizes_of: Mapping[str, StatedSizes]
) -> None:
    """Checks that all features have the same number of examples in a batch."""
    stated = {name: bag.batch for name, bag in bags.items() if bag.batch is not None}
    if len(set(stated.values())) < 2:
        return
    largest = max(stated, key=lambda name: stated[name])
    smallest = min(stated, key=lambda name: stated[name])
    remedy = "write how many ids an example of training has as the `shape` of each input"
    count, remainder = divmod(stated[largest], stated[smallest])
    # The likely mistake: the recipe has no shape for an input of several ids.
    if not remainder and not inputs[largest].shape and sizes_of[largest].ids == 1:
        remedy = (
            f"where an example has {count} ids in {largest!r}, and an activation for each, write "
            f'inputs.{largest}.kind = "dense" and inputs.{largest}.shape = [{count}]'
        )
    raise NotConvertible(
        f"feature_specs state a batch of {stated[smallest]} examples by {smallest!r}, and of "
        f"{stated[largest]} by {largest!r}: {remedy}"
    )


def _check_weights(name: str, inputs: Mapping[str, InputSection], bag: Bag) -> None:
    """Checks that weights have the structure of their ids.

    Raises:
      NotConvertible: The weights have another structure, or weigh ids that are not combined.
    """
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
