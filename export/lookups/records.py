"""What an interception records of one lookup, whichever way the model looks up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bundle.format import paths
from export.errors import NotConvertible
from export.frameworks.loading import tf
from export.graph.specs import FeatureSpec, LookupConfig, TableFacts

Tensors = Any
"""A tf.Tensor, tf.RaggedTensor or tf.SparseTensor."""


class NoRule(NamedTuple):
    """How the model computes ids that no rule describes, as the end of a sentence, and what to change."""

    why: str
    cure: str = "give its lookup an input as it is"


@dataclass(frozen=True, eq=False)
class Lookup(LookupConfig):
    """One reading of one table, with one combiner.

    Attributes:
      path: of the feature, layer or column, for messages.
      table: what it reads; of an indicator, how many rows its ids may have.
      variable: the table's variable, as the model holds it; None of an indicator.
      ids: what the ids are computed from, before `rule`; several only of a cross.
      weights: beside the ids.
      length: of one dense id in a dimension of its own, too: 1.
      ids_max: of a bag, how many ids of an example it takes at most.
      activation: the placeholder of what it returns, in a traced call.
      gather: whether it is a gather from a plain variable, which could as well stay in the graph.
      line: of the user's code.
      feature: what callers send for it; None: not resolved, or `no_rule`.
      no_rule: why there is no such feature.
    """

    path: str
    table: TableFacts
    variable: Any
    ids: tuple[Tensors, ...]
    weights: Tensors | None = None
    ids_max: int | None = None
    activation: Any = None
    gather: bool = False
    line: str = ""
    feature: FeatureSpec | None = None
    no_rule: NoRule | None = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of the activation; None is the batch."""
        return (None, self.table.dim) if self.length is None else (None, self.length, self.table.dim)


MakeTable = Callable[[TableFacts], Any]
Answer = Callable[[Lookup], Any]


def of_table(variable: Any, ids: Tensors, **how: Any) -> Lookup:
    """Returns a lookup of ids in a plain variable; `how` are other fields of Lookup."""
    facts = facts_of(variable)
    return Lookup(**{"path": facts.config_name, "table": facts, "variable": variable, "ids": (ids,), **how})


def of_indicator(path: str, rows: int, ids: Tensors, dim: int | None = None, **how: Any) -> Lookup:
    """Returns a lookup without a table: its ids, of so many rows, become as many numbers, or one number (`dim` 1)."""
    return Lookup(path, TableFacts("", path, rows, dim or rows), None, (ids,), **how)


def facts_of(variable: Any) -> TableFacts:
    """Returns a table as its variable has it; what it is called in the bundle is known when the model is built."""
    rows, dim = variable.shape.as_list()
    return TableFacts("", variable.name.partition(":")[0], rows, dim)


def table_name(name: str, what: str) -> str:
    """Returns what a table is called in a bundle.

    Args:
      name: as the model calls it; what no file may be called is replaced by `_`.
      what: the table, for messages.
    Raises:
      NotConvertible: nothing of it can be a name.
    """
    made = "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in name)
    if not paths.is_name(made):
        raise NotConvertible(f"{what} {name!r} cannot be called so in a bundle: begin with a letter or digit")
    return made


def batch_size(ids: Tensors) -> Any:
    """Returns the number of examples that ids are of, as a scalar tensor."""
    return ids.nrows() if isinstance(ids, tf.RaggedTensor) else tf.shape(ids)[0]
