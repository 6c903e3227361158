"""What is taken of a script has the value that the whole script leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from export.model_code import definitions

NAMES = ("a", "b", "c")
STATEMENTS = (
    "{x} = {n}",
    "{x} = [{n}]",
    "{x} = {{'k': {y}}}",
    "{x} = {y}",
    "{x}, {y} = [{n}], {n}",
    "{x} = ({y}, {z})",
    "{x} = [*{y}, {n}]",
    "{x} = len({y})",
    "{x} = sorted({y})",
    "{x} = [i for i in {y}]",
    "{x} += [{n}]",
    "{x}.append({n})",
    "{x}['k'] = {n}",
    "{x}['k'].append({n})",
    "del {x}[0]",
    "for i in {y}: {x}.append(i)",
    "def f(): {x}.append({n})\nf()",
    "def f():\n  global {x}\n  {x} = {n}\nf()",
    "def f({x}): {x}.append({n})\nf([])",
    "class {x}: k = []",
    "class {x}: k = {y}",
    "{x}.k.append({n})",
    "{x}.k = {n}",
    "if {n} > 1: {x} = [{n}]",
    "try: {x} = {y}[0]\nexcept Exception: {x} = {n}",
    "print({x})",
)


def line(statement: str, names: Sequence[str], number: int) -> str:
    return statement.format(x=names[0], y=names[1], z=names[2], n=number)


LINES = st.builds(line, st.sampled_from(STATEMENTS), st.permutations(NAMES), st.integers(0, 3))


def comparable(value: Any) -> Any:
    """Returns a value in which a class is its attribute."""
    if isinstance(value, type):
        return "class", comparable(vars(value)["k"])
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    return value


def running(lines: Sequence[str]) -> list[str]:
    """Returns the lines that raise no error after those before them."""
    kept: list[str] = []
    for text in lines:
        try:
            exec("\n".join([*kept, text]), {"print": str})
        except (AttributeError, IndexError, KeyError, NameError, TypeError):
            continue
        kept.append(text)
    return kept


@given(lines=st.lists(LINES, min_size=1, max_size=8))
def test_definition_has_the_value_that_the_whole_script_leaves_it(lines: list[str]) -> None:
    script = "\n".join(running(lines))
    whole: dict[str, Any] = {"print": str}
    exec(script, whole)
    with TemporaryDirectory() as directory:
        path = Path(directory, "script.py")
        path.write_text(script)
        taken = vars(definitions(path))
    for name in NAMES:
        if name in taken:
            assert comparable(taken[name]) == comparable(whole[name]), script
