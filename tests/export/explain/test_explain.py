"""What `explain` draws: as text and as a page, of bundles and of recipes, whatever things are called."""

from __future__ import annotations

import json
import re
import stat
from collections import defaultdict
from html import unescape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bundle.format import manifest
from bundle.format.manifest import Manifest, Provenance, Verification
from bundle.storage.staging import read_manifest
from export.explain.boxes import BOXES_MAX
from export.explain.drawing import Drawing, draw_bundle
from export.explain.page import explain_page
from export.explain.text import WIDTH, explain_text
from tests.conftest import write_sample_bundle
from tests.export.commands import Command
from tests.export.exporting import Recipe, changed, write_project

LONG_RULE = manifest.ComputedIds(
    operations=[{"do": do, "by": by} for do, by in (("add", 1), ("multiply", 1_000_003), ("remainder", 99_991))]
)
HOSTILE = "<script>alert(1)</script>\"'&\u202e"


def ranker(features: int, tables: int, outputs: int = 2) -> Manifest:
    """A page of a ranker in parts over many features, each of which reads one of some tables, and some numbers."""
    source = manifest.TableSource(layout="plain", key="model/table/.ATTRIBUTES/VARIABLE_VALUE")
    shard = manifest.Shard(file="t", first_row=0, rows=1000, crc32c=0, blocks=(0,))
    pages: dict[str, manifest.Feature] = {}
    for number in range(features):
        role: manifest.Role = "candidate" if number % 3 == 0 else "context"
        pages[f"f{number}"] = manifest.EmbeddedFeature(
            kind="single",
            table=f"t{number % tables}",
            role=role,
            inputs=(f"input{number}",),
            ids=manifest.HashIds(buckets=1000 + number % tables),
        )
    pages[HOSTILE] = manifest.DenseFeature(kind="dense", role="candidate", shape=(3,), default=[0, 0, 0])
    pages["hour"] = manifest.DenseFeature(kind="dense", role="context", dtype="int64", below=24)

    def tensor(name: str) -> manifest.TowerInput:
        return manifest.TowerInput(name=name, feature=name, dtype="float32", shape=(None, 4))

    made = [manifest.TowerOutput(name=f"head{number}", dtype="float32", shape=(None,)) for number in range(outputs)]
    trunk = manifest.TowerOutput(name="trunk_0", dtype="float32", shape=(None, 8))
    taken = manifest.TowerInput(name="trunk_0", tensor="trunk_0", dtype="float32", shape=(None, 8))
    parts = [
        manifest.TowerPart(name="trunk", per="candidate", inputs=tuple(map(tensor, pages)), outputs=(trunk,), forms=())
    ]
    parts += [
        manifest.TowerPart(name=f"head-{each.name}", per="candidate", inputs=(taken,), outputs=(each,), forms=())
        for each in made
    ]
    tower = manifest.Tower(
        role="ranking",
        inputs=tuple(map(tensor, pages)),
        outputs=tuple(made),
        result="head0",
        forms=(),
        formula="head0^0.7 * head1",
        parts=tuple(parts),
    )
    return Manifest.model_construct(
        model="wide",
        version=3,
        created="",
        provenance=Provenance(checkpoint="c", step=None, fingerprint="", model_code="", exporter="", libraries={}),
        verification=Verification(tables={}, examples=0, tolerance=""),
        tables={
            f"t{number}": manifest.Table.model_construct(
                rows=1000 + number, dim=16, dtype="float32", shards=(shard,), scales=(), source=source
            )
            for number in range(tables)
        },
        features=pages,
        towers={"ranking": tower},
        candidates={},
        contexts={},
        indexes={},
        files=(),
    )


def drawn(features: int, tables: int, **first: object) -> Drawing:
    """The drawing of a ranker whose first feature is changed."""
    page = ranker(features, tables)
    if first:
        page.features["f0"] = page.features["f0"].model_copy(update=first)
    return draw_bundle(page, HOSTILE)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_bundle(tmp_path_factory.mktemp("sample"))


