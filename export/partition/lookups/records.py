"""The record of one lookup, whichever API the model uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple

from bundle.format import paths
from bundle.format.manifest import GraphIds, Unknown
from export.errors import NotConvertible
from export.front_end.outside_ids import UNDEFINED, OutsideIds
from export.front_end.specs import Combiner, Encoding, FeatureSpec, Keys, Kind, TableFacts
from export.graphs.loading import tf
from export.graphs.placeholders import name_of

Tensors = Any
"""A tf.Tensor, tf.RaggedTensor or tf.SparseTensor."""


class MissingRule(NamedTuple):
    """The reason why no rule describes ids, so that a lookup stays in its graph.

    Attributes:
      reason: A description of the ids, as the end of a sentence.
      cure: What the user can change, as an order.
    """

    reason: str
    cure: str = "give its lookup an unchanged input"


# Without `==`: that of tensors and variables is an operation on their values.
@dataclass(frozen=True, eq=False)
class TracedLookup:
    """One lookup in one table, with one combiner: what a model reads in a traced call.

    Attributes:
      path: The name of the feature, layer or column, for messages.
      table: The table; for an indicator, its number of rows.
      variable: The table's variable in the model; None for an indicator.
      ids: The tensors that `rule` is applied to; several only for a cross.
      weights: The weights, one for each id.
      kind: One id (single), a combined bag, or a sequence of vectors.
      encoding: How the model takes its ids; a dense sequence holds exactly `length` ids.
      combiner: The combiner of a bag.
      length: The length of a sequence, longer ones are truncated; also 1 for a single dense id with
        its own dimension.
      rule: The lookup's own rule from ids to rows; None: its ids are rows.
      unknown: What the rule does with ids outside the table.
      outside: What the lookup itself does with ids outside the table.
      keys: The keys of each vocabulary that `rule` reads, in the order of its tables.
      padding: The id that marks padding in a dense tensor.
      paddings: The same for each of the tensors of a cross; (): none of them has padding.
      max_norm: The largest norm of a row; rows with a larger norm are scaled.
      empty_row: The row that an empty bag reads.
      filler_row: The row that pads a sequence; None: zeros.
      config: The FeatureConfig of an embedding layer.
      ids_max: The maximum number of ids per example in a bag.
      activation: The placeholder of the lookup's result.
      gather: Whether it is a gather from a plain variable, which may stay in the graph.
      line: The user's line.
      feature: The lookup's feature; None before it is resolved, or with `missing_rule`.
      missing_rule: Why there is no such feature.
      position: The position of its id among those of an example, if it was split off from a lookup
        of all of them.
      positions: The number of ids of an example, if it was split off.
      unresolved: The lookup as the model made it, before its ids were resolved.
    """

    path: str
    table: TableFacts
    variable: Any
    ids: tuple[Tensors, ...]
    weights: Tensors | None = None
    kind: Kind = "single"
    encoding: Encoding = "dense"
    combiner: Combiner | None = None
    length: int | None = None
    rule: GraphIds | None = None
    unknown: Unknown | None = None
    outside: OutsideIds = UNDEFINED
    keys: tuple[Keys, ...] = ()
    padding: int | str | None = None
    paddings: tuple[int | str | None, ...] = ()
    max_norm: float | None = None
    empty_row: int | None = None
    filler_row: int | None = None
    config: Any = field(default=None, repr=False)
    ids_max: int | None = None
    activation: Any = None
    gather: bool = False
    line: str = ""
    feature: FeatureSpec | None = None
    missing_rule: MissingRule | None = None
    position: int | None = None
    positions: int = 1
    unresolved: TracedLookup | None = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of the activation; None is the batch."""
        if self.length is None:
            return (None, self.table.dim)
        return (None, self.length, self.table.dim)


ActivationOf = Callable[[TracedLookup], Any]
"""Returns the tensor that replaces the result of a lookup."""


def of_table(variable: Any, ids: Tensors, **fields: Any) -> TracedLookup:
    """Returns a lookup of ids in a plain variable; `fields` are other fields of TracedLookup."""
    facts = facts_of(variable)
    defaults = {
        "path": facts.config_name,
        "table": facts,
        "variable": variable,
        "ids": (ids,),
        "outside": getattr(variable, "outside", UNDEFINED),
    }
    return TracedLookup(**{**defaults, **fields})


def of_indicator(
    path: str, rows: int, ids: Tensors, dim: int | None = None, **fields: Any
) -> TracedLookup:
    """Returns a lookup without a table: ids below `rows` become that many numbers, or one number
    (`dim` 1). `fields` are the other fields of TracedLookup.
    """
    facts = TableFacts("", path, rows, dim or rows)
    return TracedLookup(path, facts, None, (ids,), **fields)


def facts_of(variable: Any) -> TableFacts:
    """Returns the facts of a table's variable; its name in the bundle is known once the model is
    built.
    """
    rows, dim = variable.shape.as_list()
    return TableFacts("", name_of(variable), rows, dim)


def table_name(name: str, kind: str) -> str:
    """Returns the bundle's name of a table.

    Args:
      name: The model's name. Characters that no file name may have become `_`, and what precedes
        the first letter or digit, as in the name of a private attribute, is left out.
      kind: The kind of object, which is also its name if nothing is left.

    Raises:
      NotConvertible: The name is too long.
    """
    bundle_name = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip("_.-")
    bundle_name = bundle_name or kind.partition(" ")[0]
    if not paths.is_name(bundle_name):
        raise NotConvertible(
            f"{kind} {name!r} cannot be a name in a bundle: it has {len(bundle_name)} characters, "
            "and at most 128 were expected"
        )
    return bundle_name


def free_name(name: str, used_names: Collection[str]) -> str:
    """Returns a name that is not used yet: `name` itself, or with a number from 2 on."""
    choices = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(choice for choice in choices if choice not in used_names)


def batch_size(ids: Tensors) -> Any:
    """Returns the batch size of ids, as a scalar tensor."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.nrows()
    return tf.shape(ids)[0]
