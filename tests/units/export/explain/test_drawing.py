"""The fields of each feature, table, tower and store of a bundle's drawing."""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format import manifest
from bundle.format.manifest import AttributeIndex, Corpus, File, Manifest
from export.explain.drawing import (
    NAMES_MAX,
    Drawing,
    FeatureNode,
    PartNode,
    TowerNode,
    draw_bundle,
    shortened,
)
from export.explain.page import explain_page
from tests.bundles.search_costs import COSTS
from tests.id_graphs import vocabulary_ids
from tests.units.export.explain.rankers import ranker

KEY = "model/table/.ATTRIBUTES/VARIABLE_VALUE"


def drawn_with(**parts: object) -> Drawing:
    return draw_bundle(ranker(1, 1).model_copy(update=parts), "bundle")


def feature_of(changes: dict[str, Any]) -> FeatureNode:
    page = ranker(1, 1)
    page.features["f0"] = page.features["f0"].model_copy(update=changes)
    return draw_bundle(page, "bundle").features[0]


VOCABULARY = vocabulary_ids("words")
CROSS = manifest.CrossedIds(
    buckets=50,
    keys=(
        manifest.CrossKey(dtype="string", role="candidate"),
        manifest.CrossKey(dtype="string", role="candidate"),
    ),
)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "single"),
        ({"kind": "bag", "combiner": "sqrtn"}, "bag, sqrtn"),
        ({"kind": "sequence", "length": 5}, "sequence of 5"),
        ({"kind": "bag", "combiner": "sum", "weighted": True}, "bag, sum, weighted"),
        ({"place": 0, "places": 4}, "single, value 1 of 4"),
        ({"place": 3, "places": 4}, "single, value 4 of 4"),
        (
            {"kind": "bag", "combiner": "sum", "max_norm": 2.0, "empty_row": 0},
            "bag, sum, rows clipped to 2, row 0 if empty",
        ),
    ],
)
def test_kind_of_a_feature_tells_what_is_sent_and_how_rows_are_combined(
    changes: dict[str, Any], kind: str
) -> None:
    assert feature_of(changes).kind == kind


@pytest.mark.parametrize(
    ("changes", "rule", "ids"),
    [
        ({"ids": manifest.IdentityIds()}, "identity", "the id is the row"),
        (
            {"ids": manifest.IdentityIds(), "from_end": True},
            "identity",
            "the id is the row, below 0 from the end",
        ),
        ({"ids": manifest.KeyedIds(keys="f0")}, "keyed", "key of table t0"),
        (
            {"ids": CROSS, "inputs": ("left", "right")},
            "crossed",
            "cross of left and right mod 50",
        ),
        (
            {"ids": VOCABULARY},
            "graph",
            "position of the id in words, else -1",
        ),
    ],
)
def test_rule_of_a_feature_is_told_in_full(changes: dict[str, Any], rule: str, ids: str) -> None:
    drawn = feature_of(changes)
    assert (drawn.rule, drawn.ids) == (rule, ids)


def test_feature_tells_unknown_ids_defaults_and_who_takes_it() -> None:
    plain = feature_of({})
    assert plain.unknown == "zeros"
    assert not plain.default
    assert plain.inputs == ("f0",)
    assert plain.taken_by == ("ranking/trunk",)
    changed = feature_of({"unknown": manifest.Unknown(rule="row", row=7), "default": 0})
    assert changed.unknown == "row 7"
    assert changed.default
    assert feature_of({"unknown": manifest.Unknown(rule="refuse")}).unknown == "refuse"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "float32"),
        ({"shape": (3, 2)}, "float32 [3, 2]"),
        ({"below": 24, "dtype": "int64"}, "rows below 24"),
        ({"take": "lengths"}, "how many ids"),
        ({"take": "padded", "shape": (9,), "dtype": "int64"}, "bag of int64, 9 at most"),
        ({"take": "weights", "shape": (9,)}, "weights of a bag, 9 at most"),
    ],
)
def test_kind_of_numbers_tells_their_shape_or_what_they_are(
    changes: dict[str, Any], kind: str
) -> None:
    page = ranker(1, 1)
    page.features["hour"] = manifest.DenseFeature(kind="dense", role="context", **changes)
    drawn = draw_bundle(page, "bundle").features[-1]
    assert (drawn.name, drawn.kind, drawn.table, drawn.rule) == ("hour", kind, "", "")


