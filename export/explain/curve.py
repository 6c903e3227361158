"""A section of the page that shows the recall and the cost of the settings of an index. The style
sheet of the page has its colors and fonts.
"""

from __future__ import annotations

import math
from html import escape
from itertools import accumulate

from export.explain.drawing import RecallCurve

WIDTH = 1152
HEIGHT = 280
"""The size of the picture in pixels."""
LEFT = 60
RIGHT = 20
TOP = 16
BOTTOM = 40
"""The margins of the picture in pixels."""
_TICKS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""The costs that the axis may name; the first is the smallest that it shows."""


def curve_section(curve: RecallCurve) -> str:
    """Returns a heading and an SVG: cost on a logarithmic axis, a point for each setting, and a
    line through the best of them.
    """
    # A cost of 0 has no logarithm.
    costs = [max(cost, _TICKS[0]) for _, cost, _ in curve.points]
    recalls = [recall for recall, *_ in curve.points]
    low = math.log(min(costs))
    high = math.log(max(costs))
    lowest = min(*recalls, curve.target)

    # Where all settings have one cost, or recall 1, there is no range to divide by.
    cost_range = (high - low) or 1
    recall_range = (1 - lowest) or 1

    def x(cost: float) -> float:
        return LEFT + (math.log(cost) - low) / cost_range * (WIDTH - LEFT - RIGHT)

    def y(recall: float) -> float:
        return TOP + (1 - recall) / recall_range * (HEIGHT - TOP - BOTTOM)

    def line(look: str, x1: float, y1: float, x2: float, y2: float) -> str:
        return f'<path class="{look}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'

    def text(text_x: float, text_y: float, words: str) -> str:
        return f'<text class="line" x="{text_x:.1f}" y="{text_y:.1f}">{escape(words)}</text>'

    elements = [
        line("axis", LEFT, TOP, LEFT, HEIGHT - BOTTOM),
        line("axis", LEFT, HEIGHT - BOTTOM, WIDTH, HEIGHT - BOTTOM),
    ]
    labels = (lowest, (1 + lowest) / 2, 1.0)
    elements += [text(4, y(recall) + 4, f"{recall:.3f}") for recall in labels]
    ticks = [tick for tick in _TICKS if low <= math.log(tick) <= high]
    elements += [text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:g}") for tick in ticks]
    elements.append(text(WIDTH / 2, HEIGHT - 6, "cost, as a share of exact search's time"))
    elements.append(line("target", LEFT, y(curve.target), WIDTH, y(curve.target)))

    # The line shows the best recall that is reached at a cost, so it never falls.
    best = zip(costs, accumulate(recalls, max), strict=True)
    points = "L".join(f"{x(cost):.1f} {y(recall):.1f}" for cost, recall in best)
    elements.append(f'<path class="curve" d="M{points}"/>')
    # Points come after the curve, which they cover.
    for (recall, _, setting), cost in zip(curve.points, costs, strict=True):
        look = "tried"
        radius = 4
        if setting == curve.chosen:
            look = "chosen"
            radius = 7
        hint = escape(f"{setting}: recall@{curve.k} {recall:.4f}, cost {cost:.4f}")
        circle = f'cx="{x(cost):.1f}" cy="{y(recall):.1f}" r="{radius}"'
        elements.append(f'<circle class="{look}" {circle}><title>{hint}</title></circle>')
    title = escape(
        f"Index {curve.index}: recall@{curve.k} of settings by cost, target {curve.target:g}"
    )
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}">{"".join(elements)}</svg>'
    )
    return (
        f"<h2>{title}</h2><p>Written with {escape(curve.chosen)}</p><div "
        f'class="picture">{picture}</div>'
    )
