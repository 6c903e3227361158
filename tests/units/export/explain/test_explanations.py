"""What `explain` draws: every part, what is done to ids and rows, and a picture without overlaps,
whatever things are called and however many there are.
"""

from __future__ import annotations

import re
from html import unescape
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bundle.format import manifest
from bundle.format.manifest import Manifest
from bundle.storage.catalog import read_manifest
from export.explain.drawing import draw_bundle
from export.explain.picture import explain_image, explain_page
from export.explain.text import explain_text
from tests.bundles.sample import write_sample_bundle
from tests.bundles.search_costs import COSTS
from tests.id_graphs import computed_ids, crossed_ids, hash_ids
from tests.units.export.commands import Command
from tests.units.export.explain.rankers import HOSTILE, ranker

SIZES = [(1, 1), (40, 20), (400, 400)]
"""Features and tables."""
SVG = "{http://www.w3.org/2000/svg}"
CROSS = {
    "ids": crossed_ids(("string", "string"), 50),
    "joint": (manifest.JointInput(role="candidate"),) * 2,
}


def text_of(page: Manifest) -> str:
    return " ".join(explain_text(draw_bundle(page, "bundle")).split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "bag", "combiner": "sum", "weighted": True, "empty_row": 3}, "weighted, row 3"),
        ({"place": 1, "places": 26}, "value 2 of 26"),
        ({"inputs": ("start", "right")} | CROSS, "cross of start and right mod 50"),
        ({"ids": hash_ids(9, key=(1, 2))}, "siphash(the id) mod 9"),
        ({"ids": computed_ids(("Sub", 3), ("FloorDiv", 10))}, "(the id - 3) div 10"),
        ({"table": "", "indicator": 1000}, "indicator of 1000"),
        ({"take": "lengths"}, "how many ids"),
        ({"take": "padded", "shape": (9,), "dtype": "int64"}, "bag of int64, 9 at most"),
        ({"take": "weights", "shape": (9,)}, "weights of a bag"),
    ],
)
def test_feature_is_told_with_what_is_sent_and_what_is_done_to_it(
    changes: dict[str, Any], words: str
) -> None:
    page = ranker(1, 1)
    entry: manifest.Feature = page.features["f0"].model_copy(update=changes)
    if "take" in changes:
        entry = manifest.DenseFeature(kind="dense", role="context", **changes)
    page.features["f0"] = entry
    # Lines may end anywhere.
    assert words.replace(" ", "") in text_of(page).replace(" ", "")


def test_table_outside_is_told_why_by_whatever_name_its_features_have() -> None:
    page = ranker(1, 1)
    # Features that read one input by several tables have the table in their names.
    page.features["movie@t0"] = page.features.pop("f0").model_copy(update={"inputs": ("movie",)})
    page.features["hour"] = manifest.DenseFeature(
        kind="dense", role="context", dtype="int64", below=2000
    )
    towers = page.towers["ranking"].model_dump() | {"inputs": (), "parts": ()}
    page.towers["ranking"] = manifest.Tower.model_validate(towers)
    words = "table t0 of 1,000 rows is outside, since its rows are computed from what requests send"
    assert words in text_of(page)


def tried(leaves: int, recall: float, cost: float) -> manifest.CostPoint:
    parameters = {"leaves_to_search": leaves}
    return manifest.CostPoint(parameters=parameters, recall=recall, relative_cost=cost)


def with_tree() -> Manifest:
    """A ranker of which a form is narrow, beside a tree whose settings were tried."""
    page = ranker(3, 2)
    form = manifest.TowerForm(
        kind="litert", precision="int8", path="t", max_abs_error={"head0": 0.125}
    )
    tower = page.towers["ranking"].model_copy(update={"forms": (form,), "serve": "int8"})
    index = manifest.Index(
        corpus="movies",
        query_tower="query",
        candidate_tower="movie",
        kind="tree_ah",
        distance="dot_product",
        dim=2,
        directory="d",
        vectors="v",
        parameters={"num_leaves": 10, "leaves_to_search": 2},
        recall=manifest.Recall(k=7, value=0.97, low=0.9, queries=9, target=0.95),
        curve=(tried(1, 0.5, 0.01), tried(2, 0.97, 0.05), tried(3, 0.96, 0.09), tried(9, 1, 0.4)),
        costs=COSTS,
    )
    return page.model_copy(update={"towers": {"ranking": tower}, "indexes": {HOSTILE: index}})