def feature(name: str, table: str) -> FeatureNode:
    return FeatureNode(name, (name,), "context", "single", table, "", "", "zeros", False, ())


@pytest.mark.parametrize(
    ("name", "table", "label"),
    [("age@users", "users", "age"), ("age", "users", "age"), ("age@", "", "age@")],
)
def test_label_of_a_feature_lacks_its_table(name: str, table: str, label: str) -> None:
    assert feature(name, table).label == label


def test_each_limit_of_numbers_that_stay_inside_is_told_in_one_line() -> None:
    page = ranker(1, 1)
    day = manifest.DenseFeature(kind="dense", role="context", dtype="int64", below=31)
    page.features["day"] = day
    assert draw_bundle(page, "bundle").stays == (
        "tables of at most 31 rows stay inside the towers, where hour, day read them",
    )
    del page.features["day"]
    assert draw_bundle(page, "bundle").stays == (
        "tables of at most 24 rows stay inside the towers, where hour reads them",
    )


def test_bundle_without_numbers_inside_says_nothing_of_them() -> None:
    page = ranker(1, 1)
    hour = page.features["hour"].model_copy(update={"below": None})
    page.features["hour"] = hour
    assert draw_bundle(page, "bundle").stays == ()


def table(dtype: Any, **source: Any) -> manifest.Table:
    origin = manifest.TableSource.model_construct(
        **{"layout": "plain", "key": KEY, "stated": False, **source}
    )
    return manifest.Table.model_construct(rows=10, dim=4, dtype=dtype, segments=(), source=origin)


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 160), ("bfloat16", 80), ("int8", 10 * (4 + 4))]
)
def test_bytes_of_a_table_are_those_of_its_rows_and_their_scales(dtype: str, size: int) -> None:
    drawing = drawn_with(tables={"t0": table(dtype), "t1": table("float32")})
    assert [table.bytes for table in drawing.tables] == [size, 160]
    assert drawing.bytes == size + 160


@pytest.mark.parametrize(
    ("source", "expected_text"),
    [
        ({}, "model/table"),
        ({"layout": "sparse_core"}, "model/table, sparse core"),
        ({"layout": "mod", "stated": True}, "model/table, mod, stated layout"),
        ({"key": "params.users"}, "params.users"),
    ],
)
def test_source_of_a_table_tells_key_and_layout(source: dict[str, Any], expected_text: str) -> None:
    (drawn,) = drawn_with(tables={"t0": table("float32", **source)}).tables
    assert drawn.source == expected_text
    assert drawn.read_by == ("f0",)


def form(kind: str, precision: str, **errors: float) -> manifest.TowerForm:
    path = f"towers/ranking/{kind}-{precision}"
    return manifest.TowerForm.model_validate(
        {"kind": kind, "precision": precision, "path": path, "max_abs_error": errors}
    )


FILES = (
    File(path="towers/ranking/saved_model-f32/saved_model.pb", bytes=100, crc32c=0),
    File(path="towers/ranking/saved_model-f32/variables/variables.index", bytes=20, crc32c=0),
    File(path="towers/ranking/litert-f32", bytes=50, crc32c=0),
    File(path="towers/ranking/litert-int8", bytes=9, crc32c=0),
    File(path="corpora/c.arrow", bytes=1000, crc32c=0),
)
SAVED = form("saved_model", "f32")
COMPILED = form("litert", "f32", score=1.5e-6, other=0.5e-6)
NARROW = form("litert", "int8", score=0.125)


def tower_of(forms: tuple[manifest.TowerForm, ...], serve: str = "f32") -> TowerNode:
    tower = ranker(1, 1).towers["ranking"].model_copy(update={"forms": forms, "serve": serve})
    (drawn,) = drawn_with(towers={"ranking": tower}, files=FILES).towers
    return drawn


