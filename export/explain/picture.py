"""The picture of a partitioned model, as an SVG image and in a page of its own. Both load nothing.

The picture has columns of features, tables, towers and outputs, and the lines between them.
Features stand beside the tables that they read, so that no line crosses another before the towers;
numbers stand below all tables. Colors and fonts are in `picture.css`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from html import escape
from itertools import accumulate
from pathlib import Path
from string import Template
from textwrap import wrap
from typing import NamedTuple

from export.explain.boxes import Box, feature_box, grouped, output_box, table_box, tower_box
from export.explain.drawing import (
    Drawing,
    FeatureNode,
    RecallCurve,
    TableNode,
    TowerNode,
    shortened,
)
from export.report_text import natural, size_text, thousands

FEATURES = (0, 310)
TABLES = (362, 272)
TOWERS = (718, 280)
OUTPUTS = (1032, 116)
"""The left edge and the width of each column in pixels: they fit into a window of 1200 pixels."""
COLUMNS = {"features": FEATURES, "tables": TABLES, "towers": TOWERS, "outputs": OUTPUTS}
WIDTH = sum(OUTPUTS)
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
ROLE_OFFSET = {"context": -4, "candidate": 4}
"""The vertical distance in pixels of lines of a role from the middle of a box, so that both roles
are visible where they meet.
"""
TOP = 112
"""The space above the columns in pixels, for the model's name, the totals and the legend."""
SIDE = 18
"""The space beside the columns in pixels."""
LEGEND = {
    "context": (FEATURES, "looked up once per context"),
    "candidate": (TABLES, "looked up once per candidate"),
    "share": (TOWERS, "share of the bytes of all tables"),
}
"""The column above which the meaning of a color is written, and the meaning, by style."""