def test_text_of_a_bundle_names_everything_in_narrow_lines(sample: Path) -> None:
    page = read_manifest(sample)
    text = explain_text(draw_bundle(page, "bundle movies/1"))
    for name in (*page.tables, *page.features, *page.towers, *page.candidates):
        assert re.search(rf"\b{re.escape(name)}\b", text), name
    assert all(len(line) <= WIDTH for line in text.splitlines() if "/" not in line)


def test_text_of_a_ranker_shows_rules_parts_and_what_is_inside() -> None:
    text = " ".join(explain_text(drawn(4, 2)).split())
    assert "t1 1 001 rows x 16 float32; 62.6 KiB from model/table" in text
    assert "<- f1 context, single; hash mod 1001; unknown: zeros => ranking/trunk" in text
    assert "hour context, rows below 24" in text
    assert "-> head0, head1 (ordered by head0^0.7 * head1)" in text
    assert "head-head1, once for each candidate, takes trunk_0; gives head1" in text
    assert "tables of at most 24 rows stay inside the towers, where hour reads them" in text


@pytest.mark.parametrize(("features", "tables"), [(0, 0), (1, 1), (30, 7), (400, 400), (900, 3)])
def test_picture_keeps_boxes_apart_and_few(features: int, tables: int) -> None:
    page = explain_page(drawn(features, tables))
    root = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    columns = defaultdict(list)
    for box in root.iter("g"):
        rect = next(iter(box.iter("rect")))
        columns[rect.get("x")].append((float(rect.get("y", 0)), float(rect.get("height", 0))))
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= 1152  # a window of 1200, less its margins
        lines = [float(line.get("y", 0)) for line in box.iter("text")]
        assert lines == sorted(set(lines))
        assert lines[-1] <= float(rect.get("y", 0)) + float(rect.get("height", 0))
    assert sum(map(len, columns.values())) < 40
    for boxes in columns.values():
        boxes.sort()
        assert all(top + height <= below for (top, height), (below, _) in pairwise(boxes))
    highest = max(top + height for boxes in columns.values() for top, height in boxes)
    assert highest <= float(root.get("height", 0))


def test_long_texts_break_within_their_box() -> None:
    page = ranker(40, 10)
    ids = {name: each.model_copy(update={"ids": LONG_RULE}) for name, each in page.features.items() if name[0] == "f"}
    shown = explain_page(draw_bundle(page.model_copy(update={"features": page.features | ids}), "page"))
    lines = re.findall(r'<text class="line"[^>]*>([^<]*)</text>', shown)
    assert max(map(len, lines)) <= 43
    assert any(line.startswith("the id + 1") for line in lines)
    assert any("mod 99991" in line for line in lines)


