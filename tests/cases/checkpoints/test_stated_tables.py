"""What the user states of a checkpoint: names of variables, layout files, the `mod` strategy; and
layouts that lie beside the stacks of a checkpoint.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cases.checkpoints.inspections import Write, inspected, rejected, run
from tests.cases.checkpoints.layout_files import (
    KEY,
    SPEC_TEXT,
    STACK,
    TOML,
    spec_bytes,
    write_documented,
)
from tests.cases.checkpoints.written import (
    COUNT,
    STACKED,
    TABLE,
    Leaf,
    leaves,
    names,
    objects,
    stacks,
)
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import SUFFIX

NINE = np.zeros((9, 4), np.float32)
LAYOUT = "its layout is stated"
SPEC = {
    "users": (
        1000,
        {"kind": "sparse_core", "cores": 8, "core_rows": 240, "offset": 0, "rotation": 0},
    ),
    "items": (
        503,
        {"kind": "sparse_core", "cores": 8, "core_rows": 240, "offset": 128, "rotation": 4},
    ),
}
"""The rows and the layout of each table of the example."""


def layout_option(
    directory: Path, content: str | bytes | dict[str, Any], name: str = ""
) -> list[Any]:
    """Writes a layout file; returns the option that names it."""
    if isinstance(content, dict):
        content = json.dumps({"tables": content})
        name = "l.json"
    path = directory / (name or "l.toml")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return ["--layout", path]


def shapes(page: dict[str, Any]) -> dict[str, Any]:
    return {name: (table["rows"], table["layout"]) for name, table in page["tables"].items()}


def test_layout_file_of_the_docs_reads_as_documented(tmp_path: Path) -> None:
    page = inspected(write_documented(tmp_path), *layout_option(tmp_path, TOML))
    assert shapes(page) == SPEC | {
        "ages": (100, {"kind": "plain"}),
        "genres": (10, {"kind": "mod", "starts": [0, 3, 6, 8]}),
    }
    tables = page["tables"]
    assert {table["origin"] for table in tables.values()} == {"layout file"}
    # Without the statement, the rows of a plain variable come out in the same order.
    stated = [name for name, table in tables.items() if table["stated"]]
    assert stated == ["genres", "items", "users"]
    assert [name for name, table in tables.items() if LAYOUT in (table["note"] or "")] == stated
    assert tables["ages"]["slots"] == ["Adam"]
    assert [(table["name"], "ids that occur" in table["reason"]) for table in page["rejected"]] == [
        ("words", True)
    ]


@pytest.mark.parametrize("key", ["params.users_items.table", "users_items", "emb/users_items/0"])
@pytest.mark.parametrize("name", ["s.textproto", "s.pbtxt", "s.txtpb", "s.pb", "s.binpb"])
def test_embedding_spec_gives_the_layout_of_the_variable_named_like_its_stack(
    name: str, key: str, tmp_path: Path
) -> None:
    spec = spec_bytes() if name in {"s.pb", "s.binpb"} else SPEC_TEXT
    page = inspected(write_documented(tmp_path, key), *layout_option(tmp_path, spec, name))
    assert shapes(page) == SPEC
    described = {
        (table["key"], table["origin"], table["stated"]) for table in page["tables"].values()
    }
    assert described == {(key, "embedding spec", False)}


def changed_toml(before: str, after: str) -> tuple[str, str]:
    return "l.toml", TOML.replace(before, after, 1)


def changed_spec(before: str, after: str) -> tuple[str, str]:
    return "l.textproto", SPEC_TEXT.replace(before, after)


def of_a(**fields: Any) -> tuple[str, str]:
    """Returns a layout file of a table `a`."""
    return "l.json", json.dumps({"tables": {"a": {"key": "ages", **fields}}})


BAD_LAYOUTS: dict[str, tuple[int, tuple[str, str | bytes], str]] = {
    "no key": (2, ("l.toml", "[tables.a]\nkind = 'plain'"), "'tables.a.key' is missing"),
    "another kind": (2, of_a(kind="mud"), "tables.a.kind"),
    "another field": (2, of_a(kind="plain", row=3), "did you mean 'rows'"),
    "field of a stack": (2, of_a(kind="plain", cores=3), "'cores' is no key"),
    "stack without rows": (2, of_a(kind="sparse_core", cores=3), "needs 'rows', 'dim'"),
    "no partitions": (2, of_a(kind="mod", partitions=0), "greater than 0"),
    "no text": (2, ("l.toml", b"\xff"), "docs/reference/layouts.md"),
    "table twice": (2, ("l.json", '{"tables": {"a": {}, "a": {}}}'), "'a' stands there twice"),
    "another suffix": (2, ("l.yaml", "tables: {}"), ".yaml"),
    "no message": (2, ("l.pb", b"\x0a\xff"), "EmbeddingSpecProto"),
    "message cut short": (2, ("l.textproto", "stacked_table_specs {"), "text format"),
    "message of another release": (
        2,
        changed_spec("stack_name", "row_order: 1 stack_name"),
        "unknown: StackedTableSpecProto.row_order",
    ),
    "no cores": (2, changed_spec("num_sparsecores: 8", ""), "1920 rows on 0 cores"),
    "rows that cores do not share": (2, changed_spec("1920", "1921"), "of 1921 rows"),
    "two tables of one name": (2, changed_spec('"items"', '"users"'), "'users' twice"),
    "table without rows": (2, changed_spec("503", "0"), "[0, 16]"),
    "offset below zero": (2, changed_spec("shard: 128", "shard: -8"), "-8"),
    # What contradicts the variables.
    "tables that overlap": (4, changed_toml("offset = 128", "offset = 120"), "overlap"),
    "cores of two numbers": (4, changed_toml("cores = 8\noffset", "cores = 5\noffset"), "5"),
    "more rows than a core's": (4, changed_toml("rows = 1000", "rows = 2000"), "rows 0 to 250"),
    "more rows": (4, changed_toml("rows = 100\n", "rows = 129\n"), "[129, 16]"),
    "fewer rows of mod": (4, changed_toml('kind = "mod"', 'kind = "mod"\nrows = 5'), "[5, 16]"),
    "variable of two tables": (4, changed_toml('key = "genres"', f'key = "{KEY}"'), "stack share"),
    "key that is not there": (4, changed_toml('key = "genres"', 'key = "genre"'), "'genres'"),
    "slot variable": (4, changed_toml('key = "ages"', 'key = "ages/Adam"'), "slot variable"),
    "rotation of as many as cores": (
        4,
        of_a(kind="sparse_core", rows=4, dim=4, cores=4, rotation=4),
        "rotated by 4",
    ),
    "mod of one slice": (4, changed_toml("partitions = 4", ""), "1 row range"),
    "stack that is not there": (4, ("l.textproto", SPEC_TEXT), "no variable 'users_items'"),
}


@pytest.mark.parametrize("case", BAD_LAYOUTS)
def test_layout_file_that_is_wrong_is_rejected(case: str, tmp_path: Path) -> None:
    code, (name, content), words = BAD_LAYOUTS[case]
    key = "other" if case == "stack that is not there" else KEY
    path = write_documented(tmp_path, key)
    assert words in rejected(path, *layout_option(tmp_path, content, name), code=code)


def stack(key: str, **changes: Any) -> dict[str, Any]:
    return {"key": key, "kind": "sparse_core", "rows": 4, "dim": 4, "cores": 3, **changes}


VARIABLES = names(["v", "w", "user/embeddings", "v/Adam", "v/ExponentialMovingAverage"])
OBJECT = objects(
    {"e": {"table": Leaf("e/t", values=NINE, cut=[3, 3, 3])}, "step": Leaf("s", values=COUNT)}
)
V = names({"v": NINE})
NAMED: list[tuple[Write, list[str], dict[str, Any], dict[str, str]]] = [
    (VARIABLES, ["--table=a=v", "--table=b=w"], {}, {"a": "v", "b": "w"}),
    (VARIABLES, ["--table=people=user"], {}, {"people": "user/embeddings"}),
    (VARIABLES, ["--table=user=v", "--table=b=user"], {}, {"user": "v", "b": "user/embeddings"}),
    (
        VARIABLES,
        ["--table=a=v/ExponentialMovingAverage"],
        {},
        {"a": "v/ExponentialMovingAverage"},
    ),
    (OBJECT, ["--table=a=e/t"], {}, {"a": f"e/t{SUFFIX}"}),
    (OBJECT, ["--table=a=e.table"], {}, {"a": f"e/t{SUFFIX}"}),
    (
        names(["items", "layer/items/embeddings"]),
        ["--table=a=items"],
        {},
        {"a": "items", "items": "layer/items/embeddings"},
    ),
    (stacks(*STACKED), ["--table=people=users"], {}, {"people": f"e/users_items{SUFFIX}"}),
    (
        names(["layer/embeddings"]),
        ["--table=people=users"],
        {"users": {"key": "layer/embeddings", "kind": "plain", "rows": 5}},
        {"people": "layer/embeddings"},
    ),
    (V, [], {"b": stack("v", rows=6), "a": stack("v", rows=3, offset=2)}, {"a": "v", "b": "v"}),
    *(
        (names([*keys, "b/s_2/bias"]), [], {"a": stack("s", dim=3, cores=2)}, {"a": keys[0]})
        for keys in (
            ["a/s/table", "a/s/other"],
            ["a/s", "a/s/other"],
            ["a.s.0"],
            ["var:s:table"],
        )
    ),
    (
        leaves(["sc_embedding_variables.users.table"]),
        [],
        {"users": {"key": "users", "kind": "plain", "rows": 5}},
        {"users": "sc_embedding_variables.users.table"},
    ),
]


@pytest.mark.parametrize(("write", "options", "layouts", "tables"), NAMED)
def test_variable_has_the_name_that_its_user_states(
    write: Write,
    options: list[str],
    layouts: dict[str, Any],
    tables: dict[str, str],
    tmp_path: Path,
) -> None:
    if layouts:
        options = [*options, *layout_option(tmp_path, layouts)]
    page = inspected(write(tmp_path), *options)
    keys = {name: table["key"] for name, table in page["tables"].items()}
    assert tables.items() <= keys.items()
    assert keys.keys() - tables.keys() <= {"user", "items"}


BAD_NAMES: list[tuple[Write, list[str], dict[str, Any], str]] = [
    (VARIABLES, ["--table=a=v", "--table=b=v"], {}, "'a' and 'b'"),
    (VARIABLES, ["--table=a=v/Adam"], {}, "slot variable (Adam of v)"),
    (VARIABLES, ["--table=a=usr"], {}, "did you mean 'user'"),
    (VARIABLES, ["--table=a=zzz"], {}, "those with the shape of a table: v [8, 3]"),
    (names({"v": NINE[0]}), ["--table=a=v"], {}, "the shape [4]"),
    (names({"v": NINE[:0]}), [], {"a": {"key": "v", "kind": "plain"}}, "the shape [0, 4]"),
    (stacks(*STACKED), ["--table=a=e/users_items"], {}, "items, users"),
    (
        stacks(STACKED[0]._replace(stack="a"), values={"a": np.zeros((128, 8), "f4"), "b": TABLE}),
        ["--table=a=e/b"],
        {},
        "cannot be exported",
    ),
    (
        stacks(*STACKED),
        [],
        {"all": {"key": "e/users_items", "kind": "plain"}},
        "contradicts what the checkpoint records",
    ),
    (names(["v/Adam", "v"]), [], {"a": stack("Adam")}, "no variable 'Adam'"),
    (names(["a/s_2/t", "my_s"]), [], {"a": stack("s")}, "no variable 's'"),
    (names([f"a/s/{n}" for n in range(9)]), [], {"a": stack("s")}, "several variables"),
    (names(["a/s/table"]), ["--table=a=s"], {}, "no variable 's'"),
    (V, ["--table=a=v", "--mod=x"], {}, "no table 'x'"),
    (V, ["--mod=a"], {"a": {"key": "v", "kind": "plain", "dim": 3}}, "the layout plain"),
    (V, ["--mod=a"], {"a": stack("v")}, "the layout sparse_core"),
    *(
        (names({"v": NINE}, v=cut), ["--table=a=v", "--mod=a"], {}, f"{len(cut)} row range")
        for cut in ([9], [4, 5], [4, 3, 2], [2, 1, 1, 1, 1, 1, 2])
    ),
    *(
        (
            names({"v": NINE}, v=cut),
            [],
            {"a": {"key": "v", "kind": "mod", "partitions": partitions}},
            f"{partitions} partitions",
        )
        for cut, partitions in (([5, 4], 3), ([3, 3, 3], 2))
    ),
]


@pytest.mark.parametrize(("write", "options", "layouts", "words"), BAD_NAMES)
def test_statement_that_a_checkpoint_contradicts_exits_4(
    write: Write, options: list[str], layouts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    if layouts:
        options = [*options, *layout_option(tmp_path, layouts)]
    assert words in rejected(write(tmp_path), *options, code=4)


@pytest.mark.parametrize(
    ("write", "partitions", "starts"),
    [
        (V, 4, [0, 3, 5, 7]),
        (V, 12, list(range(9))),
        (names({"v": NINE}, v=[3, 3, 3]), 3, [0, 3, 6]),
        (names({"v": NINE}, v=[5, 4]), None, [0, 5]),
        (names({"v": NINE}, v=[3, 2, 2, 2]), None, [0, 3, 5, 7]),
        # Slices of an object are no partitions.
        (OBJECT, 2, [0, 5]),
    ],
)
def test_mod_deals_rows_to_partitions(
    write: Write, partitions: int | None, starts: list[int], tmp_path: Path
) -> None:
    key = "e/t" if write is OBJECT else "v"
    path = write(tmp_path)
    table = {"key": key, "kind": "mod"} | ({"partitions": partitions} if partitions else {})
    options = [layout_option(tmp_path, {"a": table})]
    if partitions is None:
        options.append([f"--table=a={key}", "--mod=a"])
    for option in options:
        assert inspected(path, *option)["tables"]["a"]["layout"]["starts"] == starts


RECORDED = {
    "embed.embedding_table.value.users_items.table": STACK,
    "embed.embedding_table.value.users_items.slot.accumulator": STACK,
}


def step(
    root: Path,
    spec: str = SPEC_TEXT,
    values: Any = None,
    item: str = "embedding_spec",
    **options: Any,
) -> Path:
    """Writes a step as jax-tpu-embedding's save_checkpoint does."""
    write_item(root / "7" / "model", values or RECORDED, **options)
    write_item(root / "7" / "optimizer", {"mu": np.zeros(3, np.float32)})
    (root / "7" / item).mkdir()
    (root / "7" / item / "proto.pbtxt").write_text(spec)
    (root / "7" / "_CHECKPOINT_METADATA").write_text('{"commit_timestamp_nsecs": 2}')
    return root


