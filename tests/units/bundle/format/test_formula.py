from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.errors import FormulaError, FormulaUndefined
from bundle.format.formula import CHARACTERS_MAX, DEPTH_MAX, parse_formula

HEADS = {
    "click": np.array([0.9, 0.1, 0.25], np.float32),
    "like": np.array([0.2, 0.8, 0.5], np.float32),
    "a.b": np.array([1.0, -2.0, 3.5], np.float32),
}
FUNCTIONS: dict[str, Any] = {
    "min": min,
    "max": max,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "sigmoid": lambda value: 1 / (1 + math.exp(-value)),
}


def in_python(text: str, position: int) -> float:
    values = {name.replace(".", "_"): float(head[position]) for name, head in HEADS.items()}
    value = eval(
        text.replace("^", "**").replace("a.b", "a_b"), {"__builtins__": {}}, FUNCTIONS | values
    )
    return float(value) if not isinstance(value, complex) else math.nan


NUMBERS = st.floats(0.01, 10).map(lambda number: f"{number:.2f}") | st.sampled_from(
    [".5", "3.", "1e-3", "2.5E+1"]
)
FORMULAS = st.recursive(
    NUMBERS | st.sampled_from(sorted(HEADS)),
    lambda part: st.one_of(
        st.builds(lambda a, sign, b: f"{a} {sign} {b}", part, st.sampled_from("+-*/^"), part),
        part.map(lambda a: f"({a})"),
        part.map(lambda a: f" -{a} "),
        st.builds(
            lambda name, a: f"{name}({a})", st.sampled_from(["exp", "log", "sqrt", "sigmoid"]), part
        ),
        st.builds(
            lambda name, parts: f"{name}({', '.join(parts)})",
            st.sampled_from(["min", "max"]),
            st.lists(part, min_size=2, max_size=3),
        ),
    ),
    max_leaves=12,
)


@given(FORMULAS)
def test_any_formula_equals_python_or_is_undefined(text: str) -> None:
    try:
        formula = parse_formula(text)
    except FormulaError:
        assert not any(name in text for name in HEADS) or len(text) > DEPTH_MAX
        return
    expected = []
    for position in range(3):
        try:
            expected.append(in_python(text, position))
        except (
            OverflowError,
            ZeroDivisionError,
            ValueError,
            TypeError,
        ):  # the last: what is complex has no order
            expected.append(math.nan)
    with np.errstate(over="ignore"):
        right = np.array(expected).astype(np.float32)
    try:
        actual = formula.evaluate(HEADS)
    except FormulaUndefined:
        # Python's exp overflows where numpy's is infinite, and what is made of that may be finite
        # again.
        assert not np.isfinite(right).all() or float(np.abs(right).max()) > 1e37
        return
    assert actual.dtype == np.float32
    assert set(formula.names) == {name for name in HEADS if name in text}
    defined = np.isfinite(right)
    np.testing.assert_allclose(actual[defined], right[defined], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "invalid syntax"),
        ("click +* like", "position 8; expected are numbers"),
        ("  2 ^ click like", "position 13"),
        ("(click", "never closed at position 1"),
        ("click)", "position 6"),
        ("like^2 + min(click)", "position 10"),
        ("exp(click, like)", "position 1"),
        ("eval(click)", "position 1; expected .* sigmoid"),
        ("click if like else 2", "position 1"),
        ("click; like", "position 6"),
        ("click  % 2", "'%' at position 8"),
        ("click ** 2", "position 7"),
        ("__import__('os')", "position 12"),
        ("clíck", "'í' at position 3"),
        ("1e999 * click", "'1e999' at position 1"),
        ("1 + 2", "names no output"),
        ("click" * CHARACTERS_MAX, f"at most {CHARACTERS_MAX}"),
        ("(" * 201 + "click" + ")" * 201, "nested"),
        *((text, f"more than {DEPTH_MAX}") for text in ("-" * 200 + "click", "click^" * 150 + "2")),
    ],
)
def test_a_formula_with_a_syntax_error_names_the_position(text: str, words: str) -> None:
    with pytest.raises(FormulaError, match=words):
        parse_formula(text)


@given(st.text(st.sampled_from("ab1.e+-*/^(), \n\tlogminx"), max_size=60))
def test_any_text_is_parsed_or_rejected_with_a_format_error(text: str) -> None:
    with contextlib.suppress(FormulaError):
        assert parse_formula(text).names


@pytest.mark.parametrize(
    "text",
    ["log(a.b)", "click / (like - like)", "exp(1000 * click)", "a.b ^ 0.5", "1e30 * 1e30 * click"],
)
def test_formula_without_a_finite_value_names_the_candidate(text: str) -> None:
    with pytest.raises(
        FormulaUndefined, match=r"candidate [01], where .*(a\.b = -2|click = 0\.9)"
    ) as problem:
        parse_formula(text).evaluate(HEADS)
    assert isinstance(problem.value, ArithmeticError)


def test_formula_of_no_candidate_is_empty() -> None:
    none = {"click": np.empty(0, np.float32)}
    assert parse_formula("click * 2").evaluate(none).shape == (0,)
