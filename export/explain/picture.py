"""A drawing as the content of an SVG: columns of features, tables, towers and outputs, and the
lines between them.

Features stand beside the tables that they read, so that no line crosses another before the towers;
numbers stand below all tables. Colors and fonts are in `picture.css`, which the page and the image
include.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from export.explain.boxes import Box, Group, feature_box, grouped, output_box, table_box, tower_box
from export.explain.drawing import Drawing

FEATURES = (0, 310)
TABLES = (362, 272)
TOWERS = (718, 280)
OUTPUTS = (1032, 116)
"""The left edge and the width of each column in pixels: they fit into a window of 1200 pixels."""
COLUMNS = {"features": FEATURES, "tables": TABLES, "towers": TOWERS, "outputs": OUTPUTS}
TITLE = 20
"""The height of a title in pixels."""
LINE = 17
"""The height of a line in pixels."""
PART = 29
"""The height of a part in pixels, with the space below it."""
PAD = 10
"""The space between the border of a box and its content in pixels."""
GAP = 14
"""The space between boxes in pixels."""
HEAD = 34
"""The height of the headings of the columns in pixels."""
LETTER = 6.7
TITLE_LETTER = 7.6
"""Widths of monospaced letters in pixels, so that texts end where boxes do."""
LINES_MAX = 3
"""The number of lines of a text that is longer than its box is wide; the rest is left out."""
_ROLE_OFFSET = 4
"""The vertical distance in pixels of lines of contexts and candidates from the middle of a box, so
that both are visible where they meet.
"""


class PositionedBox:
    """A box in a column, whose lines are broken at its width.

    Attributes:
      box: The content.
      left: The left edge in pixels.
      right: The right edge in pixels.
      width: The width in pixels.
      top: The upper edge in pixels.
      height: The height in pixels.
      lines: The lines of the content as they are drawn.
    """

    def __init__(self, box: Box, column: tuple[int, int], top: float = 0) -> None:
        """Breaks the lines; short ones after the first share a line."""
        self.box = box
        self.top = top
        (self.left, self.width) = column
        self.right = sum(column)
        letters = int((self.width - 2 * PAD) / LETTER)
        self.lines: list[str] = []
        for line in _join_lines(box.lines, letters):
            self.lines += wrap(line, letters, max_lines=LINES_MAX, placeholder=" …")
        lines_height = LINE * len(self.lines)
        parts_height = PART * len(box.parts)
        self.height = 2 * PAD + TITLE + lines_height + parts_height

    def middle(self, part: int = 0) -> float:
        """Returns the height at which lines meet a part, or a box without parts."""
        if not self.box.parts:
            return self.top + self.height / 2
        parts_top = self.top + PAD + TITLE + LINE * len(self.lines)
        return parts_top + PART * (part + 0.5)

    def svg(self) -> str:
        """Returns the elements of the box."""
        x = self.left + PAD
        y = self.top + PAD
        inner = self.width - 2 * PAD
        shapes = [
            _rect("", self.left, self.top, self.width, self.height),
            _rect("role", self.left, self.top, 5, self.height),
        ]
        shapes.append(_text("title", x + 2, y + 13, self.box.title, inner / TITLE_LETTER))
        for number, line in enumerate(self.lines):
            baseline = y + TITLE + LINE * (number + 0.6)
            shapes.append(_text("line", x + 2, baseline, line, inner / LETTER))
        for number, part in enumerate(self.box.parts):
            shapes.append(_rect("part", x, self.middle(number) - 12, inner, 24))
            shapes.append(_text("line", x + 8, self.middle(number) + 4, part, inner / LETTER - 2))
        # Only tables have a share of the bytes.
        if self.box.share is not None:
            # A small share stays visible.
            share_width = max(2, inner * self.box.share)
            shapes.append(_rect("share", x, self.top + self.height - 9, share_width, 4))
        hint = escape(self.box.hint)
        return f'<g class="box {self.box.look}"><title>{hint}</title>{"".join(shapes)}</g>'


def _join_lines(lines: Sequence[str], letters: int) -> list[str]:
    """Returns lines in which those behind the first share a line as long as they fit."""
    joined_lines = list(lines[:1])
    for line in lines[1:]:
        shared_line = f"{joined_lines[-1]} · {line}"
        if len(joined_lines) > 1 and len(shared_line) <= letters:
            joined_lines[-1] = shared_line
        else:
            joined_lines.append(line)
    return joined_lines


class _PositionedGroup(NamedTuple):
    """The boxes of a group; a group of numbers has no boxes of tables."""

    group: Group
    readers: list[PositionedBox]
    tables: list[PositionedBox]


def draw_svg(drawing: Drawing) -> tuple[str, float]:
    """Returns the content of the picture, and its height in pixels of a window 1152 wide."""
    groups, bottom = _position_groups(drawing)

    # Towers stand in the middle of the height of their features and tables.
    towers = [PositionedBox(tower_box(tower), TOWERS) for tower in drawing.towers]
    # Stacked from 0 on, the boxes show their whole height, from which their position follows.
    towers_height = _stack(towers, 0)
    _stack(towers, max(HEAD, (HEAD + bottom - towers_height) / 2))

    # A dictionary as an ordered set: features of one role have the same line from table to tower.
    lines: dict[str, None] = {}
    outputs, arrivals = _position_outputs(drawing, towers, lines)
    for positioned in groups:
        _add_feature_lines(positioned, arrivals, lines)

    boxes = []
    for positioned in groups:
        boxes += [*positioned.readers, *positioned.tables]
    boxes += [*towers, *outputs]
    headings = [
        f'<text class="head" x="{left_edge}" y="16">{heading}</text>'
        for heading, (left_edge, _) in COLUMNS.items()
    ]
    # Boxes come after lines, which they cover.
    picture = "".join([*headings, *lines, *(box.svg() for box in boxes)])
    height = max((box.top + box.height for box in boxes), default=HEAD) + GAP
    return picture, height


def _position_groups(drawing: Drawing) -> tuple[list[_PositionedGroup], float]:
    """Returns the boxes of features and tables, and the height below them."""
    groups = []
    bottom = float(HEAD)
    for group in grouped(drawing):
        readers = [PositionedBox(feature_box(features), FEATURES) for features in group.readers]
        top = bottom
        bottom = _stack(readers, top)
        tables = []
        if group.tables:
            table = PositionedBox(table_box(group.tables, drawing.bytes), TABLES)
            # A table stands in the middle of its readers, unless it is higher than they are.
            table.top = max(top, (top + bottom - GAP - table.height) / 2)
            bottom = max(bottom, table.top + table.height + GAP)
            tables.append(table)
        groups.append(_PositionedGroup(group, readers, tables))
    return groups, bottom


def _position_outputs(
    drawing: Drawing, towers: Sequence[PositionedBox], lines: dict[str, None]
) -> tuple[list[PositionedBox], dict[str, float]]:
    """Returns the boxes of outputs, and the height at which lines arrive at each part of a tower.

    Args:
      drawing: The drawing.
      towers: The boxes of its towers.
      lines: The lines of the picture, to which those of outputs are added.
    """
    outputs: list[PositionedBox] = []
    arrivals = {}
    free_top = 0.0
    for tower, box in zip(drawing.towers, towers, strict=True):
        for number, part in enumerate(tower.parts):
            start = box.middle(number)
            arrivals[part.name] = start
            # What a part hands to the next part is no output of the tower.
            names = [name for name in tower.outputs if name in part.gives]
            part_outputs = [PositionedBox(output_box(tower, name), OUTPUTS) for name in names]
            height = _stack(part_outputs, 0)
            # Beside their part, unless the outputs of an earlier part take that space.
            free_top = _stack(part_outputs, max(free_top, start + GAP / 2 - height / 2))
            for output in part_outputs:
                lines[_line(box.right, start, output.left, output.middle(), "output")] = None
            outputs += part_outputs
    return outputs, arrivals


def _add_feature_lines(
    positioned: _PositionedGroup, arrivals: Mapping[str, float], lines: dict[str, None]
) -> None:
    """Adds the lines from features over their table to the parts of towers that take them."""
    for features, box in zip(positioned.group.readers, positioned.readers, strict=True):
        role = features[0].role
        offset = _ROLE_OFFSET if role == "candidate" else -_ROLE_OFFSET
        x = box.right
        y = box.middle()
        for table in positioned.tables:
            # Straight to the table where it is as high as its readers, else to its nearer end.
            arrival = min(max(y, table.top + PAD), table.top + table.height - PAD)
            lines[_line(x, y, table.left, arrival, role)] = None
            x = table.right
            y = table.middle() + 2 * offset
        for part in features[0].taken_by:
            lines[_line(x, y, TOWERS[0], arrivals[part] + offset, role)] = None


def picture_style() -> str:
    """Returns the style sheet of the picture: colors in light and dark, fonts, strokes."""
    return Path(__file__).with_name("picture.css").read_text(encoding="utf-8")


def _stack(boxes: Sequence[PositionedBox], top: float) -> float:
    """Puts boxes below one another; returns the upper edge of a further box."""
    for box in boxes:
        box.top = top
        top = top + box.height + GAP
    return top


def _line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """Returns a line between two points, straight at first if it leads to a tower."""
    # A line from a number passes all tables before it bends.
    bend = x1
    if x2 == TOWERS[0]:
        bend = sum(TABLES)
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
    """Returns a text, cut to a number of letters."""
    if len(text) > letters:
        text = f"{text[: int(letters) - 1]}…"
    return f'<text class="{look}" x="{x}" y="{y:.1f}">{escape(text)}</text>'
