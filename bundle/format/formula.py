"""Formulas over the outputs of a ranking tower, e.g. `click^0.7 * like^0.3`: what candidates are
ordered by.

A formula comes from a recipe or a request, so it is never run as code. It is written as an
expression of Python is, but for `^`, so Python's parser reads it; of what that may find, only
arithmetic is taken, as a list of steps on a stack.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormulaError, FormulaUndefined

CHARACTERS_MAX = 1000
"""The maximum length of a formula: clients send them, and the parser's work is bounded by it."""
DEPTH_MAX = 50
"""The maximum depth of nested brackets, signs and powers."""

Values = NDArray[np.float64]

_STRANGE = re.compile(r"[^\s\w.+\-*/^(),]|\*\*|//", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def _sigmoid(values: Values) -> Values:
    result: Values = 1 / (1 + np.exp(-values))
    return result


_UNARY: dict[str, Callable[[Values], Values]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sigmoid": _sigmoid,
}
_FOLDED: dict[str, Callable[[Values, Values], Values]] = {"min": np.minimum, "max": np.maximum}
_BINARY: dict[type[ast.operator], Callable[[Values, Values], Values]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}

Step = tuple[int, Any]
"""The number of values that a step takes from the stack, and what it puts there: a number, the
value of a name, or the result of a function of the values.
"""


@dataclass(frozen=True)
class Formula:
    """A formula that was parsed.

    Attributes:
      text: The formula as it was written.
      names: The names of the outputs that it takes, each once.
      steps: The steps that compute it, on a stack.
    """

    text: str
    names: tuple[str, ...]
    steps: tuple[Step, ...]

    def compute(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Computes the formula for m candidates, in float64.

        Args:
          values: [m] values of each output that it names; other outputs are ignored.

        Returns:
          [m] float32; NaN or an infinity for a candidate for which the formula has no finite value.
        """
        stack: list[Any] = []
        with np.errstate(all="ignore"):  # whoever calls checks the result
            for count, step in self.steps:
                if count:
                    stack[-count:] = [step(*stack[-count:])]
                elif isinstance(step, str):
                    # float64, so that a product of many small scores does not end at 0.
                    stack.append(np.asarray(values[step], np.float64))
                else:
                    stack.append(step)
            result: NDArray[np.float32] = np.asarray(stack[0]).astype(np.float32)
        return result

    def evaluate(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Computes the formula for m candidates, each of which must have a finite value.

        Arguments and result are those of `compute`.

        Raises:
          FormulaUndefined: The formula has no finite float32 value for some candidate; names the
            first one.
        """
        result = self.compute(values)
        is_finite = np.isfinite(result)
        if not is_finite.all():
            position = int(np.argmin(is_finite))
            inputs = ", ".join(f"{name} = {values[name][position]:g}" for name in self.names)
            raise FormulaUndefined(
                f"formula {self.text!r} has no finite value for candidate {position}, where "
                f"{inputs}; bound what it takes, as in log(max(x, 1e-6))",
                position,
            )
        return result


def parse_formula(text: str) -> Formula:
    """Reads a formula.

    Raises:
      FormulaError: The text is no formula, is too long or too deep, or names no output; names the
        position and what was expected.
    """
    if len(text) > CHARACTERS_MAX:
        raise FormulaError(
            f"a formula has {len(text)} characters; at most {CHARACTERS_MAX} are read"
        )
    # Before Python's parser reads it, which would take `**` for what `^` means here.
    strange = _STRANGE.search(text)
    if strange is not None:
        raise _unreadable(text, f"{strange[0]!r} at position {strange.start() + 1}")
    # One line, so that a column is a position.
    flat = re.sub(r"\s", " ", text)
    python = flat.strip().replace("^", "**")
    leading_spaces = len(flat) - len(flat.lstrip())

    def position_of(offset: int) -> int:
        # Each `^` is a character longer in Python's text, which lacks the leading spaces.
        powers = python.count("**", 0, offset)
        return 1 + leading_spaces + offset - powers

    try:
        steps = _steps(ast.parse(python, mode="eval").body, 0)
    except SyntaxError as error:
        problem = error.msg
        if error.offset:
            problem += f" at position {position_of(error.offset - 1)}"
        raise _unreadable(text, problem) from None
    except _Unexpected as error:
        node = error.args[0]
        start = position_of(node.col_offset)
        end = position_of(node.end_col_offset)
        raise _unreadable(text, f"{text[start - 1 : end - 1]!r} at position {start}") from None
    except RecursionError:
        raise FormulaError(
            f"formula {text!r} is more than {DEPTH_MAX} brackets, signs and powers deep"
        ) from None
    names = tuple(dict.fromkeys(step for _, step in steps if isinstance(step, str)))
    if not names:
        raise FormulaError(
            f"formula {text!r} names no output, so that all candidates would be equal"
        )
    return Formula(text, names, tuple(steps))


class _Unexpected(Exception):
    """An expression has a part that is not allowed in a formula."""


def _steps(node: ast.expr, depth: int) -> list[Step]:
    """Returns the steps of an expression, operands before operators.

    Raises:
      _Unexpected: A part is not allowed in a formula.
      RecursionError: It is too deep.
    """
    if depth > DEPTH_MAX:
        raise RecursionError
    match node:
        case ast.Constant(value=int() | float() as value) if abs(value) <= sys.float_info.max:
            return [(0, float(value))]
        case ast.Name() | ast.Attribute() if _NAME.fullmatch(name := ast.unparse(node)):
            return [(0, name)]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            steps = _steps(operand, depth + 1)
            if isinstance(sign, ast.USub):
                steps.append((1, np.negative))
            return steps
        # A chain of sums or products nests to its left: its length is no depth.
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
            return [*_steps(left, depth), *_steps(right, depth + 1), (2, _BINARY[type(operator)])]
        case ast.Call(func=ast.Name(id=function), args=[value], keywords=[]) if function in _UNARY:
            return [*_steps(value, depth + 1), (1, _UNARY[function])]
        case ast.Call(func=ast.Name(id=function), args=[first, _, *_] as values) if (
            function in _FOLDED
        ):
            # min(a, b, c) is min(min(a, b), c).
            steps = _steps(first, depth + 1)
            for value in values[1:]:
                steps += _steps(value, depth + 1)
                steps.append((2, _FOLDED[function]))
            return steps
    raise _Unexpected(node)


def _unreadable(text: str, problem: str) -> FormulaError:
    return FormulaError(
        f"formula {text!r}: {problem}; expected are numbers, names of outputs, + - * / ^, "
        "brackets, exp, log, sqrt and sigmoid of one value, min and max of two or more"
    )
