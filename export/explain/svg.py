"""A drawing as one SVG: a column each for features, tables, towers and outputs, and the ways between them.

Features stand beside the tables that they read, so that no way crosses another before the towers; numbers stand below
all tables. Every text is escaped; colours come from the page's style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from textwrap import shorten, wrap

from export.explain.drawing import Drawing, DrawnPart, DrawnTower
from export.explain.groups import FeatureGroup, Groups, TableGroup
from export.explain.text import shortened
from export.figures import count_text, size_text, thousands

LINE, PAD, GAP, TITLE = 17, 10, 14, 20
LETTER = 6.7
"""Width of a letter of the small lines; titles are wider. All are monospaced, so that names end where boxes do."""
TITLE_LETTER = 7.6
FEATURES, TABLES, TOWERS, OUTPUTS = (0, 310), (362, 272), (718, 280), (1032, 116)
"""Left edge and width of each column: all of them side by side in a window of 1200."""
HEAD = 34
LINES_MAX = 3
"""Of a text that is longer than its box is wide; the rest is cut."""


@dataclass
class Box:
    """A rectangle with a title and lines, which break at its width; ways leave and arrive at points of its sides."""

    column: tuple[int, int]
    title: str
    lines: list[str]
    look: str
    top: float = 0.0
    share: float | None = None
    hint: str = ""
    rows: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Breaks the lines that are longer than the box is wide."""
        room = _letters(self.column[1])
        self.lines = [
            piece for line in self.lines for piece in wrap(shorten(line, LINES_MAX * room, placeholder=" …"), room)
        ]

    @property
    def height(self) -> float:
        """Of the whole box."""
        bar = 8 if self.share is not None else 0
        return 2 * PAD + TITLE + LINE * len(self.lines) + bar + (LINE + 12) * len(self.rows)

    @property
    def middle(self) -> float:
        """Where ways arrive that are for no row of it."""
        return self.top + self.height / 2

    def row_middle(self, number: int) -> float:
        """Returns where ways to one of its rows arrive."""
        return self.top + 2 * PAD + TITLE + LINE * len(self.lines) + (LINE + 12) * (number + 0.5) - 6


@dataclass(frozen=True)
class Picture:
    """An SVG element and its height, in pixels of a window."""

    svg: str
    height: float


def draw_svg(drawing: Drawing, groups: Groups) -> Picture:
    """Returns the picture."""
    features, tables, numbers, below = _left(groups, drawing)
    towers = [_tower(tower) for tower in drawing.towers]
    height = sum(box.height for box in towers) + 2 * GAP * max(0, len(towers) - 1)
    top = max(HEAD, (HEAD + below - height) / 2)
    for box in towers:
        box.top, top = top, top + box.height + 2 * GAP
    outputs, given = _outputs(drawing.towers, towers)
    place = {
        (tower.name, part.name): box.row_middle(number) if box.rows else box.middle
        for tower, box in zip(drawing.towers, towers, strict=True)
        for number, part in enumerate(tower.parts)
    }
    ways = [*_ways(groups, features, tables, place), *given]
    boxes = [*features, *tables, *numbers, *towers, *outputs]
    bottom = max((box.top + box.height for box in boxes), default=HEAD) + GAP
    heads = zip((FEATURES, TABLES, TOWERS, OUTPUTS), ("features", "tables", "towers", "outputs"), strict=True)
    titles = "".join(f'<text class="head" x="{column[0]}" y="16">{name}</text>' for column, name in heads)
    width = OUTPUTS[0] + OUTPUTS[1] + 4
    svg = (
        f'<svg viewBox="-2 0 {width} {bottom:.0f}" width="{width}" height="{bottom:.0f}" role="img" '
        f'aria-label="{escape(drawing.model)}: features, tables, towers and outputs">'
        f"{titles}{''.join(ways)}{''.join(map(_box, boxes))}</svg>"
    )
    return Picture(svg, bottom)


