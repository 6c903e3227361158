"""A drawing as an SVG image of its own, for a document: the picture with its name, totals and
legend.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

from export.explain.drawing import Drawing
from export.explain.picture import COLUMNS, draw_svg, picture_style

TOP = 112
"""The space above the picture in pixels, for the name, the totals and the legend."""
BOTTOM = 10
"""The space below the picture in pixels."""
LEGEND_Y = -20
"""The base line of the legend in pixels, above the picture."""
LEGEND = {
    "context": ("features", "looked up once per context"),
    "candidate": ("tables", "looked up once per candidate"),
    "share": ("towers", "share of the bytes of all tables"),
}
"""The column above which the meaning of a color is written, and the meaning, by style."""


def explain_image(drawing: Drawing) -> str:
    """Returns the image. It has a background, follows the reader's light or dark theme, and loads
    nothing.
    """
    picture, height = draw_svg(drawing)
    legend = []
    for look, (column, meaning) in LEGEND.items():
        edge = COLUMNS[column][0]
        legend.append(
            f'<rect class="{look}" x="{edge}" y="{LEGEND_Y - 7}" width="22" height="4" rx="2"/>'
            f'<text class="totals" x="{edge + 30}" y="{LEGEND_Y}">{meaning}</text>'
        )
    # An image in a document has no style sheet but its own.
    template = Template(Path(__file__).with_name("image.svg").read_text(encoding="utf-8"))
    return template.substitute(
        picture_style=picture_style(),
        model=escape(drawing.model),
        totals=" · ".join(f"{figure} {unit}" for figure, unit in drawing.totals),
        legend="".join(legend),
        height=round(height + TOP + BOTTOM),
        picture=picture,
    )
