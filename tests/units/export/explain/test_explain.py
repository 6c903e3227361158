"""What `explain` draws: as text and as a page, of bundles and of recipes, whatever things are
called.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bundle.format import manifest
from bundle.storage.catalog import read_manifest
from export.explain.drawing import draw_bundle
from export.explain.image import explain_image
from export.explain.page import explain_page
from export.explain.picture import draw_svg
from export.explain.text import WIDTH, explain_text
from tests.bundles.sample import write_sample_bundle
from tests.bundles.search_costs import COSTS
from tests.id_graphs import computed_ids, hash_ids
from tests.units.export.commands import Command
from tests.units.export.explain.rankers import HOSTILE, drawn, ranker
from tests.units.export.movies_job import Recipe, changed, write_project


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_bundle(tmp_path_factory.mktemp("sample"))


def test_text_of_a_ranker_shows_rules_parts_and_what_is_inside() -> None:
    text = " ".join(explain_text(drawn(4, 2)).split())
    assert "t1 1,001 rows x 16 float32; 62.6 KiB from model/table" in text
    assert (
        "<- f1 context, single; fingerprint64(the id) mod 1001; unknown: zeros => ranking/trunk"
        in text
    )
    assert "hour context, rows below 24" in text
    assert " towers -> outputs " in text
    assert "-> head0, head1 (ordered by head0^0.7 * head1)" in text
    assert "head-head1, once for each candidate, takes trunk_0; gives head1" in text
    assert "tables of at most 24 rows stay inside the towers, where hour reads them" in text


@pytest.mark.parametrize(("name", "features", "tables"), [("ranker", 6, 2), ("many", 40, 20)])
def test_text_is_the_one_that_was_read(name: str, features: int, tables: int) -> None:
    """Every line and indent. After a change that is meant, read the text, and write the new one to
    the file.
    """
    drawing = drawn(features, tables, default=0)
    stores = ("rows of users in Redis, which holds those that do not fit into memory",)
    recorded = Path(__file__).with_name(f"{name}.txt").read_text()
    assert explain_text(replace(drawing, stores=stores)) == recorded.rstrip("\n")


def test_page_of_hundreds_lists_each_once_folds_the_lists_and_loads_nothing() -> None:
    page = explain_page(drawn(400, 400))
    assert page.count("<details open>") == 1  # the towers
    assert "<summary>402 in all</summary>" in page
    for name in ("f0", "f199", "f399"):
        assert page.count(f"<tr><td>{name}</td>") == 1
    assert [int(count) for count in re.findall(r">(\d+) tables<", page)] == [266, 134]
    assert "takes 402 features: f0, f1, f2, f3, f4, f5, f6, f7 and 394 more" in page
    assert "<script" not in page
    assert HOSTILE in unescape(page)
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)


def test_image_is_one_svg_with_a_background_that_loads_nothing() -> None:
    image = explain_image(drawn(40, 4))
    root = ElementTree.fromstring(image)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    view = [float(number) for number in root.attrib["viewBox"].split()]
    background = next(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert [float(background.attrib[name]) for name in ("x", "y", "width", "height")] == view
    _, height = draw_svg(drawn(40, 4))
    # Above the picture are its name, the totals and the legend.
    assert view[1] + view[3] == round(height + 10)
    assert view[1] == -112
    texts = [
        "".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "wide 3" in texts
    assert {"features", "tables", "towers", "outputs", "looked up once per context"} <= {*texts}
    assert "<script" not in image
    assert not re.search(r"(src|href)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", image)


def test_page_plots_the_curve_of_a_tree_and_marks_the_setting_that_was_chosen() -> None:
    tried = [(0.5, 0.01, 1), (0.97, 0.05, 2), (0.96, 0.09, 3), (1.0, 0.4, 9), (1.0, 0.0, 10)]
    index = manifest.Index(
        corpus="c",
        query_tower="q",
        candidate_tower="c",
        kind="tree_ah",
        distance="dot_product",
        dim=2,
        directory="d",
        vectors="v",
        parameters={"num_leaves": 10, "leaves_to_search": 2},
        recall=manifest.Recall(k=7, value=0.97, low=0.9, queries=9, target=0.95),
        curve=tuple(
            manifest.CostPoint(
                parameters={"leaves_to_search": leaves}, recall=recall, relative_cost=cost
            )
            for recall, cost, leaves in tried
        ),
        costs=COSTS,
    )
    whole = index.model_copy(
        update={"kind": "brute_force", "curve": index.curve[:1], "partitions": 3}
    )
    page = ranker(1, 1).model_copy(update={"indexes": {HOSTILE: index, "whole": whole}})
    text = explain_page(draw_bundle(page, "bundle"))
    plot = text[text.rindex("<svg") : text.rindex("</svg>") + 6]
    circles = list(ElementTree.fromstring(plot).iter("circle"))
    assert [circle.get("class") for circle in circles] == [
        "tried",
        "chosen",
        "tried",
        "tried",
        "tried",
    ]
    assert circles[1][0].text == "leaves_to_search 2: recall@7 0.9700, cost 0.0500"
    positions = [(float(circle.get("cx", 0)), float(circle.get("cy", 0))) for circle in circles]
    assert [x for x, _ in positions[:4]] == sorted(x for x, _ in positions[:4])
    assert [
        positions.index(position)
        for position in sorted(positions, key=lambda position: -position[1])
    ] == [
        0,
        2,
        1,
        3,
        4,
    ]
    assert f"Index {HOSTILE}: recall@7 of settings by cost, target 0.95" in unescape(text)
    # The heading and the label of one index; exact search has no settings to choose.
    assert text.count("of settings by cost") == 2
    assert "<script" not in text
    assert "index whole: q finds c, 3 partitions, recall@7 0.9700" in text


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        (
            {"ids": computed_ids(("Sub", 3), ("FloorDiv", 10), ("Minimum", 5))},
            "min((the id - 3) div 10, 5)",
        ),
        (
            {"ids": hash_ids(9, first_row=1)},
            "(fingerprint64(the id) mod 9) + 1",
        ),
        ({"ids": hash_ids(9, key=(1, 2))}, "siphash(the id) mod 9"),
        ({"place": 1, "places": 26}, "single, value 2 of 26"),
        ({"kind": "bag", "combiner": "mean", "max_norm": 0.5}, "bag, mean, rows clipped to 0.5"),
        (
            {"kind": "bag", "combiner": "sum", "weighted": True, "empty_row": 3},
            "bag, sum, weighted, row 3 if empty",
        ),
        (
            {"table": "", "indicator": 1000},
            "single; indicator of 1000: fingerprint64(the id) mod 1000; unknown: zeros",
        ),
    ],
)
def test_text_shows_what_is_sent_and_what_is_done_to_ids_and_rows(
    changes: dict[str, object], expected_text: str
) -> None:
    assert expected_text.replace(" ", "") in "".join(explain_text(drawn(1, 1, **changes)).split())


def test_explain_of_a_bundle_writes_text_page_and_json(
    command: Command, sample: Path, tmp_path: Path
) -> None:
    done = command("explain", sample, "--html", tmp_path / "page.html")
    page = read_manifest(sample)
    assert done.code == 0, done.err
    assert "features -> tables" in done.out
    assert re.search(
        r"filtered by title \(string, \S+ (B|KiB)\), year \(int64, ", " ".join(done.out.split())
    )
    for name in (*page.tables, *page.features, *page.towers, *page.corpora):
        assert re.search(rf"\b{re.escape(name)}\b", done.out), name
    assert all(len(line) <= WIDTH for line in done.out.splitlines() if "/" not in line)
    assert done.out.endswith(f"\nand as a page: {tmp_path / 'page.html'}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    report = command("explain", sample, "--json").json
    assert [feature["name"] for feature in report["features"]] == list(page.features)
    tables = {table["name"]: (table["rows"], table["dim"]) for table in report["tables"]}
    assert tables == {name: (table.rows, table.dim) for name, table in page.tables.items()}


def test_explain_of_a_recipe_draws_what_its_bundle_would_hold(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    image = tmp_path / "image.svg"
    done = command(
        "explain", write_project(tmp_path, recipe), "--html", tmp_path / "page.html", "--svg", image
    )
    assert done.code == 0, done.err
    assert done.out.endswith(f"\nand as an image: {image}\n")
    assert image.read_text().startswith("<svg ")
    output = " ".join(done.out.split())
    assert (
        "<- history context, bag, mean; position of the id in movies, else -1; unknown: zeros; "
        "may be left out"
    ) in output
    assert "genres_all 9 rows x 4 float32" in output
    assert "runs as LiteRT" in output
    assert dict(re.findall(r"(\w+) \w+ tower, (.*?) of weights", output)) == {
        "query": "7.3 KiB",
        "candidate": "1.4 KiB",
        "ranking": "11.1 KiB",
    }
    assert "index movies: query finds movies" in output
    assert "filtered by genres, year: 4 bytes for each value of a candidate" in output
    assert re.search(
        r"query finds movies; each million of candidates: 45\.8 MiB of disk, at most \S+ \S+ of "
        r"memory",
        output,
    )
    assert not (tmp_path / "bundles").exists()


def test_explain_of_what_it_cannot_draw_exits_with_the_cure(
    command: Command, recipe: Recipe, sample: Path, tmp_path: Path
) -> None:
    assert command("explain", tmp_path).code == 2
    assert command("explain", tmp_path / "no.toml").code == 2
    inline = write_project(tmp_path, changed(recipe, "output.tables", "inline"))
    assert "tables are written inline" in command("explain", inline).message
    done = command("explain", sample, "--html", tmp_path / "no/page.html")
    assert (done.code, "choose a file that can be written" in done.message) == (6, True)
    done = command("explain", sample, "--svg", tmp_path / "no/image.svg")
    assert (done.code, f"--svg {tmp_path / 'no/image.svg'}" in done.message) == (6, True)
    damaged = tmp_path / "movies/1"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_bytes(
        (sample / "manifest.json").read_bytes().replace(b'"rows": 50', b'"rows": 51')
    )
    assert command("explain", damaged).code == 5