def _left(groups: Groups, drawing: Drawing) -> tuple[list[Box], list[Box], list[Box], float]:
    """Places features beside their tables, then numbers; the boxes of features are in the order of the groups."""
    top, features, tables = float(HEAD), [], []
    for number, group in enumerate(groups.tables):
        readers = [_feature(each) for each in groups.features if each.tables == number]
        table = _table(group, drawing.bytes)
        stack = sum(box.height for box in readers) + GAP * max(0, len(readers) - 1)
        whole = max(stack, table.height)
        table.top, at = top + (whole - table.height) / 2, top + (whole - stack) / 2
        for box in readers:
            box.top, at = at, at + box.height + GAP
        features += readers
        tables.append(table)
        top += whole + GAP
    numbers = [_feature(each) for each in groups.features if each.tables is None]
    for box in numbers:
        box.top, top = top, top + box.height + GAP
    return features + numbers, tables, [], top


def _feature(group: FeatureGroup) -> Box:
    names = [feature.label for feature in group.features]
    many = len(names) > 1 and len(", ".join(names)) > _title_letters(FEATURES[1])
    lines = [shortened(names, _fitting(names, FEATURES))] if many else []
    lines.append(f"{group.role} · {group.kind}")
    if group.tables is not None:
        told = (group.ids, f"unknown: {group.unknown}")
        lines += [" · ".join(told)] if len(" · ".join(told)) <= _letters(FEATURES[1]) else told
    if group.default:
        lines.append(group.default)
    title = count_text(len(names), "feature" if group.tables is not None else "input") if many else ", ".join(names)
    hint = "\n".join(f"{each.name}: {each.kind}, {each.ids}" if each.ids else each.name for each in group.features)
    return Box(FEATURES, title, lines, group.role, hint=hint)


def _table(group: TableGroup, total: int) -> Box:
    names = [table.name for table in group.tables]
    one = len(names) == 1
    lines = [] if one else [shortened(names, _fitting(names, TABLES))]
    lines += [group.shape.replace(str(group.rows), thousands(group.rows), 1), size_text(group.bytes)]
    hint = "\n".join(f"{table.name}: {table.rows} x {table.dim}, from {table.source}" for table in group.tables)
    share = group.bytes / total if total else 0.0
    return Box(TABLES, names[0] if one else f"{len(names)} tables", lines, "table", share=share, hint=hint)


def _fitting(names: Sequence[str], column: tuple[int, int]) -> int:
    """Returns how many names a line of a column has room for beside `and N more`."""
    room, count = _letters(column[1]) - len(f" and {len(names)} more"), 0
    for name in names:
        room -= len(name) + 2 * bool(count)
        if room < 0:
            break
        count += 1
    return max(1, count)


def _tower(tower: DrawnTower) -> Box:
    lines = [f"{tower.role} tower · {size_text(tower.bytes)} of weights"]
    lines += [f"runs as {tower.runs[-1]}"] if tower.runs else []
    if tower.formula:
        lines.append(f"ordered by {tower.formula}")
    rows = [(part.name, f"once per {part.per}") for part in tower.parts if part.name]
    return Box(TOWERS, tower.name, lines, "tower", rows=rows, hint="\n".join([tower.name, *lines[2:], *tower.runs]))


def _outputs(towers: Sequence[DrawnTower], boxes: Sequence[Box]) -> tuple[list[Box], list[str]]:
    """Places outputs beside the parts that give them; returns them with their ways."""
    made, ways, free = [], [], 0.0
    for tower, box in zip(towers, boxes, strict=True):
        for output in tower.outputs:
            number, row = next(
                (each for each in enumerate(tower.parts) if output in each[1].gives), (0, DrawnPart(*_NONE))
            )
            told = ["result" if output == tower.result and not tower.formula else ""]
            out = Box(OUTPUTS, output, [line for line in told if line], "output", hint=f"{tower.name}: {output}")
            start = box.row_middle(number) if row.name else box.middle
            spread = (
                0.0 if row.name else (tower.outputs.index(output) - (len(tower.outputs) - 1) / 2) * (out.height + 4)
            )
            out.top = max(free, start + spread - out.height / 2, 0.0)
            free = out.top + out.height + 6
            made.append(out)
            ways.append(_way(TOWERS[0] + TOWERS[1], start, OUTPUTS[0], out.middle, "output"))
    return made, ways