CURVE_HEIGHT = 280
CURVE_LEFT = 60
CURVE_RIGHT = WIDTH - 20
CURVE_TOP = 16
CURVE_BOTTOM = CURVE_HEIGHT - 40
"""The height and the edges of a chart of recall in pixels."""
_TICKS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""The costs that the axis of a chart may name; the first is the smallest that it shows."""

LANDSCAPE_HEIGHT_MAX = 880
"""The height in pixels up to which a page is printed in landscape format."""
OPEN_ROWS = 30
"""The length up to which a list is open when the page opens; only open lists are printed."""
NAMES_MAX = 12
"""The number of names that a cell of a list contains."""


def explain_image(drawing: Drawing) -> str:
    """Returns the image, an SVG. It has a background, and follows the reader's light or dark
    theme.
    """
    return _image(drawing)[0]


def explain_page(drawing: Drawing) -> str:
    """Returns the page, HTML: the image, charts of recall, and every feature, table and tower."""
    image, height = _image(drawing)
    sections = [
        _lines(
            "What stays inside or together, and why",
            drawing.stays or ["Nothing: every table is outside."],
        ),
        _lines("Stores and indexes", drawing.stores),
        *map(_curve_section, drawing.curves),
        _list("Features", drawing.features),
        _list("Tables", drawing.tables),
        _list("Towers", drawing.towers),
    ]
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        model=escape(drawing.model),
        source=escape(drawing.source),
        paper="landscape" if height <= LANDSCAPE_HEIGHT_MAX else "portrait",
        image=image,
        sections="".join(sections),
    )


def _image(drawing: Drawing) -> tuple[str, int]:
    """Returns the image, and its height in pixels."""
    columns, columns_height = _columns(drawing)
    height = round(columns_height) + TOP + PAD
    # An image in a document has no style sheet but its own.
    style = Path(__file__).with_name("picture.css").read_text(encoding="utf-8")
    # The columns begin at 0.
    elements = [
        f"<style>\n{style}</style>",
        _rect("back", -SIDE, -TOP, WIDTH + 2 * SIDE, height),
        _text("name", 0, -78, drawing.model),
        _text("totals", 0, -53, " · ".join(f"{figure} {unit}" for figure, unit in drawing.totals)),
    ]
    for look, ((x, _), meaning) in LEGEND.items():
        legend = _rect(look, x, -27, 22, 4) + _text("totals", x + 30, -20, meaning)
        elements.append(f'<g class="legend">{legend}</g>')
    label = f"{drawing.model}: features, tables, towers and outputs"
    image = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-SIDE} {-TOP} {WIDTH + 2 * SIDE} '
        f'{height}" width="{WIDTH + 2 * SIDE}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(elements)}{columns}</svg>\n'
    )
    return image, height


class _PositionedBox:
    """A box in a column, whose lines are broken at its width. Sizes are in pixels."""

    def __init__(self, box: Box, column: tuple[int, int]) -> None:
        self.box = box
        self.top = 0.0
        self.left, self.width = column
        self.right = sum(column)
        letters = int((self.width - 2 * PAD) / LETTER)
        # Short lines after the first share a line.
        joined_lines = list(box.lines[:1])
        for line in box.lines[1:]:
            shared_line = f"{joined_lines[-1]} · {line}"
            if len(joined_lines) > 1 and len(shared_line) <= letters:
                joined_lines[-1] = shared_line
            else:
                joined_lines.append(line)
        self.lines: list[str] = []
        for line in joined_lines:
            self.lines += wrap(line, letters, max_lines=LINES_MAX, placeholder=" …")
        self.parts_top = PAD + TITLE + LINE * len(self.lines)
        self.height = self.parts_top + PART * len(box.parts) + PAD

    def middle(self, part: int = 0) -> float:
        """Returns the height at which lines meet a part, or a box without parts."""
        if not self.box.parts:
            return self.top + self.height / 2
        return self.top + self.parts_top + PART * (part + 0.5)

    def svg(self) -> str:
        x = self.left + PAD
        baseline = self.top + PAD + 13
        inner = self.width - 2 * PAD
        letters = int(inner / LETTER)
        shapes = [
            f"<title>{escape(self.box.hint)}</title>",
            _rect("", self.left, self.top, self.width, self.height),
            _rect("role", self.left, self.top, 5, self.height),
            _text("title", x + 2, baseline, self.box.title, int(inner / TITLE_LETTER)),
        ]
        for number, line in enumerate(self.lines, 1):
            shapes.append(_text("line", x + 2, baseline + LINE * number, line, letters))
        for number, part in enumerate(self.box.parts):
            shapes.append(_rect("part", x, self.middle(number) - 12, inner, 24))
            shapes.append(_text("line", x + 8, self.middle(number) + 4, part, letters - 2))
        # Only tables have a share of the bytes; a small one stays visible.
        if self.box.share is not None:
            share_width = max(2, inner * self.box.share)
            shapes.append(_rect("share", x, self.top + self.height - 9, share_width, 4))
        return f'<g class="box {self.box.look}">{"".join(shapes)}</g>'


class _Readers(NamedTuple):
    """Features that share a box, and the box of the table that they read; None for numbers."""

    feature: FeatureNode
    box: _PositionedBox
    table: _PositionedBox | None


def _columns(drawing: Drawing) -> tuple[str, float]:
    """Returns the columns and lines of the picture, and their height."""
    boxes: list[_PositionedBox] = []
    readers: list[_Readers] = []
    bottom = float(HEAD)
    for group in grouped(drawing):
        feature_boxes = [
            _PositionedBox(feature_box(features), FEATURES) for features in group.readers
        ]
        top = bottom
        bottom = _stack(feature_boxes, top)
        table = None
        boxes += feature_boxes
        if group.tables:
            table = _PositionedBox(table_box(group.tables, drawing.bytes), TABLES)
            # A table stands in the middle of its readers, unless it is higher than they are.
            table.top = max(top, (top + bottom - GAP - table.height) / 2)
            bottom = max(bottom, table.top + table.height + GAP)
            boxes.append(table)
        for features, box in zip(group.readers, feature_boxes, strict=True):
            readers.append(_Readers(features[0], box, table))

    # Towers stand in the middle of the height of their features and tables.
    towers = [_PositionedBox(tower_box(tower), TOWERS) for tower in drawing.towers]
    towers_height = _stack(towers, 0)
    _stack(towers, max(HEAD, (HEAD + bottom - towers_height) / 2))
    boxes += towers

    # A dictionary as an ordered set: features of one role have the same line from table to tower.
    lines: dict[str, None] = {}
    # The height at which lines arrive at each part of a tower.
    arrivals = {}
    free_top = 0.0
    for tower, box in zip(drawing.towers, towers, strict=True):
        for number, part in enumerate(tower.parts):
            start = box.middle(number)
            arrivals[part.name] = start
            # What a part hands to the next part is no output of the tower.
            names = [name for name in tower.outputs if name in part.gives]
            outputs = [_PositionedBox(output_box(tower, name), OUTPUTS) for name in names]
            height = _stack(outputs, 0)
            # Beside their part, unless the outputs of an earlier part take that space.
            free_top = _stack(outputs, max(free_top, start + GAP / 2 - height / 2))
            for output in outputs:
                lines[_way("output", box.right, start, output.left, output.middle())] = None
            boxes += outputs

    for feature, box, table in readers:
        offset = ROLE_OFFSET[feature.role]
        x = box.right
        y = box.middle()
        if table is not None:
            # Straight to the table where it is as high as its readers, else to its nearer end.
            arrival = min(max(y, table.top + PAD), table.top + table.height - PAD)
            lines[_way(feature.role, x, y, table.left, arrival)] = None
            x = table.right
            y = table.middle() + 2 * offset
        for name in feature.taken_by:
            lines[_way(feature.role, x, y, TOWERS[0], arrivals[name] + offset)] = None

    headings = [_text("head", start, 16, heading) for heading, (start, _) in COLUMNS.items()]
    # Boxes come after lines, which they cover.
    columns = "".join([*headings, *lines, *(box.svg() for box in boxes)])
    return columns, max((box.top + box.height for box in boxes), default=HEAD) + GAP


def _stack(boxes: Sequence[_PositionedBox], top: float) -> float:
    """Puts boxes below one another; returns the upper edge of a further box."""
    for box in boxes:
        box.top = top
        top = top + box.height + GAP
    return top


def _way(look: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Returns a line between two points, straight at first if it leads to a tower."""
    # A line from a number passes all tables before it bends.
    bend = x1
    if x2 == TOWERS[0]:
        bend = sum(TABLES)
    half = (bend + x2) / 2
    path = f"M{x1} {y1:.1f}H{bend}C{half} {y1:.1f} {half} {y2:.1f} {x2} {y2:.1f}"
    return f'<path class="way {look}" d="{path}"/>'


