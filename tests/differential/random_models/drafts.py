"""A random model while it is drawn: its inputs, its tables, and the lines of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from tests.differential.random_models.dialects import Dialect

Option = TypeVar("Option")

TABLES = ("users", "movies", "genres")
DTYPES = ("float32", "float32", "float32", "bfloat16", "float16")
DIMS = (1, 3, 4)
LENGTH = 3
"""Of lists. The same in all models, since JAX compiles operations for each shape."""
EXTREMES = {
    "int32": (-(1 << 31), (1 << 31) - 1, 1 - (1 << 31), 123_456_789),
    "int64": (-(1 << 63), (1 << 63) - 1, 1 << 31, -(1 << 31) - 1, (1 << 53) + 1, 1 - (1 << 63)),
}
"""Integers at the ends of their type, and in its middle where a narrower type or a float ends."""


@dataclass(frozen=True)
class Input:
    """An input of a model, and what requests hold of it.

    Attributes:
      dtype: The dtype of the tensor that the model takes.
      pool: The values that requests hold, each equally often.
      encoding: "single", "fixed", "ragged" or "sparse".
      length: The number of values of an example; the maximum if the input is ragged or sparse.
      padding: The value that fills an example of fewer than `length` values; None: none has fewer.
      weights: The weights of the ids of a ragged or sparse input; (): there are none.
      can_be_empty: whether a ragged or sparse example may have no values.
      feature: The recipe's entry of the feature, as inline TOML.
      rows: The model's value for each value of a client, where the recipe translates values.
      default: The model's value if requests lack the feature; None: they never lack it.
    """

    dtype: str
    pool: Sequence[Any]
    encoding: str = "single"
    length: int = 1
    padding: Any = None
    weights: Sequence[float] = ()
    can_be_empty: bool = False
    feature: str = ""
    rows: Mapping[Any, int] = field(default_factory=dict)
    default: Any = None


@dataclass(frozen=True)
class Table:
    """A table of a model.

    Attributes:
      is_layer: Whether the table is a layer; otherwise it is a plain variable.
    """

    name: str
    rows: int
    dim: int
    dtype: str = "float32"
    is_layer: bool = False


@dataclass(frozen=True)
class Activation:
    """What a model computes of a feature.

    Attributes:
      code: An expression of [n, width] float32.
      is_exact: Whether the result holds values of rows as they are stored, so that the results of
        two programs have the same bits.
    """

    code: str
    width: int
    is_exact: bool = False


class Draft:
    """A model while it is drawn.

    Attributes:
      dialect: The dialect that its code is written in.
      all_tables_are_read: Whether the service reads all tables; otherwise small ones stay in
        towers.
      states_examples: Whether the recipe names examples; otherwise the exporter makes them.
      inputs: The inputs by name.
      constructor: The lines that make tables and layers.
      call: The lines that compute what the model returns.
      parameters: The code of the shapes of parameters that no layer has, by their names.
      vocabularies: The vocabularies that the recipe states, by name.
      files: The texts of files that the model reads, by name.
      extracted: The rows and columns of tables that leave the towers where all of them do.
      forms: The names of the functions that drew lookups and computations of ids.
      known: The known difference of the export from a correct one; "": there is none.
    """

    def __init__(self, random: Random, dialect: Dialect) -> None:
        self._random = random
        self._tables: list[Table] = []
        self._names = iter(TABLES)
        self.dialect = dialect
        self.all_tables_are_read = self.chance(0.8)
        self.states_examples = self.chance(0.5)
        self.inputs: dict[str, Input] = {}
        self.constructor: list[str] = []
        self.call: list[str] = []
        self.parameters: dict[str, str] = {}
        self.vocabularies: dict[str, list[int]] = {}
        self.files: dict[str, str] = {}
        self.extracted: set[tuple[int, int]] = set()
        self.forms: set[str] = set()
        self.known = ""

    def chance(self, share: float) -> bool:
        """Returns whether something happens that does in this share of draws."""
        return self._random.random() < share

    def choice(self, *options: Option) -> Option:
        """Draws one of several options."""
        return self._random.choice(options)

    def integer(self, least: int, most: int) -> int:
        """Draws an integer of a range, both ends included."""
        return self._random.randint(least, most)

    def sample(self, options: Sequence[Option], count: int) -> list[Option]:
        """Draws several different options, in random order."""
        return self._random.sample(list(options), count)

    def table(self, dtypes: Sequence[str] = DTYPES) -> Table:
        """Draws a table that another feature reads, or a new one."""
        tables = [table for table in self._tables if table.dtype in dtypes]
        if tables and self.chance(0.4):
            return self.choice(*tables)
        return self.new_table(dtypes=dtypes)

    def new_table(
        self, rows: int = 0, dtypes: Sequence[str] = DTYPES, *, can_be_shared: bool = True
    ) -> Table:
        """Draws a table, and adds what makes it.

        Args:
          rows: The number of rows; 0: any number.
          dtypes: The dtypes from which one is drawn.
          can_be_shared: Whether other features may read the table.
        """
        table = Table(
            next(self._names),
            rows or self.integer(5, 40),
            self.choice(*DIMS),
            self.choice(*dtypes),
            bool(self.dialect.layer) and self.chance(0.7),
        )
        if can_be_shared:
            self._tables.append(table)
            # Keras 3 reads a variable that is no layer's as a whole, before it takes rows.
            if table.is_layer or self.dialect.name != "keras":
                self.extracted.add((table.rows, table.dim))
        line = self.dialect.layer if table.is_layer else self.dialect.variable
        if line:
            self.constructor.append(f"self.{table.name} = {line.format(**vars(table))}")
        else:
            self.parameters[table.name] = f"shape(({table.rows}, {table.dim}), jnp.{table.dtype})"
        return table

    def matrix(self, table: Table) -> str:
        """Returns the code of a table's variable."""
        if not table.is_layer:
            return self.dialect.matrix.format(name=table.name)
        build = f"self.{table.name}.build(None)"
        if self.dialect.layer.startswith("layers.") and build not in self.constructor:
            self.constructor.append(build)
        return self.dialect.layer_matrix.format(name=table.name)

    def rows(self, table: Table, ids: str) -> str:
        """Returns code that looks rows up, as float32."""
        rows = f"self.{table.name}({ids})"
        if not table.is_layer or (self.dialect.name != "keras" and self.chance(0.3)):
            lookup = self.choice(*self.dialect.lookups)
            rows = lookup.format(matrix=self.matrix(table), ids=ids)
        return rows if table.dtype == "float32" else self.dialect.cast_to("float32", rows)
