"""A drawing as text, narrow enough for a terminal: each table with its readers and the towers that
take them, then the towers.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from export.explain.boxes import Box, Group, feature_box, grouped, table_box, tower_box
from export.explain.drawing import Drawing, TowerNode

WIDTH = 80
"""The width of the text in characters."""


def explain_text(drawing: Drawing) -> str:
    """Returns lines of at most WIDTH characters, but for names that are longer."""
    totals = ", ".join(f"{figure} {unit}" for figure, unit in drawing.totals)
    lines = [
        f"{drawing.model}: how it is partitioned, from {drawing.source}",
        *_wrap_indented(totals, 0),
        "",
        "features -> tables",
    ]
    for group in grouped(drawing):
        lines += _group(group)
    if drawing.towers:
        lines += ["", "towers -> outputs"]
    for tower in drawing.towers:
        lines += _tower(tower)
    for title, notes in (
        ("inside or together, and why", drawing.stays),
        ("stores", drawing.stores),
    ):
        if notes:
            lines += ["", title]
        for note in notes:
            lines += _wrap_indented(note, 2)
    return "\n".join(lines)


def _group(group: Group) -> Iterator[str]:
    """Yields the lines of a group of tables and their readers, or of numbers."""
    arrow = ""
    if group.tables:
        arrow = "<- "
        # The share of all bytes is shown in the picture alone.
        yield from _wrap_indented(_box(table_box(group.tables, 0)), 2)
        if len(group.tables) == 1 and group.tables[0].source != group.tables[0].name:
            yield from _wrap_indented(f"from {group.tables[0].source}", 4)
    else:
        yield from ("", "numbers -> towers")
    for features in group.readers:
        yield from _wrap_indented(f"{arrow}{_box(feature_box(features))}", 4)
        if features[0].taken_by:
            yield from _wrap_indented(f"=> {', '.join(features[0].taken_by)}", 7)


def _tower(tower: TowerNode) -> Iterator[str]:
    """Yields the lines of a tower, its forms and its parts."""
    order = ""
    if tower.formula:
        order = f" (ordered by {tower.formula})"
    elif len(tower.outputs) > 1:
        order = f" (result {tower.result})"
    description = tower_box(tower).lines[0]
    yield from _wrap_indented(
        f"{tower.name}  {description} -> {', '.join(tower.outputs)}{order}", 2
    )
    for form in tower.runs:
        yield from _wrap_indented(f"runs as {form}", 4)
    for part in tower.parts:
        yield from _wrap_indented(str(part), 4)


def _box(box: Box) -> str:
    return f"{box.title}  {'; '.join(box.lines)}"


def _wrap_indented(text: str, indent: int) -> list[str]:
    first_indent = " " * indent
    # Further lines of a list entry are indented by the width of its arrow.
    next_indent = first_indent
    if indent:
        next_indent = " " * (indent + 3)
    # A name that is longer than the line stays whole.
    return wrap(
        text,
        WIDTH,
        initial_indent=first_indent,
        subsequent_indent=next_indent,
        break_long_words=False,
    )