@pytest.mark.parametrize(
    ("forms", "serve", "size"),
    [
        ((SAVED, COMPILED, NARROW), "f32", 50),
        ((SAVED, COMPILED, NARROW), "int8", 9),
        ((SAVED,), "f32", 120),
        ((SAVED, NARROW), "f32", 120),
        ((SAVED,), "bf16", 0),
    ],
)
def test_bytes_of_a_tower_are_those_of_the_form_that_is_served(
    forms: tuple[manifest.TowerForm, ...], serve: str, size: int
) -> None:
    assert tower_of(forms, serve).bytes == size


def test_forms_of_a_tower_are_told_with_their_largest_difference() -> None:
    assert tower_of((SAVED, COMPILED, NARROW)).runs == (
        "SavedModel f32, differs by 0 at most",
        "LiteRT f32, differs by 1.5e-06 at most",
        "LiteRT int8, differs by 0.12 at most",
    )


def test_tower_without_parts_is_one_part_itself() -> None:
    tower = ranker(1, 1).towers["ranking"].model_copy(update={"parts": (), "formula": None})
    (drawn,) = drawn_with(towers={"ranking": tower}).towers
    (part,) = drawn.parts
    assert (drawn.formula, drawn.result, drawn.outputs) == ("", "head0", ("head0", "head1"))
    assert (part.name, part.label, part.per) == ("ranking", "", "")
    assert part.gives == ("head0", "head1")
    assert len(part.features) == 3


def test_part_is_told_with_what_it_takes_and_gives() -> None:
    names = tuple(f"f{number}" for number in range(NAMES_MAX + 2))
    part = PartNode("rank/head", "candidate", names[:NAMES_MAX], ("trunk_0",), ("score",))
    assert str(part) == (
        "head, once for each candidate, takes trunk_0, f0, f1, f2, f3, f4, f5, f6, f7; gives score"
    )
    many = PartNode("rank/head", "context", names, (), ("a", "b"))
    assert str(many) == (
        "head, once for each context, takes 10 features: f0, f1, f2, f3, f4, f5, f6, f7 and 2 "
        "more; gives a, b"
    )
    nine = PartNode("rank", "", names[: NAMES_MAX + 1], (), ())
    assert str(nine) == "takes 9 features: f0, f1, f2, f3, f4, f5, f6, f7, f8"
    assert str(PartNode("rank", "", (), (), ("score",))) == "takes nothing"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "a"), (2, "a, b"), (3, "a, b, c"), (4, "a, b and 2 more")],
)
def test_shortened_names_all_but_for_two_or_more(count: int, text: str) -> None:
    assert shortened("abcd"[:count], 2) == text


def test_totals_count_each_input_once() -> None:
    page = ranker(3, 2)
    for name in ("f0", "f1"):
        page.features[name] = page.features[name].model_copy(update={"inputs": ("user",)})
    tower = page.towers["ranking"].model_copy(update={"forms": (COMPILED,)})
    drawing = draw_bundle(
        page.model_copy(update={"towers": {"ranking": tower}, "files": FILES}), "bundle"
    )
    assert drawing.totals == [
        ("4", "inputs"),
        ("5", "features"),
        ("2", "tables"),
        ("1", "tower"),
        ("125.1 KiB", "of table rows"),
        ("50 B", "of tower weights"),
    ]


def test_stores_are_told_with_their_ids_and_the_size_of_their_filters() -> None:
    filters = {
        "year": AttributeIndex(values="year.values", rows="year.rows"),
        "title": AttributeIndex(values="title.values", rows="title.rows"),
    }
    movies = Corpus(
        file="movies.arrow",
        size=1200,
        id_dtype="int64",
        features=(),
        attributes={"year": "int64", "title": "string"},
        filters=filters,
    )
    users = movies.model_copy(update={"size": 7, "id_dtype": "string", "filters": {}})
    sizes = {"year.values": 100, "year.rows": 11, "title.rows": 2048}
    files = tuple(File(path=path, bytes=size, crc32c=0) for path, size in sizes.items())
    drawing = drawn_with(corpora={"movies": movies}, contexts={"users": users}, files=files)
    assert drawing.stores == (
        "corpus movies: 1200 by int64 id, filtered by year (int64, 111 B), title (string, 2.0 KiB)",
        "contexts users: 7 by string id",
    )


