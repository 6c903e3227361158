"""Where a picture puts its boxes, texts and lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bundle.format.manifest import IdentityIds
from export.explain.drawing import Drawing, TableNode
from export.explain.picture import FEATURES, HEAD, OUTPUTS, TABLES, TOWERS, draw_svg
from tests.units.export.explain.rankers import drawn

COLUMNS: dict[float, float] = {
    left_edge: left_edge + width for left_edge, width in (FEATURES, TABLES, TOWERS, OUTPUTS)
}
LETTER_HEIGHT = 12


@dataclass(frozen=True)
class Box:
    """A box as it is drawn: its frame, what is written in it, and the frames of its parts."""

    left: float
    top: float
    right: float
    bottom: float
    texts: tuple[tuple[float, float, str], ...] = ()
    parts: tuple[Box, ...] = ()

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom


@dataclass(frozen=True)
class Line:
    """From the right of a box straight to `bend`, and from there in a curve to another box."""

    start: tuple[float, float]
    bend: float
    controls: tuple[tuple[float, float], tuple[float, float]]
    end: tuple[float, float]


def frame(rect: ElementTree.Element) -> tuple[float, float, float, float]:
    left_edge, top, width, height = (
        float(rect.attrib[key]) for key in ("x", "y", "width", "height")
    )
    return left_edge, top, left_edge + width, top + height


def box_of(group: ElementTree.Element) -> Box:
    rects = list(group.iter("rect"))
    texts = [
        (float(text.attrib["x"]), float(text.attrib["y"]), "".join(text.itertext()))
        for text in group.iter("text")
    ]
    parts = [Box(*frame(rect)) for rect in rects if rect.get("class") == "part"]
    return Box(*frame(rects[0]), tuple(texts), tuple(parts))


def line_of(path: ElementTree.Element) -> Line:
    numbers = [float(number) for number in re.findall(r"-?[0-9.]+", path.attrib["d"])]
    x, y, bend, *points = numbers
    first, second, end = zip(points[::2], points[1::2], strict=True)
    return Line((x, y), bend, (first, second), end)


@dataclass(frozen=True)
class Picture:
    boxes: list[Box]
    lines: list[Line]
    height: float


def picture(features: int, tables: int) -> Picture:
    return picture_of(drawn(features, tables))


def picture_of(drawing: Drawing) -> Picture:
    inside, height = draw_svg(drawing)
    root = ElementTree.fromstring(f"<svg>{inside}</svg>")
    boxes = [box_of(group) for group in root.iter("g")]
    return Picture(boxes, [line_of(path) for path in root.iter("path")], height)


SIZES = pytest.mark.parametrize(("features", "tables"), [(1, 1), (4, 2), (40, 4), (100, 100)])


@SIZES
def test_boxes_stand_in_their_columns_and_overlap_no_other(features: int, tables: int) -> None:
    drawn = picture(features, tables)
    assert {box.left for box in drawn.boxes} == set(COLUMNS)
    for box in drawn.boxes:
        assert box.right == COLUMNS[box.left]
        assert HEAD <= box.top < box.bottom < drawn.height
    for above, below in combinations(sorted(drawn.boxes, key=lambda box: box.top), 2):
        assert above.left != below.left or above.bottom < below.top
    # No empty space below.
    assert drawn.height - max(box.bottom for box in drawn.boxes) < 20


@SIZES
def test_texts_and_parts_are_inside_their_box_and_apart(features: int, tables: int) -> None:
    for box in picture(features, tables).boxes:
        baselines = [y for _, y, _ in box.texts]
        assert (
            min(below - above for above, below in pairwise([box.top, *baselines])) > LETTER_HEIGHT
        )
        assert box.bottom - baselines[-1] > 4
        for x, _, text in box.texts:
            assert box.left + 5 < x
            assert x + len(text) * 6.6 < box.right
        for part in box.parts:
            assert box.holds(part.left, part.top)
            assert box.holds(part.right, part.bottom)
            assert sum(part.holds(x, y) for x, y, _ in box.texts) == 1
        for above, below in pairwise(box.parts):
            assert above.bottom < below.top


@SIZES
def test_lines_lead_from_box_to_box_and_behind_no_table(features: int, tables: int) -> None:
    drawn = picture(features, tables)
    assert drawn.lines
    for line in drawn.lines:
        (start,) = [
            box for box in drawn.boxes if box.right == line.start[0] and box.holds(*line.start)
        ]
        (end,) = [box for box in drawn.boxes if box.left == line.end[0] and box.holds(*line.end)]
        if end.parts:
            assert sum(part.top < line.end[1] < part.bottom for part in end.parts) == 1
        # What reads no table passes above or below all of them.
        before_towers = line.end[0] == TOWERS[0]
        assert line.bend == (sum(TABLES) if before_towers else start.right)
        middle = (line.bend + line.end[0]) / 2
        assert line.controls == ((middle, line.start[1]), (middle, line.end[1]))


def test_picture_is_the_one_that_was_looked_at() -> None:
    """Every length and distance. After a change that is meant, look at the picture, and write
    the new one to the file.
    """
    recorded = Path(__file__).with_name("ranker.svg.txt").read_text()
    drawing, _ = draw_svg(drawn(4, 2))
    assert drawing.replace("><", ">\n<") == recorded.rstrip("\n")


def test_tables_that_no_feature_reads_stand_below_one_another() -> None:
    drawing = drawn(1, 1, ids=IdentityIds())
    unread = [TableNode(f"u{index}", 10, 4, "float32", 160, (), "u") for index in range(3)]
    with_unread = picture_of(replace(drawing, tables=(*drawing.tables, *unread)))
    tables = sorted((box.top, box.bottom) for box in with_unread.boxes if box.left == TABLES[0])
    assert len(tables) == 4
    for (_, above), (below, _) in pairwise(tables):
        assert below - above == 14


def test_share_of_a_small_table_is_drawn_two_pixels_wide() -> None:
    drawing = drawn(1, 1)
    small = TableNode("small", 1, 1, "float32", 4, (), "small")
    whole = replace(drawing.tables[0], bytes=10**6)
    inside, _ = draw_svg(replace(drawing, tables=(whole, small)))
    shares = [
        float(rect.attrib["width"])
        for rect in ElementTree.fromstring(f"<svg>{inside}</svg>").iter("rect")
        if rect.get("class") == "share"
    ]
    assert sorted(shares) == [2, 252]


def texts_of(drawing: Drawing) -> list[str]:
    inside, _ = draw_svg(drawing)
    root = ElementTree.fromstring(f"<svg>{inside}</svg>")
    return ["".join(text.itertext()) for text in root.iter("text")]


def test_long_texts_are_broken_into_three_lines_and_then_cut() -> None:
    drawing = drawn(1, 1)
    # A box of features is wide enough for 43 letters.
    words = " ".join(["word"] * 40)
    (feature,) = [node for node in drawing.features if node.table]
    changed = replace(feature, ids=words, unknown="none", kind="single")
    texts = texts_of(replace(drawing, features=(changed,)))
    lines = [text for text in texts if "word" in text]
    eight = " ".join(["word"] * 8)
    assert lines == [eight, eight, f"{eight} …"]


def test_short_lines_stand_beside_each_other_but_for_the_first() -> None:
    drawing = drawn(1, 1)
    (feature,) = [node for node in drawing.features if node.table]
    fitting = replace(feature, ids="i" * 27, unknown="none")  # 43 letters with what is between
    texts = texts_of(replace(drawing, features=(fitting,)))
    assert f"{'i' * 27} · unknown: none" in texts
    apart = replace(feature, ids="i" * 28, unknown="none")
    texts = texts_of(replace(drawing, features=(apart,)))
    assert "i" * 28 in texts
    assert "unknown: none" in texts


def test_part_of_a_tower_is_told_in_36_letters() -> None:
    drawing = drawn(1, 1)
    (tower,) = drawing.towers
    parts = (
        replace(tower.parts[0], name=f"{tower.name}/{'p' * 15}", takes=()),
        replace(tower.parts[0], name=f"{tower.name}/{'q' * 16}", takes=()),
    )
    texts = texts_of(replace(drawing, features=(), towers=(replace(tower, parts=parts),)))
    assert [text for text in texts if "once" in text] == [
        f"{'p' * 15} · once per candidate",
        f"{'q' * 16} · once per candida…",
    ]