_NONE: tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]] = ("", "", (), (), ())


def _ways(
    groups: Groups, features: Sequence[Box], tables: Sequence[Box], place: dict[tuple[str, str], float]
) -> Iterable[str]:
    seen = set()
    for group, box in zip(groups.features, features, strict=True):
        right = FEATURES[0] + FEATURES[1]
        if group.tables is None:
            for consumer in group.consumers:
                bend = TABLES[0] + TABLES[1]
                yield _way(right, box.middle, TOWERS[0], place[consumer], group.role, straight=bend)
            continue
        table = tables[group.tables]
        apart = 8 if group.role == "candidate" else -8
        to = min(max(box.middle, table.top + PAD), table.top + table.height - PAD)
        yield _way(right, box.middle, TABLES[0], to, group.role)
        for consumer in group.consumers:
            if (group.tables, consumer, group.role) not in seen:
                seen.add((group.tables, consumer, group.role))
                yield _way(
                    TABLES[0] + TABLES[1], table.middle + apart, TOWERS[0], place[consumer] + apart / 2, group.role
                )


def _way(x1: float, y1: float, x2: float, y2: float, look: str, straight: float | None = None) -> str:
    start = f"M{x1} {y1:.1f}" + (f"H{straight}" if straight is not None else "")
    half = ((straight or x1) + x2) / 2
    return f'<path class="way {look}" d="{start}C{half} {y1:.1f} {half} {y2:.1f} {x2} {y2:.1f}"/>'


def _box(box: Box) -> str:
    left, width = box.column
    top, x = box.top, left + PAD
    parts = [f'<g class="box {box.look}"><title>{escape(box.hint or box.title)}</title>']
    parts.append(f'<rect x="{left}" y="{top:.1f}" width="{width}" height="{box.height:.1f}" rx="7"/>')
    if box.look in ("context", "candidate"):
        parts.append(f'<rect class="role" x="{left}" y="{top:.1f}" width="5" height="{box.height:.1f}" rx="2.5"/>')
    at = top + PAD + 13
    parts.append(_text("title", x + 2, at, box.title, _title_letters(width)))
    for line in box.lines:
        at += LINE
        parts.append(_text("line", x + 2, at, line, _letters(width)))
    if box.share is not None:
        length = max(2.0, (width - 2 * PAD) * box.share)
        parts.append(f'<rect class="share" x="{x}" y="{at + 8:.1f}" width="{length:.1f}" height="4" rx="2"/>')
    for number, (name, told) in enumerate(box.rows):
        middle = box.row_middle(number)
        parts.append(f'<rect class="part" x="{x}" y="{middle - 12:.1f}" width="{width - 2 * PAD}" height="24" rx="5"/>')
        parts.append(_text("line", x + 8, middle + 4, f"{name} · {told}", _letters(width - 16)))
    return "".join(parts) + "</g>"


def _letters(width: int) -> int:
    """Returns how many small letters a box of a width has room for."""
    return int((width - 2 * PAD) / LETTER)


def _title_letters(width: int) -> int:
    return int((width - 2 * PAD) / TITLE_LETTER)


def _text(look: str, x: float, y: float, text: str, letters: int) -> str:
    shown = text if len(text) <= letters else f"{text[: letters - 1]}…"
    return f'<text class="{look}" x="{x}" y="{y:.1f}">{escape(shown)}</text>'
