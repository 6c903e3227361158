"""A drawing as a page of its own: the picture, and below it every feature, table and tower. It
loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from string import Template

from export.explain.curve import curve_section
from export.explain.drawing import Drawing, FeatureNode, TableNode, TowerNode, shortened
from export.explain.picture import draw_svg, picture_style
from export.report_text import natural, size_text, thousands

OPEN_ROWS = 30
"""The length up to which a list is open when the page opens; only open lists are printed."""
LANDSCAPE_HEIGHT_MAX = 760
"""The height in pixels up to which a picture is printed in landscape format."""
NAMES_MAX = 12
"""The number of names that a cell lists."""


def explain_page(drawing: Drawing) -> str:
    """Returns the page, HTML with its picture inside."""
    picture, height = draw_svg(drawing)
    paper = "landscape" if height <= LANDSCAPE_HEIGHT_MAX else "portrait"
    totals = [f"<li><b>{figure}</b><span>{unit}</span></li>" for figure, unit in drawing.totals]
    lists = [
        _items(
            "What stays inside or together, and why",
            drawing.stays or ["Nothing: every table is outside."],
        ),
        _items("Stores and indexes", drawing.stores),
        *map(curve_section, drawing.curves),
        _table("Features", drawing.features),
        _table("Tables", drawing.tables),
        _table("Towers", drawing.towers),
    ]
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        picture_style=picture_style(),
        model=escape(drawing.model),
        source=escape(drawing.source),
        totals="".join(totals),
        paper=paper,
        height=round(height),
        picture=picture,
        lists="".join(lists),
    )


def _table(title: str, rows: Sequence[FeatureNode | TableNode | TowerNode]) -> str:
    """Returns a table of nodes with all their fields; it is open if it is short."""
    names = []
    if rows:
        names = [field.name for field in fields(rows[0])]
    head = "".join(f"<th{_class(name)}>{name.replace('_', ' ')}</th>" for name in names)
    body = ""
    # In the order that people expect: t2 before t10.
    for row in sorted(rows, key=lambda row: natural(row.name)):
        cells = [_data_cell(name, getattr(row, name)) for name in names]
        body += f"<tr>{''.join(cells)}</tr>"
    is_open = " open" if len(rows) <= OPEN_ROWS else ""
    table = f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    return (
        f"<h2>{title}</h2><details{is_open}><summary>{len(rows)} in all</summary>{table}</details>"
    )


def _data_cell(name: str, value: object) -> str:
    return f"<td{_class(name)}>{escape(_cell(name, value))}</td>"


def _class(name: str) -> str:
    """Returns the attribute of a column of numbers, which are aligned right."""
    if name in ("rows", "dim", "bytes"):
        return " class=n"
    return ""


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


def _items(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>"
