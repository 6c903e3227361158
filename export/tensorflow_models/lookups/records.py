"""The record of one lookup, whichever API the model uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple

from bundle.format import paths
from bundle.format.manifest import IdRule, Unknown
from export.errors import NotConvertible
from export.front_end.outside_ids import UNDEFINED, OutsideIds
from export.front_end.specs import Combiner, Encoding, FeatureSpec, Keys, Kind, TableFacts
from export.graphs.loading import tf

Tensors = Any
"""A tf.Tensor, tf.RaggedTensor or tf.SparseTensor."""


class NoRule(NamedTuple):
    """Why no rule describes ids, as the end of a sentence, and what to change."""

    why: str
    cure: str = "give its lookup an unchanged input"


@dataclass(frozen=True, eq=False)
class Lookup:
    """One lookup in one table, with one combiner.

    Attributes:
      path: name of the feature, layer or column, for messages.
      table: the table; for an indicator, its number of rows.
      variable: the table's variable in the model; None for an indicator.
      ids: tensors that `rule` is applied to; several only for a cross.
      weights: one for each id.
      kind: one id (single), a combined bag, or a sequence of vectors.
      encoding: how the model takes its ids; a dense sequence holds exactly `length` ids.
      combiner: the combiner of a bag.
      length: the length of a sequence, longer ones are truncated; also 1 for a single dense id with
        its own dimension.
      rule: the lookup's own rule from ids to rows; None: its ids are rows.
      unknown: what the rule does with ids outside the table.
      outside: what the lookup itself does with them.
      keys: the keys of each vocabulary that `rule` reads, in the order of `lookup_tables_of`.
      padding: the id that marks padding in a dense tensor.
      max_norm: the largest norm of a row; rows with a larger norm are scaled.
      empty_row: for a bag, the row that an empty one reads.
      filler_row: for a sequence, the row that pads it; None: zeros.
      config: the FeatureConfig of an embedding layer.
      ids_max: for a bag, the maximum number of ids per example.
      activation: the placeholder of its result, in a traced call.
      gather: whether it is a gather from a plain variable, which may stay in the graph.
      line: the user's line.
      feature: its feature; None before it is resolved, or with `no_rule`.
      no_rule: why there is no such feature.
      position: among the ids of an example, of a lookup that was split off from one of them all.
      traced: the lookup as the model made it, before its ids were resolved.
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
    rule: IdRule | None = None
    unknown: Unknown | None = None
    outside: OutsideIds = UNDEFINED
    keys: tuple[Keys, ...] = ()
    padding: int | str | None = None
    max_norm: float | None = None
    empty_row: int | None = None
    filler_row: int | None = None
    config: Any = field(default=None, repr=False)
    ids_max: int | None = None
    activation: Any = None
    gather: bool = False
    line: str = ""
    feature: FeatureSpec | None = None
    no_rule: NoRule | None = None
    position: int | None = None
    traced: Lookup | None = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of the activation; None is the batch."""
        return (
            (None, self.table.dim) if self.length is None else (None, self.length, self.table.dim)
        )


MakeTable = Callable[[TableFacts], Any]
Answer = Callable[[Lookup], Any]


def of_table(variable: Any, ids: Tensors, **how: Any) -> Lookup:
    """Returns a lookup of ids in a plain variable; `how` are other fields of Lookup."""
    facts = facts_of(variable)
    by_default = {
        "path": facts.config_name,
        "table": facts,
        "variable": variable,
        "ids": (ids,),
        "outside": getattr(variable, "outside", UNDEFINED),
    }
    return Lookup(**{**by_default, **how})


def of_indicator(path: str, rows: int, ids: Tensors, dim: int | None = None, **how: Any) -> Lookup:
    """Returns a lookup without a table: ids below `rows` become that many numbers, or one number
    (`dim` 1).
    """
    return Lookup(path, TableFacts("", path, rows, dim or rows), None, (ids,), **how)


def facts_of(variable: Any) -> TableFacts:
    """Returns the facts of a table's variable; its name in the bundle is known once the model is
    built.
    """
    rows, dim = variable.shape.as_list()
    return TableFacts("", variable.name.partition(":")[0], rows, dim)


def table_name(name: str, what: str) -> str:
    """Returns the bundle's name of a table.

    Args:
      name: the model's name. Characters that no file name may have become `_`, and what precedes
        the first letter or digit, as in the name of a private attribute, is left out.
      what: the kind of object, which is also its name if nothing is left.
    Raises:
      NotConvertible: it is too long.
    """
    bundle_name = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip("_.-")
    bundle_name = bundle_name or what.partition(" ")[0]
    if not paths.is_name(bundle_name):
        raise NotConvertible(
            f"{what} {name!r} cannot be a name in a bundle: it has {len(bundle_name)} characters, "
            "and at most 128 were expected"
        )
    return bundle_name


def free_name(name: str, taken: Container[str]) -> str:
    """Returns a name that is not taken: itself, or with a number from 2 on."""
    return next(
        each
        for each in chain([name], (f"{name}_{number}" for number in count(2)))
        if each not in taken
    )


def batch_size(ids: Tensors) -> Any:
    """Returns the batch size of ids, as a scalar tensor."""
    return ids.nrows() if isinstance(ids, tf.RaggedTensor) else tf.shape(ids)[0]