def test_boxes_stay_few_where_every_table_is_of_another_shape() -> None:
    page = ranker(400, 200)
    kinds: list[dict[str, object]] = [{}, {"kind": "bag", "combiner": "mean"}, {"kind": "sequence", "length": 5}]
    tables = {
        name: table.model_copy(update={"dim": 1 + place}) for place, (name, table) in enumerate(page.tables.items())
    }
    for number in range(400):
        feature = page.features[f"f{number}"]
        page.features[f"f{number}"] = feature.model_copy(update=kinds[number // 3 % 3])
    text = explain_text(draw_bundle(page.model_copy(update={"tables": tables}), "r"))
    groups = [int(count) for count in re.findall(r"(\d+) tables  t", text)]
    assert len(groups) <= BOXES_MAX
    assert sum(groups) == 200
    assert sum(map(int, re.findall(r"<- (\d+) features", text))) == 400


def test_page_of_hundreds_lists_each_once_folds_the_lists_and_loads_nothing() -> None:
    page = explain_page(drawn(400, 400))
    assert page.count("<details open>") == 1  # the towers
    assert "<summary>402 in all</summary>" in page
    for name in ("f0", "f199", "f399"):
        assert page.count(f"<tr><td>{name}</td>") == 1
    assert "<title>" in page
    assert [int(count) for count in re.findall(r">(\d+) tables<", page)] == [266, 134]
    assert "takes 402 features: f0, f1, f2, f3, f4, f5, f6, f7 and 394 more" in page
    assert "<script" not in page
    assert HOSTILE in unescape(page)
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (manifest.ComputedIds(operations=[{"do": "add", "by": -1}]), "the id - 1"),
        (
            manifest.ComputedIds(
                operations=[
                    {"do": "absolute"},
                    {"do": "add", "by": -3},
                    {"do": "int32"},
                    {"do": "remainder", "by": 7},
                    {"do": "at_most", "by": 5},
                ]
            ),
            "the id without its sign, - 3, wrapped to int32, mod 7, at most 5",
        ),
        (
            manifest.ComputedIds(
                operations=[
                    {"do": "add", "by": 2},
                    {"do": "divide", "by": 10},
                    {"do": "remainder", "by": 7},
                    {"do": "add", "by": 3},
                ]
            ),
            "the id + 2, div 10, mod 7, + 3",
        ),
        (manifest.HashIds(buckets=9, first_row=1, mask=""), "hash mod 9, from row 1, but '' is row 0"),
        (manifest.HashIds(buckets=9, key=(1, 2)), "hash with a key mod 9"),
    ],
)
def test_drawing_says_what_is_done_to_ids(rule: manifest.IdRule, words: str) -> None:
    assert drawn(1, 1, ids=rule).features[0].ids == words


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"place": 1, "places": 26}, "single, value 2 of 26"),
        ({"kind": "bag", "combiner": "mean", "max_norm": 0.5}, "bag, mean, rows clipped to 0.5"),
        ({"kind": "bag", "combiner": "sum", "weighted": True, "empty_row": 3}, "bag, sum, weighted, row 3 if empty"),
        ({"table": "", "indicator": 1000}, "single; indicator of 1000: hash mod 1000; unknown: zeros"),
    ],
)
def test_text_shows_what_is_sent_and_how_rows_are_combined(changes: dict[str, object], kind: str) -> None:
    drawing = drawn(1, 1, **changes)
    assert drawing.features[0].kind == kind
    assert kind.replace(" ", "") in "".join(explain_text(drawing).split())


def test_explain_of_a_bundle_writes_text_page_and_json(command: Command, sample: Path, tmp_path: Path) -> None:
    done = command("explain", sample, "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "features -> tables" in done.out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert done.out.endswith(f"\nand as a page: {tmp_path / 'page.html'}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    done = command("explain", sample, "--json")
    assert done.code == 0, done.err
    shown, page = json.loads(done.out), read_manifest(sample)
    assert [each["name"] for each in shown["features"]] == list(page.features)
    assert {each["name"]: (each["rows"], each["dim"]) for each in shown["tables"]} == {
        name: (table.rows, table.dim) for name, table in page.tables.items()
    }
    assert {each["name"]: each["result"] for each in shown["towers"]} == {
        name: tower.result for name, tower in page.towers.items()
    }


def test_explain_of_a_recipe_draws_what_its_bundle_would_hold(command: Command, recipe: Recipe, tmp_path: Path) -> None:
    done = command("explain", write_project(tmp_path, recipe), "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "<- history context, bag, mean; place in vocabulary movies; unknown: zeros; may be left out" in told
    assert "genres_all 9 rows x 4 float32" in told
    assert "index movies: query finds movies" in told
    assert not (tmp_path / "bundles").exists()


def test_explain_of_what_it_cannot_draw_exits_with_the_cure(
    command: Command, recipe: Recipe, sample: Path, tmp_path: Path
) -> None:
    assert command("explain", tmp_path).code == 2
    assert command("explain", tmp_path / "no.toml").code == 2
    inline = write_project(tmp_path, changed(recipe, "output.tables", "inline"))
    assert "keeps its tables inside" in command("explain", inline).told
    done = command("explain", sample, "--html", tmp_path / "no/page.html")
    assert (done.code, "choose a file that can be written" in done.told) == (6, True)
    damaged = tmp_path / "movies/1"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_bytes(
        (sample / "manifest.json").read_bytes().replace(b'"rows": 50', b'"rows": 51')
    )
    (damaged / "manifest.json").chmod(stat.S_IRUSR)
    assert command("explain", damaged).code == 5
