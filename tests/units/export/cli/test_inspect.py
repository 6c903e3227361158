"""The output of `inspect`: tables for people on a terminal, JSON for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from export.checkpoint.inventory.specs import (
    STATED_NOTE,
    Duplicate,
    Inventory,
    RejectedTable,
    SlotSpec,
    TableSpec,
)
from export.checkpoint.layouts import Mod, Plain, SparseCore
from export.checkpoint.variables import Entry, Slice
from export.cli.inspect import inventory_json, inventory_table
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)
from tests.units.export.commands import Command
from tests.units.export.traced_models import TracedCheckpoint

TABLE = np.zeros((8, 3), np.float32)


def test_inspect_lists_every_variable_once_and_what_is_left_out(
    command: Command, tmp_path: Path
) -> None:
    graph = object_graph(
        node({"e": 1, "w": 6}),
        node({"_variables": 2}),
        node({"items[1]": 3}),
        node({"parameters": 4, "accumulators": 5}),
        *(node(key=name + SUFFIX) for name in ("e/t", "e/t.Sa", "w")),
    )
    variables: dict[str, Any] = {name + SUFFIX: TABLE for name in ("e/t", "e/t.Sa", "w")}
    write_bundle(tmp_path / "ckpt-7", variables | {GRAPH: graph})
    page = command("inspect", tmp_path, "--json").json
    keys = [
        block["key"]
        for part in (page["tables"].values(), page["slots"], page["dense"])
        for block in part
    ]
    assert sorted(keys) == sorted(variables)
    assert (
        page["tables"]["items[1]"] | {"slots": ["accumulators"], "bytes": 96}
        == page["tables"]["items[1]"]
    )
    assert (page["candidates"], page["slot_bytes"]) == (["w" + SUFFIX], 96)
    text = command("inspect", tmp_path).out
    for part in (
        "ckpt-7",
        "items[1]",
        "TPUEmbedding",
        "plain",
        "left out: 1 optimizer variable, which saves 96 B",
    ):
        assert part in text
    assert "might be tables (1); --table NAME=KEY names one" in text
    assert "\n  w    " in text


def test_inspect_names_what_an_optimizer_trains_by_its_layer(
    command: Command, tmp_path: Path
) -> None:
    key = f"model/optimizer/_trainable_variables/0{SUFFIX}"  # as short as the path by the layers
    graph = object_graph(
        node({"model": 1}),
        node({"optimizer": 2, "pool": 3}),
        node({"_iterations": 6, "_trainable_variables": 4}),
        node({"block": 7}),
        node({"0": 5}),
        node(key=key),
        node(key=f"model/optimizer/_iterations{SUFFIX}"),
        node({"_kernel": 5}),
    )
    iterations = np.array(3, np.int64)
    variables: dict[str, Any] = {
        key: TABLE,
        f"model/optimizer/_iterations{SUFFIX}": iterations,
        GRAPH: graph,
    }
    write_bundle(tmp_path / "ckpt-1", variables)

    text = command("inspect", tmp_path).out
    named = command("inspect", tmp_path, "--table", "t=model.pool.block._kernel", "--json").json

    assert "model.pool.block._kernel  " in text
    assert "_trainable_variables" not in text
    assert "model/optimizer/_iterations  " in text
    assert named["tables"]["t"]["key"] == key


def test_inspect_tells_how_a_table_is_stored(command: Command, tmp_path: Path) -> None:
    write_bundle(
        tmp_path / "c",
        {"stack": np.zeros((4 * 40, 8), np.float32), "plain/embeddings": TABLE},
        boxes={"stack": [[(0, 80), (0, 8)], [(80, 80), (0, 8)]]},
        files=2,
    )
    items = {"key": "stack", "kind": "sparse_core", "rows": 100, "dim": 6, "cores": 4}
    layout = tmp_path / "layout.json"
    layout.write_text(json.dumps({"tables": {"items": items | {"offset": 8, "rotation": 2}}}))

    page = command("inspect", tmp_path / "c", "--layout", layout, "--json").json

    stacked = {"kind": "sparse_core", "cores": 4, "core_rows": 40, "offset": 8, "rotation": 2}
    items_page = page["tables"]["items"]
    assert items_page["layout"] == stacked
    assert (items_page["rows"], items_page["dim"], items_page["slices"]) == (100, 6, 2)
    assert items_page["note"] == STATED_NOTE
    plain = page["tables"]["plain"]
    assert (plain["layout"], plain["slots"]) == ({"kind": "plain"}, [])
    assert (plain["note"], plain["keys"]) == (None, None)
    output = " ".join(command("inspect", tmp_path / "c", "--layout", layout).out.split())
    assert "sparse core 4 x 40, offset 8, rotation 2" in output
    assert f"note: table items: {STATED_NOTE}" in output


def test_inspect_of_a_checkpoint_without_a_data_file_lists_its_tables_and_exits_3(
    command: Command, tmp_path: Path
) -> None:
    variables: dict[str, Any] = {
        "user/embeddings": TABLE,
        "item/embeddings": TABLE,
        "global_step": np.array(5),
    }
    write_bundle(tmp_path / "c", variables, files=3)
    whole = command("inspect", tmp_path / "c", "--json").json
    assert (whole["complete"], whole["problems"], whole["step"]) == (True, [], 5)
    (tmp_path / "c.data-00000-of-00003").unlink()
    done = command("inspect", tmp_path / "c", "--json")
    page = json.loads(done.out)
    assert (done.code, page["complete"], set(page["tables"])) == (3, False, {"user", "item"})
    assert "c.data-00000-of-00003 cannot be read: No such file" in done.message
    assert "incomplete: data file" in command("inspect", tmp_path / "c").out


def test_inspect_lists_tables_and_imports_no_tensorflow(movies: TracedCheckpoint) -> None:
    program = (
        "import sys, export.cli.main\n"
        f"sys.argv = ['rowcast-export', 'inspect', {str(movies.prefix)!r}, '--json']\n"
        "try: export.cli.main.main()\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    page = json.loads(done.stdout)
    assert {name: (table["rows"], table["dim"]) for name, table in page["tables"].items()} == {
        "users": (50, 8),
        "movies": (40, 8),
        "hours": (24, 4),
        "genres/all": (9, 4),
    }
    assert done.stderr == ""


def table(name: str, rows: int = 3, **changes: Any) -> TableSpec:
    spec = TableSpec(
        name, f"{name}/k", rows, 2, "float32", Plain(), (rows, 2), "named", "", 1, 1, 8 * rows
    )
    return replace(spec, **changes)


def inventory(**parts: Any) -> Inventory:
    fields: dict[str, Any] = {"tables": (), "rejected": (), "slots": (), "dense": ()}
    return Inventory("ckpt-7", "crc32c:0", True, 7, **(fields | parts))


def lines_of(contents: Inventory, problems: tuple[str, ...] = ()) -> list[str]:
    """Returns the lines that a terminal shows, without the frames of tables."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(inventory_table(contents, problems))
    lines = (" ".join(line.replace("│", " ").split()) for line in captured.get().splitlines())
    return [line for line in lines if line and set(line) != {"─"}]


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        ({}, "checkpoint ckpt-7, step 7, saved as objects, crc32c:0"),
        ({"step": 0}, "checkpoint ckpt-7, step 0, saved as objects, crc32c:0"),
        ({"step": None}, "checkpoint ckpt-7, no step recorded, saved as objects, crc32c:0"),
        ({"objects": False}, "checkpoint ckpt-7, step 7, saved by names, crc32c:0"),
        ({"storage": "Orbax"}, "checkpoint ckpt-7, step 7, saved by Orbax, crc32c:0"),
    ],
)
def test_report_begins_with_what_saved_the_checkpoint(parts: dict[str, Any], first: str) -> None:
    assert lines_of(replace(inventory(), **parts)) == [
        first,
        "all data files are there",
        "no table is recognized",
    ]


