"""Where the plot of an index's recall puts its points, and what stands at its axes."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from export.explain.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, curve_section
from export.explain.drawing import RecallCurve

FLOOR = HEIGHT - BOTTOM
POINTS = (
    (0.5, 0.00001, "leaves 1"),
    (0.9, 0.01, "leaves 2"),
    (0.8, 0.1, "leaves 3"),
    (1.0, 1.0, "leaves 9"),
)


def plot(
    target: float = 0.75, points: tuple[tuple[float, float, str], ...] = POINTS
) -> ElementTree.Element:
    curve = RecallCurve(index="movies", k=10, target=target, chosen="leaves 2", points=points)
    section = curve_section(curve)
    return ElementTree.fromstring(section[section.index("<svg") : section.index("</svg>") + 6])


def path(root: ElementTree.Element, look: str) -> list[float]:
    (drawn,) = [
        element.attrib["d"] for element in root.iter("path") if element.get("class") == look
    ]
    return [float(number) for number in re.findall(r"[0-9.]+", drawn)]


def test_points_are_placed_by_recall_and_by_the_logarithm_of_their_cost() -> None:
    circles = list(plot().iter("circle"))
    positions = [(float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in circles]
    # Costs from 0.0001, which is the smallest that the axis shows, to 1: four powers of ten.
    decade = (WIDTH - LEFT - RIGHT) / 4
    assert [x for x, _ in positions] == pytest.approx(
        [LEFT, LEFT + 2 * decade, LEFT + 3 * decade, WIDTH - RIGHT], abs=0.1
    )
    # Recalls from the lowest, 0.5, to 1.
    height = FLOOR - TOP
    assert [y for _, y in positions] == pytest.approx(
        [FLOOR, TOP + 0.2 * height, TOP + 0.4 * height, TOP], abs=0.1
    )
    assert [circle.attrib["class"] for circle in circles] == ["tried", "chosen", "tried", "tried"]
    radii = [float(circle.attrib["r"]) for circle in circles]
    assert radii == [4, 7, 4, 4]
    assert circles[2][0].text == "leaves 3: recall@10 0.8000, cost 0.1000"


def test_line_leads_over_the_best_recall_that_a_cost_reaches() -> None:
    root = plot()
    circles = [
        (float(element.attrib["cx"]), float(element.attrib["cy"]))
        for element in root.iter("circle")
    ]
    line = path(root, "curve")
    assert line[::2] == [x for x, _ in circles]
    # The third setting finds less than the second, which is cheaper.
    assert line[1::2] == [circles[0][1], circles[1][1], circles[1][1], circles[3][1]]


def test_target_is_a_level_line_and_may_be_below_all_points() -> None:
    level = TOP + 0.5 * (FLOOR - TOP)
    assert path(plot(), "target") == pytest.approx([LEFT, level, WIDTH, level], abs=0.1)
    assert path(plot(target=0.4), "target") == [LEFT, FLOOR, WIDTH, FLOOR]


def test_axes_are_labeled_where_their_values_are() -> None:
    labels = {
        "".join(element.itertext()): (float(element.attrib["x"]), float(element.attrib["y"]))
        for element in plot().iter("text")
    }
    title = "cost, as a share of exact search's time"
    ticks = [f"{digit / part:g}" for part in (10_000, 1000, 100, 10) for digit in (1, 2, 5)] + ["1"]
    assert list(labels) == ["0.500", "0.750", "1.000", *ticks, title]
    assert LEFT < labels[title][0] < WIDTH - 7 * len(title)
    assert labels[title][1] == HEIGHT - 6
    for recall in ("0.500", "0.750", "1.000"):
        level = TOP + (1 - float(recall)) / 0.5 * (FLOOR - TOP)
        assert labels[recall] == pytest.approx((4, level + 4), abs=0.1)
    for cost in ticks:
        power = math.log10(float(cost)) + 4
        across = LEFT + power / 4 * (WIDTH - LEFT - RIGHT)
        assert labels[cost] == pytest.approx((across, FLOOR + 16), abs=0.1)


def test_settings_of_one_cost_that_find_all_stand_in_the_corner() -> None:
    points = ((1.0, 0.2, "leaves 1"), (1.0, 0.2, "leaves 2"))
    circles = plot(target=1.0, points=points).iter("circle")
    positions = {(circle.attrib["cx"], circle.attrib["cy"]) for circle in circles}
    assert positions == {(f"{LEFT:.1f}", f"{TOP:.1f}")}


def test_costs_above_those_of_exact_search_are_labeled() -> None:
    root = plot(points=((0.8, 0.9, "leaves 1"), (0.9, 5.0, "leaves 2")))
    labels = ["".join(element.itertext()) for element in root.iter("text")]
    assert labels[3:-1] == ["1", "2", "5"]


def test_axes_and_heading_frame_the_plot() -> None:
    root = plot()
    assert root.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
    axes = [element.attrib["d"] for element in root.iter("path") if element.get("class") == "axis"]
    assert axes == [
        f"M{LEFT}.0 {TOP}.0L{LEFT}.0 {FLOOR}.0",
        f"M{LEFT}.0 {FLOOR}.0L{WIDTH}.0 {FLOOR}.0",
    ]
    title = "Index movies: recall@10 of settings by cost, target 0.75"
    assert root.attrib["aria-label"] == title
    curve = RecallCurve(index="movies", k=10, target=0.75, chosen="leaves 2", points=POINTS)
    section = curve_section(curve)
    assert section.startswith(f"<h2>{title}</h2><p>Written with leaves 2</p>")