@pytest.mark.parametrize("spec", ["", "some_field: 3", SPEC_TEXT.replace("users_items", "others")])
def test_stack_without_a_recorded_layout_needs_a_layout_file(tmp_path: Path, spec: str) -> None:
    page = inspected(step(tmp_path, spec))
    assert (page["tables"], [table["name"] for table in page["rejected"]]) == ({}, ["users_items"])
    # One of another item counts as well, and one of no stack is not read.
    (tmp_path / "7/more").mkdir()
    (tmp_path / "7/more/proto.pbtxt").write_text(SPEC_TEXT)
    assert shapes(inspected(tmp_path)) == SPEC
    shutil.rmtree(tmp_path / "7/model")
    (tmp_path / "7/more/proto.pbtxt").write_text(SPEC_TEXT[:-2])
    assert inspected(tmp_path)["tables"] == {}


def test_record_that_shapes_do_not_prove_and_other_devices_stored_is_noted(tmp_path: Path) -> None:
    spec = """stacked_table_specs {
        stack_name: "tags" stack_vocab_size: 256 stack_embedding_dim: 8 num_sparsecores: 32
        table_specs { table_name: "tags" vocab_size: 256 embedding_dim: 8 }
    }"""
    values = {f"tags.{name}": np.zeros((256, 8), "f4") for name in ("table", "slot.accumulator")}
    for chunk_rows, is_noted in ((256, True), (256 // 8, False)):
        root = step(tmp_path / str(chunk_rows), spec, values, chunk_rows=chunk_rows)
        note = inspected(root)["tables"]["tags"]["note"] or ""
        assert ("ids of training prove which it is" in note) is is_noted


BAD_RECORDS: list[tuple[str, int, str]] = [
    (SPEC_TEXT.replace("stack_name", "row_order: 1 stack_name"), 3, "unknown: Stacked"),
    (SPEC_TEXT[:-2], 3, "proto.pbtxt is no layout"),
    (SPEC_TEXT.replace("1000", "-1"), 3, "proto.pbtxt is no layout"),
    (SPEC_TEXT.replace("1920", "3840"), 4, "its variable has 1920"),
]


@pytest.mark.parametrize(("spec", "code", "words"), BAD_RECORDS)
def test_recorded_layout_that_is_damaged_or_contradicts_the_stack_is_rejected(
    spec: str, code: int, words: str, tmp_path: Path
) -> None:
    assert words in rejected(step(tmp_path, spec), code=code)


def test_layout_file_may_repeat_a_record_and_not_contradict_it(tmp_path: Path) -> None:
    root = step(tmp_path)
    same = stack("users_items", rows=503, dim=16, cores=8, offset=128, rotation=4)
    (table,) = inspected(root, *layout_option(tmp_path, {"mine": same}))["tables"].values()
    assert (table["stated"], table["note"]) == (False, None)
    contradiction = layout_option(tmp_path, {"users": same | {"cores": 4, "rotation": 0}})
    assert "contradicts what the checkpoint records" in rejected(root, *contradiction, code=4)


def test_ids_of_training_prove_a_layout_file_against_a_record_of_other_devices(
    tmp_path: Path,
) -> None:
    """A program spread the rows over 16 cores, and copied the record as it was."""
    random = np.random.default_rng(1)
    rows = np.flatnonzero(random.random(1000) < 0.3)
    accumulators = np.full((1920, 16), 0.1, np.float32)
    accumulators[rows % 16 * 120 + rows // 16] += random.random((len(rows), 16), np.float32)
    slot = "embed.embedding_table.value.users_items.slot.accumulator"
    root = step(tmp_path, values=RECORDED | {slot: accumulators})
    (tmp_path / "ids.csv").write_text("\n".join(["id", *map(str, rows)]))
    given_ids = [f"--trained-ids=users={tmp_path / 'ids.csv'}", "--plan", "--json"]
    stated = {"users": stack("users_items", rows=1000, dim=16, cores=16)}
    options = layout_option(tmp_path, stated)
    done = run("tables", root, tmp_path / "out", *options, *given_ids)
    assert done.json["tables"]["users"]["trained_ids"]["decisive"]
    done = run("tables", root, tmp_path / "out", *given_ids)
    assert (done.code, "contradicts the ids of training" in done.message) == (4, True)