def test_report_tells_every_part_of_an_inventory() -> None:
    slots = tuple(SlotSpec(name, f"a/{name}", "a/k", 24) for name in ("m", "v"))
    cores = SparseCore(8, 240, 0, 0)
    contents = inventory(
        tables=(
            table("a", slots=slots, note="seen"),
            table("b[/]", slices=3, files=2, layout=Mod((0, 2))),
            table("c", layout=cores),
            table("d", layout=replace(cores, offset=16)),
            table("e", layout=replace(cores, rotation=4)),
        ),
        rejected=(RejectedTable("x", "x/k", "it has three axes"),),
        slots=slots[:1],
        dense=(
            Entry("bias", "float32", (9,), (Slice("f", 0, 36, 0, (0,), (9,)),)),
            Entry("kernel", "float32", (4, 2), (Slice("f", 0, 32, 0, (0, 0), (4, 2)),)),
            Entry("wide", "int64", (90,), (Slice("f", 0, 720, 0, (0,), (90,)),)),
        ),
        duplicates=(Duplicate("copy", "a/k", 24),),
    )
    assert lines_of(contents, ("file f is gone",)) == [
        "checkpoint ckpt-7, step 7, saved as objects, crc32c:0",
        "incomplete: file f is gone",
        "tables",
        "table rows dim dtype size layout slices slots origin",
        "a 3 2 float32 24 B plain 1 m, v named",
        "b[/] 3 2 float32 24 B mod 2 3 in 2 files named",
        "c 3 2 float32 24 B sparse core 8 x 240 1 named",
        "d 3 2 float32 24 B sparse core 8 x 240, offset 16, rotation 0 1 named",
        "e 3 2 float32 24 B sparse core 8 x 240, offset 0, rotation 4 1 named",
        "stored twice, read once: copy is a/k",
        "note: table a: seen",
        "not exported: x: it has three axes",
        "left out: 1 optimizer variable, which saves 24 B",
        "might be tables (1); --table NAME=KEY names one",
        "variable shape dtype size",
        "kernel [4, 2] float32 32 B",
        "other variables (2)",
        "variable shape dtype size",
        "wide [90] int64 720 B",
        "bias [9] float32 36 B",
    ]
    page = inventory_json(contents, ["file f is gone"])
    assert (page["complete"], page["saved_by"], page["candidates"]) == (
        False,
        "objects",
        ["kernel"],
    )
    assert page["slots"] == [{"name": "m", "key": "a/m", "of": "a/k", "bytes": 24}]
    assert page["tables"]["a"] == {
        "key": "a/k",
        "rows": 3,
        "dim": 2,
        "dtype": "float32",
        "layout": {"kind": "plain"},
        "stored": (3, 2),
        "origin": "named",
        "path": "",
        "slices": 1,
        "files": 1,
        "bytes": 24,
        "slots": ["m", "v"],
        "note": "seen",
        "combiner": None,
        "keys": None,
        "stated": False,
    }
    keyed = inventory_json(inventory(tables=(table("a", keys="ids"),)))
    assert keyed["tables"]["a"]["keys"] == "ids"
    assert inventory_json(replace(contents, objects=False))["saved_by"] == "names"
    assert inventory_json(contents)["complete"]