def index(points: int, partitions: int = 1) -> manifest.Index:
    return manifest.Index(
        corpus="movies",
        query_tower="query",
        candidate_tower="movie",
        kind="tree_ah",
        distance="dot_product",
        dim=2,
        directory="d",
        vectors="v",
        parameters={"num_leaves": 10, "leaves_to_search": 1, "reorder": 5},
        recall=manifest.Recall(k=7, value=0.97, low=0.9, queries=9, target=0.95),
        curve=tuple(
            manifest.CostPoint(
                parameters={"leaves_to_search": leaves, "reorder": 5},
                recall=0.5,
                relative_cost=0.1,
            )
            for leaves in range(points)
        ),
        costs=COSTS,
        partitions=partitions,
    )


def test_index_is_told_and_plotted_where_two_or_more_settings_were_tried() -> None:
    drawing = drawn_with(indexes={"two": index(2), "one": index(1, partitions=3)})
    assert drawing.stores == (
        "index two: query finds movies, recall@7 0.9700",
        "index one: query finds movies, 3 partitions, recall@7 0.9700",
    )
    (curve,) = drawing.curves
    assert (curve.index, curve.k, curve.target) == ("two", 7, 0.95)
    assert curve.points == (
        (0.5, 0.1, "leaves_to_search 0, reorder 5"),
        (0.5, 0.1, "leaves_to_search 1, reorder 5"),
    )
    assert curve.chosen == "leaves_to_search 1, reorder 5"


def page_of(count: int) -> str:
    return explain_page(draw_bundle(ranker(count, 1), "bundle"))


def test_lists_of_up_to_30_rows_are_open() -> None:
    # Two more are numbers.
    assert "<h2>Features</h2><details open><summary>30 in all</summary>" in page_of(28)
    assert "<h2>Features</h2><details><summary>31 in all</summary>" in page_of(29)


def test_cells_of_the_page_are_written_for_reading() -> None:
    page = ranker(1, 1)
    page.features["f0"] = page.features["f0"].model_copy(update={"default": 0})
    text = explain_page(draw_bundle(page, "bundle"))
    assert (
        "<tr><td>t0</td><td class=n>1,000</td><td class=n>16</td><td>float32</td>"
        "<td class=n>62.5 KiB</td><td>f0</td><td>model/table</td></tr>"
    ) in text
    assert (
        "<tr><td>f0</td><td>f0</td><td>candidate</td><td>single</td><td>t0</td><td>graph</td>"
        "<td>fingerprint64(the id) mod 1000</td><td>zeros</td><td>yes</td>"
        "<td>ranking/trunk</td></tr>"
    ) in text
    assert (
        "<tr><td>hour</td><td>hour</td><td>context</td><td>rows below 24</td><td></td><td></td>"
        "<td></td><td></td><td></td><td>ranking/trunk</td></tr>"
    ) in text
    assert "trunk, once for each candidate, takes f0, &lt;script&gt;" in text
    head = "head-head0, once for each candidate, takes trunk_0; gives head0"
    assert f"; gives trunk_0\n{head}\n" in text


def manifest_without_stores() -> Manifest:
    page = ranker(1, 1)
    del page.features["hour"]
    feature_names = page.features.keys()
    tower = page.towers["ranking"]
    inputs = tuple(tensor for tensor in tower.inputs if tensor.feature in feature_names)
    parts = (tower.parts[0].model_copy(update={"inputs": inputs}), *tower.parts[1:])
    changed = tower.model_copy(update={"inputs": inputs, "parts": parts})
    return page.model_copy(update={"towers": {"ranking": changed}})


def test_page_says_where_nothing_stays_inside_and_leaves_out_what_there_is_none_of() -> None:
    text = explain_page(draw_bundle(manifest_without_stores(), "bundle"))
    assert "<li>Nothing: every table is outside.</li>" in text
    assert "Stores and indexes" not in text


def test_high_picture_is_printed_upright() -> None:
    assert "landscape" in page_of(1)
    assert "portrait" not in page_of(1)
    high = explain_page(draw_bundle(ranker(16, 16), "bundle"))
    assert "portrait" in high