def _rect(look: str, x: float, y: float, width: float, height: float) -> str:
    radius = min(7, width / 2, height / 2)
    return (
        f'<rect class="{look}" x="{x}" y="{y:.1f}" width="{width:.0f}" height="{height:.1f}" '
        f'rx="{radius}"/>'
    )


def _text(look: str, x: float, y: float, text: str, letters_max: int | None = None) -> str:
    """Returns a text, cut to a number of letters."""
    if letters_max is not None and len(text) > letters_max:
        text = f"{text[: letters_max - 1]}…"
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _curve_section(curve: RecallCurve) -> str:
    """Returns a chart of the settings of an index that were tried: recall by cost on a logarithmic
    axis, and a line through the best of them.
    """
    # A cost of 0 has no logarithm.
    costs = [max(cost, _TICKS[0]) for _, cost, _ in curve.points]
    recalls = [recall for recall, *_ in curve.points]
    low = math.log(min(costs))
    high = math.log(max(costs))
    lowest = min(*recalls, curve.target)

    # Where all settings have one cost, or recall 1, there is no range to divide by.
    cost_px = (CURVE_RIGHT - CURVE_LEFT) / ((high - low) or 1)
    recall_px = (CURVE_BOTTOM - CURVE_TOP) / ((1 - lowest) or 1)
    xs = [CURVE_LEFT + (math.log(cost) - low) * cost_px for cost in costs]
    target_y = CURVE_TOP + (1 - curve.target) * recall_px

    axes = f"M{CURVE_LEFT} {CURVE_TOP}V{CURVE_BOTTOM}H{WIDTH}"
    elements = [
        f'<path class="axis" d="{axes}"/>',
        f'<path class="target" d="M{CURVE_LEFT} {target_y:.1f}H{WIDTH}"/>',
        _text("line", WIDTH / 2, CURVE_HEIGHT - 6, "cost, as a share of exact search's time"),
    ]
    elements += [
        _text("line", 4, CURVE_TOP + (1 - recall) * recall_px + 4, f"{recall:.3f}")
        for recall in (lowest, (1 + lowest) / 2, 1.0)
    ]
    for tick in _TICKS:
        if low <= math.log(tick) <= high:
            x = CURVE_LEFT + (math.log(tick) - low) * cost_px
            elements.append(_text("line", x, CURVE_BOTTOM + 16, f"{tick:g}"))

    # The line shows the best recall that is reached at a cost, so it never falls.
    best = [CURVE_TOP + (1 - recall) * recall_px for recall in accumulate(recalls, max)]
    points = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, best, strict=True))
    elements.append(f'<path class="curve" d="M{points}"/>')
    # Points come after the curve, which they cover.
    for x, (recall, cost, setting) in zip(xs, curve.points, strict=True):
        look = "tried"
        radius = 4
        if setting == curve.chosen:
            look = "chosen"
            radius = 7
        hint = escape(f"{setting}: recall@{curve.k} {recall:.4f}, cost {cost:.4f}")
        y = CURVE_TOP + (1 - recall) * recall_px
        elements.append(
            f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
            f"<title>{hint}</title></circle>"
        )
    title = escape(
        f"Index {curve.index}: recall@{curve.k} of settings by cost, target {curve.target:g}"
    )
    return (
        f"<h2>{title}</h2><p>Written with {escape(curve.chosen)}</p><div class=picture>"
        f'<svg viewBox="0 0 {WIDTH} {CURVE_HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(elements)}</svg></div>"
    )