def test_report_lists_the_largest_of_many_tables_and_some_of_many_lines() -> None:
    tables = tuple(table(f"t{number:03}", number + 1, note="n") for number in range(101))
    lines = lines_of(inventory(tables=tables))
    assert "tables (101), the largest" in lines
    listed = [line.split()[0] for line in lines if line.startswith("t") and line[1:4].isdigit()]
    assert listed == [spec.name for spec in tables[1:]]
    notes = [f"note: table t{number:03}: n" for number in range(20)]
    position = lines.index(notes[0])
    assert lines[position : position + 21] == [*notes, "... and 81 more; --json lists all"]

    lines = lines_of(inventory(tables=tables[:100]))
    assert "tables" in lines
    lines = lines_of(inventory(tables=tables[:20]))
    assert not [line for line in lines if line.startswith("...")]


@pytest.mark.parametrize(
    ("count", "title"),
    [(20, "other variables (20)"), (21, "other variables (21), the first 20; --json lists all")],
)
def test_report_lists_some_of_many_variables(count: int, title: str) -> None:
    part = Slice("f", 0, 36, 0, (0,), (9,))
    dense = tuple(Entry(f"v{number:02}", "float32", (9,), (part,)) for number in range(count))
    lines = lines_of(inventory(dense=dense))
    position = lines.index(title)
    assert [line.split()[0] for line in lines[position + 2 :]] == [
        entry.key for entry in dense[:20]
    ]
