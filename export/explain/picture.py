"""A drawing as the inside of an SVG: columns of features, tables, towers and outputs, and the lines
between them.

Features stand beside the tables that they read, so that no line crosses another before the towers;
numbers stand below all tables. Colours and fonts are in `picture.css`, which the page and the image
include.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

from export.explain.boxes import Box, feature_box, grouped, output_box, table_box, tower_box
from export.explain.drawing import Drawing

FEATURES = (0, 310)
TABLES = (362, 272)
TOWERS = (718, 280)
OUTPUTS = (1032, 116)
"""Left edge and width of each column: all of them side by side in a window of 1200."""
COLUMNS = {"features": FEATURES, "tables": TABLES, "towers": TOWERS, "outputs": OUTPUTS}
TITLE = 20
LINE = 17
PART = 29
PAD = 10
GAP = 14
HEAD = 34
LETTER = 6.7
TITLE_LETTER = 7.6
"""Widths of monospaced letters, so that texts end where boxes do."""
LINES_MAX = 3
"""Of a text that is longer than its box is wide; the rest is left out."""


class PositionedBox:
    """A box in a column, its lines broken at its width; `top` is where it stands."""

    def __init__(self, box: Box, column: tuple[int, int], top: float = 0) -> None:
        """Breaks the lines; short ones after the first stand beside each other."""
        self.box = box
        self.top = top
        (self.left, self.width) = column
        self.right = sum(column)
        room = int((self.width - 2 * PAD) / LETTER)
        self.lines = [*box.lines[:1]]
        for line in box.lines[1:]:
            beside = f"{self.lines[-1]} · {line}"
            self.lines[-1:] = (
                [beside] if len(self.lines) > 1 and len(beside) <= room else [self.lines[-1], line]
            )
        self.lines = [
            piece
            for line in self.lines
            for piece in wrap(line, room, max_lines=LINES_MAX, placeholder=" …")
        ]
        self.height = 2 * PAD + TITLE + LINE * len(self.lines) + PART * len(box.parts)

    def middle(self, part: int = 0) -> float:
        """Returns where lines meet a part, or the box if it has none."""
        parts_top = self.top + PAD + TITLE + LINE * len(self.lines)
        return parts_top + PART * (part + 0.5) if self.box.parts else self.top + self.height / 2

    def svg(self) -> str:
        """Returns its elements."""
        x = self.left + PAD
        y = self.top + PAD
        inner = self.width - 2 * PAD
        shapes = [
            _rect("", self.left, self.top, self.width, self.height),
            _rect("role", self.left, self.top, 5, self.height),
        ]
        shapes.append(_text("title", x + 2, y + 13, self.box.title, inner / TITLE_LETTER))
        for number, line in enumerate(self.lines):
            shapes.append(
                _text("line", x + 2, y + TITLE + LINE * (number + 0.6), line, inner / LETTER)
            )
        for number, part in enumerate(self.box.parts):
            shapes.append(_rect("part", x, self.middle(number) - 12, inner, 24))
            shapes.append(_text("line", x + 8, self.middle(number) + 4, part, inner / LETTER - 2))
        if self.box.share is not None:
            shapes.append(
                _rect("share", x, self.top + self.height - 9, max(2, inner * self.box.share), 4)
            )
        return (
            '<g class="box '
            f'{self.box.look}"><title>{escape(self.box.hint)}</title>{"".join(shapes)}</g>'
        )


def draw_svg(drawing: Drawing) -> tuple[str, float]:
    """Returns what stands in the picture, and its height in pixels of a window 1152 wide."""
    left = []
    bottom = float(HEAD)
    for group in grouped(drawing):
        readers = [PositionedBox(feature_box(features), FEATURES) for features in group.readers]
        tables = (
            [PositionedBox(table_box(group.tables, drawing.bytes), TABLES, bottom)]
            if group.tables
            else []
        )
        top = bottom
        bottom = _stack(readers, bottom)
        for table in tables:
            table.top = max(top, (top + bottom - GAP - table.height) / 2)
            bottom = max(bottom, table.top + table.height + GAP)
        left.append((group, readers, tables))
    towers = [PositionedBox(tower_box(tower), TOWERS) for tower in drawing.towers]
    _stack(towers, max(HEAD, (HEAD + bottom - _stack(towers, 0)) / 2))
    outputs: list[PositionedBox] = []
    lines: dict[
        str, None
    ] = {}  # those from a table to a tower are the same for features of one role
    arrivals = {}
    free = 0.0
    for tower, box in zip(drawing.towers, towers, strict=True):
        for number, part in enumerate(tower.parts):
            arrivals[part.name] = start = box.middle(number)
            names = [name for name in tower.outputs if name in part.gives]
            given = [PositionedBox(output_box(tower, name), OUTPUTS) for name in names]
            free = _stack(given, max(free, start + GAP / 2 - _stack(given, 0) / 2))
            lines |= {
                _line(box.right, start, each.left, each.middle(), "output"): None for each in given
            }
            outputs += given
    for group, readers, tables in left:
        for features, box in zip(group.readers, readers, strict=True):
            role = features[0].role
            x = box.right
            y = box.middle()
            apart = 4 if features[0].role == "candidate" else -4
            for table in tables:
                to = min(max(y, table.top + PAD), table.top + table.height - PAD)
                lines[_line(x, y, table.left, to, role)] = None
                x = table.right
                y = table.middle() + 2 * apart
            lines |= {
                _line(x, y, TOWERS[0], arrivals[taker] + apart, role): None
                for taker in features[0].taken_by
            }
    boxes = [
        *(box for _, readers, tables in left for box in (*readers, *tables)),
        *towers,
        *outputs,
    ]
    headings = "".join(
        f'<text class="head" x="{column[0]}" y="16">{heading}</text>'
        for heading, column in COLUMNS.items()
    )
    picture = "".join([headings, *lines, *(box.svg() for box in boxes)])
    return picture, max((box.top + box.height for box in boxes), default=HEAD) + GAP


def picture_style() -> str:
    """Returns the style sheet of the picture: colours in light and dark, fonts, strokes."""
    return Path(__file__).with_name("picture.css").read_text(encoding="utf-8")


def _stack(boxes: Sequence[PositionedBox], top: float) -> float:
    """Places boxes below one another; returns where the next one would stand."""
    for box in boxes:
        box.top = top
        top = top + box.height + GAP
    return top


def _line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    bend = sum(TABLES) if x2 == TOWERS[0] else x1  # numbers pass all tables first
    half = (bend + x2) / 2
    return (
        f'<path class="way {look}" d="M{x1} {y1:.1f}H{bend}C{half} {y1:.1f} {half} {y2:.1f} '
        f'{x2} {y2:.1f}"/>'
    )


def _rect(look: str, x: float, y: float, width: float, height: float) -> str:
    radius = min(7, width / 2, height / 2)
    return (
        f'<rect class="{look}" x="{x}" y="{y:.1f}" width="{width:.0f}" height="{height:.1f}" '
        f'rx="{radius}"/>'
    )


def _text(look: str, x: float, y: float, text: str, letters: float) -> str:
    shown = text if len(text) <= letters else f"{text[: int(letters) - 1]}…"
    return f'<text class="{look}" x="{x}" y="{y:.1f}">{escape(shown)}</text>'
