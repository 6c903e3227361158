"""Boxes, arrows and texts as SVG elements, and where they stand in a picture."""

from __future__ import annotations

import ast
import math
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from structure.pictures import BOXES, CLIENT, Box, DataArrow, Picture, Undrawable

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "stubs"

WIDTH = 1000
MARGIN = 20
COLUMNS = 12
GAP = 20
"""Space between boxes that stand beside each other."""
ARROW = 36
"""Space between rows, where arrows are seen."""
HEADER = 84
PAD = 13
NAME_LINE = 22
TEXT_LINE = 19
LETTER = 7.7
"""Average width of a letter of a sentence, in the widest of the usual system fonts."""
PARTS_PER_ROW_MAX = 5

STYLE = """\
:root {
  color-scheme: light dark;
  --back: #fff; --box: #f6f8fa; --part: #e9edf2; --line: #c3cbd6;
  --text: #1c2430; --soft: #4d5866; --arrow: #39424e; --mark: #1769aa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #12161c; --box: #1a2029; --part: #242c37; --line: #3d4754;
    --text: #e4e9f0; --soft: #a9b4c2; --arrow: #aab4c0; --mark: #63b3f5;
  }
}
.back { fill: var(--back) }
.box { fill: var(--box); stroke: var(--line) }
.part { fill: var(--part) }
.mark { fill: var(--mark) }
.title { font: 600 21px system-ui, sans-serif; fill: var(--text) }
.name {
  font: 600 16px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: var(--text);
}
.text { font: 14.5px system-ui, sans-serif; fill: var(--soft) }
.arrow { fill: none; stroke: var(--arrow); stroke-width: 1.8 }
.data { stroke-dasharray: 5 4 }
.head { fill: var(--arrow) }
"""


class Member:
    """A package or module in a picture.

    Attributes:
      module: The full name, as in an import.
      label: The name in the picture: `engine/` or `app.py`.
      sentence: The description of its content, from its docstring.
    """

    def __init__(self, name: str, package: str = "") -> None:
        """Reads the docstring.

        Raises:
          Undrawable: There is none.
        """
        self.module = f"{package}.{name}" if package else name
        folder = ROOT / "client" if name == CLIENT else ROOT
        path = folder.joinpath(*self.module.split("."))
        is_package = path.is_dir()
        file = path / "__init__.py" if is_package else path.with_suffix(".py")
        label = "client" if name == CLIENT else name
        self.label = f"{label}/" if is_package else f"{label}.py"

        documentation = ast.get_docstring(ast.parse(file.read_text()))
        if not documentation:
            raise Undrawable(
                f"{file.relative_to(ROOT)} has no docstring; say in one line what it holds"
            )
        sentence = " ".join(documentation.partition("\n\n")[0].split()).replace("`", "")
        if not is_package:
            # The docstring of a module is longer; its first phrase says enough beside others.
            sentence = sentence.partition(":")[0].partition(",")[0]
        self.sentence = sentence.removesuffix(".")


class Cell:
    """A member with its sentence broken into lines."""

    def __init__(self, member: Member, width: float) -> None:
        """Breaks the sentence at a width."""
        letters = math.floor(width / LETTER)
        self.label = member.label
        self.lines = textwrap.wrap(member.sentence, letters, break_on_hyphens=False)
        self.height = NAME_LINE + TEXT_LINE * len(self.lines)

    def svg(self, x: float, y: float) -> Iterator[str]:
        """Yields its elements. (x, y) is its upper left corner."""
        yield text("name", x, y + 15, self.label)
        for number, line in enumerate(self.lines):
            yield text("text", x, y + NAME_LINE + TEXT_LINE * number + 14, line)


class DrawnBox:
    """A box with its texts, its size, and its position in the image.

    Attributes:
      members: The packages or modules that the box stands for.
      title: The text of the only member; None if there are several.
      parts: Rows of smaller boxes inside: several members, or the parts of the only one.
      top, height: The position and the height, which are set for all boxes of a row at once.
    """

    def __init__(self, box: Box, picture: Picture) -> None:
        """Reads the docstrings and breaks them into lines."""
        self.row = box.row
        self.members = [Member(name, picture.package) for name in box.names.split()]
        self.left, self.right = (column_left(column) for column in box.columns)
        self.right -= GAP
        inner_width = self.right - self.left - 2 * PAD

        self.title: Cell | None = None
        parts = self.members
        if len(self.members) == 1:
            self.title = Cell(self.members[0], inner_width)
            parts = parts_of(self.members[0], box.parts.split())
        rows = math.ceil(len(parts) / PARTS_PER_ROW_MAX)
        per_row = math.ceil(len(parts) / max(1, rows))
        self.part_width = (inner_width + PAD) / max(1, per_row) - PAD
        cells = [Cell(part, self.part_width - 2 * PAD) for part in parts]
        self.parts = [cells[row * per_row : (row + 1) * per_row] for row in range(rows)]

        self.top = 0
        self.height = PAD + sum(map(part_height, self.parts)) + PAD * len(self.parts)
        if self.title:
            self.height += self.title.height + PAD

    @property
    def name(self) -> str:
        """Full name of the first member."""
        return self.members[0].module

    def svg(self, marked: bool) -> Iterator[str]:
        """Yields its elements."""
        yield rectangle("box", self.left, self.top, self.right - self.left, self.height)
        if marked:
            yield rectangle("mark", self.left, self.top, 6, self.height)

        y = self.top + PAD
        if self.title:
            yield from self.title.svg(self.left + PAD, y)
            y += self.title.height + PAD
        for row in self.parts:
            for number, part in enumerate(row):
                x = self.left + PAD + number * (self.part_width + PAD)
                yield rectangle("part", x, y, self.part_width, part_height(row))
                yield from part.svg(x + PAD, y + PAD - 2)
            y += part_height(row) + PAD


