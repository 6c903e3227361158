"""The recall of an index' settings over what they cost, as a section of the page; colours and fonts
are the page's.
"""

from __future__ import annotations

import math
from html import escape
from itertools import accumulate

from export.explain.drawing import RecallCurve

WIDTH = 1152
HEIGHT = 280
LEFT = 60
RIGHT = 20
TOP = 16
BOTTOM = 40
"""Of the picture, in pixels, and of its margins."""
_TICKS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def curve_section(curve: RecallCurve) -> str:
    """Returns a heading and an SVG: cost on a logarithmic axis, a point a setting, and a line over
    the best of them.
    """
    costs = [max(cost, _TICKS[0]) for _, cost, _ in curve.points]
    recalls = [recall for recall, *_ in curve.points]
    low = math.log(min(costs))
    high = math.log(max(costs))
    lowest = min(*recalls, curve.target)

    def x(cost: float) -> float:
        return LEFT + (math.log(cost) - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)

    def y(recall: float) -> float:
        return TOP + (1 - recall) / ((1 - lowest) or 1) * (HEIGHT - TOP - BOTTOM)

    def line(look: str, x1: float, y1: float, x2: float, y2: float) -> str:
        return f'<path class="{look}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'

    def text(left: float, top: float, shown: str) -> str:
        return f'<text class="line" x="{left:.1f}" y="{top:.1f}">{escape(shown)}</text>'

    drawn = [
        line("axis", LEFT, TOP, LEFT, HEIGHT - BOTTOM),
        line("axis", LEFT, HEIGHT - BOTTOM, WIDTH, HEIGHT - BOTTOM),
    ]
    drawn += [text(4, y(recall) + 4, f"{recall:.3f}") for recall in (lowest, (1 + lowest) / 2, 1.0)]
    drawn += [
        text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:g}")
        for tick in _TICKS
        if low <= math.log(tick) <= high
    ]
    drawn.append(text(WIDTH / 2, HEIGHT - 6, "cost, as a share of exact search's time"))
    drawn.append(line("target", LEFT, y(curve.target), WIDTH, y(curve.target)))
    best = zip(costs, accumulate(recalls, max), strict=True)  # what may be reached at a cost
    drawn.append(
        '<path class="curve" '
        f'd="M{"L".join(f"{x(cost):.1f} {y(recall):.1f}" for cost, recall in best)}"/>'
    )
    for (recall, _, setting), cost in zip(curve.points, costs, strict=True):
        look, radius = ("chosen", 7) if setting == curve.chosen else ("tried", 4)
        told = escape(f"{setting}: recall@{curve.k} {recall:.4f}, cost {cost:.4f}")
        at = f'cx="{x(cost):.1f}" cy="{y(recall):.1f}" r="{radius}"'
        drawn.append(f'<circle class="{look}" {at}><title>{told}</title></circle>')
    title = escape(
        f"Index {curve.index}: recall@{curve.k} of settings by cost, {curve.target:g} asked for"
    )
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}">{"".join(drawn)}</svg>'
    )
    return (
        f"<h2>{title}</h2><p>Written with {escape(curve.chosen)}</p><div "
        f'class="picture">{picture}</div>'
    )
