"""What `explain` draws of bundles and of recipes: every part, what is done to ids and rows, and a
picture without overlaps, whatever things are called and however many there are.
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
from bundle.format.manifest import AttributeIndex, Corpus, File, Manifest
from bundle.storage.catalog import read_manifest
from export.explain.drawing import draw_bundle
from export.explain.image import explain_image
from export.explain.page import explain_page
from export.explain.text import explain_text
from tests.bundles.sample import write_sample_bundle
from tests.bundles.search_costs import COSTS
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids
from tests.units.export.commands import Command
from tests.units.export.explain.rankers import HOSTILE, ranker
from tests.units.export.movies_job import Recipe, write_project

SIZES = [(1, 1), (4, 2), (40, 4), (40, 20), (400, 400)]
"""Features and tables."""
SVG = "{http://www.w3.org/2000/svg}"
CROSS = manifest.CrossedIds(
    buckets=50, keys=(manifest.CrossKey(dtype="string", role="candidate"),) * 2
)


def text_of(page: Manifest) -> str:
    return " ".join(explain_text(draw_bundle(page, "bundle")).split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "single; fingerprint64(the id) mod 1000; unknown: zeros"),
        ({"default": 0}, "may be left out"),
        ({"kind": "bag", "combiner": "sqrtn"}, "bag, sqrtn"),
        ({"kind": "bag", "combiner": "sum", "weighted": True, "empty_row": 3}, "weighted, row 3"),
        ({"kind": "bag", "combiner": "mean", "max_norm": 0.5}, "rows clipped to 0.5"),
        ({"kind": "sequence", "length": 5}, "sequence of 5"),
        ({"place": 1, "places": 26}, "value 2 of 26"),
        ({"unknown": manifest.Unknown(rule="row", row=7)}, "unknown: row 7"),
        ({"unknown": manifest.Unknown(rule="refuse")}, "unknown: refuse"),
        ({"ids": manifest.IdentityIds()}, "the id is the row"),
        ({"ids": manifest.IdentityIds(), "from_end": True}, "below 0 from the end"),
        ({"ids": manifest.KeyedIds(keys="t0")}, "key of table t0"),
        ({"ids": CROSS, "inputs": ("start", "right")}, "cross of start and right mod 50"),
        ({"ids": vocabulary_ids("words")}, "position of the id in words, else -1"),
        ({"ids": hash_ids(9, first_row=1)}, "(fingerprint64(the id) mod 9) + 1"),
        ({"ids": hash_ids(9, key=(1, 2))}, "siphash(the id) mod 9"),
        ({"ids": computed_ids(("Sub", 3), ("FloorDiv", 10))}, "(the id - 3) div 10"),
        ({"table": "", "indicator": 1000}, "indicator of 1000"),
    ],
)
def test_feature_is_told_with_what_is_sent_and_what_is_done_to_it(
    changes: dict[str, Any], words: str
) -> None:
    page = ranker(1, 1)
    page.features["f0"] = page.features["f0"].model_copy(update=changes)
    # Lines may end anywhere.
    assert words.replace(" ", "") in text_of(page).replace(" ", "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": (3, 2)}, "float32 [3, 2]"),
        ({"below": 31, "dtype": "int64"}, "at most 31 rows stay inside"),
        ({"take": "lengths"}, "how many ids"),
        ({"take": "padded", "shape": (9,), "dtype": "int64"}, "bag of int64, 9 at most"),
        ({"take": "weights", "shape": (9,)}, "weights of a bag"),
    ],
)
def test_numbers_are_told_with_their_shape_or_what_they_are(
    changes: dict[str, Any], words: str
) -> None:
    page = ranker(1, 1)
    page.features["hour"] = manifest.DenseFeature(kind="dense", role="context", **changes)
    assert words in text_of(page)


def form(kind: Any, precision: Any, **errors: float) -> manifest.TowerForm:
    path = f"towers/ranking/{kind}-{precision}"
    return manifest.TowerForm(kind=kind, precision=precision, path=path, max_abs_error=errors)


def tried(leaves: int, recall: float, cost: float) -> manifest.CostPoint:
    parameters = {"leaves_to_search": leaves}
    return manifest.CostPoint(parameters=parameters, recall=recall, relative_cost=cost)


def whole_bundle() -> Manifest:
    """A ranker with towers in several forms, stores, and a tree whose settings were tried."""
    page = ranker(3, 2)
    forms = (form("saved_model", "f32"), form("litert", "int8", head0=0.125))
    tower = page.towers["ranking"].model_copy(update={"forms": forms, "serve": "int8"})
    movies = Corpus(
        file="movies.arrow",
        size=1200,
        id_dtype="int64",
        features=(),
        attributes={"year": "int64"},
        filters={"year": AttributeIndex(values="year.values", rows="year.rows")},
    )
    sizes = {"year.values": 100, "year.rows": 11, "towers/ranking/litert-int8": 9}
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
    return page.model_copy(
        update={
            "towers": {"ranking": tower},
            "corpora": {"movies": movies},
            "contexts": {"users": movies.model_copy(update={"size": 7, "filters": {}})},
            "indexes": {HOSTILE: index},
            "files": tuple(File(path=path, bytes=size, crc32c=0) for path, size in sizes.items()),
        }
    )


def test_towers_stores_and_indexes_are_told() -> None:
    text = text_of(whole_bundle())
    for words in (
        "t1 1,001 rows x 16 float32; 62.6 KiB from model/table",
        "5 inputs, 5 features, 2 tables, 1 tower",
        "9 B of tower weights",
        "differs by 0.12 at most",
        "ordered by head0^0.7 * head1",
        "head-head1, once for each candidate, takes trunk_0; gives head1",
        "tables of at most 24 rows stay inside the towers, where hour reads them",
        "corpus movies: 1200 by int64 id, filtered by year (int64, 111 B)",
        "contexts users: 7 by int64 id",
        "query finds movies, recall@7 0.9700",
    ):
        assert words in text


def test_page_plots_the_settings_of_a_tree_and_marks_the_chosen_one() -> None:
    text = explain_page(draw_bundle(whole_bundle(), "bundle"))
    plot = ElementTree.fromstring(text[text.rindex("<svg") : text.rindex("</svg>") + 6])
    circles = list(plot.iter("circle"))
    looks = [circle.attrib["class"] for circle in circles]
    assert looks == ["tried", "chosen", "tried", "tried"]
    across = [float(circle.attrib["cx"]) for circle in circles]
    assert across == sorted(across)
    # Better is higher.
    heights = [-float(circle.attrib["cy"]) for circle in circles]
    recalls = [0.5, 0.97, 0.96, 1.0]
    assert sorted(range(4), key=heights.__getitem__) == sorted(range(4), key=recalls.__getitem__)
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
def test_boxes_of_the_picture_lie_apart_hold_their_texts_and_are_joined_by_lines(
    features: int, tables: int
) -> None:
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
    lines = [
        path.attrib["d"] for path in image.iter(f"{SVG}path") if "way" in path.get("class", "")
    ]
    assert lines
    for line in lines:
        numbers = [float(number) for number in re.findall(r"-?[0-9.]+", line)]
        starts = numbers[:2]
        ends = numbers[-2:]
        assert any(box[2] == starts[0] and box[1] <= starts[1] <= box[3] for box in boxes.values())
        assert any(box[0] == ends[0] and box[1] <= ends[1] <= box[3] for box in boxes.values())


def test_bundle_is_explained_as_text_json_page_and_image(command: Command, tmp_path: Path) -> None:
    bundle = write_sample_bundle(tmp_path / "bundles")
    manifest_page = read_manifest(bundle)
    link = tmp_path / "latest.html"
    link.symlink_to("dated.html")
    image = tmp_path / "image.svg"
    done = command("explain", bundle, "--html", link, "--svg", image)
    assert done.code == 0, done.err
    for name in (
        *manifest_page.tables,
        *manifest_page.features,
        *manifest_page.towers,
        *manifest_page.corpora,
    ):
        assert re.search(rf"\b{re.escape(name)}\b", done.out), name
    assert link.is_symlink()
    assert (tmp_path / "dated.html").read_text().startswith("<!doctype html>")
    assert image.read_text().startswith("<svg ")
    report = command("explain", bundle, "--json").json
    assert [feature["name"] for feature in report["features"]] == list(manifest_page.features)
    tables = {table["name"]: (table["rows"], table["dim"]) for table in report["tables"]}
    assert tables == {name: (table.rows, table.dim) for name, table in manifest_page.tables.items()}


def test_recipe_is_explained_by_what_its_bundle_would_hold(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    done = command("explain", write_project(tmp_path, recipe))
    assert done.code == 0, done.err
    output = " ".join(done.out.split())
    for words in (
        "history context, bag, mean; position of the id in movies, else -1",
        "genres_all 9 rows x 4 float32",
        "runs as LiteRT",
        "index movies: query finds movies",
        "filtered by genres, year",
    ):
        assert words in output
    sizes = dict(re.findall(r"(\w+) \w+ tower, (\S+) KiB of weights", output))
    assert set(sizes) == {"query", "candidate", "ranking"}
    assert not (tmp_path / "bundles").exists()
