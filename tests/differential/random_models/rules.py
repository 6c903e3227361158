"""What a computation of ids is, and what it is drawn for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.differential.random_models.drafts import EXTREMES, Draft, Input


@dataclass(frozen=True)
class Rule:
    """A computation of ids.

    Attributes:
      dtype: The dtype of the input.
      pool: Values for which the computation gives a row of the table, those at its limits among
        them.
      template: The computation of `{ids}`.
      feature, rows: See `Input`.
      is_partial: Whether the computation fails for other ids.
      drops_unknown: Whether unknown ids become row -1, which the lookup leaves out.
    """

    dtype: str
    pool: Sequence[Any]
    template: str = "{ids}"
    is_partial: bool = False
    drops_unknown: bool = False
    feature: str = ""
    rows: dict[Any, int] = field(default_factory=dict)

    def of(self, ids: str) -> str:
        """Returns the code of the computation of an expression."""
        return self.template.format(ids=ids)

    def input(self, encoding: str, length: int = 1, **options: Any) -> Input:
        """Returns an input of these ids."""
        return Input(
            self.dtype,
            self.pool,
            encoding,
            length,
            feature=self.feature,
            rows=self.rows,
            **options,
        )


@dataclass(frozen=True)
class Wanted:
    """What a rule is drawn for.

    Attributes:
      name: The name of the input.
      rows: The number of rows of the table.
      below_zero: The lookup's rule for rows below 0: "fails"; "dropped": they are left out;
        "last": they are counted from the end.
      is_single: Whether there is one id for each example.
    """

    draft: Draft
    name: str
    rows: int
    below_zero: str = "fails"
    is_single: bool = False

    @property
    def is_tensorflow(self) -> bool:
        """Whether the model may call TensorFlow itself."""
        return self.draft.dialect.name == "tensorflow"

    def integer_dtype(self) -> str:
        """Draws the dtype of an input of integers."""
        return self.draft.choice("int32", self.draft.dialect.widest_integer)

    def integers(self, dtype: str) -> tuple[int, ...]:
        """Returns integers of all sizes, for a computation that takes any."""
        rows = self.rows
        near = (-rows - 1, -rows, -1, 0, 1, rows - 1, rows, rows + 1, 2 * rows, 12_345)
        return (*near, *EXTREMES[dtype])

    def layer(self, code: str) -> str:
        """Adds a layer of ids to the model; returns the template of its call."""
        self.draft.constructor.append(f"self.{self.name}_ids = {code}")
        return f"self.{self.name}_ids({{ids}})"
