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
"""Lists up to so long are open when the page is; what is open is printed."""
ACROSS_MAX = 760
"""Pictures up to so high are printed on paper laid across."""
NAMES_MAX = 12


def explain_page(drawing: Drawing) -> str:
    """Returns the page, HTML with its picture inside."""
    picture, height = draw_svg(drawing)
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
    return Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).substitute(
        picture_style=picture_style(),
        model=escape(drawing.model),
        source=escape(drawing.source),
        totals="".join(
            f"<li><b>{figure}</b><span>{what}</span></li>" for figure, what in drawing.totals
        ),
        paper="landscape" if height <= ACROSS_MAX else "portrait",
        height=round(height),
        picture=picture,
        lists="".join(lists),
    )


def _table(title: str, rows: Sequence[FeatureNode | TableNode | TowerNode]) -> str:
    """Returns a list of everything known of some things; it is open if it is short."""
    names = [field.name for field in fields(rows[0])] if rows else []
    head = "".join(f"<th{_class(name)}>{name.replace('_', ' ')}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(_data_cell(name, getattr(row, name)) for name in names)}</tr>"
        for row in sorted(rows, key=lambda row: natural(row.name))
    )
    is_open = " open" if len(rows) <= OPEN_ROWS else ""
    table = f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    return (
        f"<h2>{title}</h2><details{is_open}><summary>{len(rows)} in all</summary>{table}</details>"
    )


def _data_cell(name: str, value: object) -> str:
    return f"<td{_class(name)}>{escape(_cell(name, value))}</td>"


def _class(name: str) -> str:
    return " class=n" if name in ("rows", "dim", "bytes") else ""


def _cell(name: str, value: object) -> str:
    match value:
        case bool():
            return "yes" if value else ""
        case int():
            return size_text(value) if name == "bytes" else thousands(value)
        case tuple() if name in ("parts", "runs"):
            return "\n".join(map(str, value))
        case tuple():
            return shortened(value, NAMES_MAX)
        case _:
            return str(value)


def _items(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""
