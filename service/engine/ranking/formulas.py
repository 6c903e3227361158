"""What candidates are ordered by: an output of their tower, or a formula, of the bundle or the
request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormulaError, FormulaUndefined
from bundle.format.formula import Formula, parse_formula
from service.engine.validation import check_names
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedTower

Scores = NDArray[np.float32]


def formula_of(tower: LoadedTower, text: str, other_names: Collection[str] = ()) -> Formula | None:
    """Returns what orders the candidates of a tower: the request's formula, else the bundle's;
    None: its result does.

    Args:
      tower: The tower.
      text: The formula of the request; empty: it has none.
      other_names: The names that the request's formula may take beside outputs of the tower.

    Raises:
      InvalidArgument: The text is no formula, or names none of these; names the nearest one.
    """
    if not text:
        return tower.formula
    owner = f"tower {tower.name!r}"
    return parsed(text, {*tower.heads, *other_names}, "an output", owner)


def outputs_of(tower: LoadedTower, formula: Formula | None) -> frozenset[str]:
    """Returns the outputs of a tower that the score of its candidates needs."""
    if formula is None:
        return frozenset([tower.entry.result])
    return tower.heads.intersection(formula.names)


def parsed(text: str, names: Collection[str], what: str, owner: str) -> Formula:
    """Reads the formula of a request.

    Args:
      text: The formula.
      names: The names that it may take.
      what: What one of them is, with its article.
      owner: What they belong to.

    Raises:
      InvalidArgument: The text is no formula, or takes another name; names the nearest one.
    """
    try:
        formula = parse_formula(text)
    except FormulaError as problem:
        raise _invalid(text, problem, "a formula of numbers, names and functions") from problem
    check_names(formula.names, names, "formula", what, owner)
    return formula


def evaluated(
    formula: Formula, values: Mapping[str, NDArray[Any]], id_of: Callable[[int], Any] | None
) -> Scores:
    """Returns [m] float32 scores of candidates.

    Args:
      formula: The formula.
      values: [m] values by name, for each name that the formula takes.
      id_of: Returns a candidate's id by its position, for an error; None: they have none.

    Raises:
      InvalidArgument: The formula has no finite value for a candidate; names it and what the
        formula takes of it.
    """
    try:
        return formula.evaluate(values)
    except FormulaUndefined as problem:
        id_text = ""
        if id_of is not None:
            id_text = f"; its id is {str(id_of(problem.position))[:128]!r}"
        expected = "a formula with a finite value for each candidate"
        raise _invalid(formula.text, f"{problem}{id_text}", expected) from problem


def _invalid(text: str, problem: object, expected: str) -> InvalidArgument:
    return InvalidArgument(str(problem), FieldViolation("formula", repr(text), expected))