def parts_of(member: Member, names: Sequence[str]) -> list[Member]:
    """Returns the packages inside a package, in the order of `names`; none if that is empty.

    Raises:
      Undrawable: `names` lacks one.
    """
    parts = [Member(name, member.module) for name in names]
    folder = ROOT.joinpath(*member.module.split("."))
    packages = {file.parent.name for file in folder.glob("*/__init__.py")} - {GENERATED}
    missing = packages - set(names)
    if parts and missing:
        missing_names = ", ".join(sorted(missing))
        raise Undrawable(f"the box of {member.module} lacks {missing_names}; add it to {BOXES}")
    return parts


def stack_rows(boxes: Sequence[DrawnBox]) -> int:
    """Sets the top and the height of all boxes; returns where the last row ends."""
    top = HEADER
    for row in range(1 + max(box.row for box in boxes)):
        in_row = [box for box in boxes if box.row == row]
        height = max(box.height for box in in_row)
        for box in in_row:
            box.top = top
            box.height = height
        top += height + ARROW
    return top - ARROW


def straight_line(source: DrawnBox, target: DrawnBox, boxes: Sequence[DrawnBox]) -> float:
    """Returns the x of a line down from one box to another that passes no third one: the middle
    of the widest gap.

    Raises:
      Undrawable: There is none.
    """
    start = max(source.left, target.left)
    end = min(source.right, target.right)
    between = [box for box in boxes if source.row < box.row < target.row]
    sides = {x for box in between for x in (box.left, box.right) if start < x < end}
    width: float = GAP  # the gap between two neighbors is too narrow
    middle = None
    for left, right in pairwise(sorted({start, end, *sides})):
        center = (left + right) / 2
        is_free = not any(box.left < center < box.right for box in between)
        if is_free and right - left > width:
            width = right - left
            middle = center
    if middle is None or start >= end:
        raise Undrawable(
            f"{source.name} has no straight line to {target.name}; move them in {BOXES}"
        )
    return middle


def draw_data_arrow(data_arrow: DataArrow, boxes: Sequence[DrawnBox]) -> Iterator[str]:
    """Yields a dashed arrow with its label: down between rows, or to the right within one."""
    by_name = {box.name: box for box in boxes}
    source = by_name[data_arrow.source]
    target = by_name[data_arrow.target]
    if source.row < target.row:
        x = straight_line(source, target, boxes)
        y = source.top + source.height
        yield from arrow("arrow data", (x, y), (x, target.top))
        yield text("text", x + 12, (y + target.top) / 2 + 5, data_arrow.label)
    else:
        y = source.top + source.height // 2
        yield from arrow("arrow data", (source.right, y), (target.left, y))
        middle = (source.right + target.left) / 2
        yield text("text", middle, y - 10, data_arrow.label, ' text-anchor="middle"')


def legend(picture: Picture) -> Iterator[str]:
    """Yields what arrows and colors mean."""
    y = 64
    yield from arrow("arrow", (MARGIN, y - 5), (MARGIN + 30, y - 5))
    meaning = "imports (an arrow that follows from others is left out)"
    yield text("text", MARGIN + 40, y, meaning)
    x = MARGIN + 500
    if picture.data_arrows:
        yield from arrow("arrow data", (x, y - 5), (x + 30, y - 5))
        yield text("text", x + 40, y, "passes data, without an import")
    if picture.mark:
        yield rectangle("mark", x, y - 13, 6, 16)
        yield text("text", x + 16, y, picture.mark)


def column_left(column: int) -> float:
    """Returns where a column begins."""
    return MARGIN + column * (WIDTH - 2 * MARGIN + GAP) / COLUMNS


def part_height(row: Sequence[Cell]) -> int:
    """Returns the height of the smaller boxes that stand beside each other."""
    return max(part.height for part in row) + 2 * PAD - 6


def arrow(look: str, start: tuple[float, float], end: tuple[float, float]) -> Iterator[str]:
    """Yields a line down or to the right, with a head at its end."""
    x, y = end
    if start[0] == x:
        head = f"M{x - 5:g} {y - 9:g}h10l-5 9z"
        line = f"V{y - 6:g}"
    else:
        head = f"M{x - 9:g} {y - 5:g}v10l9 -5z"
        line = f"H{x - 6:g}"
    yield f'<path class="{look}" d="M{start[0]:g} {start[1]:g}{line}"/>'
    yield f'<path class="head" d="{head}"/>'


def rectangle(look: str, x: float, y: float, width: float, height: float) -> str:
    """Returns a rectangle with round corners."""
    corner = f'x="{x:g}" y="{y:g}"'
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect class="{look}" {corner} {size} rx="{min(7, width / 2):g}"/>'


def text(look: str, x: float, y: float, content: str, attributes: str = "") -> str:
    """Returns one line of text."""
    return f'<text class="{look}" x="{x:g}" y="{y:g}"{attributes}>{escape(content)}</text>'