def _lines(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>"


def _list(title: str, nodes: Sequence[FeatureNode | TableNode | TowerNode]) -> str:
    """Returns a list of nodes with all their fields; it is open if it is short."""
    names = []
    if nodes:
        names = [field.name for field in fields(nodes[0])]
    # Numbers are aligned right.
    classes = dict.fromkeys(("rows", "dim", "bytes"), " class=n")
    head = "".join(f"<th{classes.get(name, '')}>{name.replace('_', ' ')}</th>" for name in names)
    body = ""
    # In the order that people expect: t2 before t10.
    for node in sorted(nodes, key=lambda node: natural(node.name)):
        cells = [
            f"<td{classes.get(name, '')}>{escape(_cell(name, getattr(node, name)))}</td>"
            for name in names
        ]
        body += f"<tr>{''.join(cells)}</tr>"
    is_open = " open" if len(nodes) <= OPEN_ROWS else ""
    return (
        f"<h2>{title}</h2><details{is_open}><summary>{len(nodes)} in all</summary>"
        f"<div class=scroll><table><tr>{head}</tr>{body}</table></div></details>"
    )


def _cell(name: str, value: object) -> str:
    """Returns the value of a field for reading."""
    match value:
        # A bool is an int, so it comes first.
        case bool():
            return "yes" if value else ""
        case int() if name == "bytes":
            return size_text(value)
        case int():
            return thousands(value)
        case tuple() if name in ("parts", "runs"):
            return "\n".join(map(str, value))
        case tuple():
            return shortened(value, NAMES_MAX)
        case _:
            return str(value)
