"""Formulas over the outputs of a ranking tower, e.g. `click^0.7 * like^0.3`: what candidates are ordered by.

    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/") signed)*
    signed  = ("+" | "-") signed | power
    power   = value ["^" signed]                   so that -a^b is -(a^b), and a^b^c is a^(b^c)
    value   = number | name | function "(" sum ("," sum)* ")" | "(" sum ")"

A formula comes from a recipe or a request, so it is never run as code: it becomes a list of steps on a stack.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormulaError, FormulaUndefined

CHARACTERS_MAX = 1000
DEPTH_MAX = 50
"""Brackets, signs and powers inside each other."""

Values = NDArray[np.float64]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|(?P<sign>[-+*/^(),]))",
    re.ASCII,
)
_VALUE = "a number, the name of an output, a function or '('"


def _sigmoid(values: Values) -> Values:
    result: Values = 1 / (1 + np.exp(-values))
    return result


_UNARY: dict[str, Callable[[Values], Values]] = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sigmoid": _sigmoid}
_FOLDED: dict[str, Callable[[Values, Values], Values]] = {"min": np.minimum, "max": np.maximum}
_BINARY: dict[str, Callable[[Values, Values], Values]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "^": np.power,
}

Step = tuple[int, Any]
"""How many values it takes from the stack, and what it puts there: a number, a name, or a function of them."""


@dataclass(frozen=True)
class Formula:
    """A formula that was understood.

    Attributes:
      text: as it was written.
      names: of the outputs that it takes, each once.
      steps: what to do, on a stack.
    """

    text: str
    names: tuple[str, ...]
    steps: tuple[Step, ...]

    def evaluate(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Computes the formula for m candidates, in float64.

        Args:
          values: [m] of each output that it names; others are passed by.
        Returns:
          [m] float32.
        Raises:
          FormulaUndefined: it has no value that float32 holds for some candidate; names the first one.
        """
        stack: list[Any] = []
        with np.errstate(all="ignore"):  # what comes of it is looked at below
            for count, step in self.steps:
                if not count:
                    stack.append(np.asarray(values[step], np.float64) if isinstance(step, str) else step)
                else:
                    stack[-count:] = [step(*stack[-count:])]
            result: NDArray[np.float32] = np.asarray(stack[0]).astype(np.float32)
        finite = np.isfinite(result)
        if not finite.all():
            place = int(np.argmin(finite))
            given = ", ".join(f"{name} = {values[name][place]:g}" for name in self.names)
            raise FormulaUndefined(
                f"formula {self.text!r} has no finite value for candidate {place}, where {given}; bound what it takes, "
                "as in log(max(x, 1e-6))",
                place,
            )
        return result


def parse_formula(text: str) -> Formula:
    """Reads a formula.

    Raises:
      FormulaError: it is none, too long or too deep, or names no output; names the position and what was expected.
    """
    return _Parser(text).parse()


class _Parser:
    """Reads one formula from its first character to its last."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARACTERS_MAX:
            raise FormulaError(f"a formula has {len(text)} characters; at most {CHARACTERS_MAX} are read")
        self._text, self._depth = text, 0
        self._steps: list[Step] = []
        self._tokens = self._split()
        self._next = 0

    def parse(self) -> Formula:
        self._sum()
        if self._kind:
            raise self._unexpected("an operator or the end")
        names = tuple(dict.fromkeys(step for _, step in self._steps if isinstance(step, str)))
        if not names:
            raise FormulaError(f"formula {self._text!r} names no output, so that all candidates would be equal")
        return Formula(self._text, names, tuple(self._steps))

    def _split(self) -> list[tuple[str, str, int]]:
        """Returns kind, text and place of every token, and an end."""
        tokens = []
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                raise FormulaError(
                    f"formula {self._text!r}: position {at + 1} is {self._text[at]!r}; numbers, names, + - * / ^ , and "
                    "brackets are known"
                )
            kind = found.lastgroup or ""
            tokens.append((kind, found[kind], found.start(kind)))
            at = found.end()
        return [*tokens, ("", "", len(self._text))]

    @property
    def _kind(self) -> str:
        """Kind of the token that comes next; "" at the end."""
        return self._tokens[self._next][0]

    @property
    def _sign(self) -> str:
        """The sign that comes next; "" if it is none."""
        kind, token, _ = self._tokens[self._next]
        return token if kind == "sign" else ""

    def _take(self) -> str:
        token = self._tokens[self._next][1]
        self._next += 1
        return token

    def _unexpected(self, expected: str) -> FormulaError:
        _, token, at = self._tokens[self._next]
        found = f"position {at + 1} is {token!r}" if token else "it ends"
        return FormulaError(f"formula {self._text!r}: {found} where {expected} was expected")

    def _sum(self) -> None:
        self._chain("+-", lambda: self._chain("*/", self._signed))

    def _chain(self, signs: str, part: Callable[[], None]) -> None:
        part()
        while self._sign and self._sign in signs:
            function = _BINARY[self._take()]
            part()
            self._steps.append((2, function))

    def _signed(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FormulaError(f"formula {self._text!r} is more than {DEPTH_MAX} brackets, signs and powers deep")
        if self._sign and self._sign in "+-":
            negative = self._take() == "-"
            self._signed()
            if negative:
                self._steps.append((1, np.negative))
        else:
            self._value()
            if self._sign == "^":
                self._take()
                self._signed()
                self._steps.append((2, np.power))
        self._depth -= 1

    def _value(self) -> None:
        if self._kind == "number":
            number = float(self._tokens[self._next][1])
            if not math.isfinite(number):
                raise self._unexpected("a number that float64 holds")
            self._next += 1
            self._steps.append((0, number))
        elif self._kind == "name":
            name = self._take()
            if self._sign == "(":
                self._function(name)
            else:
                self._steps.append((0, name))
        elif self._sign == "(":
            self._take()
            self._sum()
            self._close()
        else:
            raise self._unexpected(_VALUE)

    def _function(self, name: str) -> None:
        if name not in _UNARY and name not in _FOLDED:
            self._next -= 1
            raise self._unexpected(f"one of the functions {', '.join(sorted([*_UNARY, *_FOLDED]))}")
        self._take()
        self._sum()
        if name in _UNARY:
            self._steps.append((1, _UNARY[name]))
        else:
            if self._sign != ",":
                raise self._unexpected(f"',' and another value of {name}")
            while self._sign == ",":
                self._take()
                self._sum()
                self._steps.append((2, _FOLDED[name]))
        self._close()

    def _close(self) -> None:
        if self._sign != ")":
            raise self._unexpected("')'")
        self._take()