def test_towers_and_indexes_are_told_and_the_tree_s_settings_plotted() -> None:
    page = with_tree()
    for words in (
        "t1 1,001 rows x 16 float32; 62.6 KiB from model/table",
        "differs by 0.12 at most",
        "ordered by head0^0.7 * head1",
        "head-head1, once for each candidate, takes trunk_0; gives head1",
        "tables of at most 24 rows stay inside the towers, where hour reads them",
        "query finds movies, recall@7 0.9700",
    ):
        assert words in text_of(page)
    text = explain_page(draw_bundle(page, "bundle"))
    assert re.findall(r'<circle class="(\w+)"', text) == ["tried", "chosen", "tried", "tried"]
    assert f"Index {HOSTILE}" in unescape(text)


@pytest.mark.parametrize(("features", "tables"), SIZES)
def test_page_and_image_hold_everything_escape_names_and_load_nothing(
    features: int, tables: int
) -> None:
    drawing = draw_bundle(ranker(features, tables), HOSTILE)
    page = explain_page(drawing)
    for number in range(features):
        assert page.count(f"<tr><td>f{number}</td>") == 1
    for number in range(tables):
        assert page.count(f"<tr><td>t{number}</td>") == 1
    assert HOSTILE in unescape(page)
    for drawn in (page, explain_image(drawing)):
        assert "<script" not in drawn
        assert not re.search(r"(src|href)=|url\(|@import|https?://(?!www\.w3\.org)", drawn)
    assert all(len(line) <= 80 for line in explain_text(drawing).splitlines())


def frame(rect: ElementTree.Element) -> tuple[float, float, float, float]:
    start, top, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
    return start, top, start + width, top + height


@pytest.mark.parametrize(("features", "tables"), SIZES)
def test_boxes_of_the_picture_lie_apart_and_hold_their_texts(features: int, tables: int) -> None:
    image = ElementTree.fromstring(explain_image(draw_bundle(ranker(features, tables), "bundle")))
    boxes = {}
    for group in image.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        # Other groups are those of the legend.
        if rect is None or not group.attrib["class"].startswith("box"):
            continue
        boxes[group] = frame(rect)
        start, top, right, bottom = boxes[group]
        for text in group.iter(f"{SVG}text"):
            width = 6.6 * len("".join(text.itertext()))
            x = float(text.attrib["x"])
            y = float(text.attrib["y"])
            assert start < x
            assert x + width < right
            assert top < y < bottom
    for first, second in combinations(boxes.values(), 2):
        is_apart = first[2] <= second[0] or second[2] <= first[0] or first[3] <= second[1]
        assert is_apart or second[3] <= first[1]


WORDS = (
    "11 inputs, 11 features, 4 tables, 1 tower, 1.0 KiB of table rows, 10 B of tower weights",
    "brands 12 rows x 5 int8; 108 B from model/brands",
    "name context, single; position of the id in names + 30, else -1; unknown: zeros",
    "user context, single; the id is the row; unknown: row 3 => query",
    "shop context, single; key of table hours; unknown: zeros",
    "strict context, single; the id is the row; unknown: refuse",
    "genres candidate, bag, sum; fingerprint64(the id) mod 24; unknown: zeros; may be left out",
    "recent context, sequence of 3; the id is the row",
    "watched context, bag, mean, weighted; position of the id in movies, else -1",
    "age context, float32; may be left out grid context, int32 [2, 2]",
    "runs as LiteRT f32, differs by 0 at most takes user",
    "corpus movies: 4 by int64 id, filtered by title (string, 702 B), year (int64, 678 B)",
)
"""What is stated about the sample bundle; lines may end anywhere."""


def test_bundle_is_explained_as_text_json_page_and_image(command: Command, tmp_path: Path) -> None:
    bundle = write_sample_bundle(tmp_path / "bundles")
    manifest_page = read_manifest(bundle)
    link = tmp_path / "latest.html"
    link.symlink_to("dated.html")
    image = tmp_path / "image.svg"
    done = command("explain", bundle, "--html", link, "--svg", image)
    assert done.code == 0, done.err
    output = " ".join(done.out.split())
    for words in WORDS:
        assert words in output
    assert link.is_symlink()
    assert (tmp_path / "dated.html").read_text().startswith("<!doctype html>")
    assert image.read_text().startswith("<svg ")
    report = command("explain", bundle, "--json").json
    assert [feature["name"] for feature in report["features"]] == list(manifest_page.features)
