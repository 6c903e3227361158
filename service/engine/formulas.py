"""What candidates are ordered by: an output of their tower, or a formula over several, of the bundle or the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormulaError, FormulaUndefined
from bundle.format.formula import Formula, parse_formula
from service.engine.validation import check_names
from service.errors import InvalidArgument
from service.models.towers import LoadedTower

Scores = NDArray[np.float32]

_parsed = lru_cache(256)(parse_formula)


@dataclass(frozen=True)
class Ordering:
    """What gives a candidate its score."""

    tower: LoadedTower
    formula: Formula | None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the tower that it needs."""
        return (self.tower.entry.result,) if self.formula is None else self.formula.names

    def scores(self, outputs: Mapping[str, Scores], id_of: Callable[[int], Any] | None) -> Scores:
        """Returns [m] scores of candidates by the tower's outputs.

        Args:
          id_of: a candidate's id by its place, for an error; None: they have none.
        Raises:
          InvalidArgument: the formula has no finite value for a candidate; names it and its outputs.
        """
        if self.formula is None:
            return outputs[self.tower.entry.result]
        try:
            return self.formula.evaluate(outputs)
        except FormulaUndefined as problem:
            known = "" if id_of is None else f"; its id is {str(id_of(problem.place))[:128]!r}"
            raise InvalidArgument(f"{problem}{known}") from problem


def ordering(tower: LoadedTower, text: str) -> Ordering:
    """Returns what candidates are ordered by: the request's formula, else the bundle's.

    Raises:
      InvalidArgument: the text is no formula, or names what is no output of the tower; names the nearest one.
    """
    if not text:
        return Ordering(tower, tower.formula)
    try:
        formula = _parsed(text)
    except FormulaError as problem:
        raise InvalidArgument(str(problem)) from problem
    check_names(formula.names, tower.heads, "output", f"the formula of tower {tower.name!r}")
    return Ordering(tower, formula)
