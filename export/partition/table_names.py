"""Names of the tables that are plain variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bundle.format.paths import is_name
from export.front_end.specs import TableFacts
from export.graphs.placeholders import name_of
from export.partition.lookups.records import free_name, table_name

COLUMN = re.compile(r"/(embedding_weights|embeddings?|weights)$")
"""The end of a variable's name that layers and columns give every table."""


class TableNames(NamedTuple):
    """Names that the model gives a table, from the shortest to its whole path."""

    short: str
    longer: str
    whole: str


def names_of_variable(variable: Any) -> TableNames:
    """Returns the names that a variable's name gives a table: the shortest is its last scope."""
    whole = name_of(variable)
    # Scopes of TensorFlow end with slashes, steps of a tree of JAX with dots or slashes.
    longer = COLUMN.sub("", whole.replace(".", "/")).replace("/", ".")
    return TableNames(longer.rpartition(".")[2], longer, whole)


def name_tables(
    variables: Mapping[str, Any], choices: Mapping[str, TableNames], used_names: set[str]
) -> dict[str, TableFacts]:
    """Names the tables that are plain variables; avoids the names in `used_names`, and adds the new
    ones.

    Args:
      variables: The variables by their resources.
      choices: The names that the model gives each of them; `config_name` is the whole path.
      used_names: The names of other tables.
    """
    # A table that is called `users` gets this name before one that is called `_users`.
    in_turn = sorted(variables, key=lambda key: not is_name(choices[key].short))
    names: dict[str, str] = {}
    for key in in_turn:
        short = table_name(choices[key].short, "table")
        name = short
        if name in used_names:
            name = table_name(choices[key].longer, "table")
        if name in used_names:
            name = free_name(short, used_names)
        names[key] = name
        used_names.add(name)
    return {
        key: TableFacts(names[key], choices[key].whole, *variable.shape.as_list())
        for key, variable in variables.items()
    }
